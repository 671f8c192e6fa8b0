r"""Reading an expression: LaTeX or plain arithmetic as a tree of operations, or a refusal, never a guess.

    "2\frac12 + \sqrt3 x"  ->  ("+", ("number", 5/2), ("*", ("sqrt", ("number", 3)), ("variable", "x")))

Two numbers side by side ("4 10/3") and words are refused. Linear in the length of the text, but for nesting.
"""

import re
from fractions import Fraction
from typing import Any, NamedTuple

MAX_LENGTH = 1000
_MAX_TOKENS = 400
_MAX_DEPTH = 40
_TOKEN = re.compile(
    r"\s+|(?P<number>\d+(?:\.\d+)?|\.\d+)|\\(?P<command>[A-Za-z]+)|(?P<escaped>\\.)|(?P<word>[A-Za-z]+)|(?P<sign>.)",
    re.DOTALL,
)
_FUNCTIONS = frozenset(
    re.split(" ", "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lg sqrt")
)  # fmt: skip
GREEK = frozenset(
    re.split(
        " ",
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
        "phi varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell",
    )
)
_WORDS = _FUNCTIONS | GREEK | {"pi"}
_TIMES = frozenset({"*", "\\cdot", "\\times"})
_OVER = frozenset({"/", "\\div"})
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_OPENING = frozenset({"(", "[", "{", "|", "\\lfloor", "\\lceil"})

Node = tuple[Any, ...]
"""("number", Fraction), ("variable", name), ("constant", name) or (operation, node, ...)."""


class Unreadable(ValueError):
    """The text is no expression that is understood here."""


class TooLarge(Unreadable):
    """The text is understood, but its value has too many digits to be computed."""


class Expression(NamedTuple):
    """An expression and its variables."""

    node: Node
    variables: frozenset[str]


def parse(text: str) -> Expression:
    """Read an expression.

    Raises:
        Unreadable: not an expression of arithmetic, roots, powers and elementary functions.
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable("too long")
    parser = _Parser(_tokens(text))
    node = parser.sum(0)
    if parser.next is not None:
        raise Unreadable(f"unexpected {parser.next!r}")
    return Expression(node, frozenset(parser.variables))


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        word, command = match["word"], match["command"]
        if command:
            found.append("\\" + command)
        elif word and word in _WORDS:
            found.append("\\" + word)
        elif word:
            if len(word) > 2 and not set(word) <= set("abcdxyz"):
                raise Unreadable(f"a word: {word}")
            found.extend(word)
        elif match[0] in ("\\", "."):
            raise Unreadable("a lone backslash or point")
        elif match[0].strip():
            found.append(match[0])
        if len(found) > _MAX_TOKENS:
            raise Unreadable("too long")
    return found


class _Parser:
    """Recursive descent: sum > product > signed power > atom."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0
        self.variables: set[str] = set()

    @property
    def next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self, *expected: str) -> str:
        token = self.next
        if token is None or (expected and token not in expected):
            raise Unreadable(f"unexpected {token!r}")
        self._at += 1
        return token

    def sum(self, depth: int, closing: str | None = None) -> Node:
        if depth > _MAX_DEPTH:
            raise Unreadable("nested too deep")
        total = self._product(depth, closing)
        while self.next in ("+", "-"):
            total = (self.take(), total, self._product(depth, closing))
        return total

    def _product(self, depth: int, closing: str | None, argument: bool = False) -> Node:
        product = self._signed(depth)
        while self.next is not None and self.next not in ("+", "-", closing):
            token = self.next
            if token in _TIMES | _OVER:
                self.take()
                product = ("*" if token in _TIMES else "/", product, self._signed(depth))
            elif argument and token.lstrip("\\") in _FUNCTIONS - {"sqrt"}:
                break
            elif token[0].isdigit() or token[0] == ".":
                raise Unreadable("two numbers side by side")
            elif token in _OPENING or token[0].isalpha() or (token[0] == "\\" and token[1].isalpha()):
                if token in ("\\rfloor", "\\rceil") or (token == "|" and closing == "|"):
                    break
                product = ("*", product, self._power(depth))
            else:
                break
        return product

    def _signed(self, depth: int) -> Node:
        if self.next in ("+", "-"):
            sign = self.take()
            if depth > _MAX_DEPTH:
                raise Unreadable("nested too deep")
            inner = self._signed(depth + 1)
            return ("negative", inner) if sign == "-" else inner
        return self._power(depth)

    def _power(self, depth: int) -> Node:
        base = self._atom(depth)
        while self.next in ("^", "!", "\\deg"):
            sign = self.take()
            if sign == "!":
                base = ("factorial", base)
            elif sign == "\\deg":
                base = ("degrees", base)
            else:
                base = ("power", base, self._script(depth))
        return base

    def _script(self, depth: int) -> Node:
        """An exponent or a TeX argument: a group or one token, one digit of a number only."""
        if depth > _MAX_DEPTH:
            raise Unreadable("nested too deep")
        token = self.next
        if token == "-":  # 2^-3, as people write it
            self.take()
            return ("negative", self._script(depth + 1))
        if token and token[0].isdigit() and len(token) > 1:
            if self._at and self._tokens[self._at - 1] in ("^", "-"):
                return self._atom(depth)
            self._tokens[self._at : self._at + 1] = [token[0], "\\digits", token[1:]]
            digit = ("number", Fraction(self.take()))
            self.take("\\digits")
            return digit
        return self._atom(depth)

    def _atom(self, depth: int) -> Node:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return self._mixed(Fraction(token))
        if token in _OPENING:
            return self._group(token, depth)
        name = token.lstrip("\\")
        if token in ("e", "i", "\\pi"):
            return ("constant", name)
        if token[0].isalpha() or name in GREEK:
            return self._variable(name)
        if name in ("frac", "binom") and token[0] == "\\":
            # Each argument is a group or a single token: \frac12, \frac 43, \frac{625}4.
            return ("/" if name == "frac" else "binomial", self._script(depth + 1), self._second(depth + 1))
        if name in _FUNCTIONS:
            return self._function(name, depth)
        raise Unreadable(f"unexpected {token!r}")

    def _second(self, depth: int) -> Node:
        return self._script(depth)

    def _group(self, opening: str, depth: int) -> Node:
        inner = self.sum(depth + 1, _CLOSING[opening])
        self.take(_CLOSING[opening])
        kinds = {"|": "absolute", "\\lfloor": "floor", "\\lceil": "ceiling"}
        return (kinds[opening], inner) if opening in kinds else inner

    def _mixed(self, whole: Fraction) -> Node:
        """2\\frac{1}{2} is 5/2; with 10/3 it is neither a mixed number nor clearly a product, and is not read."""
        if self.next != "\\frac" or whole.denominator != 1 or (self._at > 1 and self._tokens[self._at - 2] == "^"):
            return ("number", whole)
        start = self._at
        self.take()
        parts = (self._script(0), self._script(0))
        if not all(part[0] == "number" for part in parts):
            self._at = start
            return ("number", whole)
        above, below = parts[0][1], parts[1][1]
        if not 0 < above < below:
            raise Unreadable("not a mixed number")
        return ("number", whole + above / below)

    def _variable(self, name: str) -> Node:
        if self.next == "_":
            self.take()
            name += "_" + (self._subscript() if self.next == "{" else self.take())
        while self.next == "'":
            name += self.take()
        self.variables.add(name)
        return ("variable", name)

    def _subscript(self) -> str:
        self.take("{")
        inner = ""
        while self.next not in ("}", None):
            inner += self.take()
        self.take("}")
        return inner

    def _function(self, name: str, depth: int) -> Node:
        if name == "sqrt":
            return self._root(depth)
        base: Node | None = None
        exponent: Node | None = None
        if self.next == "_" and name == "log":
            self.take()
            base = self._script(depth + 1)
        if self.next == "^":
            self.take()
            exponent = self._script(depth + 1)
            if exponent == ("negative", ("number", Fraction(1))):
                raise Unreadable("an inverse function")
        if self.next in ("(", "[", "{"):
            inner = self._group(self.take(), depth)
        else:
            inner = self._product(depth + 1, None, argument=True)
        applied: Node = (name, inner) if base is None else ("/", ("ln", inner), ("ln", base))
        return applied if exponent is None else ("power", applied, exponent)

    def _root(self, depth: int) -> Node:
        if self.next == "[":
            self.take()
            order = self.sum(depth + 1, "]")
            self.take("]")
            return ("root", self._script(depth + 1), order)
        return ("sqrt", self._script(depth + 1))
