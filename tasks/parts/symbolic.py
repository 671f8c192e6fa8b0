r"""The slow path of the verifier: are two answers equal, for a computer algebra system that reads them term by term?

Runs in worker processes only (`tasks.parts.workers`), which are killed when they take too long. Policy:

- Equal means equal as exact numbers, to 40 of 60 digits *relative* where a number is irrational; 33.3 is not 100/3, and
  9\% is 0.09. Expressions with variables are compared by their values at fixed points, positive and negative.
- A list without brackets, or in braces, has no order; repeated items count unless both sides are in braces. A pair or
  tuple has one, may lack its brackets on one side, and is no set: (1,2) is 1,2 and not \{1,2\}.
- Brackets of intervals matter. A relation in one variable is equal to the set of its solutions, whichever is the gold.
- Equations are equal up to a factor, inequalities up to a positive one. A name may be missing on one side: x = 5 is 5.
- A base may be missing on one side (2516 is 2516_8), but two bases must be the same.
- What is not understood in full is equal to its own text alone: no part of an answer is taken for the whole.
"""

import decimal
import hashlib
import re
import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tasks.parts.forms import Form, Unreadable, read

_LETTERS = set(string.ascii_letters)
_DIGITS = 60
_AGREE = 40
_KEY_DIGITS = 30
_POINTS = ((3, 7), (11, 13), (29, 17), (-5, 9), (-23, 11))
"""Fractions of which the values of variables are made."""


def judge(gold: str, answer: str) -> tuple[bool, str | None]:
    """Whether an answer is equal to the gold, and the answer's key (see `canonical`)."""
    return compare(gold, answer), canonical(answer)


def prepare_worker() -> None:
    """Build the parser's tables, which takes a second, before the clock of the first call starts."""
    judge(r"\frac{1}{2}+x", r"[0,\sqrt{2})")


def compare(gold: str, answer: str) -> bool:
    """Whether an answer is equal to the gold. Where one of them is not understood, only the same text is."""
    if gold.split() == answer.split():
        return bool(gold.strip())
    try:
        forms = read(gold), read(answer)
        if any(form.kind == "words" for form in forms):
            return _word(gold) == _word(answer)
        return _cases_agree(gold, answer) and _same(*forms)
    except (Unreadable, RecursionError):
        return False


def canonical(answer: str) -> str | None:
    """A text that is the same for equal answers: a rational number's own, else a description; None: not understood."""
    try:
        return _key(read(answer))
    except (Unreadable, RecursionError):
        return None


def _same(gold: Form, answer: Form) -> bool:
    if "named" in (gold.kind, answer.kind):
        return _same_named(gold, answer)
    if "base" in (gold.kind, answer.kind):
        return _same_base(gold, answer)
    kinds = {gold.kind, answer.kind}
    if kinds == {"list"}:
        return _same_lists(gold, answer)
    if kinds == {"relation"} and _same_relations(gold.parts[0], answer.parts[0]):
        return True
    if kinds == {"atom"}:
        return _same_expressions(gold.parts[0], answer.parts[0])
    one = [form for form in (gold, answer) if form.kind == "list" and form.brackets == "{}" and len(form.parts) == 1]
    if one and "atom" in kinds:
        return _same(*(form.parts[0] if form in one else form for form in (gold, answer)))
    return _same_sets(gold, answer)


def _same_named(gold: Form, answer: Form) -> bool:
    """A name counts where both have one; two equations may also be equal as such: y = 2x and 2x - y = 0."""
    if gold.kind == answer.kind and gold.parts[0] == answer.parts[0]:
        return _same(gold.parts[1], answer.parts[1])
    equations = [form.parts[2] if form.kind == "named" else form.parts[0] for form in (gold, answer)]
    if gold.kind == answer.kind or "relation" in (gold.kind, answer.kind):
        if None not in equations:
            return _same_relations(*equations)
        forms = [form.parts[1] if form.kind == "named" else form for form in (gold, answer)]
        return gold.kind != answer.kind and _same_sets(*forms)
    return _same(*(form.parts[1] if form.kind == "named" else form for form in (gold, answer)))


def _same_base(gold: Form, answer: Form) -> bool:
    digits = [form.parts[0] if form.kind == "base" else _key(form) for form in (gold, answer)]
    bases = {form.parts[1] for form in (gold, answer) if form.kind == "base"}
    return digits[0] == digits[1] and len(bases) == 1


def _word(text: str) -> str:
    """A word, without the command for text and what stands around it."""
    return " ".join(re.sub(r"\\(?:text|mathrm|textbf|mbox)(?![a-z])|[{}$.()\\]", " ", text).casefold().split())


def _cases_agree(gold: str, answer: str) -> bool:
    """Whether variables are written in the same case: the parser takes A and a for the same."""
    letters = [set(re.sub(r"\\[A-Za-z]+(?:\s*\{[A-Za-z ]*\})?", "", text)) & _LETTERS for text in (gold, answer)]
    return letters[0] == letters[1] or {one.casefold() for one in letters[0]} != {one.casefold() for one in letters[1]}


def _same_lists(gold: Form, answer: Form) -> bool:
    loose = ("", "{}")
    if gold.brackets in loose and answer.brackets in loose:
        golds, answers = gold.parts, answer.parts
        if "{}" in (gold.brackets, answer.brackets):
            golds, answers = _distinct(golds), _distinct(answers)
        return _matched(golds, answers, _same)
    if gold.brackets != answer.brackets and {gold.brackets, answer.brackets} != {"", "()"}:
        return False
    return len(gold.parts) == len(answer.parts) and all(map(_same, gold.parts, answer.parts))


def _distinct(items: Sequence[Form]) -> list[Form]:
    kept: list[Form] = []
    for item in items:
        if not any(_same(one, item) for one in kept):
            kept.append(item)
    return kept


def _matched(golds: Sequence[Any], answers: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether the items are equal in some order."""
    left = list(answers)
    for gold in golds:
        match = next((index for index, answer in enumerate(left) if same(gold, answer)), None)
        if match is None:
            return False
        del left[match]
    return not left


def _same_expressions(gold: Any, answer: Any) -> bool:
    import sympy
    from math_verify import verify

    if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        if not (isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)):
            return False
        return gold.shape == answer.shape and all(map(_same_expressions, gold.flat(), answer.flat()))
    if gold == answer:
        return gold not in (sympy.nan, sympy.zoo)
    golds, answers = _values(gold), _values(answer)
    if golds is not None and answers is not None:
        return gold.free_symbols == answer.free_symbols and _agree(golds, answers)
    if gold.free_symbols != answer.free_symbols or None not in (golds, answers) or golds is not answers:
        return False
    # Functions without a value, sets with a name: here structure is all there is.
    return bool(verify(gold, answer, numeric_precision=_DIGITS, timeout_seconds=None))


def _values(found: Any) -> list[Any] | None:
    """Values at the points (one of a constant), None at points where it is not real but has variables that may be.

    The whole is None where there are no values, as of an unknown function.
    """
    import sympy

    symbols = sorted(found.free_symbols, key=lambda symbol: symbol.name)
    values: list[Any] = []
    for over, under in _POINTS if symbols else _POINTS[:1]:
        point = {symbol: sympy.Rational(over + 2 * index, under) for index, symbol in enumerate(symbols)}
        try:
            there = found.xreplace(point).doit()
            value = there if there.is_Rational else sympy.N(there, _DIGITS)
        except (ArithmeticError, TypeError, ValueError, AttributeError):
            return None
        if not value.is_number or value.has(sympy.nan, sympy.zoo):
            value = None if value.is_number else sympy.nan
        if value is sympy.nan:
            return None
        imaginary = value is not None and not value.is_real and not found.has(sympy.I)
        values.append(None if imaginary and symbols else value)
    return values if sum(value is not None for value in values) >= min(2, len(values)) else None


def _agree(golds: list[Any], answers: list[Any]) -> bool:
    """Whether values agree wherever both have one."""
    both = [(one, other) for one, other in zip(golds, answers, strict=True) if one is not None and other is not None]
    return len(both) >= min(2, len(golds)) and all(_close(one, other) for one, other in both)


def _close(one: Any, other: Any) -> bool:
    import sympy

    if one == other or (one.is_Rational and other.is_Rational) or one.is_infinite or other.is_infinite:
        return one == other
    difference = sympy.N(one - other, _DIGITS)
    size = max(abs(one), abs(other))
    # What cancels to nothing has no digits of its own: sqrt(2) sqrt(3) - sqrt(6) is a tiny number and 0.
    floor = sympy.Float(10) ** -_DIGITS if one == 0 or other == 0 else 0
    return bool(abs(difference) <= max(size * sympy.Float(10) ** -_AGREE, floor))


def _relations(found: Any) -> list[Any]:
    """A chain's links; each is a relation."""
    import sympy

    return list(found.args) if isinstance(found, sympy.And) else [found]


def _same_relations(gold: Any, answer: Any) -> bool:
    return _matched(_relations(gold), _relations(answer), _same_relation)


def _same_relation(gold: Any, answer: Any) -> bool:
    """Equal up to a factor, which must be positive for an inequality in the same direction."""
    import sympy

    if not (
        isinstance(gold, sympy.core.relational.Relational) and isinstance(answer, type(gold) | type(gold.reversed))
    ):
        return False
    if gold.free_symbols != answer.free_symbols or not all(
        isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)
    ):
        return False
    if isinstance(gold, sympy.Eq | sympy.Ne):
        sides = [sympy.fraction(sympy.together(_excess(one)))[0] for one in (gold, answer)]
    else:
        answer = answer if type(answer) is type(gold) else answer.reversed
        sides = [_excess(one) for one in (gold, answer)]
    golds, answers = (_values(side) for side in sides)
    if golds is None or answers is None:
        return sympy.expand(sides[0] - sides[1]) == 0
    ratios = [
        one / other for one, other in zip(golds, answers, strict=True) if other not in (None, 0) and one is not None
    ]
    if len(ratios) < 2 or not all(_close(one, other) for one, other in pairwise(ratios)):
        return False
    return ratios[0] != 0 and (isinstance(gold, sympy.Eq | sympy.Ne) or ratios[0] > 0)


def _excess(relation: Any) -> Any:
    return relation.lhs - relation.rhs


def _same_sets(gold: Form, answer: Form) -> bool:
    sets = [_as_set(form) for form in (gold, answer)]
    if None in sets:
        return False
    if sets[0] == sets[1]:
        return True
    try:
        return bool(sets[0].symmetric_difference(sets[1]).is_empty)
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return False


@lru_cache(maxsize=64)
def _as_set(form: Form) -> Any:
    """A set of real numbers: an interval, the solutions of relations in one variable, a union; or None."""
    import sympy

    value = form.parts[0]
    try:
        if form.kind == "union":
            parts = [_as_set(part) for part in form.parts]
            return None if None in parts else sympy.Union(*parts)
        if form.kind == "list" and form.brackets in ("", "{}"):
            return sympy.FiniteSet(*(part.parts[0] for part in form.parts if part.kind == "atom"))
        if form.kind == "list" and len(form.parts) == 2 and all(part.kind == "atom" for part in form.parts):
            start, end = (part.parts[0] for part in form.parts)
            return sympy.Interval(start, end, form.brackets[0] == "(", form.brackets[1] == ")")
        if form.kind == "relation":
            solvable = len(value.free_symbols) == 1 and not value.has(sympy.Eq)
            return value.as_set() if solvable else None
        return value if isinstance(value, sympy.Set) else None
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None


def _key(form: Form) -> str:
    if form.kind == "named":
        return _key(form.parts[1])
    if form.kind == "words":
        return f"text:{form.parts[0]}"
    if form.kind == "base":
        return "_".join(form.parts)
    if form.kind == "list":
        keys = [_key(part) for part in form.parts]
        if form.brackets in ("", "{}"):
            keys = sorted(set(keys) if form.brackets else keys)
        opening, closing = form.brackets or "{}"
        return f"{opening}{', '.join(keys)}{closing}"
    if form.kind == "atom":
        return _expression_key(form.parts[0])
    found = _as_set(form)
    return _set_key(found) if found is not None else _relation_key(form)


def _set_key(found: Any) -> str:
    """In the spelling of lists and intervals: x > 2 has the key of (2, oo)."""
    import sympy

    if isinstance(found, sympy.Interval):
        opening, closing = "[("[bool(found.left_open)], "])"[bool(found.right_open)]
        return f"{opening}{_expression_key(found.start)}, {_expression_key(found.end)}{closing}"
    if isinstance(found, sympy.FiniteSet):
        return f"{{{', '.join(sorted(map(_expression_key, found.args)))}}}"
    if isinstance(found, sympy.Union):
        return f"union<{', '.join(sorted(map(_set_key, found.args)))}>"
    return f"set:{found}"


def _relation_key(form: Form) -> str:
    """Of equations and inequalities: their values at the points, up to a factor, or their text."""
    import sympy

    relations = _relations(form.parts[0]) if form.kind == "relation" else []
    if len(relations) != 1 or not isinstance(relations[0], sympy.Eq) or not isinstance(relations[0].lhs, sympy.Expr):
        return f"relation:{_digest(str(form.parts))}"
    values = _values(sympy.fraction(sympy.together(_excess(relations[0])))[0]) or []
    first = next((value for value in values if value), None)
    if first is None:
        return f"relation:{_digest(str(form.parts))}"
    ratios = [_number_key(value if value is None else value / first) for value in values]
    return f"equation:{_digest(' '.join(ratios))}"


def _expression_key(found: Any) -> str:
    import sympy

    if isinstance(found, sympy.MatrixBase):
        rows = [", ".join(map(_expression_key, found.row(index).flat())) for index in range(found.rows)]
        return f"matrix<{', '.join(f'({row})' for row in rows)}>"
    values = _values(found)
    if values is None:
        return f"structure:{_digest(sympy.srepr(found))}"
    texts = [_number_key(value) for value in values]
    if not found.free_symbols:
        return texts[0]
    return f"function:{_digest(' '.join([*sorted(map(str, found.free_symbols)), *texts]))}"


def _number_key(value: Any) -> str:
    """As the fast path writes it: a rational number's text or, where that is long, a digest; else 30 digits."""
    import sympy

    if value is None:
        return "None"
    if value.is_infinite and value.is_extended_real:
        return "infinity" if value > 0 else "-infinity"
    if not value.is_Rational:
        parts = [_decimal(part) for part in sympy.N(value, _DIGITS).as_real_imag()]
        return parts[0] if parts[1] == "0" else f"{parts[0]}{'' if parts[1].startswith('-') else '+'}{parts[1]}i"
    if max(abs(value.p).bit_length(), value.q.bit_length()) > 400:
        return f"number:{_digest(f'{int(value.p):x}/{int(value.q):x}')}"
    return str(value)


def _decimal(part: Any) -> str:
    """30 significant digits without zeros at the end."""
    with decimal.localcontext(prec=_KEY_DIGITS):
        number = decimal.Decimal(str(part)).normalize()
    return str(number) if number else "0"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
