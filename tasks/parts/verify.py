"""The verifier: one entrance from a completion and its gold answer to a grade."""

from typing import Literal, get_args

from tasks.parts.extract import gsm8k_answer
from tasks.parts.numbers import is_number, plain, stated_number
from tasks.parts.problem import Grade

Style = Literal["gsm8k"]


def grade(completion: str, *, gold: str, style: str, truncated: bool = False) -> Grade:
    """Judge a completion against the gold answer; the two are never interchangeable, so `gold` is by keyword only.

    Args:
        style: "gsm8k": one number, compared exactly; `method` "marker" alone is the strict score.
        truncated: the completion was cut at its token budget.

    Returns:
        A grade whose `correct` is None where the gold itself cannot be read.

    Raises:
        ValueError: unknown style.
    """
    if style not in get_args(Style):
        raise ValueError(f"style {style!r} is unknown: must be one of {', '.join(get_args(Style))}")
    gold_key = number_of(gold)
    answer = gsm8k_answer(completion, truncated=truncated)
    return Grade(
        correct=None if gold_key is None else answer.key == gold_key,
        answer_key=answer.key,
        method=answer.method,
        parsed=answer.key is not None,
        truncated=truncated,
    )


def number_of(text: str) -> str | None:
    """The key of a gold answer; None where it is not one number."""
    key = stated_number(plain(text)) if len(text) < 100 else None
    return key if is_number(key) else None
