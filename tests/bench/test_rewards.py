"""The reward and its imperfections: what each learner is told, what is drawn from where, and that the truth is kept."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.generate import Completion
from bench.glossary import METRICS
from bench.instruments import Instruments
from bench.learn_imitation import ImitationLearner
from bench.learn_pairs import PairLearner
from bench.learner import Learner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, create_tiny
from bench.offline import rounds
from bench.pairs import pairs_of
from bench.rewards import Rewarder, Sample, Worth
from bench.rollout import Graded, Group, NothingToLearn, Sampler, unscorable_line
from bench.store import read_run
from bench.train import execute
from tasks.chain_sum import ChainSum
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
SMALL: dict[str, Any] = {
    "warm_start": None, "validation.every": 0, "validation.problems": 100, "validation.samples": 4,
    "rollout.updates_per_rollout": 1, "rollout.old_logp": "sampler",
}  # fmt: skip
OFFLINE = {knob: value for knob, value in SMALL.items() if knob != "rollout.old_logp"}
NOISE = {"reward.noise.false_positive": 0.2, "reward.noise.false_negative": 0.4}
NAN = math.nan
SLOW = pytest.mark.slow


def half_right(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float,
    top_p: float = 1.0,
) -> list[list[Completion]]:
    """An engine that answers by its key: right in about half of the cases, else too much by 1 to 9."""
    groups: list[list[Completion]] = []
    for prompt, own in zip(prompts, keys, strict=True):
        left, right = model.decode(prompt).rstrip("=").split("+")
        texts = [str(int(left) + int(right) + (key % 2) * (1 + key % 9)) for key in own]
        tokens = [tuple(model.encode_completion(text)) for text in texts]
        groups.append([Completion(ids, True, tuple(-1.0 for _ in ids)) for ids in tokens])
    return groups


def learner_of(run: Run) -> tuple[Learner, Sampler]:
    assert isinstance(run.model, TinyModel)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    sampler = Sampler(run, run.task, half_right, instruments)
    return make_learner(run, make_cast(run, create_tiny(run.model, run.alphabet, 0)), sampler, instruments), sampler


def samples_of(verdicts: Sequence[bool | None], texts: Sequence[str] = (), *, size: int = 8) -> list[Sample]:
    """Completions with these verdicts, `size` of each problem, all of round 3."""
    grades = [
        Grade(correct=verdict, answer_key=None, method="end", parsed=True, truncated=False) for verdict in verdicts
    ]
    problems = [Problem(id=f"p/{i}", prompt="", gold="") for i in range(-(-len(verdicts) // size))]
    return [
        Sample(
            problem=problems[i // size],
            text=texts[i] if texts else "",
            grade=grade,
            round=3,
            position=i // size,
            member=i % size,
        )
        for i, grade in enumerate(grades)
    ]


def told(run: Run, verdicts: Sequence[bool | None], texts: Sequence[str] = ()) -> list[tuple[float, bool | None]]:
    return [(worth.reward, worth.observed) for worth in Rewarder(run).worths(samples_of(verdicts, texts))]


# The plain reward


def test_a_plain_reward_is_verdict_and_weighted_form(tiny_run: MakeRun) -> None:
    run = tiny_run("grpo", **{"reward.correct": 2.0, "reward.wrong": -1.0, "reward.format": 0.5})
    # The form of chain_sum: 1 for a whole chain, 1/2 for an answer, 0 for none.
    found = told(run, [True, False, False, None], ["12", "1+1=2", "=", "12"])
    assert found[:3] == [(2.5, True), (-0.75, False), (-1.0, False)]
    assert math.isnan(found[3][0])
    assert found[3][1] is None


def test_what_cannot_be_told_in_one_part_cannot_be_told_at_all(
    tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdict known, form not: no reward, and no verdict that selection or acceptance could act on."""
    forms: list[Any] = [None, NAN, math.inf, 1.0]
    monkeypatch.setattr(ChainSum, "format_score", lambda self, problem, text: forms[int(text)])  # pyright: ignore[reportUnknownLambdaType]
    worths = Rewarder(tiny_run("grpo", **{"reward.format": 1.0})).worths(samples_of([True] * 4, list("0123")))
    assert [worth.observed for worth in worths] == [None, None, None, True]
    assert [math.isfinite(worth.reward) for worth in worths] == [False, False, False, True]


def test_a_round_is_graded_at_once_with_the_same_grades(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for all completions, so that a task may look for slow verdicts side by side."""
    learner, sampler = learner_of(tiny_run("grpo", **SMALL))
    problems = [sampler.task.generate("train", i) for i in range(3)]  # type: ignore[attr-defined]
    calls: list[int] = []
    original = ChainSum.grade_all

    def grade_all(self: ChainSum, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        calls.append(len(items))
        return original(self, items)

    monkeypatch.setattr(ChainSum, "grade_all", grade_all)
    groups = sampler.groups(learner.cast.policy, problems, 4)
    assert calls == [3 * 8]
    assert [(group.round, group.position) for group in groups] == [(4, 0), (4, 1), (4, 2)]
    for group in groups:
        assert [m.grade for m in group.members] == [sampler.task.grade(group.problem, m.text) for m in group.members]
        assert [m.reward for m in group.members] == [float(m.text == group.problem.gold) for m in group.members]
    assert {m.reward for group in groups for m in group.members} == {0.0, 1.0}


# Noise


def test_noise_flips_at_the_given_rates_and_leaves_what_is_unknown(tiny_run: MakeRun) -> None:
    """4,000 of each verdict: within 4 standard errors of 0.2 and 0.4; a verdict that is missing stays so."""
    bits = [True, False] * 4000 + [None] * 8
    found = told(tiny_run("grpo", **NOISE), bits)
    for verdict, rate in ((False, 0.2), (True, 0.4)):
        flips = [observed != bit for bit, (_, observed) in zip(bits, found, strict=True) if bit is verdict]
        assert abs(sum(flips) / 4000 - rate) < 4 * math.sqrt(rate * (1 - rate) / 4000)
    assert all(reward == float(bool(observed)) for reward, observed in found[:8000])
    assert all(math.isnan(reward) and observed is None for reward, observed in found[8000:])


def test_a_flip_depends_on_the_seed_and_the_place_alone(tiny_run: MakeRun) -> None:
    """Not on the algorithm, the other completions or the order; another seed, round, prompt or member flips others."""
    samples = samples_of([True] * 64)
    worths = Rewarder(tiny_run("grpo", **NOISE)).worths(samples)
    for algorithm in ("dapo", "dpo"):
        assert Rewarder(tiny_run(algorithm, **NOISE)).worths(samples) == worths
    backwards = Rewarder(tiny_run("grpo", **NOISE)).worths(samples[:10:-1])
    assert backwards == worths[:10:-1]
    changed = [
        Rewarder(tiny_run("grpo", seed=1, **NOISE)).worths(samples),
        *(
            Rewarder(tiny_run("grpo", **NOISE)).worths([replace(s, **{part: getattr(s, part) + 50}) for s in samples])
            for part in ("round", "position", "member")
        ),
    ]
    assert all(other != worths for other in changed)


def test_a_verifiers_mistake_may_come_again_with_the_answer(tiny_run: MakeRun) -> None:
    """Per answer: one draw for a problem's answer, whatever its words, its place and its time; another problem, answer
    or seed has another. Where no answer was read, the words are the answer."""
    keys: list[str | None] = ["4", "5", None, None]
    plain = samples_of([True, False, False, False] * 1000, ["four", "five", "a", "b"] * 1000, size=4)
    samples = [replace(s, grade=replace(s.grade, answer_key=keys[i % 4])) for i, s in enumerate(plain)]
    per_answer = {**NOISE, "reward.noise.per": "answer"}
    rewarder = Rewarder(tiny_run("grpo", **per_answer))
    worths = rewarder.worths(samples)
    elsewhere = [replace(s, round=9, position=s.position + 7, member=s.member + 3) for s in samples]
    assert rewarder.worths(elsewhere) == worths == Rewarder(tiny_run("dpo", **per_answer)).worths(samples)
    reworded = [replace(s, text=s.text if s.grade.answer_key is None else s.text + "!") for s in samples]
    assert rewarder.worths(reworded) == worths
    assert Rewarder(tiny_run("grpo", **NOISE)).worths(elsewhere) != Rewarder(tiny_run("grpo", **NOISE)).worths(samples)
    assert Rewarder(tiny_run("grpo", seed=1, **per_answer)).worths(samples) != worths
    for member, rate in enumerate((0.4, 0.2, 0.2, 0.2)):
        flips = [worth.observed != (member == 0) for worth in worths[member::4]]
        assert abs(sum(flips) / 1000 - rate) < 4 * math.sqrt(rate * (1 - rate) / 1000)
    assert [worth.observed for worth in worths[2::4]] != [worth.observed for worth in worths[3::4]]


@pytest.mark.parametrize("algorithm", [pytest.param("grpo", marks=SLOW), "dapo"])
def test_the_truth_is_logged_beside_the_noise(algorithm: str, tiny_run: MakeRun) -> None:
    """Completions and their grades are those of a run without noise; rewards and selection are by the noisy bit."""
    learner, _ = learner_of(tiny_run(algorithm, **SMALL))
    plain = next(learner.advance())
    learner, sampler = learner_of(tiny_run(algorithm, **SMALL, **NOISE))
    record = next(learner.advance())
    assert record["reward/accuracy"] == plain["reward/accuracy"]
    assert record["reward/mean"] == record["reward/observed_accuracy"] != record["reward/accuracy"]
    positive, negative, flipped = (
        record[f"reward/{name}"] for name in ("false_positives", "false_negatives", "flip_rate")
    )
    assert positive > 0 < negative
    assert flipped == (positive + negative) / 64
    assert record["reward/mean"] == pytest.approx(record["reward/accuracy"] + (positive - negative) / 64)
    assert set(record) <= set(METRICS)
    assert "reward/observed_accuracy" not in plain
    groups = sampler.groups(learner.cast.policy, [ChainSum(num_terms=2, num_digits=1).generate("train", 5)], 9)
    bits = [m.observed for m in groups[0].members]
    assert groups[0].correct == [float(bool(bit)) for bit in bits]
    assert bits != [m.grade.correct for m in groups[0].members]


def test_pairs_and_accepted_samples_are_by_the_noisy_bit(tiny_run: MakeRun) -> None:
    run = tiny_run("dpo", **OFFLINE, **NOISE)
    learner, sampler = learner_of(run)
    learner.prepare()
    assert isinstance(learner, PairLearner)
    sides: list[tuple[Graded, Graded]] = []
    for i, group in enumerate(sampler.groups(learner.cast.policy, rounds(run)[0], 0)):
        said = {member.completion.token_ids: member for member in reversed(group.members)}
        pairs = pairs_of(run, run.objective.pairing, group, i)  # type: ignore[union-attr]
        sides += [(said[pair.chosen], said[pair.rejected]) for pair in pairs if pair in learner.pairs]
    assert all(chosen.observed is True and rejected.observed is False for chosen, rejected in sides)
    wrongly = [chosen.grade.correct is False for chosen, _ in sides]
    assert 0 < sum(wrongly) < len(wrongly)
    assert learner.found["reward/false_positives"] > 0
    learner, _ = learner_of(tiny_run("rft", **OFFLINE, **NOISE))
    learner.prepare()
    assert isinstance(learner, ImitationLearner)
    noisy = len(learner.examples)
    learner, _ = learner_of(tiny_run("rft", **OFFLINE))
    learner.prepare()
    assert isinstance(learner, ImitationLearner)
    assert noisy > len(learner.examples), "wrong answers are more diverse than right ones"


# Controls


def test_a_random_reward_is_a_fair_coin_that_knows_no_verdict(tiny_run: MakeRun) -> None:
    run = tiny_run("grpo", **{"reward.source": "random"})
    found = told(run, [True] * 4000)
    assert found == told(run, [None] * 4000), "the verdict, known or not, changes nothing"
    assert abs(sum(reward for reward, _ in found) / 4000 - 0.5) < 4 * 0.5 / math.sqrt(4000)
    assert all(reward == float(observed is True) for reward, observed in found)


def test_format_only_is_the_form_whatever_the_verdict(tiny_run: MakeRun) -> None:
    """For what reads verdicts, a whole form counts as right."""
    run = tiny_run("grpo", **{"reward.source": "format_only", "reward.format": 2.0})
    assert told(run, [True, False, None, True], ["12", "12", "1=2", "="]) == [
        (2.0, True),
        (2.0, True),
        (1.0, False),
        (0.0, False),
    ]


# Format rules


def test_rules_of_form_that_no_task_owns(tiny_run: MakeRun, tmp_path: Path) -> None:
    texts = ["<think>a</think><answer>4</answer>", "4", '{"answer": 4}', '{"answer": "4"}']
    only = {"reward.source": "format_only", "reward.format": 1.0}
    run = tiny_run("grpo", **only, **{"reward.format_rule": "think_answer"})
    assert [reward for reward, _ in told(run, [None] * 4, texts)] == [1, 0, 0, 0]
    run = tiny_run("grpo", **only, **{"reward.format_rule": "json"})
    assert [reward for reward, _ in told(run, [None] * 4, texts)] == [0, 1, 1, 1], "any JSON, without a schema"
    schema = {"type": "object", "properties": {"answer": {"type": "number"}}, "required": ["answer"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    own = {"reward.format_rule": "json", "reward.format_schema": str(tmp_path / "schema.json")}
    assert [reward for reward, _ in told(tiny_run("grpo", **only, **own), [None] * 4, texts)] == [0, 0, 1, 0]


# Sparsity


def test_sparsity_leaves_whole_prompts_without_a_label(tiny_run: MakeRun) -> None:
    """3,000 prompts at 0.3: the share fits, the same ones in every round, and what has no label tells nothing."""
    run = tiny_run("grpo", **{"reward.sparsity": 0.3})
    samples = samples_of([True, False] * 3000, size=2)
    worths = Rewarder(run).worths(samples)
    first, second = worths[::2], worths[1::2]
    assert [worth.labelled for worth in first] == [worth.labelled for worth in second]
    share = sum(worth.labelled for worth in first) / 3000
    assert abs(share - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 3000)
    later = Rewarder(run).worths([replace(sample, round=4, position=9) for sample in samples])
    assert [worth.labelled for worth in later] == [worth.labelled for worth in worths]
    without = [worth for worth in worths if not worth.labelled]
    assert all(math.isnan(worth.reward) and worth.observed is None for worth in without)
    assert all(worth == Worth(reward=1.0, observed=True) for worth in first if worth.labelled)


@pytest.mark.parametrize("algorithm", [pytest.param("ppo", marks=SLOW), "grpo", pytest.param("rloo", marks=SLOW)])
def test_unlabelled_groups_take_part_in_nothing_and_are_no_failures(
    algorithm: str, tiny_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    learner, _ = learner_of(tiny_run(algorithm, **SMALL, **{"reward.sparsity": 0.5}))
    record = next(learner.advance())
    rate = record["reward/labelled_rate"]
    assert 0 < rate < 1
    assert (record["reward/unscorable"], record["reward/num_unscorable"]) == (0, 0)
    assert "unscorable" not in capsys.readouterr().err
    learner, _ = learner_of(tiny_run(algorithm, **SMALL))
    whole = next(learner.advance())
    assert record["tokens/generated"] == whole["tokens/generated"]
    assert record["tokens/trained"] < whole["tokens/trained"]
    assert record["reward/accuracy"] == whole["reward/accuracy"], "the truth is known of every prompt"


def test_dynamic_sampling_passes_over_what_has_no_label(tiny_run: MakeRun) -> None:
    learner, _ = learner_of(tiny_run("dapo", **SMALL, **{"reward.sparsity": 0.4}))
    record = next(learner.advance())
    assert record["groups/rounds"] > 1
    assert record["groups/kept_frac"] <= record["reward/labelled_rate"] < 0.7
    few = {"reward.sparsity": 0.001, "objective.selection.max_rounds": 1}
    learner, _ = learner_of(tiny_run("dapo", **SMALL, **few))
    with pytest.raises(NothingToLearn, match=r"8 \(100%\) without a label\): raise reward.sparsity"):
        next(learner.advance())


@pytest.mark.parametrize("algorithm", ["grpo", pytest.param("rft", marks=SLOW)])
def test_where_nothing_carries_a_label_the_run_says_so(algorithm: str, tiny_run: MakeRun) -> None:
    knobs = {**(OFFLINE if algorithm == "rft" else SMALL), "reward.sparsity": 1e-6, "budget.updates": 1}
    learner, _ = learner_of(tiny_run(algorithm, **knobs))
    first = learner.prepare if algorithm == "rft" else lambda: next(learner.advance())
    with pytest.raises(NothingToLearn, match=r"carries a label: raise reward\.sparsity"):
        first()


def test_the_warning_counts_labelled_completions_alone() -> None:
    """Of three prompts one has no label; one completion of the other two could not be scored."""

    def group(name: str, *rewards: float, labelled: bool = True, failures: int = 0) -> Group:
        grade = Grade(correct=None, answer_key=None, method="none", parsed=False, truncated=False)
        members = [Graded(Completion((5,), True, (-1.0,)), "", grade, r, None, labelled, failures) for r in rewards]
        return Group(Problem(id=name, prompt="", gold=""), (1,), tuple(members))

    unlabelled = group("a", NAN, NAN, labelled=False)
    assert unscorable_line([unlabelled, group("b", 1.0, 0.0)]) is None
    assert unscorable_line([unlabelled, group("b", 1.0, 0.0), group("c", NAN, 0.0, failures=1)]) == (
        "1 of 4 completions are unscorable, 0 of 2 groups wholly; they take part in nothing: look at the reward "
        "functions with c"
    )


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "dapo", "dpo"])
def test_a_noisy_run_ends_well_and_evaluation_knows_nothing_of_it(
    algorithm: str, tiny_run: MakeRun, tmp_path: Path
) -> None:
    """Before the first update nothing has been learnt: the starting model's evaluation is the clean run's."""
    noisy, clean = tiny_run(algorithm, **NOISE), tiny_run(algorithm)
    for name, run in (("noisy", noisy), ("clean", clean)):
        assert execute(run, tmp_path / name).state == "finished"
    assert noisy.id != clean.id
    first, second = (read_run(tmp_path / name) for name in ("noisy", "clean"))
    ours, theirs = ([r for r in run.metrics if "reward/mean" in r] for run in (first, second))
    if algorithm != "dapo":  # its rounds go on until enough noisy groups are found
        assert ours[0]["reward/accuracy"] == theirs[0]["reward/accuracy"]
    assert ours[0]["reward/mean"] != theirs[0]["reward/mean"]
    start = [(tmp_path / name / "eval/start.estimates.parquet").read_bytes() for name in ("noisy", "clean")]
    assert start[0] == start[1]


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [NOISE, {"reward.sparsity": 0.6}, {"reward.source": "random"}])
def test_draws_are_the_same_after_a_resume(
    knobs: dict[str, Any], tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("grpo", **knobs, **{"checkpoint.every": 2})
    assert execute(run, tmp_path / "straight").state == "finished"
    original = Sampler.groups

    def stops(self: Sampler, model: Any, problems: Sequence[Problem], round_index: int) -> list[Group]:
        if round_index == 1:
            raise KeyboardInterrupt
        return original(self, model, problems, round_index)

    with monkeypatch.context() as patched:
        patched.setattr(Sampler, "groups", stops)
        assert execute(run, tmp_path / "stopped").state == "interrupted"
    assert execute(run, tmp_path / "stopped").state == "finished"
    assert (tmp_path / "stopped/metrics.jsonl").read_bytes() == (tmp_path / "straight/metrics.jsonl").read_bytes()
