r"""The slow path of the verifier: what an expression is worth that our own reader does not understand.

    "\int_0^1 2x dx"  ->  value "1";    "-x > -2"  ->  x, from -infinity to 2

Runs in worker processes only (`tasks.parts.workers`), which are killed when they take too long. The answer has been
taken apart by `tasks.parts.answers`: what gets here is one expression or relation. math-verify's parser reads it, sympy
computes it at the points of `tasks.parts.values`, and it becomes a tree with the same keys as on the fast path, so that
both paths compare and vote alike. What the parser would misread is refused first.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tasks.parts.answers import read
from tasks.parts.decimals import ZERO, Complex, Value, precisely
from tasks.parts.equality import canonical_key, same
from tasks.parts.expressions import GREEK, Unreadable
from tasks.parts.latex import split
from tasks.parts.trees import INFINITY, MINUS_INFINITY, Tree, interval, ordered
from tasks.parts.values import NUM_POINTS, hashed, key_of, proportional_key, sample

_DIGITS = 60
_MAX_DEPTH = 9
"""Nesting of brackets; the parser's time grows steeply with it, and with the number of bars."""
_MAX_BARS = 8
_COMMANDS = (
    "frac|sqrt|binom|sum|prod|int|lim|to|infty|partial|begin|end|row|cdot|times|div|leq|geq|neq|lfloor|rfloor|lceil|"
    "rceil|gcd|lcm|max|min|ln|log|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|pi|"
) + "|".join(sorted(name for name in GREEK if name.islower() and name != "gamma"))
"""What the parser knows. Of others it drops some, and it reads \\gamma as a number and \\Delta as \\delta."""
_ALLOWED = re.compile(rf"(?:\\(?:{_COMMANDS})(?![A-Za-z])|[\w +\-*/^(){{}}\[\].,=<>|!&])*", re.ASCII)
_REFUSED = re.compile(
    # The parser adds 2 3 up, and a number after a fraction; it reads 1e5 and 2\frac{10}{3} as products.
    r"[\d.] [\d.]|\.\d*\.|[^_^]\{[^{}]*(?<!matrix)\} ?\d|\d{401}|\d[eE]\d|(?<![_^\d])\d+ ?\\frac ?\{?\d|"
    r"\\(?:sqrt|frac ?\d) ?\d\d|[\d)}] ?_|[=<>] ?[-+]? ?[=<>]"  # it drops the base of 2516_9, and signs
)
_ADJACENT = re.compile(r"[)\]!A-Za-z] ?\d|(?<![A-Za-z])(?![A-Za-z]{0,3}d[a-z](?![A-Za-z]))[A-Za-z]{3,}")
"""Without commands: a number after a factor, or a word, which would be a product of letters; but "xdx" is none."""
_COMMAS = re.compile(r"\\(?:gcd|lcm|max|min)(?![A-Za-z]) ?\([^()]*\)")
"""Where a comma parts arguments. Elsewhere it would make a list."""
_FUNCTION_IN_TEXT = re.compile(r"\\text ?\{ ?(gcd|lcm|max|min) ?\}")
_BOUNDS = re.compile(r"(\\(?:int|sum|prod)) ?_ ?(\w) ?\^ ?(\w)(?![\w])")
"""Bounds of one character without braces: the upper one is no factor of what follows."""
_LOGARITHM = re.compile(r"\\log(?![A-Za-z])(?! ?_)")
_EQUALS = re.compile("=")
_COMMAND = re.compile(r"\\[A-Za-z]+(?: ?\{[A-Za-z]*matrix\})?")
_NAME = re.compile(r"(?P<base>[A-Za-z]+)(?:_\{?[A-Za-z0-9]+\}?)?")


def judge(gold: str, answer: str) -> tuple[bool, str | None]:
    """Whether an answer is equal to the gold, and the answer's key, None where it is not understood in full."""
    right, found = computed(read(gold)), computed(read(answer))
    return bool(same(right, found)), canonical_key(found)


def prepare_worker() -> None:
    """Import all and build the parser's tables, half a second's work, before the clock of the first call starts."""
    judge("1", r"\sum_{k=1}^{2} k")


def computed(tree: Tree) -> Tree:
    """The tree with what could be computed in the place of what our reader did not understand."""
    if tree.kind == "raw" and not tree.unit:
        try:
            sides = split(tree.text, _EQUALS)[::2]
            return _equation(*sides) if len(sides) == 2 else _tree(*_parsed(tree.text))
        except MemoryError:
            raise
        except Exception:  # such systems raise whatever they like
            return tree
    parts = tuple(map(computed, tree.parts))
    return tree._replace(parts=tuple(dict.fromkeys(parts)) if tree.kind == "set" else parts)


def _parsed(text: str) -> tuple[Any, dict[Any, str]]:
    """One expression, relation or set as a sympy object with exact numbers, and the names of its variables.

    Raises:
        Unreadable: it would be misread, or take too long to read.
        Exception: of any type, where the parser does not understand it.
    """
    import sympy
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
    from math_verify.parser import parse_latex_cached

    text = _FUNCTION_IN_TEXT.sub(r"\\\1", text).replace("\\text{d}", " d")
    text = _BOUNDS.sub(r"\1_{\2}^{\3} ", text)
    bare = _COMMAND.sub(r"\\", text)
    letters = set(filter(str.isalpha, bare))
    # The parser takes A and a for the same.
    mixed = any(letter.isupper() and letter.lower() in letters for letter in letters)
    if mixed or not _ALLOWED.fullmatch(text) or _REFUSED.search(text) or _ADJACENT.search(bare):
        raise Unreadable("the parser would misread it")
    if "," in _COMMAS.sub("", text):
        raise Unreadable("a list")
    if _depth(text) > _MAX_DEPTH or text.count("|") > _MAX_BARS:
        raise Unreadable("nested too deep")
    text = _LOGARITHM.sub(r"\\ln", text).replace("\\row", "\\\\ ")
    config = NormalizationConfig(units=False, malformed_operators=True, nits=False, boxed="none")
    found: Any = parse_latex_cached(normalize_latex(text, config))
    exact: dict[Any, Any] = {number: sympy.Rational(str(number)) for number in found.atoms(sympy.Float)}
    exact |= {wrapped: wrapped.args[0] for wrapped in found.atoms(sympy.UnevaluatedExpr)}
    names: dict[Any, str] = {}
    symbols: list[Any] = [symbol for symbol in found.atoms(sympy.Symbol) if symbol.name not in ("+", "-", "+-")]
    for symbol in symbols:
        exact[symbol] = sympy.Symbol(symbol.name, real=True)
        names[exact[symbol]] = _name(symbol.name, letters)
    # Sums and integrals come first: their variables are bound, an i among them.
    found = found.xreplace(exact).doit()
    return found.xreplace({symbol: sympy.I for symbol, name in names.items() if name == "i"}), names


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _name(written: str, letters: set[str]) -> str:
    """A variable's name as `tasks.parts.expressions` writes it, in the case in which it was written."""
    match = _NAME.fullmatch(written)
    if match and match["base"] in GREEK:
        return written.replace("{", "").replace("}", "")
    if not match or len(match["base"]) > 1:
        raise Unreadable(f"{written!r} is no variable")
    cased = "".join(letter.upper() if letter.upper() in letters else letter for letter in written)
    return cased.replace("{", "").replace("}", "")


def _tree(found: Any, names: dict[Any, str]) -> Tree:
    """An object of sympy as the tree that our reader would make of it."""
    import sympy

    if found.has(sympy.nan, sympy.zoo):
        raise Unreadable("undefined")
    if isinstance(found, sympy.MatrixBase):
        cells = [[_tree(cell, names) for cell in found.row(row).flat()] for row in range(found.rows)]
        return Tree("matrix", parts=tuple(Tree("row", parts=tuple(row)) for row in cells))
    if isinstance(found, sympy.Set):
        return _set(found)
    if isinstance(found, sympy.core.relational.Relational | sympy.logic.boolalg.BooleanFunction):
        return _relation(found, names)
    if not isinstance(found, sympy.Expr):
        raise Unreadable("no expression")
    if found.is_infinite:
        return INFINITY if found.is_extended_positive else MINUS_INFINITY
    try:
        return Tree("value", key_of(_values(found, names)))
    except (Unreadable, TypeError):
        # An unknown function, say: only what has the same structure is equal.
        named = found.xreplace({symbol: sympy.Symbol(name) for symbol, name in names.items()})
        return Tree("value", hashed("structure", [sympy.srepr(named)]))


def _equation(left: str, right: str) -> Tree:
    """An equation in variables; one of numbers is the number, if it is true."""
    (first, names), (second, others) = _parsed(left), _parsed(right)
    if first.free_symbols or second.free_symbols:
        return Tree("equation", proportional_key("equation", _values(first - second, {**names, **others})))
    found = _tree(first, names)
    if found != _tree(second, others):
        raise Unreadable("a false equation")
    return found


def _relation(found: Any, names: dict[Any, str]) -> Tree:
    """The solutions of an inequality in one variable; one in several by its values."""
    import sympy

    symbols = found.free_symbols
    if len(symbols) == 1:
        return Tree("range", names[next(iter(symbols))], (_set(found.as_set()),))
    less: Any = found if isinstance(found, sympy.Lt | sympy.Le) else found.reversed
    kind = {sympy.Lt: "less", sympy.Le: "most"}[type(less)]
    return Tree("equation", proportional_key(kind, _values(less.lhs - less.rhs, names)))


def _set(found: Any) -> Tree:
    import sympy

    if isinstance(found, sympy.Interval):
        ends = "[("[bool(found.left_open)], "])"[bool(found.right_open)]
        return interval(_tree(found.start, {}), ends[0], _tree(found.end, {}), ends[1])
    if isinstance(found, sympy.FiniteSet):
        return Tree("set", parts=tuple(_tree(one, {}) for one in found.args))
    if isinstance(found, sympy.Union):
        return Tree("union", parts=ordered([_set(part) for part in found.args]))
    if found is sympy.S.EmptySet:
        return Tree("text", "empty")
    raise Unreadable("a set of another kind")


def _values(found: Any, names: dict[Any, str]) -> list[Value]:
    """The values at the points by which expressions are compared: one where there is no variable.

    Raises:
        Unreadable: it has no value there.
    """
    import sympy

    symbols = found.free_symbols
    points = [
        {symbol: sympy.Rational(sample(names[symbol], point)) for symbol in symbols} for point in range(NUM_POINTS)
    ]
    return [_value(found.xreplace(point).doit()) for point in (points if symbols else points[:1])]


def _value(found: Any) -> Value:
    import sympy

    if found.is_Rational:
        return Fraction(int(found.p), int(found.q))
    # Odd roots of negative numbers are real, as on the fast path.
    found = found.replace(_is_odd_root, _real_root)
    if found.is_Rational:
        return Fraction(int(found.p), int(found.q))
    number = sympy.N(found, _DIGITS)
    if not number.is_number or not number.is_finite:
        raise Unreadable("no value")
    re, im = (_decimal(sympy.N(part, _DIGITS)) for part in number.as_real_imag())
    value = precisely(lambda: Complex(re, im))
    if isinstance(value, Fraction) and _decimal(sympy.N(found - sympy.Rational(value), _DIGITS)):
        raise Unreadable("nearer to a simple fraction than can be told")
    return value


def _is_odd_root(found: Any) -> bool:
    return bool(
        found.is_Pow
        and found.exp.is_Rational
        and found.exp.q > 1
        and found.exp.q % 2
        and found.base.is_extended_negative
    )


def _real_root(found: Any) -> Any:
    root = (-found.base) ** found.exp
    return -root if found.exp.p % 2 else root


def _decimal(part: Any) -> Decimal:
    """What has lost its digits to cancellation is 0."""
    return Decimal(str(part)) if part and part._prec > 100 else ZERO
