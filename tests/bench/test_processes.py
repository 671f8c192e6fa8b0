"""What one process can show of several: how work is split, what is refused, and that a step counts its own tokens."""

import signal
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import processes, stopping
from bench.config import Run
from bench.dialect import ConfigError
from bench.launch import membership
from bench.learn_online import OnlineLearner, Step
from bench.learner import microbatches
from bench.policy import Sequences
from bench.rollout import Collected, sequences_of
from bench.train import set_up

MakeRun = Callable[..., Run]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([5, 5, 2], [[0, 2], [1]]),  # 7 and 5, not 5 and 7 by turns
        ([1, 9, 1, 1], [[1], [0, 2, 3]]),
        ([4], [[0], []]),
        ([0, 0, 0], [[0, 2], [1]]),
    ],
)
def test_passes_are_split_by_cost_and_each_is_one_ranks(costs: list[int], expected: list[list[int]]) -> None:
    assert processes.shares(costs, 2) == expected


def test_one_process_joins_nothing_and_keeps_everything() -> None:
    with processes.joined(1, "cpu"):
        assert (processes.count(), processes.rank(), processes.is_main()) == (1, 0, True)
        assert processes.mine([1, 2, 3]) == [1, 2, 3]
        assert processes.share(["a", "b"], [1, 2], even=True) == [("a", True), ("b", True)]


def test_strategies_that_could_not_act_or_measure_are_refused(tiny_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match=r"parallel.strategy: fsdp given, but .*parallel.processes is 1"):
        tiny_run("grpo", **{"parallel.strategy": "fsdp"})
    with pytest.raises(ConfigError, match=r"meter.every: 2 given, must be 0 with parallel.strategy=fsdp"):
        tiny_run("grpo", **{"parallel.strategy": "fsdp", "parallel.processes": 2})


def test_the_launchers_number_of_processes_is_the_knob(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run("grpo")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    joined, member = membership(run)
    assert (joined.parallel.processes, member and member.rank) == (2, 1)
    assert joined.id != run.id
    assert joined.id == tiny_run("grpo", **{"parallel.processes": 2}).id
    with pytest.raises(ConfigError, match=r"parallel.processes: 4 given, but .* one of WORLD_SIZE=2"):
        membership(tiny_run("grpo", **{"parallel.processes": 4}))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "abc"}, "no launcher's"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "no launcher's"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "no MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_half_a_launchers_environment_is_a_mistake(
    environment: dict[str, str], said: str, tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        membership(tiny_run("grpo"))


@pytest.mark.parametrize("environment", [{"RANK": "5"}, {"RANK": "1", "WORLD_SIZE": "1"}])
def test_a_stray_rank_leaves_a_run_its_files(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert processes.is_main()


def test_every_process_has_a_microbatch_of_an_update(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within any limits; one of them alone would leave the others without work."""
    sequences = Sequences.of([[5]] * 8, [[4, 2]] * 8, 0)
    config = tiny_run("grpo", **{"optimizer.microbatch_sequences": 128}).optimizer
    for ranks in (1, 2, 3):
        monkeypatch.setattr(processes, "count", lambda ranks=ranks: ranks)
        assert len(microbatches(range(8), sequences, config, packed=True)) == ranks


def online(run: Run, folder: Path) -> OnlineLearner:
    learner = set_up(run, folder, 1).learner
    assert isinstance(learner, OnlineLearner)
    return learner


def test_dst_04_a_step_with_fewer_microbatches_is_normalised_by_its_own_tokens(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    """Ten microbatches in three steps, planned as 4, 3 and 3 and taken as 4, 4 and 2, under a mean over tokens: loss,
    gradient and learning rate of each step are those of its rows in one piece. At so low a learning rate ratios stay 1,
    so the loss is known: minus the sum of the advantages, which are drawn, over the tokens of the step's rows."""
    rollout = {"rollout.prompts": 12, "rollout.group_size": 4, "rollout.updates_per_rollout": 3}
    optimizer = {"optimizer.microbatch_sequences": 4, "optimizer.schedule": "linear", "optimizer.lr": 1e-7}
    run = tiny_run("dapo", **rollout, **optimizer, **{"budget.updates": 3, "evaluation.start": False})
    cut, whole = online(run, tmp_path / "cut"), online(run, tmp_path / "whole")
    groups = cut.sampler.groups(cut.cast.policy, cut.stream.round(0), 0)[:10]
    collected, sequences = Collected(groups, groups, 1), sequences_of(groups, cut.cast.policy.pad_id)
    plan = cut._plan(collected, sequences)
    assert [len(step.parts) for step in plan] == [4, 3, 3]
    parts = [part for step in plan for part in step.parts]
    plan = [Step(0, [row for part in own for row in part], own) for own in (parts[:4], parts[4:8], parts[8:])]
    assert len(set(sequences.lengths)) > 1
    advantage = torch.rand(sequences.mask.shape, generator=torch.Generator().manual_seed(0)) * sequences.mask
    records = []
    for learner, steps in ((cut, plan), (whole, [Step(step.epoch, step.rows, [step.rows]) for step in plan])):
        scored = learner._rollout(collected, sequences, plan)
        credit = replace(learner.objective.credit(scored), advantage=advantage)
        records.append([learner._update(step, sequences, scored, credit, None) for step in steps])
    assert [record["lr"] for record in records[0]] == pytest.approx([1e-7, 1e-7 * 2 / 3, 1e-7 / 3])
    trained = 0
    for step, own, other in zip(plan, *records, strict=True):
        tokens = sum(sequences.lengths[row] for row in step.rows)
        trained += tokens
        assert own["tokens/trained"] == trained
        assert own["loss"] == pytest.approx(-float(advantage[step.rows].sum()) / tokens, rel=1e-4)
        assert own["grad_norm"] > 1e-3
        assert {name: own[name] for name in ("loss", "grad_norm")} == pytest.approx(
            {name: other[name] for name in ("loss", "grad_norm")}, rel=1e-4, abs=1e-6
        )


def test_a_request_to_stop_that_python_swallows_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrives while an object's end is being told: the exception is ignored there."""
    monkeypatch.setattr(stopping, "_SECONDS_UNTIL_AGAIN", 0.02)
    thing = {1}
    told = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    stopped = False
    try:
        with stopping.stoppable():
            del thing
            time.sleep(5)
    except stopping.Interrupted:
        stopped = True
    assert (stopped, told(), len(ignored)) == (True, None, 1)
