"""Completions that no grader could score: counted, named once, blamed on the grader and not on the task, in no mean."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from algorithms.axes.selection import DropUniformGroups
from bench import store
from bench.alarms import alarms_of
from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.config_reward import Reward
from bench.generate import Completion
from bench.glossary import METRICS
from bench.instruments import Instruments
from bench.learner import Learner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, create_tiny
from bench.offline import sampling_metrics
from bench.rollout import Graded, Group, NothingToLearn, PromptStream, Sampler, unscorable_line
from bench.rollout_metrics import reward_metrics
from bench.train import execute
from tasks.chain_sum import ChainSum
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
UNREADABLE = "="
SMALL: dict[str, Any] = {
    "warm_start": None, "validation.every": 0, "validation.problems": 100, "validation.samples": 4,
    "rollout.prompts": 4, "rollout.group_size": 4,
}  # fmt: skip
# The scripted engine's log-probabilities are made up, so they stand in for the trainer's.
STEPS: dict[str, Any] = {**SMALL, "rollout.updates_per_rollout": 1, "rollout.old_logp": "sampler"}
ONE_ROUND: dict[str, Any] = {**SMALL, "objective.selection.max_rounds": 1}


class Scripted:
    """An engine whose completions are right (r), wrong (w) or beyond the grader (?), one word a group; the last round
    repeats."""

    def __init__(self, *rounds: str) -> None:
        self.rounds, self.count = rounds, count()

    def __call__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
    ) -> list[list[Completion]]:
        words = self.rounds[min(next(self.count), len(self.rounds) - 1)].split()
        groups: list[list[Completion]] = []
        for prompt, word in zip(prompts, words, strict=True):
            left, right = model.decode(prompt).rstrip("=").split("+")
            texts = {"r": str(int(left) + int(right)), "w": str(int(left) + int(right) + 20), "?": UNREADABLE}
            tokens = [tuple(model.encode_completion(texts[letter])) for letter in word]
            groups.append([Completion(ids, True, tuple(-1.0 for _ in ids)) for ids in tokens])
        return groups


@pytest.fixture
def shy_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader that cannot tell what to make of `UNREADABLE`."""
    original = ChainSum.grade

    def grade(self: ChainSum, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        if completion == UNREADABLE:
            return Grade(correct=None, answer_key=None, method="none", parsed=False, truncated=truncated)
        return original(self, problem, completion, truncated=truncated)

    monkeypatch.setattr(ChainSum, "grade", grade)


def learner_of(run: Run, *rounds: str) -> tuple[Learner, Sampler]:
    assert isinstance(run.model, TinyModel)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    sampler = Sampler(run, run.task, Scripted(*rounds), instruments)
    cast = make_cast(run, create_tiny(run.model, ChainSum(num_terms=2, num_digits=1).alphabet, 0))
    return make_learner(run, cast, sampler, instruments), sampler


def exhausted(run: Run, round_: str) -> str:
    learner, sampler = learner_of(run, round_)
    selection = run.objective.selection  # type: ignore[union-attr]
    assert isinstance(selection, DropUniformGroups)
    with pytest.raises(NothingToLearn) as error:
        sampler.collect(learner.cast.policy, PromptStream(run.task, 0, 4), 0, selection)
    return str(error.value)


def group(*rewards: float, index: int = 0) -> Group:
    """Completions of these rewards; 1 is correct, 0 wrong, what is no number is beyond the grader."""
    known = {1.0: True, 0.0: False}
    grades = [
        Grade(correct=known.get(r), answer_key=None, method="none", parsed=True, truncated=False) for r in rewards
    ]
    members = [
        Graded(Completion((5,), True, (-1.0,)), "", g, r, g.correct) for g, r in zip(grades, rewards, strict=True)
    ]
    return Group(ChainSum().generate("train", index), (4,), tuple(members))


NAN, INF = math.nan, math.inf


# Counts and warnings


def test_the_line_counts_and_names_at_most_five_problems() -> None:
    assert unscorable_line([group(1, 0), group(1, 1)]) is None
    assert unscorable_line([group(1, 0), group(NAN, 1, index=1), group(NAN, INF, index=2)]) == (
        "3 of 6 completions are unscorable, 1 of 3 groups wholly; they take part in nothing: look at the grader and "
        "the gold answers of chain_sum/train/1, chain_sum/train/2"
    )
    line = unscorable_line([group(NAN, 1, index=i) for i in range(8)])
    assert line is not None
    assert line.endswith("/train/2, chain_sum/train/3, chain_sum/train/4 and 3 more")
    line = unscorable_line([group(NAN, 1, index=3), group(NAN, NAN, index=3)])
    assert line is not None
    assert line.endswith("gold answers of chain_sum/train/3"), "a problem that comes twice is named once"


@pytest.mark.usefixtures("shy_grader")
def test_obj_14_16_a_run_says_once_that_completions_are_unscorable(
    tiny_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing in the first rollout, one line in the second, none in the third; every record has the count."""
    run = tiny_run("grpo", **STEPS)
    learner, _ = learner_of(run, "rrww rwww rwww rwww", "rr?w ???? rwww rwww", "?rww rwww rwww rwww")
    first = next(learner.advance())
    assert (first["reward/num_unscorable"], first["reward/unscorable"], capsys.readouterr().err) == (0, 0, "")
    second = next(learner.advance())
    assert (second["reward/num_unscorable"], second["reward/unscorable"]) == (5, 5 / 16)
    (line,) = capsys.readouterr().err.splitlines()
    ids = [problem.id for problem in PromptStream(run.task, run.seed, 4).round(1)]
    assert line.startswith("grpo seed 0: 5 of 16 completions are unscorable, 1 of 4 groups wholly; ")
    assert line.endswith(f"of {ids[0]}, {ids[1]}")
    assert next(learner.advance())["reward/num_unscorable"] == 1
    assert capsys.readouterr().err == ""


def test_a_single_unscorable_completion_raises_an_alarm_about_the_grader() -> None:
    (alarm,) = alarms_of([{"update": 1, "reward/unscorable": 0.0}, {"update": 2, "reward/unscorable": 1 / 512}])
    assert (alarm.name, alarm.first) == ("unscorable_completions", 2)
    assert "grader" in alarm.advice


# What is unscorable is not uniform


def test_groups_without_a_score_are_no_ties() -> None:
    """One informative and one all-wrong group beside six of which nothing is known: half of what is known ties."""
    found = reward_metrics([group(1, 0), group(0, 0), *(group(NAN, NAN) for _ in range(6))])
    assert (found["groups/frac_zero_std"], found["groups/zero_std_all_wrong"]) == (1 / 2, 1 / 2)
    assert (found["groups/zero_std_all_correct"], found["reward/num_unscorable"]) == (0, 12)


def test_where_nothing_is_scored_the_only_alarm_is_about_the_grader() -> None:
    found = reward_metrics([group(NAN, NAN), group(NAN, NAN)])
    for name in ("groups/frac_zero_std", "groups/zero_std_all_correct", "groups/zero_std_all_wrong", "reward/mean"):
        assert math.isnan(found[name])
    assert set(found) <= set(METRICS)
    assert [alarm.name for alarm in alarms_of([{"update": 1, **found}])] == ["unscorable_completions"]


@pytest.mark.usefixtures("shy_grader")
@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo"])
def test_a_run_whose_grader_never_tells_ends_with_a_sentence_about_the_grader(
    algorithm: str, tiny_run: MakeRun
) -> None:
    run = tiny_run(algorithm, **STEPS, **{"budget.updates": 2})
    learner, _ = learner_of(run, "???? ???? ???? ????")
    list(learner.advance())
    with pytest.raises(
        NothingToLearn, match=r"^nothing could be scored in the first 2 rollouts: .* the grader"
    ) as error:
        list(learner.advance())
    assert "easier" not in str(error.value)


@pytest.mark.usefixtures("shy_grader")
def test_a_run_with_one_score_is_not_blamed_on_the_grader(tiny_run: MakeRun) -> None:
    """The first rollout has scores, all equal; the second has none."""
    run = tiny_run("grpo", **STEPS, **{"budget.updates": 2})
    learner, _ = learner_of(run, "wwww ???? ???? ????", "???? ???? ???? ????")
    list(learner.advance())
    with pytest.raises(NothingToLearn, match=r"^no informative group in the first 2 rollouts"):
        list(learner.advance())


# Learners that sample once


def test_obj_17_offline_means_are_over_finite_rewards() -> None:
    found = sampling_metrics(Reward(), [group(1, 0, INF), group(1, NAN, 1)])
    assert (found["reward/mean"], found["reward/unscorable"], found["reward/num_unscorable"]) == (3 / 4, 2 / 6, 2)
    assert set(found) <= set(METRICS)
    assert math.isnan(sampling_metrics(Reward(), [group(NAN, NAN)])["reward/mean"])


@pytest.mark.parametrize("algorithm", ["dpo", "ipo"])
def test_obj_17_an_infinite_format_score_leaves_a_finite_mean(
    algorithm: str, tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The form of one kind of wrong answer scores infinity: 6 of 32 are unscorable, the mean is over the other 26."""

    def form(self: ChainSum, problem: Problem, completion: str) -> float:
        return math.inf if completion == UNREADABLE else 0.5

    monkeypatch.setattr(ChainSum, "format_score", form)
    learner, _ = learner_of(tiny_run(algorithm, **SMALL, **{"reward.format": 1.0}), "rr?w rw?w rrrw rw?w")
    learner.prepare()
    record = next(learner.advance())
    assert record["reward/mean"] == pytest.approx(14 / 26 + 0.5)
    assert (record["reward/unscorable"], record["reward/num_unscorable"]) == (6 / 32, 6)
    assert f"{algorithm} seed 0: 6 of 32 completions are unscorable" in capsys.readouterr().err


@pytest.mark.usefixtures("shy_grader")
@pytest.mark.parametrize("algorithm", ["dpo", "rft"])
def test_sampling_once_without_a_score_ends_with_a_sentence_about_the_grader(algorithm: str, tiny_run: MakeRun) -> None:
    learner, _ = learner_of(tiny_run(algorithm, **SMALL), "???? ???? ???? ????")
    with pytest.raises(NothingToLearn, match=r"none of the .* completions could be scored: .* look at the grader"):
        learner.prepare()


# Exhausted dynamic sampling


@pytest.mark.usefixtures("shy_grader")
def test_obj_47_reasons_are_counted_apart_by_known_verdicts(tiny_run: MakeRun) -> None:
    text = exhausted(
        tiny_run("dapo", **ONE_ROUND, **{"objective.selection.on_exhausted": "error"}), "?rrr ???? wwww rw?w"
    )
    assert text == (
        "dynamic sampling found 1 of 4 groups with both right and wrong completions in 1 rounds (4 groups sampled; by "
        "their known verdicts 1 (25%) all right, 1 (25%) all wrong, 1 (25%) unscorable): make the task harder, enlarge "
        "rollout.group_size or objective.selection.max_rounds, or set "
        "objective.selection.on_exhausted=use_partial or pad_with_uniform"
    )


@pytest.mark.usefixtures("shy_grader")
@pytest.mark.parametrize(
    ("policy", "round_", "advice"),
    [
        ("use_partial", "?rrr rrrr rrrr wwww", "make the task harder"),
        ("use_partial", "?www rrrr wwww wwww", "make the task easier"),
        ("error", "wwww wwww wwww wwww", "make the task easier"),
    ],
)
def test_obj_47_with_nothing_found_only_padding_goes_on(
    policy: str, round_: str, advice: str, tiny_run: MakeRun
) -> None:
    text = exhausted(tiny_run("dapo", **ONE_ROUND, **{"objective.selection.on_exhausted": policy}), round_)
    assert advice in text
    assert text.endswith("or set objective.selection.on_exhausted=pad_with_uniform")


@pytest.mark.usefixtures("shy_grader")
def test_obj_47_where_most_groups_have_no_verdict_the_grader_is_named(
    tiny_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither another task nor padding would help; the problems are on stderr."""
    text = exhausted(
        tiny_run("dapo", **ONE_ROUND, **{"objective.selection.on_exhausted": "error"}), "???? ???? ???? wwww"
    )
    assert "0 (0%) all right, 1 (25%) all wrong, 3 (75%) unscorable): look at the grader" in text
    assert "on_exhausted" not in text
    assert "dapo seed 0: 12 of 16 completions are unscorable, 3 of 4 groups wholly" in capsys.readouterr().err


def test_a_whole_run_keeps_the_alarm(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A grader that fails on every answer that ends in 7: line, count, alarm and the alarm's file."""
    original = ChainSum.grade

    def grade(self: ChainSum, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        found = original(self, problem, completion, truncated=truncated)
        if "7" not in completion:
            return found
        return Grade(correct=None, answer_key=None, method="none", parsed=False, truncated=truncated)

    monkeypatch.setattr(ChainSum, "grade", grade)
    run = tiny_run("grpo", **SMALL, **{"reward.format": 1.0, "evaluation.start": False, "evaluation.problems": 2})
    assert execute(run, tmp_path / "run").state == "finished"
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "completions are unscorable" in line]) == 1
    assert len([line for line in lines if "alarm unscorable_completions at update 1" in line]) == 1
    record = store.read_run(tmp_path / "run")
    assert record.metrics[0]["reward/num_unscorable"] > 0
    assert record.alarms is not None
    assert "unscorable_completions" in [alarm["name"] for alarm in record.alarms]


def test_one_problem_beyond_the_grader_leaves_validation_its_choice(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight; where all are, there is nothing to choose by, and the last weights are the final model."""
    original = ChainSum.grade

    def losing(*ids: str) -> None:
        def grade(self: ChainSum, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
            found = original(self, problem, completion, truncated=truncated)
            return replace(found, correct=None) if problem.id in ids else found

        monkeypatch.setattr(ChainSum, "grade", grade)

    run = tiny_run("grpo", **{"validation.select": "validation"})
    losing("chain_sum/validation/3", "chain_sum/test/3")
    status = execute(run, tmp_path / "one")
    assert status.state == "finished", status.error
    lines = store.read_jsonl(tmp_path / "one/metrics.jsonl").records
    scores = [line["validation/pass@1"] for line in lines if "validation/pass@1" in line]
    assert len(scores) > 1
    assert None not in scores
    losing(*(f"chain_sum/validation/{i}" for i in range(8)))
    status = execute(run, tmp_path / "all")
    assert status.state == "finished", status.error
