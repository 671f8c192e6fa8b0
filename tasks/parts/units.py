r"""Units of measure after a number, which are no part of its value: "5\text{ cm}^2", "12 square units", "8 apples".

Only words are units: \text{m} is one, the letter m of an expression never is. Words that multiply ("3 million") are a
part of the value, and words that make another answer ("5 or more", "5 halves") are no units.
"""

import re
from typing import NamedTuple

from tasks.parts.words import LETTER_UNITS, MAGNITUDES, NO_UNITS

_SAME: dict[str, str] = {
    spelling: unit
    for unit, spellings in {
        "mm": "mm millimeter millimeters millimetre millimetres",
        "cm": "cm centimeter centimeters centimetre centimetres",
        "m": "m meter meters metre metres",
        "km": "km kilometer kilometers kilometre kilometres",
        "in": "in inch inches",
        "ft": "ft foot feet",
        "yd": "yd yard yards",
        "mi": "mi mile miles",
        "mg": "mg milligram milligrams",
        "g": "g gm gram grams",
        "kg": "kg kilogram kilograms",
        "lb": "lb lbs pound pounds",  # of weight or of money: nothing tells them apart
        "oz": "oz ounce ounces",
        "ml": "ml milliliter milliliters millilitre millilitres",
        "l": "l liter liters litre litres",
        "gal": "gal gallon gallons",
        "qt": "qt quart quarts",
        "pt": "pint pints",
        "cup": "cup cups",
        "s": "s sec second seconds",
        "min": "min minute minutes",
        "h": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "yr yrs year years",
        "dollar": "dollar dollars usd",
        "cent": "cent cents",
        "euro": "euro euros eur",
        "rupee": "rupee rupees",
        "yen": "yen",
        "F": "f fahrenheit",
        "C": "c celsius",
        "rad": "rad radian radians",
    }.items()
    for spelling in spellings.split()
}
"""Units that are told apart: 5 cm is not 5 m. All other words say nothing about the value."""
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "mpg": "mi/gal"}
_SHORT = re.compile(r"mm|cm|km|in|ft|yd|mi|kg|mg|lb|oz|hr|ml|mL|cc|Hz|kW|mph|kmh|kph|mpg|rpm")
_MATHEMATICAL = re.compile(
    r"sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|exp|sqrt|pi|"
    r"theta|alpha|beta|gamma|delta|lambda|sigma|omega|phi|mod|min|max|inf|gcd|lcm|and|or|if|for|where|infty"
)
_IN_TEXT = re.compile(
    r"(?P<number>.*[\w)}\]|!%])\s*\\text ?\{(?P<unit>[A-Za-z \-.,/^\d()\\%]*)\}(?:\s*\^ ?\{? ?\d ?\}?)?", re.DOTALL
)
_IN_WORDS = re.compile(
    r"(?P<number>.*[\d)}|]) ?(?P<unit>[A-Za-z]{2,}\.?(?:[ /-]{1,2}[A-Za-z]+\.?){0,5})(?: ?\^ ?\{? ?\d ?\}?)?", re.DOTALL
)
_LABEL = re.compile(r"\\text ?\{[^{}]*(?:[:=]|\b(?:is|about|approximately)) *\}(?=.*\d)")
_POWER = re.compile(r"\^ ?\{? ?\d ?\}?")
_CURRENCIES = {"$": "", "\u00a4": "dollar", "\u20ac": "euro", "\u00a3": "lb", "\u00a5": "yen", "\u20b9": "rupee"} | {
    "\u00a2": "cent"
}
"""A sign of a currency and its unit; a written out \\$ is the second one (`tasks.parts.latex`)."""
_CURRENCY = re.compile(f"[{re.escape(''.join(_CURRENCIES))}]")
_SCALE = re.compile(r"\\deg ?(?P<scale>[FC])")
_PERCENT = re.compile(r"(?i)\W*(?:percent|per cent|%)\W*")


class Measured(NamedTuple):
    """A number without what is written around it: its unit if it is one that is told apart, and what multiplies it."""

    text: str
    unit: str
    factor: int


def without_unit(text: str) -> Measured:
    """A cleaned answer without label, currency and unit. What is no unit stays in the text."""
    money = _CURRENCY.search(text)
    text = _CURRENCY.sub("", _LABEL.sub("", text)).strip()
    unit, factor = "", 1
    for _ in range(3):
        match = _IN_TEXT.fullmatch(text)
        in_text = match is not None
        match = match or _IN_WORDS.fullmatch(text)
        if match is None:
            break
        if _PERCENT.fullmatch(match["unit"]):
            return Measured(match["number"].strip().removesuffix("%") + "%", "", factor)
        words, times = _multiplied(match["unit"])
        if not _are_units(words, in_text) or (not in_text and not times and not _are_words(words)):
            break
        text, factor = match["number"].strip(), factor * (times or 1)
        unit = _known(words) or unit
    scale = _SCALE.search(text, max(0, len(text) - 8))
    if scale and scale.end() == len(text):
        text, unit = text[: scale.start()] + "\\deg", scale["scale"]
    return Measured(text, unit or (_CURRENCIES[money[0]] if money else ""), factor)


def _multiplied(words: str) -> tuple[list[str], int]:
    """The words without the "hundred million" at their start, and what that is; 0 where there is none."""
    found = re.findall(r"[A-Za-z]+|\d|/", _POWER.sub("", words))
    factor = 0
    while found and found[0].lower() in MAGNITUDES:
        factor = (factor or 1) * MAGNITUDES[found.pop(0).lower()]
    return found, factor


def _are_units(words: list[str], in_text: bool) -> bool:
    """Whether these can be a unit or a plain noun and change nothing: no choice, no operation, no variable."""
    if "".join(words[:2]).lower() in ("am", "pm") or (words and words[0].lower() == "of" and len(words) < 2):
        return False
    for place, word in enumerate(words):
        article = word == "a" and 0 < place < len(words) - 1
        variable = in_text and len(word) == 1 and word != "/" and word not in LETTER_UNITS and not article
        if word.isdigit() or variable or word.lower() in NO_UNITS:
            return False
    return True


def _are_words(words: list[str]) -> bool:
    """Whether these can be no product of variables: a unit, or words of three letters and more."""
    found = [word for word in words if word != "/"]
    if not found or any(map(_MATHEMATICAL.fullmatch, found)):
        return False
    if _SHORT.fullmatch(found[0]) is None and set(found[0]) <= set("abcdxyz"):
        return False
    return all(_SHORT.fullmatch(word) or word in ("m", "s", "h", "of", "a") or len(word) > 2 for word in found)


def _known(words: list[str]) -> str:
    """One name for a unit, "mi/h" for miles per hour; empty for words that are no unit of measure."""
    parts = [list[str]()]
    for word in words:
        if word in ("per", "/") or (word == "a" and parts[-1]):
            parts.append([])
        else:
            parts[-1].append(word)
    names = [_one(part) for part in parts]
    return "/".join(names) if names[0] else ""


def _one(words: list[str]) -> str:
    words = words[: words.index("of")] if "of" in words else words
    if len(words) > 1 and words[0].lower() in ("square", "sq", "cubic", "cu", "degrees", "degree"):
        words = words[1:]
    if len(words) != 1:
        return ""
    word = words[0] if words[0] == "m" else words[0].lower()
    return _COMPOUND.get(word) or _SAME.get(word, "")
