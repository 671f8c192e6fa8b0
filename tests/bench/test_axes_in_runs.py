"""Axes that ask something of the engine, in whole runs: what they read is there, and it does what it says."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.axes.batch import Batch
from bench import checkpoint
from bench.config import Run
from bench.train import Job, execute, set_up

MakeRun = Callable[..., Run]


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def steps(job: Job) -> list[dict[str, Any]]:
    job.learner.prepare()
    return list(job.learner.advance())


@pytest.mark.parametrize("warmup", [1, 2, 3])
def test_a_critic_warms_up_for_exactly_n_updates(warmup: int, tiny_run: MakeRun, tmp_path: Path) -> None:
    """The policy stands still for N updates and moves at N + 1; the critic moves from the first."""
    job = set_up(tiny_run("ppo", **{"critic.warmup_updates": warmup}), tmp_path, attempt=1)
    job.learner.prepare()
    cast = job.learner.cast
    assert cast.critic is not None
    seen = [(checkpoint.weights_digest(cast.policy.network), cast.critic.head.weight.detach().clone())]
    while cast.progress.update < 4:
        for record in job.learner.advance():
            seen.append((checkpoint.weights_digest(cast.policy.network), cast.critic.head.weight.detach().clone()))
            assert ("grad_norm" in record) == (record["update"] > warmup)
            assert "value/loss" in record
    policies, heads = zip(*seen, strict=True)
    assert [new != old for old, new in pairwise(policies)] == [update > warmup for update in (1, 2, 3, 4)]
    assert all(not torch.equal(old, new) for old, new in pairwise(heads))


@pytest.mark.slow
def test_a_bonus_keeps_entropy_up(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The same run with and without: a large coefficient leaves the policy more diffuse; -H enters the loss."""
    last = {}
    for name, knobs in (
        ("plain", {}),
        ("bonus", {"objective.bonus.kind": "entropy_bonus", "objective.bonus.coefficient": 1.0}),
    ):
        assert execute(tiny_run("dr_grpo", **knobs), tmp_path / name).state == "finished"
        last[name] = lines(tmp_path / name)
    first = [run[1] for run in last.values()]
    assert first[0]["entropy"] == pytest.approx(first[1]["entropy"], abs=1e-6)
    assert first[1]["loss"] == pytest.approx(first[0]["loss"] - first[0]["entropy"], abs=1e-4)
    assert last["bonus"][-1]["entropy"] > last["plain"][-1]["entropy"] + 0.005


@pytest.mark.parametrize("updates", [1, 2])
def test_the_tokens_with_the_highest_entropy_are_trained_on(updates: int, tiny_run: MakeRun, tmp_path: Path) -> None:
    """Rollout-time entropies are there, also where one update a rollout would need no pass for the old policy."""
    knobs = {
        "objective.focus.kind": "top_entropy_tokens", "objective.focus.share": 0.3,
        "objective.focus.count_dropped": True,
        "rollout.updates_per_rollout": updates,
    }  # fmt: skip
    run = tiny_run("dr_grpo", **knobs)
    job = set_up(run, tmp_path / "run", attempt=1)
    seen: list[Batch] = []
    original = type(run.objective).loss

    def recorded(self: Any, batch: Batch, totals: Any) -> Any:
        seen.append(batch)
        return original(self, batch, totals)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(run.objective), "loss", recorded)
        records = steps(job)
    weights = torch.cat([batch.weight[batch.mask] for batch in seen if batch.weight is not None])
    assert set(weights.tolist()) == {0.0, 1.0}
    assert (
        0.3 <= float(weights.mean()) < 0.5
    )  # a group's first tokens have one distribution, and ties are kept together
    assert records[0]["ratio/max"] == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
def test_a_cut_completion_goes_on_with_the_critics_value(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Budget of two tokens: most completions are cut. With gamma = lambda = 1 the targets of a cut one are R + V'."""
    knobs = {"objective.advantage.truncation_bootstrap": True, "rollout.max_completion_tokens": 2}
    job = set_up(tiny_run("ppo", **knobs), tmp_path, attempt=1)
    cast = job.learner.cast
    assert cast.critic is not None
    torch.nn.init.constant_(cast.critic.head.weight, 0.05)
    seen: list[tuple[Any, Any]] = []
    objective = job.run.objective
    original = type(objective).credit

    def recorded(self: Any, rollout: Any) -> Any:
        seen.append((rollout, original(self, rollout)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(objective), "credit", recorded)
        patch.setattr(type(objective.penalty), "token_reward", lambda self, rollout: torch.zeros_like(rollout.old_logp))
        steps(job)
    (rollout, credit), *_ = seen
    cut = ~rollout.terminated
    assert bool(cut.any())
    assert rollout.next_value is not None
    expected = rollout.reward + torch.where(cut, rollout.next_value.double(), 0.0)
    assert credit.returns is not None
    torch.testing.assert_close(credit.returns[:, 0].double(), expected, atol=1e-5, rtol=0)
    assert float(rollout.next_value[cut].abs().min()) > 1e-4


def test_a_correction_with_the_built_in_sampler_is_nearly_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    """One machine, one precision: the weights differ from 1 by rounding, and the run ends as without them."""
    knobs = {"objective.mismatch.kind": "token_truncate", "rollout.updates_per_rollout": 1}
    assert execute(tiny_run("dr_grpo", **knobs), tmp_path / "run").state == "finished"
    first = lines(tmp_path / "run")[1]
    assert first["is_weight/min"] == pytest.approx(1, abs=1e-4)
    assert first["is_weight/max"] == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_shaping_is_seen_in_the_log(tiny_run: MakeRun, tmp_path: Path) -> None:
    """OBJ-46: one over-long completion costs; the shaped mean is the raw one plus the mean penalty."""
    knobs = {
        "objective.shaping.kind": "missing_eos",
        "objective.shaping.penalty": 0.5,
        "rollout.max_completion_tokens": 2,
    }
    assert execute(tiny_run("dr_grpo", **knobs), tmp_path / "run").state == "finished"
    first = lines(tmp_path / "run")[1]
    assert first["len/clipped_frac"] > 0
    assert first["reward/shaping"] == pytest.approx(-0.5 * first["len/clipped_frac"], abs=1e-9)
    assert first["reward/shaped_mean"] == pytest.approx(
        first["reward/mean"] - 0.5 * first["len/clipped_frac"], abs=1e-9
    )
