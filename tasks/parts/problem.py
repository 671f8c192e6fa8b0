"""The contract between tasks and the engine: what a problem, a grade and a task are."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One question with its right answer."""

    id: str
    """Unique over all splits of the task: "chain_sum/train/17"."""
    prompt: str
    """What the user says; a chat template or a plain prompt is put around it by the engine."""
    gold: str
    """The right answer, as the task's grader reads it."""
    solution: str | None = None
    """A worked solution, written as a completion should be: the material of a warm start. None where there is none."""
    question: str | None = None
    """The question without any instruction, for prompts with worked examples. None: the prompt is the question."""
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """What else the data says of the problem, such as its level: for a user's reward functions and for reports."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The verdict on one completion. Wrong, unparsed and truncated are told apart: each asks for another remedy."""

    correct: bool | None
    """None: no verdict is possible (the gold answer cannot be read, the grader failed). Never a reward of 0."""
    answer_key: str | None
    """Equal for two answers exactly when they are the same answer: the class a majority vote counts. None: no vote."""
    method: str
    """How the answer was found. The strict score counts one method only, the flexible score all of them."""
    parsed: bool
    """Whether an answer was found."""
    truncated: bool
    """Whether the completion was cut at its token budget, as the sampler says."""
    timed_out: bool = False
    """Whether the grader ran out of time, which counts as wrong."""

    def __post_init__(self) -> None:
        """A computed verdict may be NaN, which is truthy: it is no verdict, and never a right answer."""
        if self.correct is not None and not isinstance(self.correct, bool):
            verdict = float(self.correct)
            if math.isfinite(verdict) and verdict not in (0.0, 1.0):
                raise ValueError(f"a verdict is true, false or None, got {self.correct!r}")
            object.__setattr__(self, "correct", bool(verdict) if math.isfinite(verdict) else None)


class Task(
    BaseModel, ABC, frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
):
    """A source of problems and their grader; its fields are its knobs.

    The grader is the reward in training and the verdict in evaluation: one object, so the two cannot drift apart.
    """

    version: ClassVar[int]
    """Raised whenever a prompt or a verdict changes, so that runs before and after are never averaged."""
    alphabet: ClassVar[str]
    """The characters that a character tokenizer needs for prompts and solutions."""
    strict_methods: ClassVar[frozenset[str]] = frozenset()
    """The ways of stating an answer that the strict score counts; none named: all of them."""
    name: str
    """The module's name; a concrete task declares it as a literal, which tells the members of a union apart."""

    @property
    def guess_rate(self) -> float | None:
        """Chance that a blind guess is right; None where that is next to nothing or not known."""
        return None

    @abstractmethod
    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        """Judge a completion (special tokens removed). Answers any text: it neither raises nor hangs."""

    def grade_all(self, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        """Judge many completions, each with its problem and whether it was truncated; the same grades as one by one."""
        return [self.grade(problem, completion, truncated=truncated) for problem, completion, truncated in items]

    def stated(self, problem: Problem) -> str | None:
        """A completion that states the right answer, for self-tests; None where no right answer is known."""
        return problem.solution or problem.gold

    def corrupted(self, problem: Problem) -> str | None:
        """A completion in the same form that states a wrong answer, for self-tests; None where none can be made."""
        return None

    @abstractmethod
    def format_score(self, problem: Problem, completion: str) -> float:
        """How far the completion keeps the asked form, in [0, 1], whatever the answer is."""


class ProceduralTask(Task, frozen=True):
    """A task that makes its problems, the same on every machine."""

    @abstractmethod
    def generate(self, split: Split, index: int) -> Problem:
        """Make problem `index` of a split. No item occurs in two splits.

        Raises:
            ValueError: the split has fewer problems than that.
        """

    @abstractmethod
    def num_problems(self, split: Split) -> int | None:
        """How many problems `generate` can make of a split; None: it never runs out."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a public data set is found, on the hub or as local files. `splits` cuts both in the same way."""

    hub_id: str
    hub_config: str
    revision: str
    """Commit of the hub's repository, so that the data cannot change under a study."""
    files: Mapping[Split, str]
    """The file of each split in a local folder: JSON lines, JSON, CSV or parquet."""
    splits: Mapping[Split, str]
    """The rows of each split: the hub's split and a slice, "train[:95%]". A split that is not named does not exist."""
    columns: tuple[str, ...]
    """What every row must have."""


class DatasetTask(Task, frozen=True):
    """A task with public data."""

    source: ClassVar[Source]
    path: str | None = None
    """Folder with the data set's files, or one of those files. None: the hub."""

    def selects(self, split: Split, row: Mapping[str, Any]) -> bool:
        """Whether the row belongs to the split, and the task's knobs (a level, a subject) keep it."""
        return True

    @abstractmethod
    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        """Turn row `index` of a split into a problem.

        Raises:
            ValueError: the row has no readable question or gold answer.
        """
