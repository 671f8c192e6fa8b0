r"""Notations that are rewritten before an answer is read, and some that must not be read as a product.

"]1, 2["  ->  "(1, 2)";    "\begin{cases} x=1 \\ y=2 \end{cases}"  ->  "x=1", "y=2"
"""

import re

_TURNED = re.compile(r"[\[\]] ?[^\[\](){}]*[,;][^\[\](){}]* ?[\[\]]")
"""An interval whose open ends are brackets that face away: ]1,2[."""
_CASES = re.compile(
    r"(?:\\begin ?\{cases\}|\\\{ ?\\begin ?\{(?:array|aligned)\}(?: ?\{[clr| ]*\})?)(?P<rows>.*)"
    r"\\end ?\{(?:cases|array|aligned)\}",
    re.DOTALL,
)
DERIVATIVE = re.compile(
    r"\\frac ?\{ ?(?:\\text ?\{)?d\}?(?:\^ ?\{? ?\d ?\}?)? ?(?P<of>[A-Za-z]?)(?:\([a-z]\))? ?\}"
    r" ?\{ ?(?:\\text ?\{)?d\}? ?[A-Za-z][^{}]{0,9}\}|"
    r"(?<![A-Za-z\\])d(?:\^\d)?(?P<plain>[A-Za-z]?) ?/ ?\(?d[a-z](?![A-Za-z])"
)
"""d/dx, and dy/dx: no fraction of variables."""
_BOUND = re.compile(r"[_^] ?(?:\{[^{}]*\}|\\infty)|\\to ?[+-]?\\infty")
"""Where infinity is a bound and no part of a value."""


def turned(text: str) -> str:
    """]1,2[ with round brackets; only where such intervals are all there is."""
    if not (text.startswith("]") or text.endswith("[")):
        return text
    pieces = re.split(r" ?\\cup ?", text)
    if not all(_TURNED.fullmatch(piece) for piece in pieces):
        return text
    return "\\cup ".join("[("[piece[0] == "]"] + piece[1:-1] + "])"[piece[-1] == "["] for piece in pieces)


def equations(text: str) -> list[str]:
    """The equations of a system; empty where it is none, a function in pieces for example."""
    match = _CASES.fullmatch(text) if "\\begin" in text else None
    rows = [row.replace("&", "").strip(" ,") for row in re.split(r"\\row", match["rows"])] if match else []
    rows = [row for row in rows if row]
    plain = all(re.fullmatch(r"[^=<>]+=[^=<>]+", row) and not re.search(r"\\text|\\begin", row) for row in rows)
    return rows if plain else []


def holds_infinity(text: str) -> bool:
    r"""Whether \infty is a part of the value and no bound."""
    return "\\infty" in text and "\\infty" in _BOUND.sub("", text)
