r"""Where a completion states its answer: the last "#### number", else box, else "the answer is", else the last number.

All patterns are linear in the length of the text, and what they find is read through short windows, so that no
completion, however long or malformed, can stall a grader.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tasks.parts.numbers import MAX_SPAN, VULGAR_FRACTIONS, is_number, last_number, numbers, plain, stated_number

Method = Literal["marker", "box", "phrase", "last_number", "letter", "none"]

_ANNOTATION = re.compile(r"<<[^<>\n]*>>")
_SPECIAL_TOKEN = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|end_of_text|start_header_id|eom_id|end|user|return)\|>|</s>|<end_of_turn>|"
    r"<eos>|<\uff5cend\u2581of\u2581sentence\uff5c>"
)
_LEADING_TOKENS = re.compile(r"\A(?:\s{0,9}<\|(?:im_start|start_header_id)\|>\w{0,20}(?:<\|end_header_id\|>)?){1,3}")
_SAID = re.compile(r"\d|\\(?:boxed|fbox)\s*\{[^}]")
_NEXT_QUESTION = re.compile(r"(?<=\n)[ \t*#>]{0,8}(?P<word>Question|Problem|Q)[ \t]{0,3}(?P<number>\d{0,4})[ \t]{0,3}:")
_MARKER = re.compile(r"#{4,}")
_LEAD = re.compile(r"(?:the\s+)?(?:final\s+)?(?:answer)?(?:\s+is)?[^A-Za-z]*", re.IGNORECASE)
_LISTING = re.compile(r"[.):]\s+[A-Za-z]")
_FIRST_ITEM = re.compile(r"1[.)]\s+[A-Za-z]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_PHRASE = re.compile(r"\banswer\b(?:[^\n.:=]{0,60}?\bis\b|[^\n.:=]{0,30}?(?P<colon>[:=]))", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_LAST_DIGIT = re.compile(rf"[\d{VULGAR_FRACTIONS}](?=[^\d{VULGAR_FRACTIONS}]*\Z)")

_MAX_PLACES = 32
"""Markers, boxes or phrases that are tried, from the last one backwards."""
_MAX_BOX = 4000
"""Characters within which a box must close."""


class Answer(NamedTuple):
    """An extracted answer: its key (None where there is none) and how it was found."""

    key: str | None
    method: Method


def final_text(completion: str) -> str:
    """The part that can hold the answer: after the thinking, up to the end of turn or the next question.

    A thought that is not closed leaves nothing. A new question ends the text only after a number or a box has been
    said, so that a model may restate its own question first.
    """
    completion = _LEADING_TOKENS.sub("", completion, count=1)
    special = _SPECIAL_TOKEN.search(completion)
    if special:
        completion = completion[: special.start()]
    _, _, text = completion.rpartition("</think>")
    if "<think>" in text:
        return ""
    said = _SAID.search(text)
    question = _next_question(text, said.end()) if said else None
    return text if question is None else text[:question]


def _next_question(text: str, start: int) -> int | None:
    """Where another question begins; "Question 2:" after "Question 1:" is a part of the same."""
    seen: set[tuple[str, int]] = set()
    # One line earlier at least, so that a heading is found from the start of its line on.
    for heading in _NEXT_QUESTION.finditer("\n" + text):
        place, number = heading.start() - 1, int(heading["number"] or -1)
        if place >= start and (number < 1 or (heading["word"], number - 1) not in seen):
            return place
        seen.add((heading["word"], number))
    return None


def without_annotations(text: str) -> str:
    """GSM8K's text without its calculator annotations: "48/2 = <<48/2=24>>24" -> "48/2 = 24"."""
    return _ANNOTATION.sub("", text)


def gsm8k_answer(completion: str, *, truncated: bool = False) -> Answer:
    """Find the answer as GSM8K writes it, in the order given at the top of this file.

    Of a truncated completion only whole lines and explicit statements count: its last number may be half a number, and
    is no answer that the model gave.
    """
    text = without_annotations(final_text(completion))
    if truncated:
        text = text[: text.rfind("\n") + 1]
    explicit: dict[Method, Iterator[str]] = {"marker": _marked(text), "box": _boxed(text), "phrase": _phrased(text)}
    for method, keys in explicit.items():
        key = next(keys, None)
        if key is not None:
            return Answer(key, method)
    key = None if truncated else _last(text)
    return Answer(key, "none" if key is None else "last_number")


def ends_with_marker(completion: str) -> bool:
    """Whether the last line, and nothing after it, is "#### number"."""
    line = completion.rstrip().rpartition("\n")[2]
    return line.lstrip().startswith("####") and is_number(next(_marked(line), None))


def balanced_boxes(text: str) -> Iterator[str]:
    r"""Contents of \boxed{} and \fbox{}, last first, without those that are empty or do not close."""
    for opener in _last_places(_BOX, text):
        content = balanced(text[opener.end() : opener.end() + _MAX_BOX])
        if content and content.strip():
            yield content


def balanced(text: str) -> str | None:
    """What stands before the brace that closes one opened earlier; escaped braces do not count."""
    depth = 1
    for brace in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[: brace.start()]
    return None


def _last_places(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The last matches, last first."""
    return list(deque(pattern.finditer(text), maxlen=_MAX_PLACES))[::-1]


def _line(text: str, start: int) -> str:
    """The rest of a line as plain text, or the next line with something on it."""
    return plain(text[start : start + MAX_SPAN].lstrip("*_ \t\r\n").partition("\n")[0])


def _marked(text: str) -> Iterator[str]:
    """Numbers after "####". A Markdown heading ("#### Step 1", "#### 2. Add") is not an answer."""
    for marker in _last_places(_MARKER, text):
        key = _leading_number(_line(text, marker.end()))
        if key is not None:
            yield key


def _leading_number(line: str) -> str | None:
    """The number with which a line starts, which is not the number of an item in a list."""
    line = re.sub(r"^-\s+", "-", line)
    found = numbers(line)
    if not found or not _LEAD.fullmatch(line, 0, found[0].start) or _LISTING.match(line, found[0].end):
        return None
    return stated_number(line)


def _boxed(text: str) -> Iterator[str]:
    for content in balanced_boxes(text):
        key = stated_number(plain(content)) if len(content) <= MAX_SPAN else None
        if key is not None:
            yield key


def _phrased(text: str) -> Iterator[str]:
    """Numbers in the sentence after "the answer is"; after "Answer:" only at once, as a whole solution may follow."""
    for place in _last_places(_PHRASE, text):
        line = _line(text, place.end())
        sentence = _SENTENCE_END.split(line, maxsplit=1)[0]
        key = _leading_number(sentence) if place["colon"] else stated_number(sentence)
        if key is not None and not _FIRST_ITEM.match(line):
            yield key


def _last(text: str) -> str | None:
    """The last number, read in the line it stands on."""
    digit = _LAST_DIGIT.search(text)
    if not digit:
        return None
    start = max(0, digit.end() - MAX_SPAN)
    above, line_break, line = text[start : digit.end()].rpartition("\n")
    if start > 0 and not above and not line_break:
        # The window may have cut a number in two.
        line = re.sub(r"^[\d.,]+", "", line)
    # Some more after the digit, for the brace that closes a fraction and "and a half"; there are no more digits there.
    return last_number(plain(line + text[digit.end() : digit.end() + 24].partition("\n")[0]))
