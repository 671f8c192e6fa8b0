r"""OlympiadBench: 674 olympiad problems in English, text only; answers are numbers, expressions, tuples, intervals.

    Find all real x with x^2 - 5x + 6 = 0.                 final_answer: ["2,3"], is_multiple_answer: true, error: null

He et al. 2024, arXiv:2402.14008, Apache-2.0; the configuration OE_TO_maths_en_COMP (open-ended, text only, mathematics,
English, competitions). A test set only: the hub's one split is called train. Quirks of the golds: `final_answer` is a
list of texts, with dollar signs and units; where `is_multiple_answer`, one text holds all answers and their order does
not matter; `answer_type` is Numerical, Expression, Tuple or Interval; `unit` stands apart; `error`, where it is not
null, is an absolute tolerance for the number ("1e-1"), which is honoured here beside the exact comparison. Rows without
a final answer do not belong to this configuration and are refused. The hub was not reached here: the revision is the
one that other projects pin, and its columns are those that they read.
"""

import ast
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

from tasks.parts import verify
from tasks.parts.boxed import INSTRUCTION, BoxedTask, other_columns, text_of
from tasks.parts.problem import Grade, Problem, Source, Split


class OlympiadBench(BoxedTask, frozen=True):
    """OlympiadBench's text-only mathematics in English, for evaluation."""

    version: ClassVar[int] = 1
    source: ClassVar[Source] = Source(
        hub_id="Hothan/OlympiadBench",
        hub_config="OE_TO_maths_en_COMP",
        revision="91184b52131e7fc9455fef848035173aea8cc01a",
        files={"test": "olympiadbench.jsonl"},
        splits={"test": "train"},
        columns=("question", "final_answer"),
    )
    name: Literal["olympiadbench"] = "olympiadbench"

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        question = text_of(row, "question")
        answers = _answers(row["final_answer"])
        several = " Where there are several answers, give all of them, separated by commas."
        context = row.get("context")
        if isinstance(context, str) and context.strip():
            question = f"{context.strip()}\n\n{question}"
        _tolerance(row.get("error"))
        return Problem(
            id=f"olympiadbench/{split}/{index}",
            prompt=f"{question}\n\n{INSTRUCTION}{several if row.get('is_multiple_answer') else ''}",
            gold=", ".join(answers),
            question=question,
            columns=other_columns(row, self.source.columns),
        )

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        return _tolerant(problem, super().grade(problem, completion, truncated=truncated))

    def grade_all(self, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        grades = super().grade_all(items)
        return [_tolerant(problem, grade) for (problem, _, _), grade in zip(items, grades, strict=True)]


def _answers(final_answer: Any) -> list[str]:
    r"""The answers without dollar signs: ["$2$", "$3$"] -> ["2", "3"]; a table in CSV has the list as a text.

    Raises:
        ValueError: it is not a text or a list of texts, or there is none.
    """
    answers: Any = [final_answer] if isinstance(final_answer, str) else final_answer
    if isinstance(final_answer, str) and final_answer.startswith(("['", '["')):
        with contextlib.suppress(ValueError, SyntaxError):
            answers = ast.literal_eval(final_answer)
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip(" $") for a in answers):
        raise ValueError(f"final_answer is {final_answer!r}, not a list of texts")
    return [answer.strip().replace("$", "") for answer in answers]


def _tolerance(error: Any) -> Fraction | None:
    """The absolute tolerance of a row; None where there is none, or one for each of several answers ("1e-1,1e-2").

    Raises:
        ValueError: it is not a number.
    """
    texts = "" if error is None else str(error).strip()
    if texts in ("", "nan"):
        return None
    try:
        tolerances = [abs(Fraction(text.strip())) for text in texts.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"error is {error!r}, not a number") from None
    return tolerances[0] if len(tolerances) == 1 else None


def _tolerant(problem: Problem, grade: Grade) -> Grade:
    """The same grade, or a correct one where the answer is a number within the row's tolerance of the gold."""
    tolerance = _tolerance(problem.columns.get("error"))
    if tolerance is None or grade.correct is not False:
        return grade
    # The key of a number is the number, however it is written: "\frac{1}{3}" has the key "1/3".
    own = verify.grade(rf"\boxed{{{problem.gold}}}", gold=problem.gold, style="math")
    gold, answer = _number(own.answer_key), _number(grade.answer_key)
    if gold is None or answer is None:
        return grade
    return replace(grade, correct=abs(gold - answer) <= tolerance)


def _number(text: str | None) -> Fraction | None:
    """The number that a key is, "5/2" or "-0.25"; None for any other key."""
    try:
        return Fraction(text.replace(" ", "")) if text and len(text) < 60 and "e" not in text.lower() else None
    except (ValueError, ZeroDivisionError):
        return None
