"""AIME 2024: the thirty problems of the two papers of that year, each with an integer from 0 to 999 as its answer.

    Find the number of ordered pairs (a, b) ...                      answer: "025" in some copies, "25" in others

American Invitational Mathematics Examination I and II, Mathematical Association of America. A test set only: the hub's
one split is called train. Quirk of the golds: the papers write three digits, and the hub's column keeps them as text
("025"; other copies have 25 or 25.0); here each is the integer itself. The hub was not reached here: the revision is
the one that other projects pin, and its columns are those that they read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tasks.parts.boxed import BoxedTask, contest_problem
from tasks.parts.problem import Problem, Source, Split


class Aime24(BoxedTask, frozen=True):
    """AIME 2024, for evaluation."""

    version: ClassVar[int] = 1
    source: ClassVar[Source] = Source(
        hub_id="HuggingFaceH4/aime_2024",
        hub_config="default",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        files={"test": "aime24.jsonl"},
        splits={"test": "train"},
        columns=("problem", "answer"),
    )
    name: Literal["aime24"] = "aime24"

    @property
    def guess_rate(self) -> float:
        """One of the thousand answers from 0 to 999."""
        return 1 / 1000

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        return contest_problem(f"aime24/{split}/{index}", row, question="problem", largest=999)
