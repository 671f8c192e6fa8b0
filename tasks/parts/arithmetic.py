"""A small parser of arithmetic: whole numbers, + - * /, parentheses and a sign; exact, bounded, and without `eval`."""

import re
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 300
"""Characters of an expression; a longer one is none."""
_MAX_NUMBERS = 16
_MAX_DIGITS = 6
_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")
_AS_ASCII = str.maketrans(
    {"\u00d7": "*", "\u22c5": "*", "\u00b7": "*", "\u2217": "*", "\u2715": "*", "\u00f7": "/", "\u2215": "/"}
    | {"\u2044": "/", "\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\u00a0": " ", "\u202f": " "}
    | {"[": "(", "]": ")", "{": "(", "}": ")", "\uff1d": "=", "\u2009": " ", "\u200b": ""}
)
_COMMANDS = (
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\(?:left|right|,|;|!|quad)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
)


class Expression(NamedTuple):
    """What an expression comes to, and the numbers that are written in it, in order."""

    value: Fraction
    numbers: tuple[int, ...]


class _Unreadable(Exception):
    """The text is not an expression."""


def as_ascii(text: str) -> str:
    r"""The same arithmetic in plain signs: "2 \times 3 \div 4" -> "2 * 3 / 4"."""
    for pattern, plain in _COMMANDS:
        text = pattern.sub(plain, text)
    return text.translate(_AS_ASCII)


def parse(text: str) -> Expression | None:
    """An expression in plain signs; None where the text is none, too long, or divides by zero."""
    if len(text) > MAX_LENGTH:
        return None
    try:
        return _Parser(text).whole()
    except (_Unreadable, ZeroDivisionError):
        return None


class _Parser:
    """Recursive descent. The length bounds the depth, and the number of digits bounds the size of every value."""

    def __init__(self, text: str) -> None:
        self.numbers: list[int] = []
        self.place = 0
        self.tokens: list[str] = []
        end = 0
        while text[end:].strip():
            token = _TOKEN.match(text, end)
            if token is None or len(token[1] or "") > _MAX_DIGITS:
                raise _Unreadable
            self.tokens.append(token[1] or token[2])
            end = token.end()

    def whole(self) -> Expression:
        value = self.sum()
        if self.place < len(self.tokens) or len(self.numbers) > _MAX_NUMBERS:
            raise _Unreadable
        return Expression(value, tuple(self.numbers))

    def next_is(self, *choices: str) -> str | None:
        """Take the next token if it is one of these."""
        token = self.tokens[self.place] if self.place < len(self.tokens) else ""
        if token not in choices:
            return None
        self.place += 1
        return token

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self.next_is("+", "-"):
            term = self.product()
            value = value + term if sign == "+" else value - term
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while sign := self.next_is("*", "/"):
            factor = self.factor()
            value = value * factor if sign == "*" else value / factor
        return value

    def factor(self) -> Fraction:
        if sign := self.next_is("+", "-"):
            value = self.factor()
            return value if sign == "+" else -value
        if self.next_is("("):
            value = self.sum()
            if not self.next_is(")"):
                raise _Unreadable
            return value
        token = self.tokens[self.place] if self.place < len(self.tokens) else ""
        if not token.isdigit() or len(self.numbers) >= _MAX_NUMBERS:
            raise _Unreadable
        self.place += 1
        self.numbers.append(int(token))
        return Fraction(self.numbers[-1])
