r"""What an answer says, as a tree: a value, a word, or a tuple, set, interval, list, matrix, ratio or equation of them.

    "x \in (1, \frac{4}{2}]"  ->  range of x: interval "(]": value "1", value "2"

Trees hold text only, so equal answers of one kind are equal trees; `tasks.parts.equality` compares the kinds. Nothing
is guessed: what is not understood is a "raw" tree, for a computer algebra system to judge.
"""

import re
from fractions import Fraction
from functools import lru_cache

from tasks.parts import units
from tasks.parts.expressions import TooLarge, Unreadable, parse
from tasks.parts.latex import MAX_LENGTH, OR, clean, closing, split, squashed
from tasks.parts.notation import DERIVATIVE, equations, holds_infinity, turned
from tasks.parts.trees import EMPTY, INFINITY, MINUS_INFINITY, Tree, combined, interval, ordered
from tasks.parts.values import equation_key, key

_MAX_DEPTH = 6
_INTEGER = re.compile(r"-?[0-9]{1,30}")  # the most common answer: no need for anything slower
_COMMA = re.compile(r"[,;]")
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_RELATION = re.compile(r"\\(?:leq|geq|neq|in|approx)(?![A-Za-z])|[=<>]")
_FLIPPED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}
_OTHER_RELATION = re.compile(r"\\(?:equiv|pmod|bmod|mod|subset|subseteq|mid|implies|iff|to|rightarrow)(?![A-Za-z])")
_SYMBOL = r"(?:[A-Za-z]|\\[a-zA-Z]+)(?:_(?:\w|\{[\w, ]+\}|\\text\{[^{}]*\}))?'{0,3}"
_NAME = re.compile(_SYMBOL)
_BUILDER = re.compile(r"\\\{ ?[a-z](?: ?\\in ?\(-\\infty,\\infty\))? ?(?:\\mid|\||:)(?P<condition>[^|]+)\\\}")
_WITHOUT = re.compile(r"\(-\\infty,\\infty\) ?\\(?:setminus|backslash) ?\\\{(?P<point>[^{},]+)\\\}")
_SUM = re.compile(rf"{_SYMBOL}(?: ?\+ ?{_SYMBOL}){{1,5}}")
_LABEL = re.compile(
    rf"{_SYMBOL} ?(?:\^\{{?-1\}}?)? ?\([^()]*\)|\([A-Za-z](?:_\w)?(?: ?, ?[A-Za-z](?:_\w)?)+\)|[A-Z]{{2,4}}|"
    r"\\(?:text|overline|vec|hat|overrightarrow|angle|triangle|widehat)(?![A-Za-z]).{0,80}|"
    r"[A-Za-z]{4,}(?: [A-Za-z]+){0,5}"
)
_BASE = re.compile(
    r"\(?(?P<digits>-?[0-9][0-9A-F]*(?:\.[0-9A-F]+)?)\)?_ ?(?:\{ ?(?P<long>\d{1,2}) ?\}|(?P<short>\d{1,2}))"
)
_MIXED = re.compile(r"(?P<sign>-?) ?(?P<whole>\d{1,30}) +(?P<above>\d{1,30}) ?/ ?(?P<below>\d{1,30})")
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3}){1,20}(?:\.\d+)?")
_SCIENTIFIC = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?[eE][+-]?\d{1,3}")
_MATRIX = re.compile(r"\\begin ?\{[pbB]?matrix\*?\}(?P<cells>.*)\\end ?\{[pbB]?matrix\*?\}", re.DOTALL)
_ARRAY = re.compile(r"(?<=\\begin)\{array\}(?: ?\{[clr| ]*\})?|(?<=\\end)\{array\}")
_CLOCK = re.compile(
    r"(?P<time>\d{1,2}(?::\d\d)?) ?(?P<half>[ap])\.? ?m\.?|(?:12(?::00)? ?)?(?P<twelve>noon|midnight)", re.IGNORECASE
)
_REMAINDER = re.compile(r"\\bmod(?![A-Za-z])")
_WORDING = re.compile(r"\\text ?\{(?! ?(?:gcd|lcm|max|min|d) ?\})")
_LETTER = re.compile(r"\(? ?(?P<letter>[A-Z]) ?\)?")
_LETTERS = re.compile(r"[A-Z](?:\s{0,3},\s?[A-Z])+")
_OPTION = re.compile(r"\((?P<letter>[A-E])\) ?[-\d\\]")  # an option with its text: "(B) 12"
_PARENTHESISED = re.compile(r"\( ?(?P<letter>[A-Za-z]) ?\)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' .-]*(?:, ?[A-Za-z][A-Za-z' .-]*)*")
_NAMED_ALIKE = re.compile(r"[A-Z]{2,}|[A-Z][a-z]{2,} \d{1,2}(?:st|nd|rd|th)?(?:,? ?\d{4})?")
"""Names of segments, and dates, without their text command: VW, June 20."""
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])(?:[A-Za-z]{4,}|to|not|out)(?![A-Za-z])")
_NEEDLESS = re.compile(r" (?!\w)|(?<!\w) ")
_TEXT = re.compile(r"\\text ?\{[^{}]*\}")
_NOTHING = {"empty", "emptyset", "\\emptyset", "nosolution", "nosolutions", "none", "norealsolutions"}
_EVERYTHING = {"allrealnumbers", "allreals", "allreal", "real", "reals"}


TOO_LARGE = "too large"
"""The unit of what nobody can compute, a tower of powers for example."""


@lru_cache(maxsize=8192)
def read(answer: str) -> Tree:
    """Read an answer. Never raises: what an odd text breaks here is not understood, and no training run ends for it."""
    if _INTEGER.fullmatch(answer):
        return Tree("value", str(int(answer)))
    if len(answer) > MAX_LENGTH:
        return Tree("raw", answer)
    try:
        return _read(clean(answer), 0)
    except (RecursionError, ValueError, ArithmeticError, LookupError):
        return _raw(clean(answer))


def _read(text: str, depth: int) -> Tree:
    text = text.strip()
    if not text or not re.search(r"\w|\\emptyset", text):
        return EMPTY
    if depth > _MAX_DEPTH:
        return _leaf(text)
    if "\\dots" in text:
        # What an ellipsis stands for is not computed: such answers are equal if they are written alike.
        return Tree("text", squashed(text))
    text = turned(text)
    for reader in (_word, _cases, _matrix, _bracketed, _listed, _related, _united, _ratio, _signs):
        tree = reader(text, depth)
        if tree is not None:
            return tree
    return _leaf(text)


def _word(text: str, depth: int) -> Tree | None:
    r"""Words, option letters and times of day; \text{5 meters} and \text{x} are none of these."""
    only_text = not _TEXT.sub("", text).strip(" ().,")
    inner = re.sub(r"\\text ?\{([^{}]*)\}", r"\1", text).strip()
    clock = _CLOCK.fullmatch(re.sub(" +", " ", inner))
    if clock and clock["twelve"]:
        return Tree("clock", "12", unit="p" if clock["twelve"].lower() == "noon" else "a")
    if clock:
        return Tree("clock", clock["time"].lstrip("0"), unit=clock["half"].lower())
    letter = _LETTER.fullmatch(inner) or (_PARENTHESISED.fullmatch(inner) if depth == 0 else None)
    if letter:
        return Tree("letter", letter["letter"].upper() if depth == 0 else letter["letter"])
    option = _OPTION.match(inner)
    if option and depth == 0:
        return Tree("letter", option["letter"])
    if only_text and _LETTERS.fullmatch(inner):
        return _listed(inner, depth)
    flat = re.sub(r"[\s.]", "", inner).lower()
    if flat in _NOTHING:
        return Tree("text", "empty")
    if flat in _EVERYTHING:
        return Tree("tuple", parts=(MINUS_INFINITY, INFINITY))
    if only_text and (not re.search("[A-Za-z]{2}", inner) or (inner[0].isdigit() and _leaf(inner).kind == "value")):
        return _read(inner, depth + 1)  # \text{5}, \text{x}, \text{5 meters}
    long_word = re.search("[A-Za-z]{3}", inner)
    if (
        only_text
        or _NAMED_ALIKE.fullmatch(inner)
        or (_WORDS.fullmatch(inner) and long_word and not _is_expression(inner))
    ):
        return Tree("text", re.sub(r"[^\w:+-]", "", inner).lower() or inner)
    return None


def _cases(text: str, depth: int) -> Tree | None:
    """A system of equations is the list of them; a function in pieces is not."""
    rows = equations(text)
    return _read(", ".join(rows), depth + 1) if rows else None


def _is_expression(text: str) -> bool:
    try:
        parse(text)
    except Unreadable:
        return False
    return True


def _matrix(text: str, depth: int) -> Tree | None:
    if "\\begin" not in text:
        return None
    text = _ARRAY.sub("{matrix}", text)
    bracketed = text[0] in "([" and closing(text, 0) == len(text) - 1
    matrix = _MATRIX.fullmatch(text[1:-1].strip() if bracketed else text)
    if not matrix or "\\begin" in matrix["cells"]:
        return _raw(text)
    rows = [row for row in re.split(r"\\row", matrix["cells"]) if row.strip()]
    cells = [tuple(_read(cell, depth + 1) for cell in row.split("&")) for row in rows]
    return Tree("matrix", parts=tuple(Tree("row", parts=row) for row in cells))


def _bracketed(text: str, depth: int) -> Tree | None:
    """Tuples, sets and intervals: one bracket around all of the text."""
    if text.startswith("\\{") and closing(text, 0) == len(text) - 1 and text.endswith("\\}"):
        builder = _BUILDER.fullmatch(text)
        if builder:
            return _read(builder["condition"], depth + 1)
        if re.search(r"\\mid|[|:]", text):
            return _raw(text)
        return Tree("set", parts=_distinct([part for piece in _items(text[2:-2]) for part in _pieces(piece, depth)]))
    if text[0] == "{" and closing(text, 0) == len(text) - 1 and len(_items(text[1:-1])) > 1:
        return _bracketed(f"\\{text[:-1]}\\}}", depth)
    if text[0] == "{" and closing(text, 0) == len(text) - 1:
        return _read(text[1:-1], depth + 1)
    if text[0] not in "([" or closing(text, 0) != len(text) - 1:
        return None
    inner = _items(text[1:-1])
    ends = text[0] + text[-1]
    if len(inner) < 2:
        return _read(text[1:-1], depth + 1) if ends in ("()", "[]") and not _has_degree(text) else None
    parts = tuple(_read(piece, depth + 1) for piece in inner)
    if ends == "[]" and all(_is_row(piece, part) for piece, part in zip(inner, parts, strict=True)):
        return Tree("matrix", parts=tuple(Tree("row", parts=part.parts) for part in parts))
    if ends == "()" or (ends == "[]" and len(parts) > 2):
        return Tree("tuple", parts=parts)
    return Tree("interval", ends, parts) if len(parts) == 2 else _raw(text)


def _is_row(text: str, tree: Tree) -> bool:
    """[1,2] as it stands in [[1,2],[3,4]]."""
    return text.strip().startswith("[") and (tree.kind == "tuple" or (tree.kind == "interval" and tree.text == "[]"))


def _has_degree(text: str) -> bool:
    return text.endswith("\\deg")


def _items(text: str) -> list[str]:
    return [piece for piece in split(text, _COMMA)[::2] if piece.strip()]


def _pieces(text: str, depth: int) -> tuple[Tree, ...]:
    """An item of a list or set; plus-minus makes two of it."""
    tree = _read(text, depth + 1)
    return tree.parts if tree.kind == "list" and "\\pm" in text else (tree,)


def _distinct(parts: list[Tree]) -> tuple[Tree, ...]:
    return tuple(dict.fromkeys(parts))


def _listed(text: str, depth: int) -> Tree | None:
    """Several answers: "1, 2", "x = 1 or x = 2", "x < 1 or x > 3"."""
    pieces = _items(text)
    if len(pieces) < 2:
        return None
    parts = [part for piece in pieces for part in _pieces(piece, depth)]
    if len(set(parts)) == 1 and (OR in text or parts[0].kind == "range"):
        return parts[0]  # "5/2 or 2.5", while "5, 5" is a list
    names = {part.text for part in parts if part.kind == "named"}
    if len(names) == 1 and parts[0].kind == "named":
        # One prefix for all, as in "n = 2, 3, 4" and in "x = 1 or x = 2".
        parts = [part.parts[0] if part.kind == "named" else part for part in parts]
    if all(part.kind == "range" for part in parts) and len({part.text for part in parts}) == 1:
        inside = [part.parts[0] for part in parts]
        return combined(text, parts[0].text, inside)
    return Tree("list", parts=tuple(parts))


def _united(text: str, depth: int) -> Tree | None:
    without = _WITHOUT.fullmatch(text)
    if without:
        return _read(f"x \\neq {without['point']}", depth + 1).parts[0]
    pieces = split(text, _CUP)[::2]
    if len(pieces) < 2:
        return None
    return Tree("union", parts=ordered([_read(piece, depth + 1) for piece in pieces]))


def _related(text: str, depth: int) -> Tree | None:
    """Equations, assignments and inequalities."""
    remainder = _remainder(text)
    if remainder:
        return remainder
    if _OTHER_RELATION.search(text):
        return _raw(text)
    pieces = split(text, _RELATION)
    sides, signs = [side.strip() for side in pieces[::2]], pieces[1::2]
    if not signs:
        return None
    if signs[0] == "\\approx" and not sides[0]:
        return _read(text[text.index("\\approx") + 7 :], depth + 1)
    if not all(sides):
        return _read(sides[-1], depth + 1) if set(signs) == {"="} and sides[-1] else _raw(text)
    if "\\approx" in signs:  # what stands before it is exact
        sides, signs = sides[: signs.index("\\approx") + 1], signs[: signs.index("\\approx")]
        if not signs:
            return _read(sides[0], depth + 1)
    if set(signs) == {"="}:
        return _equation(sides, depth)
    if signs == ["\\in"]:
        return Tree("range", squashed(sides[0]), (_read(sides[1], depth + 1),))
    return _inequality(sides, signs, depth) or _raw(text)


def _remainder(text: str) -> Tree | None:
    """7 \\bmod 5 is 2."""
    sides = [_leaf(side.strip()) for side in split(text, _REMAINDER)[::2]] if "\\bmod" in text else []
    if len(sides) != 2 or not all(re.fullmatch(r"-?\d{1,300}", side.text) and side.kind == "value" for side in sides):
        return None
    number, modulus = (int(side.text) for side in sides)
    return Tree("value", str(number % modulus)) if modulus > 0 else None


def _unmeasured(tree: Tree) -> Tree:
    return tree._replace(unit="") if tree.kind == "value" else tree


def _equation(sides: list[str], depth: int) -> Tree:
    first, last = sides[0], sides[-1]
    if len(sides) == 2 and _NAME.fullmatch(last) and not _NAME.fullmatch(first):
        first, last = last, first
    raw = _raw("=".join(sides))
    if _NAME.fullmatch(first) or _LABEL.fullmatch(first) or DERIVATIVE.fullmatch(first):
        values = [_read(side, depth + 1) for side in ([last] if len(sides) == 2 else sides[1:])]
        if any(_unmeasured(one) != _unmeasured(values[0]) for one in values[1:]):
            # "x = 6 = 5" says nothing.
            return Tree("text", squashed(raw.text)) if all(one.kind == "value" for one in values) else raw
        name = squashed(first) if _NAME.fullmatch(first) else ""
        return Tree("named", name, (values[-1],), unit=_equation_key(first, last) if name else "")
    values = [_read(side, depth + 1) for side in sides]
    if len(set(map(_unmeasured, values))) == 1:
        return values[-1]
    if len(sides) != 2:
        return raw
    equation = _equation_key(first, last)
    # "m + n = 5" states a value of what was asked for, "x^2 + y^2 = 5" a curve.
    return Tree("equation", equation, (values[-1],) if _SUM.fullmatch(first) else ()) if equation else raw


def _equation_key(left: str, right: str) -> str:
    try:
        return equation_key(parse(left), parse(right))
    except Unreadable:
        return ""


def _inequality(sides: list[str], signs: list[str], depth: int) -> Tree | None:
    """The set that a range of one variable stands for."""
    if len(sides) == 2:
        if not _NAME.fullmatch(sides[0]) and _NAME.fullmatch(sides[1]):
            sides, signs = sides[::-1], [_FLIPPED.get(signs[0], signs[0])]
        name, bound = sides[0], _read(sides[1], depth + 1)
        if not _NAME.fullmatch(name) or bound.kind != "value":
            return None
        below, above = interval(MINUS_INFINITY, "(", bound, ")"), interval(bound, "(", INFINITY, ")")
        inside = {
            "<": below,
            ">": above,
            "\\leq": interval(MINUS_INFINITY, "(", bound, "]"),
            "\\geq": interval(bound, "[", INFINITY, ")"),
            "\\neq": Tree("union", parts=ordered([below, above])),
        }.get(signs[0])
        return Tree("range", squashed(name), (inside,)) if inside else None
    if len(sides) != 3 or not _NAME.fullmatch(sides[1]):
        return None
    if set(signs) <= {">", "\\geq"}:
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    if not set(signs) <= {"<", "\\leq"}:
        return None
    low, high = _read(sides[0], depth + 1), _read(sides[2], depth + 1)
    inside = interval(low, "(" if signs[0] == "<" else "[", high, ")" if signs[1] == "<" else "]")
    return Tree("range", squashed(sides[1]), (inside,))


def _ratio(text: str, depth: int) -> Tree | None:
    """3:1 and 12:00, which are not reduced."""
    if ":" not in text:
        return None
    parts = tuple(_read(piece, depth + 1) for piece in text.split(":"))
    plain = all(part.kind == "value" for part in parts)
    return Tree("ratio", squashed(text) if re.fullmatch(r"\d+:\d\d", text) else "", parts) if plain else None


def _signs(text: str, depth: int) -> Tree | None:
    """Plus-minus as both values; a minus-plus takes the other sign."""
    if "\\pm" not in text and "\\mp" not in text:
        return None
    both = [re.sub(r"\\mp(?![A-Za-z])", down, re.sub(r"\\pm(?![A-Za-z])", up, text)) for up, down in ("+-", "-+")]
    parts = tuple(_leaf(one) for one in both)
    return Tree("list", parts=parts)


def _leaf(text: str) -> Tree:
    """A number or expression with or without its unit."""
    text, unit, factor = units.without_unit(text)
    derivative = DERIVATIVE.search(text)
    if _WORDING.search(text) or (derivative and (derivative["of"] or derivative["plain"])):
        return Tree("text", squashed(text).lower())
    if derivative:
        return _raw(text)
    if re.fullmatch(r"[+-]? ?\\infty", text):
        return MINUS_INFINITY if text.startswith("-") else INFINITY
    if holds_infinity(text):
        return Tree("text", squashed(text))
    base = _BASE.fullmatch(text)
    if base:
        return Tree("base", base["digits"], unit=base["long"] or base["short"])
    if text.endswith("\\deg") and not re.search(r"sin|cos|tan|cot|sec|csc|log|\\deg.", text):
        text = text.removesuffix("\\deg")
    if _SPACED.fullmatch(text):
        text = text.replace(" ", "")
    percent = text.endswith("%")
    text = text.removesuffix("%").strip()
    mixed = _MIXED.fullmatch(text)
    if mixed:
        whole, above, below = int(mixed["whole"]), int(mixed["above"]), int(mixed["below"])
        if not 0 < above < below:
            return Tree("text", squashed(text.replace(" ", "_")))
        text = f"{mixed['sign']}({whole}+{above}/{below})"
    elif _SCIENTIFIC.fullmatch(text):
        number = Fraction(text)
        text = f"({number.numerator})/({number.denominator})"
    text = f"({text})/100" if percent else text
    text = f"({text})*{factor}" if factor > 1 else text
    try:
        return Tree("value", key(parse(text)), unit=unit)
    except TooLarge:
        return _raw(text)._replace(unit=TOO_LARGE)
    except Unreadable:
        wordy = any(word.lower() in units.NO_UNITS for word in _LONG_WORD.findall(text))
        return Tree("text", squashed(text).lower()) if wordy else _raw(text)


def _raw(text: str) -> Tree:
    return Tree("raw", _NEEDLESS.sub("", text))


def too_large(tree: Tree) -> bool:
    """Whether a part of it is too large to be computed."""
    return tree.unit == TOO_LARGE or any(map(too_large, tree.parts))
