r"""LaTeX cleaned of what carries no value, and split where nothing is open.

    "\left( 3,\ \dfrac{1}{2} \right)."  ->  "( 3, \frac{1}{2} )"  ->  "3", "\frac{1}{2}"

Everything here is linear in the length of the text, which callers keep below a few thousand characters.
"""

import re
from collections.abc import Iterator

from tasks.parts.extract import balanced
from tasks.parts.numbers import ascii_digits
from tasks.parts.words import with_halves

MAX_LENGTH = 1000
"""Characters of an answer that is read; a longer one is compared as text."""
OR, AND = "\x1f", "\x1e"
"""Written before the comma that stands for the word."""
_WRAPPERS = "boldsymbol|mathbf|mathit|mathsf|mathbb|mathcal|bm|boxed|fbox|displaystyle|textstyle|ensuremath|emph"
_SYMBOLS = {
    character: f"\\{name} "
    for name, characters in {
        "pi": "\u03c0", "infty": "\u221e", "leq": "\u2264", "geq": "\u2265", "neq": "\u2260", "times": "\u00d7",
        "cdot": "\u00b7\u22c5", "div": "\u00f7", "deg": "\u00b0\u00ba", "cup": "\u222a", "in": "\u2208", "pm": "\u00b1",
        "mp": "\u2213", "theta": "\u03b8", "alpha": "\u03b1", "beta": "\u03b2", "lambda": "\u03bb", "approx": "\u2248",
        "emptyset": "\u2205", "dots": "\u2026", "lfloor": "\u230a", "rfloor": "\u230b", "lceil": "\u2308",
        "rceil": "\u2309", "Reals": "\u211d",
    }.items()
    for character in characters
}  # fmt: skip
_SYMBOL = re.compile("|".join(_SYMBOLS))
_ROOT = re.compile(r"√\s*(?:(?P<simple>\d+(?:\.\d+)?|[A-Za-z])|(?P<group>(?=[({])))")
_REPEATING = re.compile(r"(?P<whole>\d{1,20})\.(?P<head>\d{0,20})\\(?:overline|bar)\s*\{?(?P<tail>\d{1,20})\}?")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"\\\$(?= ?[\d.])", "\u00a4"),  # a dollar sign that is no delimiter
        (r"\\(?:text)?color ?\{[^{}]*\}|\\(?:underline|uline)(?![A-Za-z])", ""),
        (r"\\(?:[()\[\]]|\$)|\$|\*\*|`|\u200b", ""),
        (r"\+ ?/ ?-|^ *\+ ?-|\bplus or minus\b", r"\\pm "),
        (r"^(?:minus|negative|\\text ?\{ ?(?:minus|negative) ?\}) ?(?=[\d\\(.])", "-"),
        (r"\\%", "%"),
        (r"\{,\}|,\s?\\!\s?(?=\d)|\\!\s?,", "{,}"),
        (r"(?<=\d)\\[,!](?=\d{3}(?!\d))", "{,}"),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\.?", ""),
        (r"\\!|\\(?:displaystyle|textstyle|limits|hfill|strut|mathstrut|cr)(?![A-Za-z])", ""),
        (r"\\[,;: ]|~|\\(?:quad|qquad|thinspace|space)(?![A-Za-z])|\s+", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\\dbinom|\\tbinom", r"\\binom"),
        (r"\\(?:le|leqslant|leqq)(?![A-Za-z])|<=", r"\\leq "),
        (r"\\(?:ge|geqslant|geqq)(?![A-Za-z])|>=", r"\\geq "),
        (r"\\(?:ne)(?![A-Za-z])|!=", r"\\neq "),
        (r"(?<![A-Za-z\\])(?:infinity|infty|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\(?:langle|lparen)(?![A-Za-z])", "("),
        (r"\\(?:rangle|rparen)(?![A-Za-z])", ")"),
        (r"\\[lr]?vert(?![A-Za-z])", "|"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\(?:ldots|cdots|dotsc?|dotsb)(?![A-Za-z])|\.\.\.", r"\\dots "),
        (r"\\(?:varnothing)(?![A-Za-z])|\\\{ ?\\\}", r"\\emptyset "),
        (r"\^ ?\{ ?\\circ ?\}|\^ ?\\circ(?![A-Za-z])|\\degrees?(?![A-Za-z])", r"\\deg "),
        (r"\\(?:mathrm|rm|text) ?\{ ?([ei]|\\pi) ?\}", r" \1 "),
        (r"\\(?:mbox|mathrm|textrm|textbf|textit|textsf|texttt|textnormal|hbox|operatorname\*?|rm) ?\{", r"\\text{"),
        (r"(?<=\d)(?: |\\[,;:])?\\text ?\{ ?([abd-fijknoq-zABDEGHIMO-UX-Z]) ?\}", r" \1"),  # 5x; not 5 m
        *[(r"\\text ?\{ ?\\text ?\{([^{}]*)\} ?\}", r"\\text{\1}")] * 2,
        (r"\\text ?\{ ?(sin|cos|tan|log|ln|exp) ?\}", r"\\\1 "),
        (r"\\text ?\{[ ,]*or[ ,]*\}", f" {OR}, "),
        (r"\\text ?\{[ ,]*and[ ,]*\}", f" {AND}, "),
        (r"(?:(?<=[\d)}\]$ ])|^)or(?=[ \d(\\\[$-])", f" {OR}, "),
        (r"(?:(?<=[\d)}\]$ ])|^)and(?=[ \d(\\\[$-])", f" {AND}, "),
        (r"(?<=\d) ?x ?(?=10 ?\^)", r"\\times "),
        (r"\\mathbb ?(?:\{ ?R ?\}|R(?![A-Za-z]))|\\(?:Reals|reals)(?![A-Za-z])", r"(-\\infty,\\infty)"),
        (r"\\(?:" + _WRAPPERS + r") ?\{([^{}]*)\}", r"\1"),
    )
)
_ROW = re.compile(r"\\\\(?:\s{0,5}\[[^\]]{0,20}\])?")
_GROUPED = re.compile(r"\\[{}]|[(\[)\]]|(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_DEPTH = re.compile(r"\\(?:begin|end) ?\{[^{}]*\}|\\.|[(\[{)\]}]", re.DOTALL)
_STEPS = {"(": 1, "[": 1, "{": 1, "\\{": 1, ")": -1, "]": -1, "}": -1, "\\}": -1}


def clean(text: str) -> str:
    """The text without delimiters, spacing and fonts, with one spelling for each sign."""
    text = _SYMBOL.sub(lambda match: _SYMBOLS[match[0]], text) if not text.isascii() else text
    text = _unwrapped(ascii_digits(_ROOT.sub(_root, text)).strip()).rstrip("\\ \t\n")
    # Before anything else: "\\\\[2pt]" parts the rows of a matrix; elsewhere a doubled backslash is one escaped twice.
    text = _ROW.sub(r"\\row ", text) if "\\begin" in text else re.sub(r"\\\\(?=[A-Za-z%$])", r"\\", text)
    text = with_halves(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_repeating, _without_grouping(text))
    return text.strip().rstrip(".,;:").strip()


def _root(match: re.Match[str]) -> str:
    return f"\\sqrt{{{match['simple']}}}" if match["simple"] else "\\sqrt"


def _unwrapped(text: str) -> str:
    r"""The content of boxes within a box, however deep they are."""
    while opener := re.match(r"\\(?:boxed|fbox)\s*\{", text):
        content = balanced(text[opener.end() :])
        if content is None or opener.end() + len(content) != len(text) - 1:
            break
        text = content.strip()
    return text


def _without_grouping(text: str) -> str:
    r"""12,345 as 12345, but not within brackets, where commas part the coordinates."""
    text, depth, pieces, last = text.replace("{,}", ""), 0, list[str](), 0
    for match in _GROUPED.finditer(text):
        token = match[0]
        if token in ("(", "[", "\\{"):
            depth += 1
        elif token in (")", "]", "\\}"):
            depth -= 1
        elif depth == 0:
            pieces += [text[last : match.start()], token.replace(",", "")]
            last = match.end()
    return "".join([*pieces, text[last:]])


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{6} as the fraction 15/90."""
    head, tail = match["head"], match["tail"]
    whole = int(match["whole"] + head + tail) - int(match["whole"] + head)
    return f"(\\frac{{{whole}}}{{{'9' * len(tail)}{'0' * len(head)}}})"


def closing(text: str, start: int) -> int | None:
    """Where the bracket that opens at `start` closes; an interval may close with another kind of bracket."""
    depth = 0
    for match in _DEPTH.finditer(text, start):
        depth += _step(match[0])
        if depth == 0:
            return match.end() - 1
    return None


def _step(token: str) -> int:
    return 1 if token.startswith("\\begin") else -1 if token.startswith("\\end") else _STEPS.get(token, 0)


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """The pieces between separators that stand in no bracket; every second piece is a separator itself."""
    pieces, last = list[str](), 0
    for start, end in _at_top(text, separator):
        pieces += [text[last:start], text[start:end]]
        last = end
    return [*pieces, text[last:]]


def _at_top(text: str, separator: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    marks = [(match.start(), _step(match[0])) for match in _DEPTH.finditer(text)]
    depth, at = 0, 0
    for match in separator.finditer(text):
        while at < len(marks) and marks[at][0] < match.start():
            depth += marks[at][1]
            at += 1
        if depth == 0:
            yield match.span()


def squashed(text: str) -> str:
    """The cleaned text without text commands and spaces, but those between digits: equal for what is written alike."""
    return re.sub(rf" (?!\d)|(?<!\d) |[{OR}{AND}]", "", re.sub(r"\\text ?\{([^{}]*)\}", r"\1", text))
