r"""An answer's form: a list, an interval, a relation or one expression, read from LaTeX and with refusals made early.

    "(-\infty, 2) \cup \{5\}"  ->  union of an interval "()" and a set;  "x = 1, 2"  ->  x named, a bare list

Lists, brackets and names are taken apart here, because the parser of expressions (latex2sympy, by way of math-verify)
sorts pairs, adds "2 3" up to 5, drops "...", subscripts and units of one letter. What it gets is one expression.
"""

import math
import re
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Kind = Literal["atom", "relation", "list", "union", "named", "words", "base"]

_MAX_CHARS = 1000
_MAX_DEPTH = 12
"""Nesting of brackets; the parser's time grows steeply with it."""
_MAX_BARS = 8
_MAX_LOG2 = 200_000
"""Size in bits up to which a number is computed."""
_REPLACED = (
    (r"\\left(?![a-z])\.?|\\right(?![a-z])\.?|\\displaystyle|\\!|\\\$|\$", ""),
    (r"\\[,;: ]|\\q?quad|~", " "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\{\s*,\s*\}", ","),
    (r"\\(?:mathrm|mathit|mathbf|mbox|textrm|textbf|textit|textnormal)(?![a-zA-Z])", r"\\text"),
    (r"\\text\s*\{\s*([A-Za-z])\s*\}", r" \1 "),
    (r",?\s*\\text\s*\{\s*,?\s*and\s*\}|,?\s*(?<![A-Za-z\\])and(?![A-Za-z])", ","),
    (r",?\s*\\text\s*\{\s*,?\s*or\s*\}|,?\s*(?<![A-Za-z\\])or(?![A-Za-z])|\\vee(?![a-z])", r"\\lor "),
    (r"\^\s*\{?\s*\\circ\s*\}?", ""),
    (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<!\\)%", r"\\%"),
    (r"\\leqslant|\\le(?![a-z])", r"\\leq"),
    (r"\\geqslant|\\ge(?![a-z])", r"\\geq"),
    (r"\\neq?(?![a-z])", r"\\neq"),
    (r"(?<![\w)}])\+\s*(?=\\infty)", ""),
)
_UNIT = re.compile(r"(?<=[\d})%])\s*\\text\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*$")
_REFUSED = re.compile(
    r"\.\.|\\[lcd]?dots|\d\s*:\s*\d|[^\x20-\x7e\s]|\x7f|\\(?:boxed|fbox|begin\{array\}|def|input)|(?:!\s*){3}"
)
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?![\d,])")
_MIXED = re.compile(r"(?<![\w.}/^])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\w.])")
_MIXED_FRACTION = re.compile(r"(?<![\w.])\d+\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d{1,30}(?:\.\d{1,30})?)[eE]([+-]?\d{1,3})(?!\w)")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BASE = re.compile(r"\(?([0-9A-F]+)\)?\s*_\s*\{?\(?(\d{1,2})\)?\}?")
_NAME = re.compile(
    r"\s*([A-Za-z](?:_\{?\w+\}?)?(?:\s*\(\s*[a-z]\s*\))?|\\[a-z]+)\s*(?:=|\\in(?![a-z]))\s*(.+)", re.DOTALL
)
_RELATION = r"[=<>]|\\(?:leq|geq|neq|lt|gt)(?![a-z])"
_SEPARATOR = r"[,;]|\\lor(?![a-z])"
_OPEN, _CLOSE = "([{", ")]}"
_WORDS = re.compile(r"\\text\s*\{([^{}\\$]*)\}\.?|([A-Za-z]{4,}(?: [A-Za-z]+)*)\.?")


class Unreadable(ValueError):
    """The text is not understood, or would take too long."""


class Form(NamedTuple):
    """One answer, taken apart."""

    kind: Kind
    parts: tuple[Any, ...]
    """Forms of a list or union; the expression; (name, form, the equation as a relation or None); texts."""
    brackets: str = ""
    """Of a list: "()", "[)", "{}" and so on, "" for a bare one."""


@lru_cache(maxsize=64)
def read(text: str) -> Form:
    """Read an answer.

    Raises:
        Unreadable: not understood or refused.
    """
    if len(text) > _MAX_CHARS:
        raise Unreadable("too long")
    words = _WORDS.fullmatch(text.strip())
    if words and len(words[1] or words[2]) > 1:
        return Form("words", (" ".join((words[1] or words[2]).casefold().split()).strip(". "),))
    clean = cleaned(text)
    base = _BASE.fullmatch(clean)
    if base:
        return Form("base", (base[1].lstrip("0") or "0", base[2]))
    return _form(clean)


def cleaned(text: str) -> str:
    """The text in one spelling, without spacing commands and units.

    Raises:
        Unreadable: it has something that would be read wrongly.
    """
    for pattern, new in _REPLACED:
        text = re.sub(pattern, new, text)
    text = text.strip().rstrip(".,; ")
    text = _UNIT.sub("", text).strip()
    refused = _REFUSED.search(text)
    if refused or not text:
        raise Unreadable(f"{refused[0]!r} is not read" if refused else "empty")
    text = _GROUPED.sub(lambda number: number[0].replace(" ", ""), text)
    text = _MIXED.sub(_mixed, text)
    for _ in range(_MAX_DEPTH):
        text = re.sub(r"\(\s*\(([^()]*)\)\s*\)", r"(\1)", text)
    text = _SCIENTIFIC.sub(r"(\1 \\times 10^{\2})", text)
    if re.search(r"(?<![_\d.])[\d.]*\d\s+\d", text) or any(
        int(over) >= int(under) for over, under in _MIXED_FRACTION.findall(text)
    ):
        raise Unreadable("two numbers side by side")
    letters = set(re.sub(r"\\[A-Za-z]+(?:\s*\{[A-Za-z ]*\})?", "", text))
    if any(letter.isupper() and letter.lower() in letters for letter in letters):
        raise Unreadable("the parser takes A and a for the same")
    if re.search(r"\d{401}", text) or _depth(text) > _MAX_DEPTH or text.count("|") > _MAX_BARS:
        raise Unreadable("too large or too deep")
    return text


def _mixed(found: re.Match[str]) -> str:
    if int(found[2]) >= int(found[3]):
        raise Unreadable("not a mixed number")
    return rf"({found[1]}+\frac{{{found[2]}}}{{{found[3]}}})"


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        deepest = max(deepest, depth)
    return deepest


def _split(text: str, separator: str) -> list[str]:
    """Split outside brackets. The braces of a set are brackets, and may be closed by others: "[0, 1)"."""
    parts, depth, start = [], 0, 0
    for place in re.finditer(rf"[(\[{{]|[)\]}}]|{separator}", text):
        if place[0] in _OPEN:
            depth += 1
        elif place[0] in _CLOSE:
            depth -= 1
        elif depth == 0:
            parts.append(text[start : place.start()])
            start = place.end()
    return [*parts, text[start:]]


def _form(text: str) -> Form:
    text = text.strip()
    if not text:
        raise Unreadable("nothing between separators")
    unions = _split(text, r"\\cup(?![a-z])")
    if len(unions) > 1:
        return Form("union", tuple(_form(part) for part in unions))
    parts = [text] if _THOUSANDS.fullmatch(text) else _split(text, _SEPARATOR)
    if len(parts) > 1:
        items = [_form(part) for part in parts]
        if "\\lor" in text and all(item.kind == "relation" for item in items):
            return Form("union", tuple(items))
        return _bare_list(items)
    named = _NAME.fullmatch(text)
    if named and not _is_relation(named[2]):
        relation = expression(text) if "=" in text and "," not in text and "\\pm" not in text else None
        return Form("named", ("".join(named[1].split()), _form(named[2]), relation))
    brackets = _outer_brackets(text)
    if brackets:
        inside = text[2:-2] if text[0] == "\\" else text[1:-1]
        items = _split(inside, _SEPARATOR) if not _THOUSANDS.fullmatch(inside.strip()) or brackets != "()" else [inside]
        if len(items) > 1 or brackets == "{}":
            return Form("list", tuple(_form(item) for item in items), brackets)
    if "\\pm" in text or "\\mp" in text:
        signs = [("+", "-"), ("-", "+")]
        variants = [re.sub(r"\\mp(?![a-z])", mp, re.sub(r"\\pm(?![a-z])", pm, text)) for pm, mp in signs]
        return Form("list", tuple(_form(variant.removeprefix("+")) for variant in variants))
    return Form("relation" if _is_relation(text) else "atom", (expression(text),))


def _is_relation(text: str) -> bool:
    return len(_split(text, _RELATION)) > 1


def _bare_list(items: list[Form]) -> Form:
    """A list without brackets; "n = 2, 3" and "n = 2, n = 3" are both n's."""
    names = {item.parts[0] for item in items if item.kind == "named"}
    if items[0].kind == "named" and len(names) == 1:
        values = tuple(item.parts[1] if item.kind == "named" else item for item in items)
        return Form("named", (items[0].parts[0], Form("list", values), None))
    return Form("list", tuple(items))


def _outer_brackets(text: str) -> str:
    """The brackets around the whole text, or "": of "(1)(2)" there are none."""
    if text.startswith("\\{") and text.endswith("\\}"):
        text, brackets = text[1:-2] + "}", "{}"
    elif text[0] == "{" and text[-1] == "}":
        brackets = "{}"
    elif text[0] in "([" and text[-1] in ")]":
        brackets = text[0] + text[-1]
    else:
        return ""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0 and index < len(text) - 1:
            return ""
    return brackets


def expression(text: str) -> Any:
    """One expression or relation as a sympy object with exact numbers.

    Raises:
        Unreadable: not understood, not consumed to the end, or too large to compute.
    """
    import sympy
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
    from math_verify.parser import parse_latex_cached

    config = NormalizationConfig(units=False, malformed_operators=True, nits=False, boxed="none")
    try:
        found: Any = parse_latex_cached(normalize_latex(text, config))
    except Exception as error:
        raise Unreadable(f"{text!r} is not an expression") from error
    if not isinstance(found, (sympy.Basic, sympy.MatrixBase)):
        raise Unreadable(f"{text!r} is not an expression")
    for part in found.flat() if isinstance(found, sympy.MatrixBase) else [found]:
        _log2(part)
    exact = {number: sympy.Rational(str(number)) for number in found.atoms(sympy.Float)}
    exact |= {wrapped: wrapped.args[0] for wrapped in found.atoms(sympy.UnevaluatedExpr)}
    symbols: set[Any] = found.atoms(sympy.Symbol)
    for symbol in symbols:
        exact[symbol] = sympy.I if symbol.name == "i" else sympy.Symbol(symbol.name, real=True)
    if found.has(sympy.Sum, sympy.Product):
        exact = {old: new for old, new in exact.items() if new is not sympy.I}
    if isinstance(found, sympy.MatrixBase):
        return sympy.ImmutableMatrix(found.shape[0], found.shape[1], [part.xreplace(exact) for part in found.flat()])
    # Before a point is put in: a sum up to n = 3/7 is none.
    return found.doit().xreplace(exact) if found.has(sympy.Sum, sympy.Product) else found.xreplace(exact)


def _log2(found: Any) -> float:
    """About the size in bits of a number that is yet to be computed, from above.

    Raises:
        Unreadable: above the limit.
    """
    import sympy

    if found.is_Rational:
        return float(max(abs(found.p).bit_length(), found.q.bit_length()))
    sizes = [_log2(argument) for argument in found.args]
    size = max(sizes, default=2.0)
    if isinstance(found, (sympy.Pow, sympy.exp)) and not found.args[-1].free_symbols:
        base = sizes[0] if isinstance(found, sympy.Pow) else 2.0
        size = max(base, 1.0) * 2.0 ** min(sizes[-1], 64.0) if sizes[-1] > 2 else base * 8
    elif isinstance(found, (sympy.factorial, sympy.gamma)):
        size = 2.0 ** min(size, 64.0) * max(size, 1.0)
    elif isinstance(found, (sympy.Mul, sympy.Add)):
        size = sum(sizes) if isinstance(found, sympy.Mul) else size + math.log2(len(sizes))
    if size > _MAX_LOG2:
        raise Unreadable("too large to compute")
    return size
