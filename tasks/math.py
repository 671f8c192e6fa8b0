r"""MATH: competition problems in seven subjects and five levels, with worked solutions whose answer stands in \boxed{}.

    If $x+y = 6$ and $x^2-y^2 = 12$, then what is $x-y$?
    Note that $(x+y)(x-y) = x^2-y^2$, so $x-y = 12/6 = \boxed{2}$.

Hendrycks et al. 2021, arXiv:2103.03874; 7500 training and 5000 test problems, MIT licence. Quirks of the golds: the
gold is no column but the content of the solution's last box. Where the last boxes are joined by "and" or "or", all of
them are the gold (3 test rows), and the last where the question wants one of several (2 rows) or they are the same (1
row); other suites always take the last. Some boxes have no braces ("\boxed 7"). An empty one is no gold: such a row is
left out. A level can be "Level ?".
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from tasks.parts.boxed import INSTRUCTION, BoxedTask, boxed_gold, in_boxes, only_empty_box, other_columns, text_of
from tasks.parts.problem import Problem, Source, Split

Subject = Literal[
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
]
Level = Annotated[int, Field(ge=1, le=5)]


class Math(BoxedTask, frozen=True):
    """MATH by level and subject. Validation is the twentieth of the training rows that a hash of the problem names."""

    version: ClassVar[int] = 1
    source: ClassVar[Source] = Source(
        hub_id="DigitalLearningGmbH/MATH-lighteval",
        hub_config="default",
        revision="0530c78699ea5e8eb5530600900e1f328b48acad",
        files={"train": "math_train.jsonl", "validation": "math_train.jsonl", "test": "math_test_5000.jsonl"},
        splits={"train": "train", "validation": "train", "test": "test"},
        columns=("problem", "level", "type", "solution"),
    )
    name: Literal["math"] = "math"
    levels: tuple[Level, ...] | None = None
    """Levels to keep, 1 (easy) to 5; null is all of them, with the few rows that have none."""
    subjects: tuple[Subject, ...] | None = None
    """Subjects to keep; null is all seven."""

    def selects(self, split: Split, row: Mapping[str, Any]) -> bool:
        """The split's rows of the chosen levels and subjects that have a gold."""
        # The file may be sorted by subject, so its last rows would be no sample of it.
        if split != "test" and (split == "validation") != _is_held_out(str(row["problem"])):
            return False
        chosen_level = self.levels is None or _level(row) in self.levels
        chosen_subject = self.subjects is None or _subject(row) in self.subjects
        return chosen_level and chosen_subject and not only_empty_box(str(row["solution"]))

    def stated(self, problem: Problem) -> str | None:
        """The worked solution, unless it boxes more than was asked for."""
        solution = problem.solution or ""
        return solution if in_boxes(solution) == problem.gold else super().stated(problem)

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        question, solution = text_of(row, "problem"), text_of(row, "solution")
        gold = boxed_gold(question, solution)
        if gold is None:
            raise ValueError(rf"solution has no \boxed{{}} with something in it: {solution[-60:]!r}")
        columns = {"level": _level(row), "subject": _subject(row), **other_columns(row, self.source.columns)}
        return Problem(
            id=f"math/{split}/{index}",
            prompt=f"{question}\n\n{INSTRUCTION}",
            gold=gold,
            solution=solution,
            question=question,
            columns=columns,
        )


def _is_held_out(problem: str) -> bool:
    return int.from_bytes(blake2b(problem.encode(), digest_size=8).digest(), "big") % 20 == 0


def _level(row: Mapping[str, Any]) -> int | None:
    """ "Level 3" -> 3; None for "Level ?"."""
    number = str(row["level"]).removeprefix("Level ")
    return int(number) if number in ("1", "2", "3", "4", "5") else None


def _subject(row: Mapping[str, Any]) -> str:
    """ "Counting & Probability" -> "counting_and_probability".

    Raises:
        ValueError: there is no such subject.
    """
    subject = str(row["type"]).strip().lower().replace("&", "and").replace(" ", "_")
    if subject not in get_args(Subject):
        raise ValueError(f"type is {row['type']!r}, must be one of {', '.join(get_args(Subject))}")
    return subject
