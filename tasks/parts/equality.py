r"""Whether two answers are the same, by `docs/verifier_policy.md`, and the key under which an answer votes.

    same(read("m \geq \sqrt{2}"), read("[\sqrt{2}, \infty)"))  ->  True
    same(read("\int_0^1 2x dx"), read("1"))                    ->  None: for a computer algebra system to say

Only `same` is lenient where people leave something out (a base, a variable's name). Keys never are: they know no gold,
and a lenient equality is not transitive, so it cannot make the classes of a vote.
"""

import re
from collections.abc import Sequence

from tasks.parts.latex import squashed
from tasks.parts.trees import Tree
from tasks.parts.values import hashed

_MAX_KEY = 100
_MAX_MATCHED = 12
"""Items of a list that are compared pairwise; longer ones must be equal as sorted texts."""


def same(gold: Tree, answer: Tree) -> bool | None:
    """Whether the answer is right; None where that is not known."""
    if "nothing" in (gold.kind, answer.kind):
        return False
    if gold == answer:
        return True
    if gold.kind == "raw" and answer.kind == "raw":
        return True if squashed(gold.text) == squashed(answer.text) else None
    gold, answer = _letters(gold, answer)
    if "named" in (gold.kind, answer.kind):
        return _named(gold, answer)
    if "range" in (gold.kind, answer.kind):
        return _ranges(gold, answer)
    if "raw" in (gold.kind, answer.kind):
        other = answer if gold.kind == "raw" else gold
        return False if other.kind in ("letter", "text", "clock", "base", "ratio") else None
    if gold.kind == answer.kind:
        return _alike(gold, answer)
    return _different(gold, answer)


def _alike(gold: Tree, answer: Tree) -> bool | None:
    """Two trees of one kind that are not equal as texts."""
    kind = gold.kind
    if kind == "value":
        return gold.text == answer.text and not (gold.unit and answer.unit and gold.unit != answer.unit)
    if kind in ("tuple", "row", "matrix", "interval", "ratio"):
        return gold.text == answer.text and _each(gold.parts, answer.parts)
    if kind in ("list", "set", "union"):
        return _matched(gold.parts, answer.parts)
    if kind == "clock":
        return gold.unit == answer.unit and gold.text.removesuffix(":00") == answer.text.removesuffix(":00")
    if kind == "equation":
        return gold.text == answer.text
    return False


def _different(gold: Tree, answer: Tree) -> bool | None:
    """Trees of two kinds: equal only where one leaves out what the other writes."""
    kinds = (gold.kind, answer.kind)
    for (one, other), (a, b) in ((kinds, (gold, answer)), (kinds[::-1], (answer, gold))):
        if (one, other) == ("list", "set"):
            return _matched(a.parts, b.parts)
        if one == "set" and len(a.parts) == 1:
            return same(a.parts[0], b)
        if (one, other) == ("tuple", "list"):
            # Brackets left out or added. In another order it is another answer.
            return _each(a.parts, b.parts)
        if (one, other) == ("tuple", "matrix"):
            return _each(a.parts, _vector(b))
        if (one, other) == ("interval", "matrix") and a.text == "[]":
            return _each(a.parts, _vector(b))
        if one == "clock" and other in ("ratio", "value"):
            return a.text.removesuffix(":00") == b.text.removesuffix(":00")
    if kinds == ("base", "value"):
        return gold.text == answer.text
    if kinds == ("value", "equation"):
        # "a + b = 5" where a + b was asked for; an equation with 0 on one side states no value.
        return answer.parts == (gold,) and gold.text != "0"
    return False


def _letters(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """A lone capital letter is an option, a variable or a word of one letter: the same, whichever it was read as."""
    if gold.kind == "letter" and answer.kind == "text" and len(answer.text) == 1:
        return gold, Tree("letter", answer.text.upper())
    return gold, answer


def _named(gold: Tree, answer: Tree) -> bool | None:
    """With "x =" on one side only, it says nothing; on both sides the names must be equal."""
    a, b = (tree.parts[0] if tree.kind == "named" else tree for tree in (gold, answer))
    names = [tree.text for tree in (gold, answer) if tree.kind == "named" and tree.text]
    if len(names) == 2 and names[0] != names[1]:
        equations = gold.unit, answer.unit
        return bool(equations[0]) and equations[0] == equations[1]
    for one, other in ((gold, answer), (answer, gold)):
        if one.kind == "named" and other.kind == "equation":
            return bool(one.unit) and one.unit == other.text
    return same(a, b)


def _ranges(gold: Tree, answer: Tree) -> bool | None:
    """An interval and a range of a variable over it are the same in both directions; two variables are not."""
    if gold.kind == answer.kind and gold.text != answer.text:
        return False
    return same(*(tree.parts[0] if tree.kind == "range" else tree for tree in (gold, answer)))


def _vector(matrix: Tree) -> tuple[Tree, ...]:
    rows = matrix.parts
    if len(rows) == 1:
        return rows[0].parts
    return tuple(row.parts[0] for row in rows) if all(len(row.parts) == 1 for row in rows) else ()


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    if any(verdict is False for verdict in verdicts):
        return False
    return None if any(verdict is None for verdict in verdicts) else True


def _each(gold: Sequence[Tree], answer: Sequence[Tree]) -> bool | None:
    if len(gold) != len(answer):
        return False
    return _all([same(a, b) for a, b in zip(gold, answer, strict=True)])


def _matched(gold: Sequence[Tree], answer: Sequence[Tree]) -> bool | None:
    """In any order: each item of one is the same as one item of the other that is not taken yet."""
    if len(gold) != len(answer):
        return False
    left, unknown = list(answer), False
    if len(left) > _MAX_MATCHED:
        return sorted(gold) == sorted(left)
    for item in gold:
        verdicts = [same(item, other) for other in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            unknown = True
        else:
            return False
    return None if unknown else True


def is_known(tree: Tree) -> bool:
    """Whether all of an answer was understood."""
    return tree.kind != "raw" and all(is_known(part) for part in tree.parts)


def canonical_key(tree: Tree) -> str | None:
    """The key of an answer that was understood, None of others. ASCII, and no longer than a line."""
    if tree.kind == "nothing" or not is_known(tree):
        return None
    found = printable(_key(tree))
    return found if len(found) <= _MAX_KEY else hashed(tree.kind, [found])


def _key(tree: Tree) -> str:
    if tree.kind in ("named", "range"):
        return _key(tree.parts[0])
    if tree.kind in ("text", "letter"):
        return f"text:{tree.text.lower()}"
    if tree.kind == "clock":
        return f"text:{tree.text.removesuffix(':00')} {tree.unit}m"
    if tree.kind == "base":
        return f"{tree.text}_{tree.unit}"
    if tree.kind in ("value", "equation"):
        return tree.text
    parts = [_key(part) for part in tree.parts]
    if tree.kind in ("list", "set", "union"):
        parts.sort()
    if tree.kind == "ratio":
        return "ratio:" + (re.sub("^0", "", tree.text) or ":".join(parts))
    if tree.kind in ("list", "set"):
        return "{" + ", ".join(parts) + "}"
    left, right = tree.text or {"tuple": "()", "row": "()"}.get(tree.kind, "<>")
    return f"{tree.kind if tree.kind in ('matrix', 'union') else ''}{left}{', '.join(parts)}{right}"


def printable(text: str) -> str:
    r"""The text in printable ASCII, with "\x1b" for an escape and so on."""
    return "".join(
        one if " " <= one <= "~" else one.encode("unicode_escape", "backslashreplace").decode() for one in text
    )
