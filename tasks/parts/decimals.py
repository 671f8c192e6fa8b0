"""Complex numbers of 60 digits on the standard library's decimals: precise enough to tell two closed forms apart.

Values of expressions are compared by their first 30 digits (`tasks.parts.values`), the other 30 absorb cancellation.
"""

import decimal
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

_CONTEXT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[
    decimal.DivisionByZero, decimal.InvalidOperation, decimal.Overflow,
])  # fmt: skip
_DIGITS = 30
_NOISE = Decimal("1e-40")
_CANCELLED = Decimal("1e-55")
_TINY = Decimal("1e-28")
_MAX_ARGUMENT = Decimal(100_000)
"""exp(x) is not computed beyond this: it costs time, and no answer is that large."""
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863")
E = Decimal("2.71828182845904523536028747135266249775724709369995957496696762772407663035354759457")


class Complex(NamedTuple):
    """A complex number."""

    re: Decimal
    im: Decimal


Value = Fraction | Complex
"""Exact where it is rational and was computed as such."""
ZERO = Decimal(0)


def precisely(function: Callable[[], Value]) -> Value:
    """Call a function with 60 digits.

    Raises:
        ArithmeticError: division by zero, a number out of range.
    """
    with decimal.localcontext(_CONTEXT):
        return simple(function())


def inexact(value: Value) -> Complex:
    """The value as a complex number."""
    if isinstance(value, Complex):
        return value
    number = Complex(Decimal(value.numerator) / Decimal(value.denominator), ZERO)
    if value.denominator.bit_length() > 100 and isinstance(simple(number), Fraction):
        raise ArithmeticError("nearer to a simpler fraction than can be told")
    return number


def simple(value: Value) -> Value:
    """A complex number that is a simple fraction up to rounding, as that fraction: the square of the root of 2 is 2."""
    if isinstance(value, Fraction):
        return value
    size = max(abs(value.re), abs(value.im))
    if abs(value.im) > size * _NOISE:
        return value
    if abs(value.re.adjusted()) > 12:
        return Complex(value.re, ZERO)
    nearest = Fraction(value.re).limit_denominator(1_000_000)
    near = abs(Decimal(nearest.numerator) / Decimal(nearest.denominator) - value.re) <= size * _NOISE
    return nearest if near else Complex(value.re, ZERO)


def digits(value: Value) -> str:
    """The first significant digits, 30 as a rule; a part that is nothing beside the other is 0."""
    with decimal.localcontext(_CONTEXT):
        z = inexact(value)
        size = max(abs(z.re), abs(z.im))
        parts = [part if abs(part) > size * _NOISE else ZERO for part in z]
    re, im = map(_rounded, parts)
    return re if not parts[1] else f"{re}{'' if im.startswith('-') else '+'}{im}i"


def _rounded(part: Decimal) -> str:
    """To 30 digits; to 50 where those are nearly all zeros, so that 1 + 2^-99 is not written as 1."""
    for precision in (_DIGITS, _DIGITS + 20):
        with decimal.localcontext(_CONTEXT, prec=precision):
            text = str((+part).normalize())
        if len(text) > _DIGITS - 5:
            break
    return text


def is_real(value: Value) -> bool:
    """Whether the imaginary part is nothing but rounding."""
    return isinstance(value, Fraction) or abs(value.im) <= abs(value.re) * _NOISE


def add(a: Decimal, b: Decimal) -> Decimal:
    """The sum; 0 where so much cancels that no digit is left: the roots of 2 and 3 multiplied, less that of 6."""
    total = a + b
    return total if abs(total) > max(abs(a), abs(b)) * _CANCELLED else ZERO


def multiply(a: Complex, b: Complex) -> Complex:
    return Complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def divide(a: Complex, b: Complex) -> Complex:
    size = b.re * b.re + b.im * b.im
    product = multiply(a, Complex(b.re, -b.im))
    return Complex(product.re / size, product.im / size)


def modulus(z: Complex) -> Decimal:
    return (z.re * z.re + z.im * z.im).sqrt()


def exp(z: Complex) -> Complex:
    if abs(z.re) > _MAX_ARGUMENT:
        raise OverflowError("the exponent is too large")
    if max(abs(z.re), abs(z.im)) < _TINY and z != (0, 0):
        raise ArithmeticError("nearer to 1 than can be told")
    size = z.re.exp()
    return Complex(size * _cos(z.im), size * _sin(z.im)) if z.im else Complex(size, ZERO)


def ln(z: Complex) -> Complex:
    """Principal branch."""
    return Complex(modulus(z).ln(), _angle(z))


def square_root(z: Complex) -> Complex:
    """Principal branch."""
    if z == (0, 0):
        return z
    # The larger part first: the difference of two that are nearly equal has lost half of its digits.
    large = ((modulus(z) + abs(z.re)) / 2).sqrt()
    small = abs(z.im) / (2 * large)
    re, im = (large, small) if z.re >= 0 else (small, large)
    return Complex(re, im.copy_sign(z.im))


def power(base: Complex, exponent: Complex) -> Complex:
    """Principal branch; integer exponents by squaring."""
    if base == (0, 0):
        if exponent.re <= 0:
            raise ZeroDivisionError("zero to a power that is not positive")
        return base
    if not exponent.im and exponent.re == exponent.re.to_integral_value() and abs(exponent.re) <= 100:
        result = Complex(Decimal(1), ZERO)
        for _ in range(abs(int(exponent.re))):
            result = multiply(result, base)
        return result if exponent.re >= 0 else divide(Complex(Decimal(1), ZERO), result)
    return exp(multiply(exponent, ln(base)))


def sin(z: Complex) -> Complex:
    up, down = (z.im.exp() if abs(z.im) < 1000 else _too_large(), (-z.im).exp())
    return Complex(_sin(z.re) * (up + down) / 2, _cos(z.re) * (up - down) / 2)


def cos(z: Complex) -> Complex:
    return sin(Complex(PI / 2 - z.re, -z.im))


def arctan(z: Complex) -> Complex:
    if z.im:
        raise ArithmeticError("the inverse tangent of a complex number is not read")
    return Complex(_arctan(z.re), ZERO)


def _too_large() -> Decimal:
    raise OverflowError("the argument is too large")


def _sin(x: Decimal) -> Decimal:
    if abs(x) > _MAX_ARGUMENT:
        _too_large()
    x = x.remainder_near(2 * PI)
    term, total, n = x, x, 1
    while abs(term) > Decimal("1e-65"):
        term *= -x * x / ((n + 1) * (n + 2))
        total, n = total + term, n + 2
    return total


def _cos(x: Decimal) -> Decimal:
    return _sin(PI / 2 - x)


def _arctan(x: Decimal) -> Decimal:
    if abs(x) > 1:
        return (PI / 2).copy_sign(x) - _arctan(1 / x)
    halvings = 0
    while abs(x) > Decimal("0.05"):
        x, halvings = x / (1 + (1 + x * x).sqrt()), halvings + 1
    term, total, n = x, x, 1
    while abs(term) > Decimal("1e-65"):
        term, n = -term * x * x, n + 2
        total += term / n
    return total * 2**halvings


def _angle(z: Complex) -> Decimal:
    if not z.im:
        return ZERO if z.re > 0 else PI
    if abs(z.re) < abs(z.im):
        return (PI / 2).copy_sign(z.im) - _arctan(z.re / z.im)
    return _arctan(z.im / z.re) + (ZERO if z.re > 0 else PI.copy_sign(z.im))
