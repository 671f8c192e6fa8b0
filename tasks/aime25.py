"""AIME 2025: the thirty problems of the two papers of that year, each with an integer from 0 to 999 as its answer.

    Find the sum of all integer bases b > 9 for which 17_b is a divisor of 97_b.                            answer: "70"

American Invitational Mathematics Examination I and II, Mathematical Association of America. A test set only. Quirk of
the golds: text without leading zeros on this hub name, numbers on others, "336^\\circ" in one copy of one answer, whose
degree sign is dropped; here each is the integer itself. The hub was not reached here: the revision is the one that
other projects pin, and its columns are those that they read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tasks.parts.boxed import BoxedTask, contest_problem
from tasks.parts.problem import Problem, Source, Split


class Aime25(BoxedTask, frozen=True):
    """AIME 2025, for evaluation."""

    version: ClassVar[int] = 1
    source: ClassVar[Source] = Source(
        hub_id="math-ai/aime25",
        hub_config="default",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        files={"test": "aime25.jsonl"},
        splits={"test": "test"},
        columns=("problem", "answer"),
    )
    name: Literal["aime25"] = "aime25"

    @property
    def guess_rate(self) -> float:
        """One of the thousand answers from 0 to 999."""
        return 1 / 1000

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        return contest_problem(f"aime25/{split}/{index}", row, question="problem", largest=999)
