r"""Text to exact number: "-$70,000.00", "\frac{3}{4}" and "2½" become a key that is equal exactly when the values are.

Exact fractions, no tolerance: 120001 is not 120000. Currency, percent sign and unit are dropped, as GSM8K's golds do.
Meant for short texts (`MAX_SPAN`): Unicode normalisation alone is quadratic in a long run of combining marks.
"""

import re
import unicodedata
from fractions import Fraction
from math import factorial
from typing import NamedTuple

from tasks.parts import arithmetic
from tasks.parts.words import LETTER_UNITS, MAGNITUDES, NUMERALS, OPERATORS, with_halves

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
    (re.compile(r"(?<=\d)\*\*(?=-?\d)"), "^"),
    (re.compile(r"\*\*|__|`|\\[()\[\]!]|\\(?:left|right|displaystyle)\b"), ""),
    (re.compile(r"\\\$"), "$"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)\\,(?=\d)"), ""),
    (re.compile(r"(?<=\d)(?:['\u2019]|\\?_)(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[,;: ]|~"), " "),
    (re.compile(r"\\(?:text\w*|math\w+|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"(?<=\d)(\\[dt]?frac)"), r" \1"),
    (re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r"\1/\2 "),
)
_RUN = re.compile(r"[0-9.,]+")
_DECIMAL = re.compile(r"\d+(?:\.\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\.\d+")
_PIECE = re.compile(r"\d+(?:\.\d+)?")
_NEGATED = re.compile(
    r"(?P<before>\A\W{0,9}|\b(?:is|are|was|be|equals|get|gets|answer)\W{1,3}|[=:]\s?)(?:minus|negative)\s(?=[$\u20ac\u00a3]?\.?\d)",
    re.IGNORECASE,
)
_MADE_OF = re.compile(
    r"[\u221a\u221b\u00b1<>\u2264\u2265^/]\s?\(?\Z|-\s?\(\Z|\\[A-Za-z]+\W{0,3}\Z|\\[dt]?frac.*\Z|\b(?:not|sqrt) ?\(?\Z",
    re.DOTALL,
)
"""Before a number: a root, a relation, a command make something else of it."""
_POWER = re.compile(r"\s?\^\s?(?:\{\s?(?P<long>-?\d{1,3})\s?\}|(?P<short>-?\d{1,3}))\s?(?![\w^.,]*\d)")
_FACTORIAL = re.compile(r"!(?=\s*\Z)")
_AFTER = re.compile(
    r"\s?(?:\^(?!\s?\{?\s?\\circ)|[+/<>\u2264\u2265](?!\s?[A-Za-z])|\*(?!\W*\Z)|!(?!\s)|_|[\u03c0\u221a\u221e])|\)\s?[\^!+*]|"
    r"\s?\\(?!circ|quad|qquad|%)[A-Za-z]|\s*,?\s*\(?is (?:not|wrong|incorrect)\b|-\s?\Z",
)
"""After a number: an operator, a relation or a command."""
_WORD_AFTER = re.compile(r"(?P<gap>[\s(,-]{0,3})(?P<word>[A-Za-z]+)(?P<next>.?)", re.DOTALL)
_SOMETIMES = frozenset({"to", "over", "by", "times"})
_COMPUTES = re.compile(rf"\s+(?:the power|{'|'.join(sorted(NUMERALS))})\b", re.IGNORECASE)
"""After "5 times", which is no operation in "5 times as many"."""
_SPACED = re.compile(r"\s*[$\u20ac\u00a3]?-?[$\u20ac\u00a3]?\d{1,3}(?: \d{3}){1,9}(?![\d,.]*\d)")
_SUFFIXES = {"k": 1000, "K": 1000, "M": 10**6}
"""Letters right after the digits of a number that multiply it."""
_MAX_FACTORIAL = 30
_EXPONENT = re.compile(r"[eE][+-]?(\d+)(?!\w)")
_CURRENCY = "$€£¥₹"
_HEDGE = re.compile(
    r"\b(?:or|either|plus|minus|over|maybe|perhaps|possibly)\b|"
    r"(?:\bof(?: the)?|[,;:/&|*+^<>-]|\b(?:and|to|x|times))[\s($]*\Z",
    re.IGNORECASE,
)
_ONE_NOUN = re.compile(
    r"\s*(?!(?:in|for|from|per|at|after|before|by|on|with|because|since|is|as)\b)[A-Za-z]+\s*", re.IGNORECASE
)
"""5 feet 6, 3 hundred 20: both numbers are parts of one."""
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
    return _NEGATED.sub(r"\g<before>-", with_halves(span))


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
    sides = re.split("[=≈]", span)
    sides = [_ungrouped(side) for side in sides if numbers(side)]
    if not sides:
        return None
    span = sides[-1]
    found = numbers(span)
    if len({number.value for number in found}) > 1:
        between = span[found[0].end : found[1].start]
        if _HEDGE.search(between) or _ONE_NOUN.fullmatch(between) or not re.search("[A-Za-z]", between):
            return _checked(sides) or text_key(span)
    return measured_key(found[0], span)


def _ungrouped(side: str) -> str:
    """The side of an equation with "70 000" as 70000, if it starts with it."""
    grouped = _SPACED.match(side)
    return grouped[0].replace(" ", "") + side[grouped.end() :] if grouped else side


def _checked(sides: list[str]) -> str | None:
    """The first side of "5 = 2+3", if the last one comes to it."""
    computed = arithmetic.parse(arithmetic.as_ascii(sides[-1])) if len(sides) > 1 else None
    key = stated_number(sides[0]) if computed else None
    return key if computed and key == str(computed.value) else None


def measured_key(number: Number, span: str) -> str:
    """The key of a number with what multiplies it ("3 million", "5k", "10^5"); the text if it is made another answer.

    Units, nouns and sentences after it say nothing about it.
    """
    if number.value is None or _MADE_OF.search(span, 0, number.start):
        return text_key(span)
    value, rest = number.value, span[number.end :]
    power = _POWER.match(rest)
    if power:
        exponent = int(power["long"] or power["short"])
        if abs(exponent) > _MAX_DIGITS or (value == 0 and exponent < 0) or _MADE_OF.search(span, 0, number.start):
            return text_key(span)
        # A minus sign belongs to the whole power.
        value, rest = (-1 if value < 0 else 1) * abs(value) ** exponent, rest[power.end() :]
    elif _FACTORIAL.match(rest) and value.denominator == 1 and 0 <= value <= _MAX_FACTORIAL:
        return str(factorial(value.numerator))
    if rest[:1] in _SUFFIXES and not rest[1:2].isalnum():
        value, rest = value * _SUFFIXES[rest[0]], rest[1:]
    while (word := _WORD_AFTER.match(rest)) and word["word"].lower() in MAGNITUDES:
        value, rest = value * MAGNITUDES[word["word"].lower()], rest[word.end("word") :]
    if _AFTER.match(rest) or (word and _changes(word)):
        return text_key(span)
    key = str(value)
    return key if len(key) <= 2 * _MAX_DIGITS else text_key(span)


def _changes(after: re.Match[str]) -> bool:
    """Whether the word after a number is a variable or an operation."""
    word, gap = after["word"], after["gap"]
    if word.lower() in OPERATORS:
        return word.lower() not in _SOMETIMES or _COMPUTES.match(after.string, after.end("word")) is not None
    article = bool(gap) and word in ("a", "A", "I") and after["next"] == " "
    return len(word) == 1 and word not in LETTER_UNITS and not article and after["next"] not in (".", "'")


def last_number(span: str) -> str | None:
    """The key of the last number of a plain text; of the last two if it leaves the choice open ("5 or 6")."""
    found = numbers(span)
    if not found:
        return None
    pair = found[-2:]
    if pair[0].value != pair[-1].value and _ALTERNATIVE.fullmatch(span[pair[0].end : pair[-1].start]):
        return text_key(span[pair[0].start : pair[-1].end])
    return measured_key(found[-1], span)


def text_key(span: str) -> str:
    """Key of an answer that is not one number, equal to no number's key. ASCII, so that any file can hold it."""
    words = " ".join(span.lower().split())
    return "text:" + words.encode("ascii", "backslashreplace").decode()[:_MAX_DIGITS]


def is_number(key: str | None) -> bool:
    """Whether a key stands for a number."""
    return key is not None and not key.startswith("text:")
