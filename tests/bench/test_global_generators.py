"""REP-06: whatever is made or trained draws from streams of its own; the caller's generators stay where they are."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.critics import make_critic
from bench.generate import sample
from bench.instruments import Instruments
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny, load_folder, save_folder
from bench.rollout import Sampler
from bench.train import execute

MakeRun = Callable[..., Run]


def draws() -> tuple[float, float, float]:
    """The next number of each global generator."""
    return float(torch.rand(())), float(np.random.random()), random.random()


def expected() -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Two draws in a row from a known state, which is then put back to that before the second."""
    torch.manual_seed(11)
    np.random.seed(11)
    random.seed(11)
    first = draws()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    second = draws()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    return first, second


def test_models_and_critics_leave_the_global_generators_alone(tiny_run: MakeRun, tmp_path: Path) -> None:
    model = tiny_run("grpo").model
    assert isinstance(model, TinyModel)
    drawn = {"critic.head_init": "normal_reward"}
    critics: list[dict[str, Any]] = [
        {},
        {"critic.kind": "mlp"},
        {"critic.kind": "model", "critic.model": model.model_dump()},
    ]
    runs = [tiny_run("ppo", **drawn, **knobs) for knobs in critics]
    first, second = expected()
    made = create_tiny(model, "0123456789+=", 0)
    for run in runs:
        make_critic(run, made)
    save_folder(made, tmp_path / "model")
    load_folder(tmp_path / "model", "plain")
    assert draws() == second != first


@pytest.fixture
def unseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own generator may not be seeded. It is drawn from in tests alone: by the checker of types."""

    def refuse(*arguments: object, **knobs: object) -> None:
        raise AssertionError("the caller's generator was seeded")

    for name in ("seed", "setstate"):
        monkeypatch.setattr(random, name, refuse)


@pytest.mark.parametrize("algorithm", ["ppo", "dapo", "dpo", "sft"])
def test_learners_leave_the_global_generators_alone(
    algorithm: str, tiny_run: MakeRun, request: pytest.FixtureRequest
) -> None:
    """Made, prepared, and advanced: with samples, shuffles and optimizer steps."""
    cold: dict[str, Any] = {
        "warm_start": None, "validation.every": 0, "validation.problems": 100, "validation.samples": 4,
    }  # fmt: skip
    loose: dict[str, dict[str, Any]] = {
        "dapo": {"objective.selection.max_rounds": 1, "objective.selection.on_exhausted": "pad_with_uniform"},
        "dpo": {"reward.format": 1.0, "objective.pairing.require_termination": False},
    }
    run = tiny_run(algorithm, **cold, **loose.get(algorithm, {}))
    assert isinstance(run.model, TinyModel)
    model = create_tiny(run.model, run.task.alphabet, 0)
    _, second = expected()
    request.getfixturevalue("unseeded")
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    learner = make_learner(run, make_cast(run, model), Sampler(run, run.task, sample, instruments), instruments)
    learner.prepare()
    assert len(list(learner.advance())) == learner.updates_per_advance
    assert draws()[:2] == second[:2]


def test_a_whole_run_leaves_the_global_generators_alone(
    tiny_run: MakeRun, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = tiny_run("grpo", **{"checkpoint.every": 2})
    _, second = expected()
    request.getfixturevalue("unseeded")
    assert execute(run, tmp_path / "run").state == "finished"
    assert draws()[:2] == second[:2]
