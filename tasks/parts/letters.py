r"""Multiple choice: which letter a completion chooses, and never the article "A" of a sentence.

"Therefore the correct option is B) 12."    ->  Answer("B", "phrase")
"\boxed{C}. A triangle has three sides."    ->  Answer("C", "box")
"""

import re
from collections import deque

from tasks.parts.extract import Answer, final_text
from tasks.parts.numbers import ascii_digits, text_key
from tasks.parts.stated import boxed_answer

_SPAN = 200
_FONTS = re.compile(
    r"\\(?:text\w*|math\w+|mbox|boxed|fbox|bf|rm)\s*\{([^{}]*)\}|"
    r"[$*_`\u0022\u201c\u201d]|\\[()\[\],;:! ]|\\(?:bf|rm)\b|~"
)
_OPTION = re.compile(
    r"\s*[(\[{]?\s*(?:option\s+|choice\s+)?[(\[]?(?P<letter>[A-Z])(?P<after>[)\].:,;]|\s|$)", re.IGNORECASE
)
_ALONE = re.compile(r"\s*[(\[]?\s*(?P<letter>[A-Z])\s*[)\]]?\s*[.:,;!]?\s*", re.IGNORECASE)
_OTHER = re.compile(r"\s*(?:or|and|/|,|&|\|)\s*(?:option\s+)?[(\[]?(?P<letter>[A-Z])(?![A-Za-z])")
_PHRASE = re.compile(
    r"(?:\b(?:answer|option|choice)\b[^\n.?!]{0,40}?(?:\b(?:is|be)\b|\u0022?\s?[:=])|"
    r"\b(?:choose|pick|select|go with|answer|option|choice)\b)"
    r"[\s:*$\u0022]{0,9}(?:therefore|thus|indeed|option|choice|answer|letter)?[\s:*$]{0,9}",
    re.IGNORECASE,
)
_MARKED = re.compile(
    r"(?<![\w\\])[(\[](?P<letter>[A-Z])[)\]]|(?:\A|\n)[\s*]{0,9}(?P<line>[A-Z])(?:[).:](?=\s|\Z|\*)|\s*\Z|\s*\n)"
)
_CONCLUDED = re.compile(
    r"(?:\b(?:so|therefore|thus|hence)\b,?(?: (?:it is|it's|it must be))?|\b(?:it is|it's|it must be)\b|"
    r"(?:\A|[.!?])(?=\s*[*(\[]{0,3}[A-Z][)\]*]{0,3}\.?\s*\Z))\s*[*(\[]{0,3}(?P<letter>[A-Z])[)\]*]{0,3}\s*(?=[.!;\n]|\Z)",
    re.IGNORECASE,
)
"""A conclusion that is nothing but a letter, up to the end of its sentence; or a last sentence that is one letter."""
_IS_CORRECT = re.compile(
    r"\b(?P<letter>[A-HJ-Z]|[(\[][A-Z][)\]])[)\]]?\s+"
    r"(?:is|must be)\s+(?:the\s+)?(?:correct|right|answer|best)\b"
)


def gold_letter(gold: str) -> str | None:
    """The letter of a gold answer "B", "(B)" or "\\text{(B)}"; None where it is no letter."""
    alone = _ALONE.fullmatch(_bare(gold[:_SPAN]))
    return alone["letter"].upper() if alone else None


def letter_answer(completion: str, *, truncated: bool = False) -> Answer:
    """The chosen letter: that of the last box, else after "the answer is", else the last one marked as an option.

    Two letters ("B or C") are no choice; a box with something else than a letter is an answer, but no option.
    """
    text = final_text(completion)
    boxed, broken = boxed_answer(text)
    if boxed is not None:
        return Answer(_chosen(boxed, boxed=True) or text_key(_bare(boxed[:_SPAN])), "box")
    if broken:
        return Answer(None, "none")
    if truncated:
        text = text[: text.rfind("\n") + 1]
    places = [*_PHRASE.finditer(text)]
    for place in places[-32:][::-1]:
        letter = _chosen(text[place.end() : place.end() + _SPAN], boxed=False)
        if letter:
            return Answer(letter, "phrase")
    concluded = deque(_CONCLUDED.finditer(text), maxlen=1)
    if concluded and concluded[0]["letter"].isupper():
        return Answer(concluded[0]["letter"], "phrase")
    correct = deque(_IS_CORRECT.finditer(text), maxlen=1)
    if correct:
        return Answer(correct[0]["letter"].strip("()[]").upper(), "phrase")
    return Answer(None, "none") if truncated else _marked(text)


def _bare(text: str) -> str:
    text = ascii_digits(text)
    for _ in range(3):
        text = _FONTS.sub(lambda match: match[1] or " ", text)
    return text.replace("{", "").replace("}", "").strip()


def _chosen(text: str, *, boxed: bool) -> str | None:
    """The option with which a text starts: "B", "(b) 12", "B. twelve", but not "a triangle"."""
    line = _bare(text).partition("\n")[0]
    option = _OPTION.match(line)
    if not option:
        return None
    letter, after, rest = option["letter"], option["after"], line[option.end() :]
    bracketed = line[: option.end()].strip()[:1] in ("(", "[")
    marked = after in (")", "]", ":", ".") or bracketed
    if (
        not boxed
        and not marked
        and (letter.islower() or (letter in "AI" and re.match(r"\s*[a-z]", rest) and not _is_reason(rest)))
    ):
        return None
    if boxed and not marked and rest.strip() and not _OTHER.match(line, option.end("letter")):
        return None
    if _OTHER.match(line, option.end("letter") + (after in (")", "]"))):
        return text_key(line)
    return letter.upper()


def _is_reason(rest: str) -> bool:
    return re.match(r"\s*(?:because|since|as|is|was|,|and not)\b", rest) is not None


def _marked(text: str) -> Answer:
    """The last "(B)", or line that is or starts with "B)"; else the whole text, if it is one letter."""
    alone = _ALONE.fullmatch(_bare(text[:_SPAN])) if len(text) <= _SPAN else None
    if alone:
        return Answer(alone["letter"].upper(), "letter")
    last = deque(_MARKED.finditer(text), maxlen=1)
    if not last:
        return Answer(None, "none")
    letter = last[0]["letter"] or last[0]["line"]
    return Answer(letter, "letter")
