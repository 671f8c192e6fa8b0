"""AMC 2023: forty problems of the two AMC 12 papers of that year, reworded so that each answer is one integer.

    Cities A and B are 45 miles apart. ... How many miles from city A will they be when they meet?          answer: 27.0

American Mathematics Competitions 12A and 12B, Mathematical Association of America; the choices of the papers are gone
and answers that were not integers were reworded (to m + n, say). A test set only. Quirk of the golds: some copies have
floating point numbers (27.0), others text ("27"), one is negative; here each is the integer itself. The hub was not
reached here: the revision is the one that other projects pin, and its columns are those that they read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tasks.parts.boxed import BoxedTask, contest_problem
from tasks.parts.problem import Problem, Source, Split


class Amc23(BoxedTask, frozen=True):
    """AMC 2023, for evaluation."""

    version: ClassVar[int] = 1
    source: ClassVar[Source] = Source(
        hub_id="math-ai/amc23",
        hub_config="default",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        files={"test": "amc23.jsonl"},
        splits={"test": "test"},
        columns=("question", "answer"),
    )
    name: Literal["amc23"] = "amc23"

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        return contest_problem(f"amc23/{split}/{index}", row, question="question")
