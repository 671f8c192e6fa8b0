r"""Text to exact number: "-$70,000.00", "\frac{3}{4}" and "2½" become a key that is equal exactly when the values are.

Exact fractions, no tolerance: 120001 is not 120000. Currency, percent sign and unit are dropped, as GSM8K's golds do.
Meant for short texts (`MAX_SPAN`): Unicode normalisation alone is quadratic in a long run of combining marks.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

MAX_SPAN = 300
"""Characters that are read in search of one number."""
_MAX_DIGITS = 100
"""A number with more digits than this is not read: it costs time and is no answer."""

VULGAR_FRACTIONS = "\u00bc-\u00be\u2150-\u215e\u2189"
_VULGAR = re.compile(f"[{VULGAR_FRACTIONS}]")
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2074-\u2079]")
_LOWERED = re.compile("[\u2080-\u2089]")
_SPACED_GROUP = re.compile("(?<=\\d)[\u00a0\u2007\u2009\u202f](?=\\d{3}(?!\\d))")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_FOLDED = {
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u2044\u2215"), "/"),
    **dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"), None),
    0x066B: ".",
    0x066C: ",",
}
_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\*\*|__|`|\\[()\[\]!]|\\(?:left|right|displaystyle)\b"), ""),
    (re.compile(r"\\\$"), "$"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)\\,(?=\d)"), ""),
    (re.compile(r"\\[,;: ]|~"), " "),
    (re.compile(r"\\(?:text\w*|math\w+|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"(?<=\d)(\\[dt]?frac)"), r" \1"),
    (re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r"\1/\2 "),
)
_RUN = re.compile(r"[0-9.,]+")
_DECIMAL = re.compile(r"\d+(?:\.\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\.\d+")
_PIECE = re.compile(r"\d+(?:\.\d+)?")
_EXPONENT = re.compile(r"[eE][+-]?(\d+)(?!\w)")
_CURRENCY = "$€£¥₹"
_HEDGE = re.compile(r"\b(?:or|either)\b|(?:[,;:/&|*+^<>-]|\b(?:and|to|x|times))[\s($]*\Z", re.IGNORECASE)
_ALTERNATIVE = re.compile(r"[\s,$]*\b(?:or|and)\b[\s$]*", re.IGNORECASE)


class Number(NamedTuple):
    """One number in a text. `value` is None for one with so many digits that it is no answer."""

    start: int
    end: int
    value: Fraction | None


def ascii_digits(span: str) -> str:
    """The text with Unicode digits, signs and fractions as ASCII: "-2½" -> "-2 1/2", "m²" -> "m^2"."""
    if not span.isascii():
        # Before NFKC: it would turn 2½ into 21/2 and m² into m2.
        span = _SPACED_GROUP.sub("", span)
        span = _VULGAR.sub(r" \g<0>", span)
        span = _LOWERED.sub(r"_\g<0>", _RAISED.sub(r"^\g<0>", span))
        span = unicodedata.normalize("NFKC", span).translate(_FOLDED)
        span = _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), span)
    return span


def plain(span: str) -> str:
    """The text with Unicode digits, signs and fractions as ASCII, and without LaTeX and Markdown around its numbers."""
    span = ascii_digits(span)
    for pattern, replacement in _MARKUP:
        span = pattern.sub(replacement, span)
    return span


def numbers(span: str) -> list[Number]:
    """All numbers of a plain text, fractions and mixed numbers as one. Digits after a letter, ^ or _ name something."""
    found: list[Number] = []
    for run in _RUN.finditer(span):
        before = span[max(0, run.start() - 1) : run.start()]
        named = before.isalpha() or before in ("^", "_")
        core = run[0].rstrip(".,")
        lead = core[: len(core) - len(core.lstrip(".,"))]
        inside = bool(found) and run.start() < found[-1].end  # the exponent's digits
        if inside or (named and not lead):
            continue
        # "...5" and "Rs.500" start with punctuation, ".5" with a decimal point.
        skip = 0 if lead == "." and not named else len(lead)
        core = core[skip:]
        whole = [(0, len(core))] if _DECIMAL.fullmatch(core) else [piece.span() for piece in _PIECE.finditer(core)]
        origin = run.start() + skip
        found.extend(_number(span, origin + start, origin + end) for start, end in whole)
    return _joined(span, found)


def _number(span: str, start: int, end: int) -> Number:
    digits = span[start:end].replace(",", "")
    exponent = _EXPONENT.match(span, end)
    if exponent:
        digits, end = digits + exponent[0], exponent.end()
    if len(digits) > _MAX_DIGITS or (exponent and len(exponent[1]) > 2):
        return Number(start, end, None)
    sign = _sign(span, start)
    value = Fraction(digits)
    return Number(start if sign is None else sign, end, value if sign is None else -value)


def _sign(span: str, start: int) -> int | None:
    """Where a number's minus sign stands: right before it or its currency, and not after something to subtract from."""
    head = span[:start].rstrip(_CURRENCY)
    if not head.endswith("-"):
        return None
    operand = head[-2:-1]
    return None if operand.isalnum() or operand in (")", "]", "%", "-") else len(head) - 1


def _joined(span: str, found: list[Number]) -> list[Number]:
    """3, 4 in "3/4" become one number, and 2, 1/2 in "2 1/2"."""
    joined: list[Number] = []
    for number in found:
        last = joined[-1] if joined else None
        between = span[last.end : number.start] if last else ""
        fractions = last is not None and "/" in span[max(0, last.start - 1) : last.end]
        if last and last.value is not None and number.value and between == "/" and not fractions:
            joined[-1] = Number(last.start, number.end, last.value / number.value)
            joined = _mixed(span, joined)
        else:
            joined.append(number)
    return joined


def _mixed(span: str, joined: list[Number]) -> list[Number]:
    """Adds a fraction below 1 to the whole number before it."""
    if len(joined) < 2:
        return joined
    whole, part = joined[-2:]
    gap = span[whole.end : part.start]
    if whole.value is None or part.value is None or whole.value.denominator != 1 or not gap or gap.strip():
        return joined
    if not 0 < part.value < 1:
        return joined
    negative = span[whole.start] == "-"
    value = whole.value - part.value if negative else whole.value + part.value
    return [*joined[:-2], Number(whole.start, part.end, value)]


def stated_number(span: str) -> str | None:
    """The key of the one number that a plain text states as an answer, with or without a unit.

    Of an equation the last side counts. Several different numbers are one answer only if the first is followed by words
    that neither offer a choice nor compute ("18 dollars in 7 days"); else ("5 and 6", "9*2") the answer is the text,
    which equals no number. None where there is no number.
    """
    found: list[Number] = []
    for side in reversed(re.split("[=≈]", span)):
        found = numbers(side)
        if found:
            span = side
            break
    if not found:
        return None
    if len({number.value for number in found}) > 1:
        between = span[found[0].end : found[1].start]
        if _HEDGE.search(between) or not re.search("[A-Za-z]", between):
            return text_key(span)
    return number_key(found[0], span)


def last_number(span: str) -> str | None:
    """The key of the last number of a plain text; of the last two if it leaves the choice open ("5 or 6")."""
    found = numbers(span)
    if not found:
        return None
    pair = found[-2:]
    if pair[0].value != pair[-1].value and _ALTERNATIVE.fullmatch(span[pair[0].end : pair[-1].start]):
        return text_key(span[pair[0].start : pair[-1].end])
    return number_key(found[-1], span)


def number_key(number: Number, span: str) -> str:
    """Canonical: "29" for 29.00, "3/4" for 0.75."""
    return text_key(span[number.start : number.end]) if number.value is None else str(number.value)


def text_key(span: str) -> str:
    """Key of an answer that is not one number, equal to no number's key. ASCII, so that any file can hold it."""
    words = " ".join(span.lower().split())
    return "text:" + words.encode("ascii", "backslashreplace").decode()[:_MAX_DIGITS]


def is_number(key: str | None) -> bool:
    """Whether a key stands for a number."""
    return key is not None and not key.startswith("text:")
