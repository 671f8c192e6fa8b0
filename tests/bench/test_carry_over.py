"""Surplus groups of dynamic sampling: kept for the next rollout, counted once, and not lost by a kill."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.axes.selection import DropUniformGroups
from bench import checkpoint
from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.generate import Completion, sample
from bench.instruments import Instruments
from bench.learner import Cast
from bench.loading import ConfigError
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, create_tiny
from bench.rollout import Group, NothingToLearn, PromptStream, Sampler
from bench.train import execute

MakeRun = Callable[..., Run]
COLD: dict[str, Any] = {"warm_start": None, "validation.every": 0, "validation.problems": 100, "validation.samples": 4}
CARRY: dict[str, Any] = {"objective.selection.surplus": "carry_over", "rollout.old_logp": "sampler"}
SMALL: dict[str, Any] = {"rollout.prompts": 4, "rollout.group_size": 4}


class Scripted:
    """An engine that answers each problem with its right sum or with "0", as a script of groups says."""

    def __init__(self, informative: Sequence[Sequence[bool]]) -> None:
        self.informative, self.round = informative, -1

    def __call__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
    ) -> list[list[Completion]]:
        self.round += 1
        groups: list[list[Completion]] = []
        for prompt, own, mixed in zip(prompts, keys, self.informative[self.round], strict=True):
            left, right = model.decode(prompt).rstrip("=").split("+")
            texts = [str(int(left) + int(right)) if mixed and i == 0 else "0" for i in range(len(own))]
            tokens = [tuple(model.encode_completion(text)) for text in texts]
            # The round stands in the log-probabilities, so that a group's age can be told.
            groups.append([Completion(ids, True, tuple(-1.0 - self.round for _ in ids)) for ids in tokens])
        return groups


def cast_of(run: Run) -> Cast:
    assert isinstance(run.model, TinyModel)
    return make_cast(run, create_tiny(run.model, run.task.alphabet, 0))


def scripted(run: Run, informative: Sequence[Sequence[bool]]) -> tuple[Sampler, Cast, Instruments]:
    cast = cast_of(run)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    return Sampler(run, run.task, Scripted(informative), instruments), cast, instruments


def ids(groups: Sequence[Group]) -> list[str]:
    return [group.problem.id for group in groups]


ALL, NONE, TWO, THREE = [True] * 4, [False] * 4, [True, True, False, False], [True, True, True, False]


def test_surplus_groups_are_trained_on_first_in_the_next_rollout(tiny_run: MakeRun) -> None:
    """Two of round 0 and two of round 1 fill the batch; the third of round 1 opens the next rollout."""
    run = tiny_run("dapo", **COLD, **CARRY, **SMALL)
    sampler, cast, _ = scripted(run, [TWO, THREE, NONE, ALL])
    stream, selection = PromptStream(run.task, run.seed, 4), run.objective.selection  # type: ignore[union-attr]
    problems = [[p.id for p in stream.round(index)] for index in range(4)]
    first = sampler.collect(cast.policy, stream, 0, selection)
    assert ids(first.groups) == [*problems[0][:2], *problems[1][:2]]
    assert ids(first.surplus) == problems[1][2:3]
    assert (first.carried, first.rounds, len(first.sampled)) == (0, 2, 8)
    second = sampler.collect(cast.policy, stream, 2, selection, first.surplus)
    assert ids(second.groups) == [*problems[1][2:3], *problems[3][:3]]
    assert ids(second.surplus) == problems[3][3:]
    assert (second.carried, second.rounds) == (1, 2)
    assert ids(second.sampled) == [*problems[2], *problems[3]], "what is carried was counted when it was sampled"


def test_discarded_surplus_is_gone(tiny_run: MakeRun) -> None:
    run = tiny_run("dapo", **COLD, **SMALL)
    sampler, cast, _ = scripted(run, [THREE, ALL])
    found = sampler.collect(cast.policy, PromptStream(run.task, 0, 4), 0, DropUniformGroups())
    assert (len(found.groups), found.surplus) == (4, ())


def test_an_exhausted_rollout_counts_carried_groups_as_found_and_not_as_sampled(tiny_run: MakeRun) -> None:
    run = tiny_run("dapo", **COLD, **CARRY, **SMALL, **{"objective.selection.max_rounds": 1})
    sampler, cast, _ = scripted(run, [TWO, ALL, NONE])
    stream, selection = PromptStream(run.task, 0, 4), run.objective.selection  # type: ignore[union-attr]
    carried = sampler.collect(cast.policy, stream, 0, DropUniformGroups(max_rounds=2, surplus="carry_over")).surplus
    assert len(carried) == 2
    with pytest.raises(
        NothingToLearn, match=r"found 2 of 4 groups .* in 1 rounds \(4 groups sampled; .* 4 \(100%\) all wrong"
    ):
        sampler.collect(cast.policy, stream, 2, selection, carried)


def test_a_carried_group_keeps_the_log_probabilities_it_was_sampled_with(tiny_run: MakeRun) -> None:
    """Through the learner: ratios are against the sampler's log-probabilities of the round that drew each group."""
    run = tiny_run("dapo", **COLD, **CARRY, **SMALL, **{"rollout.updates_per_rollout": 1, "budget.updates": 2})
    sampler, cast, instruments = scripted(run, [TWO, THREE, ALL])
    learner = make_learner(run, cast, sampler, instruments)
    seen: list[torch.Tensor] = []
    original = run.objective.credit  # type: ignore[union-attr]

    def credit(rollout: Any) -> Any:
        seen.append(rollout.old_logp[::4, 0])
        return original(rollout)

    object.__setattr__(run.objective, "credit", credit)
    first, second = (next(learner.advance()) for _ in range(2))
    assert [logps.tolist() for logps in seen] == [[-1, -1, -2, -2], [-2, -3, -3, -3]]
    assert (first["groups/carried"], second["groups/carried"]) == (0, 1)
    assert (first["groups/rounds"], second["groups/rounds"]) == (2, 1)
    assert (first["groups/kept_frac"], second["groups/kept_frac"]) == (4 / 8, 4 / 4)
    assert (first["completions/generated"], second["completions/generated"]) == (32, 48)
    assert len(cast.carried) == 1


def test_carried_groups_survive_a_checkpoint_to_the_last_bit(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Tokens, verdicts, NaN rewards and log-probabilities of 17 digits; an older checkpoint without any empties it."""
    run = tiny_run("dapo", **COLD, **CARRY, **SMALL)
    cast = cast_of(run)
    sampler = Sampler(run, run.task, sample, Instruments(PhaseClock(), MemoryMeter("cpu")))
    groups = sampler.groups(cast.policy, PromptStream(run.task, 0, 4).round(0), 0)
    unscored = groups[0].members[0]
    object.__setattr__(unscored, "reward", float("nan"))
    object.__setattr__(unscored.grade, "correct", None)
    none = checkpoint.save(tmp_path, cast, keep=3, extra={})
    cast.carried[:] = groups
    cast.progress.update = 2
    saved = checkpoint.save(tmp_path, cast, keep=3, extra={})
    cast.carried.clear()
    checkpoint.restore(saved, cast)
    assert repr(cast.carried) == repr(groups)
    checkpoint.restore(none, cast)
    assert cast.carried == []


@pytest.mark.slow
def test_a_stopped_run_resumes_with_its_carried_groups(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run that is stopped after its first checkpoint: same metrics byte for byte, and groups were carried."""
    run = tiny_run(
        "dapo", **CARRY, **{"rollout.group_size": 4, "rollout.updates_per_rollout": 1, "checkpoint.every": 1}
    )
    assert execute(run, tmp_path / "straight").state == "finished"
    records = [json.loads(line) for line in (tmp_path / "straight/metrics.jsonl").read_text().splitlines()][1:]
    carried = [record["groups/carried"] for record in records]
    assert any(carried)
    first = carried.index(next(count for count in carried if count))
    original, saves = checkpoint.save, []

    def stop_with_groups_in_hand(*arguments: Any, **knobs: Any) -> Path:
        folder = original(*arguments, **knobs)
        saves.append(folder)
        if len(saves) == first:
            raise KeyboardInterrupt
        return folder

    monkeypatch.setattr(checkpoint, "save", stop_with_groups_in_hand)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    assert (saves[-1] / checkpoint.CARRIED).exists()
    status = execute(run, tmp_path / "stopped")
    assert (status.state, status.attempt) == ("finished", 2)
    for file in ("metrics.jsonl", "final.json"):
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()


def test_carrying_over_needs_log_probabilities_and_a_ratio(tiny_run: MakeRun) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_run("dapo", **{"objective.selection.surplus": "carry_over"})
    assert error.value.lines == [
        "objective.selection.surplus: carry_over given, which trains on samples of an older policy, whose "
        "log-probabilities only the sampler has: give rollout.old_logp=sampler, or surplus=discard"
    ]
    knobs = {**CARRY, "objective.selection.kind": "drop_uniform_groups", "rollout.updates_per_rollout": 1}
    with pytest.raises(ConfigError) as error:
        tiny_run("reinforce", **knobs)
    assert error.value.lines == [
        "objective.selection.surplus: carry_over given, which trains on samples of an older policy, and "
        "objective.surrogate.kind=reinforce has no importance ratio to correct for that: give surplus=discard"
    ]
