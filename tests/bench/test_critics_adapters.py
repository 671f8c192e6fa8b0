"""A critic that trains an adapter: over a copy, over the policy's own base, and over another model."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import checkpoint
from bench.config import Run
from bench.dialect import ConfigError
from bench.loading import build_run, nested
from bench.train import execute, set_up

LORA = {"rank": 2, "alpha": 4.0}
SMALL: Mapping[str, Any] = {
    "kind": "tiny", "hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48, "max_positions": 16,
}  # fmt: skip
PLAIN: Mapping[str, Any] = {
    "algorithm": "ppo",
    "task": {"name": "chain_sum", "num_terms": 2, "num_digits": 1},
    "model": SMALL,
    "reward": {"format": 1.0},
    "rollout": {"prompts": 4, "group_size": 4, "max_completion_tokens": 6},
    "optimizer": {"lr": 1e-2},
    "critic": {"lr": 1e-2, "head_init": "normal_reward"},
    "budget": {"updates": 3},
    "evaluation": {"problems": 2, "samples": 2, "ks": [1], "start": False},
    "meter": {"every": 1},
    "checkpoint": {"every": 1},
    "tracking": {"enabled": False},
}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "copy": {"critic.adapter": LORA},
    "base shared with the policy": {"critic.adapter": LORA, "adapter": {"rank": 4}},
    "another model": {"critic.kind": "model", "critic.model": {**SMALL, "num_layers": 1}, "critic.adapter": LORA},
}


def made(way: str, folder: Path, **knobs: Any) -> Run:
    output = {"output": {"root": str(folder), "cache": str(folder / "cache")}}
    return build_run(PLAIN, output, nested({**WAYS[way], **knobs}))


@pytest.mark.parametrize("way", WAYS)
def test_the_adapter_and_the_head_are_trained_and_nothing_else(way: str, tmp_path: Path) -> None:
    job = set_up(made(way, tmp_path), tmp_path / "run", attempt=1)
    critic, optimizer = job.learner.cast.critic, job.learner.cast.critic_optimizer
    assert critic is not None
    assert optimizer is not None
    before = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    list(job.learner.advance())
    list(job.learner.advance())
    moved = {name for name, tensor in critic.state_dict().items() if not torch.equal(tensor, before[name])}
    own = {name for name in before if "lora_" in name} | {"head.weight"}
    assert moved == own
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == sum(
        before[name].numel() for name in own
    )


def test_two_adapters_over_one_base_hold_it_once(tmp_path: Path) -> None:
    job = set_up(made("base shared with the policy", tmp_path), tmp_path / "run", attempt=1)
    critic = job.learner.cast.critic
    assert critic is not None
    policy = {p.data_ptr() for p in job.policy.network.parameters()}
    apart = {name for name, p in critic.named_parameters() if p.data_ptr() not in policy}
    assert apart == {name for name, p in critic.named_parameters() if p.requires_grad}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_ends_as_an_undisturbed_one(
    way: str, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    run = made(way, tmp_path)
    assert execute(run, tmp_path / "straight").state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    assert execute(run, tmp_path / "stopped").state == "finished"
    for name in ("metrics.jsonl", "final.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()
    memory = json.loads((tmp_path / "straight/memory.json").read_text())["peak"]["roles"]
    if way == "base shared with the policy":
        assert memory["critic"] < memory["policy"] / 2
    elif way == "copy":
        assert memory["critic"] > memory["policy"]


def test_fsdp_and_a_critics_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        made("copy", tmp_path, **{"parallel.processes": 2, "parallel.strategy": "fsdp", "meter.every": 0})
    assert any(line.startswith("parallel.strategy: fsdp given with critic.adapter") for line in refused.value.lines)
