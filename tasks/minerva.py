r"""Minerva: 272 undergraduate problems in physics, chemistry and mathematics, with numbers or formulas as answers.

    Find the energy of a photon of 500 nanometres, in joules, to two significant figures.   answer: "4.0e-19"

From OpenCourseWare of MIT, collected by Lewkowycz et al. 2022, arXiv:2206.14858, section 2.3. A test set only. Quirks
of the golds: some are in scientific notation ("4e-19", "4.5 \times 10^{33}"), some have a unit in the answer and some
in the question alone, some are equations or "\text{...}"; numbers were rounded by people, and no tolerance is
published, so that an answer with more digits than the gold is wrong here. Where the answer column holds a whole
solution, as in other copies, the gold is the content of its last box; "4e-19" becomes "4 \times 10^{-19}", which is
what it means. The hub was not reached here: the revision is the one that other projects pin, and its columns are those
that they read.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tasks.parts.boxed import INSTRUCTION, BoxedTask, boxed_gold, other_columns, text_of
from tasks.parts.problem import Problem, Source, Split

_SCIENTIFIC = re.compile(r"(?<![A-Za-z0-9.])([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]+)(?![A-Za-z0-9.])")


class Minerva(BoxedTask, frozen=True):
    """The undergraduate problems of Minerva, for evaluation."""

    version: ClassVar[int] = 1
    source: ClassVar[Source] = Source(
        hub_id="math-ai/minervamath",
        hub_config="default",
        revision="ee46ddc498933b1977577953250ca5c66be64f96",
        files={"test": "minerva.jsonl"},
        splits={"test": "test"},
        columns=("question", "answer"),
    )
    name: Literal["minerva"] = "minerva"

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        question = text_of(row, "question")
        answer = str(row["answer"]) if isinstance(row["answer"], int | float) else text_of(row, "answer")
        stated = boxed_gold(question, answer)
        if stated is None and "\\boxed" in answer:
            raise ValueError(rf"answer has no \boxed{{}} with something in it: {answer[-60:]!r}")
        return Problem(
            id=f"minerva/{split}/{index}",
            prompt=f"{question}\n\n{INSTRUCTION}",
            gold=_SCIENTIFIC.sub(_power_of_ten, stated or answer.strip("$ ")),
            question=question,
            columns=other_columns(row, self.source.columns),
        )


def _power_of_ten(number: re.Match[str]) -> str:
    r""" "4e-19" -> "4 \times 10^{-19}"."""
    return rf"{number[1]} \times 10^{{{int(number[2])}}}"
