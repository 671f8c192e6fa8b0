"""The reward: what a completion is worth in training, and the verdict that the learner is told, which may be wrong.

    reward = verdict (or coin) + format x form + sum of weight x the user's functions + weight x the model's score

What cannot be told in one part cannot be told in all: NaN, unscorable. Every draw is a function of the seed and of the
completion's place in the run (or of its answer), so that it is the same for every algorithm and after a resume.
Evaluation knows none of this.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from algorithms.axes.masked import slack
from algorithms.axes.preference import Preference
from bench.config import Run
from bench.config_reward import Noise, RewardFunction
from bench.reward_functions import Columns, Result, Wanted, call_all, describe
from bench.seeding import stream_key, uniforms
from bench.store import append_jsonl
from tasks.parts.formats import think_answer_score
from tasks.parts.problem import Grade, Problem

BUILT_IN = ("prompts", "prompt", "problem_id", "gold")
"""Columns that every task has; a column of the data with the same name is not passed on."""
JSON_FORM = RewardFunction(function="bench.json_form:scores", limit_seconds=5.0)
IDS_NAMED = 5


class RewardMistake(ValueError):
    """A user's reward function that cannot be one; the message names it, what is expected and what it gave."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One graded completion and its place in the run, which its draws depend on."""

    problem: Problem
    text: str
    grade: Grade
    round: int
    position: int
    """Of the prompt in its round."""
    member: int
    """Of the completion in its group."""
    score: float | None = None
    """The reward model's, before its weight; None without one."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What the learner is told of one completion."""

    reward: float
    """Not finite: unscorable."""
    observed: bool | None
    """The verdict as the learner sees it; None without a label, or where it could not be told."""
    labelled: bool = True
    """False: reward.sparsity left its prompt without a label."""
    failures: int = 0
    """How many of the user's functions raised, took too long or returned nonsense for it."""


@dataclass(frozen=True)
class _Call:
    """A function that is to be called, and the knob that a message about it begins with."""

    knob: str
    function: RewardFunction
    constants: Columns = field(default_factory=dict[str, Sequence[Any]])
    """Arguments beside the columns, the same for every batch."""

    @property
    def name(self) -> str:
        return self.function.function

    def refusal(self, why: str) -> RewardMistake:
        return RewardMistake(f"{self.knob}: {self.name} {why}")


@dataclass(frozen=True)
class Rewarder:
    """The run's reward, with what it remembers of the user's functions."""

    run: Run
    log: Path | None = None
    """JSON lines of every failure of a user's function."""
    told: set[str] = field(default_factory=set[str])
    called: set[str] = field(default_factory=set[str])
    """Functions that have returned a batch as they should, so that a later mistake is one completion's."""
    wanted: dict[str, Wanted] = field(default_factory=dict[str, Wanted])
    slow: set[str] = field(default_factory=set[str])
    """Functions whose batches take longer than one completion may, and which are called one by one at once."""

    def worths(self, samples: Sequence[Sample]) -> list[Worth]:
        """The reward and the observed verdict of each completion."""
        has_label = self.labelled(samples)
        worths = iter(self._worths([sample for sample, labelled in zip(samples, has_label, strict=True) if labelled]))
        unlabelled = Worth(reward=math.nan, observed=None, labelled=False)
        return [next(worths) if labelled else unlabelled for labelled in has_label]

    def labelled(self, samples: Sequence[Sample]) -> list[bool]:
        """Whether the prompt of each carries a label; of an objective that learns from pairs, pairs are drawn later."""
        share = self.run.reward.sparsity
        if share == 1 or isinstance(self.run.objective, Preference):
            return [True] * len(samples)
        # By the problem alone: a data set that is passed twice has labels for the same of its prompts.
        keys = [stream_key(self.run.seed, "reward label", sample.problem.id) for sample in samples]
        return [draw < share for draw in _draws(keys)]

    def _worths(self, samples: Sequence[Sample]) -> list[Worth]:
        reward = self.run.reward
        failures: Counter[int] = Counter()
        total = [0.0] * len(samples)
        bits: list[bool | None] = [None] * len(samples)
        if reward.source in ("verifier", "random"):
            bits = self._verdicts(samples) if reward.source == "verifier" else self._coins(samples)
            worth = (reward.correct, reward.wrong) if reward.source == "verifier" else (1.0, 0.0)
            total = [math.nan if bit is None else worth[0] if bit else worth[1] for bit in bits]
        if reward.format or reward.source == "format_only":
            form = self._form(samples, failures)
            total = [value + reward.format * score for value, score in zip(total, form, strict=True)]
            if reward.source == "format_only":
                bits = [score >= 1 for score in form]
        own = [0.0] * len(samples)
        for index, function in enumerate(reward.functions):
            values = self._call(_Call(f"reward.functions.{index}", function), samples, failures)
            own = [value + function.weight * more for value, more in zip(own, values, strict=True)]
        total = [value + more for value, more in zip(total, own, strict=True)]
        if reward.model is not None:
            total = [value + reward.model.weight * _score(sample) for value, sample in zip(total, samples, strict=True)]
        if reward.source == "functions":
            # Of the functions alone: a weighted form would make every well-formed completion right.
            bits = [value > 0 for value in own]
        elif reward.source == "model":
            bits = above_their_group(samples, total)
        return [
            Worth(reward=value, observed=bit if math.isfinite(value) else None, failures=failures[i])
            for i, (value, bit) in enumerate(zip(total, bits, strict=True))
        ]

    def _verdicts(self, samples: Sequence[Sample]) -> list[bool | None]:
        """The verifier's bits, some of them flipped where the run asks for noise."""
        bits = [sample.grade.correct for sample in samples]
        noise = self.run.reward.noise
        if noise is None:
            return bits
        draws = _draws([self._noise_key(noise, sample) for sample in samples])
        rates = [noise.false_negative if bit else noise.false_positive for bit in bits]
        flips = [draw < rate for draw, rate in zip(draws, rates, strict=True)]
        return [None if bit is None else bit != flip for bit, flip in zip(bits, flips, strict=True)]

    def _coins(self, samples: Sequence[Sample]) -> list[bool | None]:
        return [draw < 0.5 for draw in _draws([self._key("random reward", sample) for sample in samples])]

    def _key(self, name: str, sample: Sample) -> int:
        place = (sample.round, sample.position, sample.problem.id, sample.member)
        return stream_key(self.run.seed, name, *place)

    def _noise_key(self, noise: Noise, sample: Sample) -> int:
        if noise.per == "completion":
            return self._key("reward noise", sample)
        answer = sample.grade.answer_key
        said = ("text", sample.text) if answer is None else ("answer", answer)
        return stream_key(self.run.seed, "reward noise", sample.problem.id, *said)

    def _form(self, samples: Sequence[Sample], failures: Counter[int]) -> list[float]:
        match self.run.reward.format_rule:
            case "task":
                scores = [self.run.task.format_score(sample.problem, sample.text) for sample in samples]
                # A task that is not ours may not be able to tell.
                return [math.nan if score is None else score for score in scores]  # pyright: ignore[reportUnnecessaryComparison]
            case "think_answer":
                return [think_answer_score(sample.text) for sample in samples]
            case "json":
                call = _Call("reward.format_rule", JSON_FORM, {"schema": self._schema})
                return self._call(call, samples, failures)

    @cached_property
    def _schema(self) -> Any:
        path = self.run.reward.format_schema
        return True if path is None else json.loads(Path(path).expanduser().read_text(encoding="utf-8"))

    def _call(self, call: _Call, samples: Sequence[Sample], failures: Counter[int]) -> list[float]:
        """The function's number for each completion, NaN where it gave none; who failed is counted and logged."""
        if not samples:
            return []
        answers = self._at_once(call, samples)
        if answers is None:
            answers = self._one_by_one(call, samples)
        self.called.add(call.name)
        lost = [(i, answer) for i, answer in enumerate(answers) if isinstance(answer, str)]
        failures.update(i for i, _ in lost)
        self._report(call.name, [(samples[i], trouble) for i, trouble in lost])
        return [math.nan if isinstance(answer, str) else answer for answer in answers]

    def _at_once(self, call: _Call, samples: Sequence[Sample]) -> Sequence[float | str] | None:
        """All in one call and in one completion's time: what comes back has kept every limit. None: ask one by one."""
        if call.name in self.slow or len(samples) == 1:
            return None
        (answer,) = self._ask(call, [samples])
        return None if isinstance(answer, str) else answer

    def _one_by_one(self, call: _Call, samples: Sequence[Sample]) -> Sequence[float | str]:
        """A call for each, so that a completion costs no other its reward."""
        asked = self._ask(call, [[sample] for sample in samples])
        answers = [answer if isinstance(answer, str) else answer[0] for answer in asked]
        failed = [answer for answer in answers if isinstance(answer, str)]
        if not failed and len(samples) > 1:
            self.slow.add(call.name)
        if len(failed) == len(samples) > 1 and call.name not in self.called:
            # Where there is no first reward at all, the function is wrong, and not the data.
            raise call.refusal(f"failed on each of {len(samples)} completions: {failed[0]}")
        return answers

    def _ask(self, call: _Call, batches: Sequence[Sequence[Sample]]) -> list[tuple[float, ...] | str]:
        """What the function gives for each batch: its numbers, or why there are none.

        Raises:
            RewardMistake: it cannot be asked, or what it returns is no rewards and it has never returned any.
        """
        try:
            if call.name not in self.wanted:
                self.wanted[call.name] = describe(call.name)
            wanted = self.wanted[call.name]
            requests: list[tuple[list[str], Columns]] = []
            for samples in batches:
                columns = {**columns_of([sample.problem for sample in samples]), **call.constants}
                missing = wanted.missing(list(columns))
                if missing is not None:
                    raise ValueError(missing)
                requests.append(([sample.text for sample in samples], wanted.of(columns)))
            results = call_all(wanted, requests, limit_seconds=call.function.limit_seconds)
        except ValueError as error:
            raise call.refusal(str(error)) from None
        mistakes = [result.mistake for result in results if isinstance(result, Result) and result.mistake]
        if mistakes and call.name not in self.called:
            raise call.refusal(mistakes[0])
        return [result if isinstance(result, str) else result.mistake or result.values for result in results]

    def _report(self, name: str, lost: Sequence[tuple[Sample, str]]) -> None:
        """Every failure in the log; on stderr one line the first time that an exception of this type comes."""
        for sample, trouble in lost:
            if self.log is not None:
                place = {"problem_id": sample.problem.id, "round": sample.round, "member": sample.member}
                append_jsonl(self.log, {"function": name, **place, "error": trouble})
            kind = f"{name} {trouble.partition(':')[0]}"
            if kind not in self.told:
                self.told.add(kind)
                of_kind = [other for other, text in lost if text.partition(":")[0] == trouble.partition(":")[0]]
                ids = list(dict.fromkeys(other.problem.id for other in of_kind))
                more = f" and {len(ids) - IDS_NAMED} more" if len(ids) > IDS_NAMED else ""
                print(
                    f"{self.run.algorithm} seed {self.run.seed}: reward function {name} failed on {len(of_kind)} of a "
                    f"rollout's completions, which are unscorable: {trouble} (of {', '.join(ids[:IDS_NAMED])}{more})",
                    file=sys.stderr,
                )


def _score(sample: Sample) -> float:
    assert sample.score is not None, "the reward model has scored every completion that carries a label"
    return sample.score


def above_their_group(samples: Sequence[Sample], rewards: Sequence[float]) -> list[bool | None]:
    """Whether each reward is above its group's mean: the verdict where a learned model is all there is.

    A reward model is trained on comparisons within a prompt, so its scores have no zero: only what is better than
    another completion of the same prompt can be told. In a group whose rewards are equal up to rounding nothing is
    right.
    """
    groups: dict[tuple[int, int], list[float]] = {}
    for sample, value in zip(samples, rewards, strict=True):
        if math.isfinite(value):
            groups.setdefault((sample.round, sample.position), []).append(value)
    means = {place: sum(own) / len(own) for place, own in groups.items()}
    flat = {place for place, own in groups.items() if max(own) - min(own) <= slack(means[place])}
    places = [(sample.round, sample.position) for sample in samples]
    return [
        None if not math.isfinite(value) else place not in flat and value > means[place]
        for place, value in zip(places, rewards, strict=True)
    ]


def columns_of(problems: Sequence[Problem]) -> dict[str, list[Any]]:
    """What a reward function may take beside the completions: a list for each column, None where a row lacks it."""
    own = {name: None for problem in problems for name in problem.columns if name not in (*BUILT_IN, "completions")}
    prompts = [problem.prompt for problem in problems]
    return {
        "prompts": prompts,
        "prompt": prompts,
        "problem_id": [problem.id for problem in problems],
        "gold": [problem.gold for problem in problems],
        **{name: [problem.columns.get(name) for problem in problems] for name in own},
    }


def _draws(keys: Sequence[int]) -> list[float]:
    """A uniform number in [0, 1) of each key's stream."""
    return uniforms(keys, 0, 1)[:, 0].tolist() if keys else []
