r"""Units of measure after a number, which are no part of its value: "5\text{ cm}^2", "12 square units", "8 apples".

Only words are units: \text{m} is one, the letter m of an expression never is.
"""

import re

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
        "g": "g gram grams",
        "kg": "kg kilogram kilograms",
        "lb": "lb lbs pound pounds",
        "oz": "oz ounce ounces",
        "s": "s sec second seconds",
        "min": "min minute minutes",
        "h": "h hr hrs hour hours",
        "day": "day days",
        "week": "week weeks",
        "year": "yr yrs year years",
        "dollar": "dollar dollars",
        "cent": "cent cents",
    }.items()
    for spelling in spellings.split()
}
"""Units that are told apart: 5 cm is not 5 m. All other words say nothing about the value."""
_SHORT = re.compile(r"mm|cm|km|in|ft|yd|mi|kg|mg|lb|oz|hr|ml|mL|cc|Hz|kW|mph|kmh|kph|rpm")
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
_CURRENCY = re.compile("[$\u20ac\u00a3\u00a5\u20b9\u00a2]")


def without_unit(text: str) -> tuple[str, str]:
    """A cleaned answer without label, currency and unit, and the unit if it is one of those that are told apart."""
    text = _CURRENCY.sub("", _LABEL.sub("", text)).strip()
    unit = ""
    for _ in range(3):
        match = _IN_TEXT.fullmatch(text)
        words = match["unit"] if match else ""
        if not match:
            match = _IN_WORDS.fullmatch(text)
            words = match["unit"] if match else ""
            if match and not _are_words(words):
                break
        if not match:
            break
        text = match["number"].strip()
        if re.fullmatch(r"(?i)\W*(?:percent|per cent|%)\W*", words):
            return text.removesuffix("%") + "%", ""
        unit = _known(words) or unit
    return text, unit


def _are_words(words: str) -> bool:
    """Whether these can be no product of variables: a unit, or words of three letters and more."""
    found = re.findall("[A-Za-z]+", words)
    if any(map(_MATHEMATICAL.fullmatch, found)):
        return False
    if _SHORT.fullmatch(found[0]) is None and set(found[0]) <= set("abcdxyz"):
        return False
    return all(_SHORT.fullmatch(word) or word in ("m", "s", "h") or len(word) > 2 for word in found)


def _known(words: str) -> str:
    found = re.findall("[A-Za-z]+", words)
    if len(found) > 1 and found[0] in ("square", "sq", "cubic", "cu"):
        found = found[1:]
    return _SAME.get(found[0] if found[0] == "m" else found[0].lower(), "") if len(found) == 1 else ""
