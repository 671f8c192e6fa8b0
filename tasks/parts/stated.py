r"""Where a completion in LaTeX states its answer: the last box, else "the answer is", else the last formula or number.

    "... so $x = \boxed{3}$ or $x = \boxed{4}$."  ->  Stated("4", "box")        the second box supersedes the first
    "The roots are \boxed{3} and \boxed{4}."      ->  Stated("3, 4", "box")     one answer in two boxes

Linear in the length of the text: patterns are bounded, and what they find is read through short windows.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tasks.parts.extract import Method, balanced, final_text
from tasks.parts.words import MAGNITUDES, OPERATORS

_MAX_PLACES = 32
"""Boxes, phrases or formulas that are tried, from the last one backwards."""
_MAX_BOX = 4000
_MAX_PHRASE = 400
"""Characters within which a box, and a sentence, must end."""
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]{0,9}(?P<brace>\{)?")
_BARE = re.compile(
    r"\\[dt]?frac\{[^{}]{1,60}\}\{[^{}]{1,60}\}|-?\\?[$]?\d[\d.,/]{0,60}(?<![.,])|"
    r"-?\\(?!boxed|fbox)[A-Za-z]{1,20}(?:\{[^{}]{1,60}\})?|[A-Za-z0-9]"
)
_JOINT = re.compile(r"\s|\$|\\[()\[\],;: !]|\*\*|\\(?:quad|qquad)(?![A-Za-z])")
_JOINING = re.compile(r"[,;]|\\text ?\{[ ,]{0,3}(?:and|or)[ ,]{0,3}\}|\b(?:and|or)\b", re.IGNORECASE)
_PHRASE = re.compile(
    r"(?:\u7b54\u6848|\u7b54)\s?(?:\u662f|\u4e3a|\u70ba|:|\uff1a)|"
    r"\b(?:answer|solution|result)s?\b(?:[^\n.:=]{0,60}?\b(?:is|are|be)\b:?|[^\n.:=]{0,30}?(?P<colon>:(?:\*\*)?|=))",
    re.IGNORECASE,
)
_ANSWER_ONLY = re.compile(r"answers?\b", re.IGNORECASE)
_FILLER = re.compile(
    r"(?:\s|:|\uff1a|\*\*|`|therefore|thus|hence|simply|just|indeed|equal to|given by|then|either|both|,)*",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|\*|$)|\u3002")
_BOLD = re.compile(r"\*\*(?=[\d$\\(-])[^*\n]{1,100}\*\*")
_NEXT = re.compile(
    r"\s*(?:[,;&]\s*)?(?:\(\s*)?(?P<word>(?:or|and|alternatively|possibly|maybe|perhaps|else|also|even)[\s,]+){0,3}",
    re.IGNORECASE,
)
_LAST_OF_LIST = re.compile(r"\s*[,;]?\s*(?:or|and)\s+", re.IGNORECASE)
_CONTINUED = re.compile(
    r"[ \t]*(?:[*_`]{0,2}[ \t]*)?(?:[\d^/+%<>=$&\u03c0\u221a]|\*(?=[\s\d$])|[-\u2013:]\s?(?=[\d$]|\\\()|!(?=\S)|"
    r"\\(?:cdot|times|div|pm|cup|%|sqrt|frac|pi|\(|\[)|(?:out )?of (?:the )?(?=[\d$]|\\\()|(?P<word>[A-Za-z]+))"
)
"""What makes the formula before it a part of something else: an operator, a digit, or one of some words."""
_CHANGING = OPERATORS | frozenset(MAGNITUDES) | {"percent", "versus", "vs"}
_CHANGED = re.compile(
    r"(?:\b(?:minus|negative|not|twice|double|triple|half|half of|times|least|most|"
    r"(?:more|less|greater|fewer) than|root of)|"
    r"[-\u2212\u00b1<>^/*+\u221a])\s*(?:\*\*)?\Z",
    re.IGNORECASE,
)
"""Before a formula: it is not the answer alone."""
_NOT = re.compile(r"not\b", re.IGNORECASE)
_CHOICE = re.compile(r"\bor\b[^.]{0,30}\d", re.IGNORECASE)
_FORMULA = re.compile(
    r"\$\$(?P<display>[^$]{1,400})\$\$|\$(?P<inline>[^$\n]{1,400})\$|\\\((?P<round>.{1,250}?)\\\)|"
    r"\\\[(?P<square>.{1,250}?)\\\]|\*\*(?P<bold>[^*\n]{1,100})\*\*|"
    r"(?P<latex>-?\d{0,20}\\(?:[dt]?frac\{[^{}]{1,60}\}\{[^{}]{1,60}\}|sqrt\{[^{}]{1,60}\})(?:\\pi(?![A-Za-z]))?)|"
    r"(?P<number>(?<![\w.,/])-?\d{1,60}(?:[,.]\d{1,60}){0,9}(?:/\d{1,60})?%?)",
    re.DOTALL,
)
_THEN_WORDS = re.compile(
    rf" +(?!(?:and|to|by|percent|square|cubic|{'|'.join(sorted(OPERATORS | set(MAGNITUDES)))})\b)[A-Za-z]{{3,}}",
    re.IGNORECASE,
)
_PROSE = re.compile(r"\\[A-Za-z]+(?:\{[^{}\n]*\})?|(?P<word>[A-Za-z]{2,}|[\u3400-\u9fff])")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{[\s.]{0,9}\}")
_LAST_SIDE = re.compile(r".*(?:=|\\approx|\\implies|\\Rightarrow|\\rightarrow)(?=.*\w)", re.DOTALL)


class Stated(NamedTuple):
    """An answer as it is written; None where there is none."""

    text: str | None
    method: Method


class _Box(NamedTuple):
    start: int
    end: int
    content: str


NOTHING = Stated(None, "none")


def math_answer(completion: str, *, truncated: bool = False) -> Stated:
    """Find the answer in the order given at the top of this file.

    A box that does not close leaves nothing, unless one before it does; so does an empty one that is the only one and
    has nothing beside it. Of a truncated completion only boxes and whole sentences count.
    """
    text = final_text(completion)
    boxed, broken = boxed_answer(text)
    if boxed is not None:
        return Stated(boxed, "box")
    if broken:
        return NOTHING
    if truncated:
        text = text[: text.rfind("\n") + 1]
    text = _EMPTY_BOX.sub(" ", text)
    for stated in _phrases(text):
        return Stated(stated, "phrase")
    last = None if truncated else _last(text)
    return NOTHING if last is None else Stated(last, "last_number")


def boxed_answer(text: str) -> tuple[str | None, bool]:
    """What the last box of a text says, None where there is none; and whether there is a box that does not close."""
    boxes, broken = _boxes(text)
    return _joined(text, boxes) if boxes else None, broken


def _boxes(text: str) -> tuple[list[_Box], bool]:
    """The last boxes with something in them, and whether a box does not close. Boxes within boxes are one."""
    found: list[_Box] = []
    broken = False
    for opener in deque(_BOX.finditer(text), maxlen=_MAX_PLACES):
        if found and opener.start() < found[-1].end:
            continue
        if opener["brace"]:
            inner = balanced(text[opener.end() : opener.end() + _MAX_BOX])
            end, content = (None, "") if inner is None else (opener.end() + len(inner), inner)
            broken = broken or inner is None
        else:
            bare = _BARE.match(text, opener.end())
            end, content = (bare.end() - 1, bare[0]) if bare else (None, "")
        if end is not None and content.strip(" \t\r\n.~") and not _EMPTY_BOX.fullmatch(content.strip()):
            found.append(_Box(opener.start(), end + 1, content.strip()))
    return found, broken


def _joined(text: str, boxes: list[_Box]) -> str:
    """The last box, with those before it that are parts of the same answer. Equal parts are one."""
    parts = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _is_joint(text[box.end : parts[0].start]):
            break
        parts.insert(0, box)
    return ", ".join(dict.fromkeys(box.content for box in parts))


def _is_joint(between: str) -> bool:
    if len(between) > 60:
        return False
    rest = _JOINT.sub("", between)
    return bool(rest) and not _JOINING.sub("", rest)


def _phrases(text: str) -> Iterator[str]:
    """What follows "the answer is", up to the end of the sentence or the formula; last first."""
    for place in list(deque(_PHRASE.finditer(text), maxlen=_MAX_PLACES))[::-1]:
        if place["colon"] and not _ANSWER_ONLY.match(place[0]):
            continue  # "Solution:" opens a solution, "Answer:" states one
        window = text[place.end() : place.end() + _MAX_PHRASE]
        start = _FILLER.match(window).end()  # pyright: ignore[reportOptionalMemberAccess]
        window = window[start - 2 * bool(_BOLD.match(window, max(0, start - 2))) :]
        if _NOT.match(window):
            continue
        formula = _FORMULA.match(window)
        if formula and not formula["number"]:
            stated = _formulas(window, formula)
        else:
            stated = _sentence(window.partition("\n")[0], bool(place["colon"]))
        if stated:
            yield stated


def _content(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None).strip().strip("$").strip()


def _formulas(text: str, first: re.Match[str]) -> str:
    """The formulas that are joined to a first one by commas, "and" or "or"; with what makes another answer of it."""
    found, end, joints = [_content(first)], first.end(), list[str]()
    while len(found) < _MAX_PLACES:
        joint = _NEXT.match(text, end)
        following = _FORMULA.match(text, joint.end()) if joint and joint[0].strip() else None
        if joint is None or following is None or (following["number"] and joints == [] and not joint["word"]):
            break
        joints.append(" or " if "or" in joint[0].lower() or "alternatively" in joint[0].lower() else ", ")
        found.append(_content(following))
        end = following.end()
    continued = _CONTINUED.match(text, end)
    word = (continued["word"] or "").lower() if continued else ""
    variable = len(word) == 1 and word != "s" and text[end : end + 1].lower() == word
    if continued and (not word or variable or word in _CHANGING):
        line = text[first.start() : first.start() + _MAX_PHRASE].partition("\n")[0]
        return _SENTENCE_END.split(line, maxsplit=1)[0].strip(" *_`")
    return found[0] + "".join(joint + one for joint, one in zip(joints, found[1:], strict=True))


def _sentence(line: str, after_colon: bool) -> str | None:
    """A short statement; a long sentence counts by its formula or by the number with which it starts."""
    sentence = _SENTENCE_END.split(line, maxsplit=1)[0].strip(" *_`")
    if not re.search(r"\w", sentence):
        return None
    formulas = [found for found in _FORMULA.finditer(sentence) if not found["number"]]
    number = _FORMULA.match(sentence)
    if number and number["number"]:
        joined = _formulas(sentence, number)
        if joined != number["number"]:
            return joined
    if formulas and _CHANGED.search(sentence, 0, formulas[0].start()):
        return sentence
    if formulas:
        joined = _formulas(sentence, formulas[0])
        return None if after_colon and len(formulas) > 1 and joined == _content(formulas[0]) else joined
    if number and number["number"] and _THEN_WORDS.match(sentence, number.end()) and not _CHOICE.search(sentence):
        return number["number"]
    if len(sentence.split()) > 8:
        return None
    if re.search(r"\d|\\", sentence) or len(sentence.split()) <= 2:
        return sentence
    return None


def _last(text: str) -> str | None:
    """The last line if it is nothing but an answer, else the last formula, bold text or number that says something."""
    line = text.rstrip().rpartition("\n")[2].strip()
    marked = re.search(r"\$|\*\*|\\[(\[]", line) or len(line) > _MAX_PHRASE or not re.search(r"\w", line)
    if not marked and not any(match["word"] for match in _PROSE.finditer(line)):
        return _LAST_SIDE.sub("", line, count=1).strip() or line
    places = list(deque(_FORMULA.finditer(text), maxlen=_MAX_PLACES))
    for place in range(len(places) - 1, -1, -1):
        found = places[place]
        content = _content(found)
        if found["bold"] and not re.search(r"\d|\\", content):
            continue
        if not re.search(r"\w", content) or content.endswith(":"):
            continue
        while place and _LAST_OF_LIST.fullmatch(text[places[place - 1].end() : places[place].start()][:20]):
            place -= 1
        joined = _formulas(text, places[place])
        return joined if joined != content else _LAST_SIDE.sub("", content, count=1).strip() or content
    return None
