"""The tree that an answer is read into, and the sets that ranges of a variable are: intervals, unions and rays."""

from fractions import Fraction
from typing import NamedTuple

from tasks.parts.latex import AND, OR, squashed


class Tree(NamedTuple):
    """An answer: its kind, a text of it, its parts and, of a value, the unit of measure where one was written."""

    kind: str
    text: str = ""
    parts: tuple["Tree", ...] = ()
    unit: str = ""


EMPTY = Tree("nothing")
MINUS_INFINITY, INFINITY = Tree("value", "-infinity"), Tree("value", "infinity")


def interval(low: Tree, left: str, high: Tree, right: str) -> Tree:
    """An open interval is written like a pair, and is one here."""
    parts = (low, high)
    return Tree("tuple", parts=parts) if left + right == "()" else Tree("interval", left + right, parts)


def ordered(parts: list[Tree]) -> tuple[Tree, ...]:
    flat = [one for part in parts for one in (part.parts if part.kind == "union" else (part,))]
    return tuple(sorted(set(flat)))


def combined(text: str, name: str, inside: list[Tree]) -> Tree:
    """Ranges of one variable. "or" is the union and "and" what is in both; a comma is whichever says something."""
    rays = _rays(inside)
    low, high = _ends(*rays) if rays else (1, 0)
    meet = rays is not None and low < high
    if AND in text and OR not in text and not meet:
        return Tree("text", "empty" if rays and low > high else squashed(text))
    if meet and OR in text:
        return Tree("range", name, (Tree("tuple", parts=(MINUS_INFINITY, INFINITY)),))
    if meet and rays:
        right, left = rays
        both = interval(right.parts[0], (right.text or "()")[0], left.parts[1], (left.text or "()")[1])
        return Tree("range", name, (both,))
    return Tree("range", name, (Tree("union", parts=ordered(inside)),))


def _rays(ranges: list[Tree]) -> tuple[Tree, Tree] | None:
    """Two ranges, of which the first has no upper end and the second no lower one, with numbers as their other ends."""
    if len(ranges) != 2 or any(one.kind not in ("tuple", "interval") or len(one.parts) != 2 for one in ranges):
        return None
    first, second = ranges if ranges[0].parts[1] == INFINITY else ranges[::-1]
    if first.parts[1] != INFINITY or second.parts[0] != MINUS_INFINITY:
        return None
    try:
        _ends(first, second)
    except ValueError:
        return None
    return first, second


def _ends(right: Tree, left: Tree) -> tuple[Fraction, Fraction]:
    return Fraction(right.parts[0].text), Fraction(left.parts[1].text)
