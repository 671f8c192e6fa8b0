"""Form scores that no task owns: thinking apart from the answer, and JSON that can be read."""

import json
from typing import Any

_FENCE = "```"


class NotJson(ValueError):
    """The text holds no JSON value where one was looked for."""


def think_answer_score(text: str) -> float:
    """How far a completion is <think>...</think><answer>...</answer>: a quarter for each step, so 0 to 1.

    The steps: a thinking part and an answer part (each tag exactly once, the opening one first), thinking before the
    answer, and nothing but white space outside of two parts that say something. A completion that closes <think> and
    never opens it counts as if it began with the tag, which some chat templates write themselves.
    """
    if "<think>" not in text and text.count("</think>") == 1:
        text = f"<think>{text}"
    thought, answer = _part(text, "think"), _part(text, "answer")
    score = 0.25 * (thought is not None) + 0.25 * (answer is not None)
    if thought is None or answer is None or thought[3] > answer[0]:
        return score
    outside = text[: thought[0]] + text[thought[3] : answer[0]] + text[answer[3] :]
    inside = [text[start:end] for _, start, end, _ in (thought, answer)]
    return score + 0.25 + 0.25 * (not outside.strip() and all(part.strip() for part in inside))


def _part(text: str, tag: str) -> tuple[int, int, int, int] | None:
    """Where a part begins, its content begins and ends, and it ends; None unless each tag stands once, in order."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.index(opening), text.index(closing)
    return (start, start + len(opening), end, end + len(closing)) if start < end else None


def json_value(text: str) -> Any:
    """The value that a completion gives as JSON: its last fenced block, or else the whole text.

    Raises:
        NotJson: that is no JSON; NaN and infinity, which Python would read, are none.
    """
    try:
        return json.loads(_fenced(text) or text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def _fenced(text: str) -> str | None:
    """What stands between the last two fences, without the language that the first one names."""
    before, fence, _ = text.rpartition(_FENCE)
    head, opening, block = before.rpartition(_FENCE)
    if not fence or not opening or head.count(_FENCE) % 2:
        return None
    language, newline, rest = block.partition("\n")
    return rest if newline and language.strip().isalnum() else block


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
