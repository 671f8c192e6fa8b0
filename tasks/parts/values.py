r"""What an expression is worth: LaTeX or plain arithmetic becomes a key that is equal exactly for equal expressions.

    "\frac{\sqrt{2}}{2}", "1/\sqrt{2}"  -> "0.707106781186547524400844362105"
    "(x+1)^2", "x^2+2x+1"               -> "expr:" and a hash of their exact values at three points

Rational arithmetic is exact; roots, pi and functions have 60 digits, of which 30 make the key. An expression with
variables is compared by its values at fixed points, which differ between two expressions but for an accident. What is
not understood is refused, never guessed: the caller asks a computer algebra system then.
"""

import hashlib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import comb, factorial, floor, isqrt

from tasks.parts import decimals
from tasks.parts.decimals import Complex, Value, inexact
from tasks.parts.expressions import Expression, Node, TooLarge, Unreadable

_MAX_BITS = 20_000
"""Size of an exact number; larger ones are not read."""
NUM_POINTS = 3


def value(expression: Expression, point: int = 0) -> Value:
    """The value at one of the points.

    Raises:
        Unreadable: undefined there.
        TooLarge: it has too many digits.
    """
    try:
        return decimals.precisely(lambda: _evaluate(expression.node, point))
    except OverflowError as error:
        raise TooLarge(str(error)) from error
    except (ArithmeticError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def values(expression: Expression) -> list[Value]:
    """The values at the points by which expressions are compared: one where there is no variable."""
    return [value(expression, point) for point in range(NUM_POINTS if expression.variables else 1)]


def key(expression: Expression) -> str:
    """The key: equal exactly for equal expressions."""
    return key_of(values(expression))


def key_of(found: list[Value]) -> str:
    """The key of an expression with these values at the points."""
    texts = [_text(one) for one in found]
    if len(set(texts)) == 1:  # a constant, or something like x - x + 5
        return texts[0]
    # The last point is negative. Where a root or logarithm is not real there, positive variables are meant.
    return hashed("expr", [*texts[:-1], texts[-1] if decimals.is_real(found[-1]) else "-"])


def equation_key(left: Expression, right: Expression) -> str:
    """The key of left = right: equal for equations that differ by a constant factor."""
    difference = Expression(("-", left.node, right.node), left.variables | right.variables)
    if not difference.variables:
        raise Unreadable("no variable")
    return proportional_key("equation", values(difference))


def proportional_key(kind: str, found: list[Value]) -> str:
    """The key of what has these values up to a constant factor, which is positive unless it is an equation.

    Raises:
        Unreadable: it is 0 everywhere.
    """
    scale = next((one for one in found if one != 0), None)
    if scale is None:
        raise Unreadable("true everywhere")
    if kind != "equation":
        scale = decimals.precisely(partial(_absolute, scale))
    return hashed(kind, [_text(decimals.precisely(partial(_quotient, one, scale))) for one in found])


def hashed(kind: str, parts: list[str]) -> str:
    """A short key for a long text."""
    return f"{kind}:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'backslashreplace')).hexdigest()[:20]}"


def _text(number: Value) -> str:
    if isinstance(number, Complex):
        return decimals.digits(number)
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > 400:
        return hashed("number", [f"{number.numerator:x}", f"{number.denominator:x}"])
    return str(number)


def _evaluate(node: Node, point: int) -> Value:
    kind = node[0]
    if kind == "number":
        return node[1]
    if kind == "variable":
        return sample(node[1], point)
    if kind == "constant":
        constants = {"pi": Complex(decimals.PI, decimals.ZERO), "e": Complex(decimals.E, decimals.ZERO)}
        return constants.get(node[1], Complex(decimals.ZERO, Decimal(1)))
    arguments = [_evaluate(argument, point) for argument in node[1:]]
    return _OPERATIONS[kind](*arguments)


def sample(name: str, point: int) -> Fraction:
    """The value of a variable: positive at the first points, negative at the last."""
    seed = int.from_bytes(hashlib.sha256(f"{name}/{point}".encode()).digest()[:8], "big")
    size = Fraction(1009 + seed % 7001, 601 + seed // 7001 % 797)
    return -size if point == NUM_POINTS - 1 else size


def _added(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _bounded(a + b)
    x, y = inexact(a), inexact(b)
    return Complex(decimals.add(x.re, y.re), decimals.add(x.im, y.im))


def _negative(a: Value) -> Value:
    return -a if isinstance(a, Fraction) else Complex(-a.re, -a.im)


def _product(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _bounded(a * b)
    return decimals.multiply(inexact(a), inexact(b))


def _quotient(a: Value, b: Value) -> Value:
    b = decimals.simple(b)
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _bounded(a / b)
    return decimals.divide(inexact(a), inexact(b))


def _bounded(number: Fraction) -> Fraction:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MAX_BITS:
        raise OverflowError("too many digits")
    return number


def _raised(base: Value, exponent: Value) -> Value:
    base, exponent = decimals.simple(base), decimals.simple(exponent)
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent.numerator) * max(1, bits) > _MAX_BITS and base not in (0, 1, -1):
                raise OverflowError("too many digits")
            return base**exponent.numerator
        if exponent == Fraction(1, 2):
            return _square_root(base)
    if isinstance(exponent, Fraction) and exponent.denominator > 1 and exponent.denominator % 2 and _is_negative(base):
        # Odd roots of negative numbers are real, as schools have it and as `_root_of` does.
        root = _raised(_negative(base), exponent)
        return _negative(root) if exponent.numerator % 2 else root
    return decimals.power(inexact(base), inexact(exponent))


def _is_negative(a: Value) -> bool:
    return decimals.is_real(a) and inexact(a).re < 0


def _square_root(a: Value) -> Value:
    a = decimals.simple(a)
    if isinstance(a, Fraction) and a >= 0:
        above, below = isqrt(a.numerator), isqrt(a.denominator)
        if above * above == a.numerator and below * below == a.denominator:
            return Fraction(above, below)
    return decimals.square_root(inexact(a))


def _root_of(a: Value, order: Value) -> Value:
    """Real for odd roots of negative numbers, as schools have it."""
    order = decimals.simple(order)
    if not isinstance(order, Fraction) or order.denominator != 1 or not 2 <= order <= 1000:
        raise ArithmeticError("not a root")
    if _is_negative(a) and order.numerator % 2:
        return _negative(_root_of(_negative(a), order))
    return _square_root(a) if order == 2 else decimals.power(inexact(a), inexact(1 / order))


def _real(a: Value) -> Fraction:
    a = decimals.simple(a)
    if isinstance(a, Fraction):
        return a
    if not decimals.is_real(a) or a.re.adjusted() > 100:
        raise ArithmeticError("not a real number of ordinary size")
    return Fraction(a.re)


def _whole(a: Value, limit: int) -> int:
    number = _real(a)
    if number > limit:
        raise OverflowError("too many digits")
    if number.denominator != 1 or number < 0:
        raise ArithmeticError("not a small whole number")
    return number.numerator


def _absolute(a: Value) -> Value:
    return abs(a) if isinstance(a, Fraction) else Complex(decimals.modulus(a), decimals.ZERO)


def _applied(function: Callable[[Complex], Complex]) -> Callable[[Value], Value]:
    return lambda a: function(inexact(a))


def _tan(a: Value) -> Value:
    sine, cosine = decimals.simple(decimals.sin(inexact(a))), decimals.simple(decimals.cos(inexact(a)))
    if abs(inexact(cosine).re) + abs(inexact(cosine).im) < Decimal("1e-50"):
        raise ZeroDivisionError("a pole of the tangent")
    return _quotient(sine, cosine)


def _arcsin(a: Value) -> Value:
    x = _real(a)
    if abs(x) >= 1:
        if abs(x) > 1:
            raise ArithmeticError("not real")
        return Complex((decimals.PI / 2).copy_sign(inexact(x).re), decimals.ZERO)
    return decimals.arctan(inexact(_quotient(x, _square_root(1 - x * x))))


def _hyperbolic(sign: int) -> Callable[[Value], Value]:
    def function(a: Value) -> Value:
        up, down = decimals.exp(inexact(a)), decimals.exp(inexact(_negative(a)))
        return Complex((up.re + sign * down.re) / 2, (up.im + sign * down.im) / 2)

    return function


def _degrees(a: Value) -> Value:
    return _product(a, Complex(decimals.PI / 180, decimals.ZERO))


def _log10(a: Value) -> Value:
    return _quotient(decimals.ln(inexact(a)), decimals.ln(inexact(Fraction(10))))


_ONE = Fraction(1)
_sin, _cos = _applied(decimals.sin), _applied(decimals.cos)
_sinh, _cosh = _hyperbolic(-1), _hyperbolic(1)
_OPERATIONS: dict[str, Callable[..., Value]] = {
    "+": _added,
    "-": lambda a, b: _added(a, _negative(b)),
    "*": _product,
    "/": _quotient,
    "negative": _negative,
    "power": _raised,
    "sqrt": _square_root,
    "root": _root_of,
    "factorial": lambda a: Fraction(factorial(_whole(a, 2500))),
    "binomial": lambda a, b: Fraction(comb(_whole(a, 2500), _whole(b, 2500))),
    "absolute": _absolute,
    "floor": lambda a: Fraction(floor(_real(a))),
    "ceiling": lambda a: Fraction(-floor(-_real(a))),
    "degrees": _degrees,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "cot": lambda a: _quotient(_ONE, _tan(a)),
    "sec": lambda a: _quotient(_ONE, _cos(a)),
    "csc": lambda a: _quotient(_ONE, _sin(a)),
    "arcsin": _arcsin,
    "arccos": lambda a: _added(Complex(decimals.PI / 2, decimals.ZERO), _negative(_arcsin(a))),
    "arctan": _applied(decimals.arctan),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": lambda a: _quotient(_sinh(a), _cosh(a)),
    "ln": _applied(decimals.ln),
    # Schools write log for both bases; it is read as the natural one, so that "\log 2" and "\ln 2" are one answer.
    "log": _applied(decimals.ln),
    "lg": _log10,
    "exp": _applied(decimals.exp),
}
