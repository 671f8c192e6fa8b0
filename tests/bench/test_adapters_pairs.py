"""Preference pairs with a trained adapter: what they are measured against."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.adapted_weights import adapter_parameters
from bench.adapter_files import save_adapter
from bench.adapters import adapted
from bench.casting import make_cast
from bench.config import Run, TinyModel
from bench.config_adapter import Lora
from bench.contributions import contributions
from bench.generate import Completion
from bench.instruments import Instruments
from bench.loading import build_run, nested
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny
from bench.prepare import starting_model
from bench.rollout import Graded, Group
from tasks.parts.problem import Grade, Problem

BASE = TinyModel(hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64)


def run_of(**knobs: Any) -> Run:
    small = {"rollout.prompts": 2, "rollout.group_size": 2, "rollout.max_completion_tokens": 4, "budget.updates": 2}
    model = {f"model.{name}": value for name, value in BASE.model_dump().items()}
    layer = {**small, **model, "optimizer.lr": 1e-3, "adapter.kind": "lora", **knobs}
    return build_run({"algorithm": "dpo", "task": "chain_sum"}, nested(layer))


def right_and_wrong() -> Group:
    members: list[Graded] = []
    for right, ids in ((True, (5, 1)), (False, (6, 1))):
        grade = Grade(correct=right, answer_key=None, method="end", parsed=True, truncated=False)
        members.append(Graded(Completion(ids, True, (-1.0, -1.0)), "", grade, float(right), right))
    return Group(Problem(id="p/0", prompt="", gold=""), (3, 4), tuple(members))


def test_gradients_on_pairs_are_measured_against_the_reference_that_the_run_asks_for(tmp_path: Path) -> None:
    """Against the policy itself the loss of a pair is log 2; against the base the trained adapter shows."""
    network = adapted(create_tiny(BASE, run_of().alphabet, 0).network, Lora(rank=4), 0, "policy")
    with torch.no_grad():
        for parameter in adapter_parameters(network).values():
            parameter.add_(0.3)
    save_adapter(network, tmp_path / "adapter")
    losses: dict[str, float] = {}
    for choice in ("start", "base"):
        run = run_of(**{"adapter.path": str(tmp_path / "adapter"), "adapter.reference": choice})
        cast = make_cast(run, starting_model(run).model)
        ((share,),) = contributions(run, cast, [right_and_wrong()], Instruments(PhaseClock(), MemoryMeter("cpu")))
        losses[choice] = share().loss.item()
    assert losses["start"] == pytest.approx(math.log(2), abs=1e-6)
    assert abs(losses["base"] - math.log(2)) > 1e-3
