"""Words after a number: those that multiply it, those that change what it says, and the letters that are units.

"3 million" is 3000000 and "5 halves" is no 5, while "5 apples" is. Both styles of the verifier read the same lists.
"""

import re

MAGNITUDES: dict[str, int] = {
    "dozen": 12, "dozens": 12, "hundred": 100, "hundreds": 100, "thousand": 1000, "thousands": 1000,
    "million": 10**6, "millions": 10**6, "billion": 10**9, "billions": 10**9, "trillion": 10**12, "trillions": 10**12,
    "bn": 10**9, "lakh": 10**5, "lakhs": 10**5, "crore": 10**7, "crores": 10**7,
}  # fmt: skip
"""What they multiply a number by."""
LETTER_UNITS = frozenset("mshgLlNJWVKCFcp")
"""Letters that are a unit as they stand in a text command or right after a number of plain text; all others are not."""
_FRACTIONS = (
    "half halves third thirds fourth fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths"
)
_OPERATIONS = "plus minus times over divided multiplied by squared cubed factorial root mod modulo pi choose power to"
OPERATORS = frozenset(f"or nor not {_FRACTIONS} {_OPERATIONS} infinity".split())
"""Right after a number they make another answer of it, in any sentence."""
_FUNCTIONS = "sin cos tan log ln sqrt exp mil mn gross"
_CHOICES = "and is isn are be was but either neither maybe perhaps possibly wrong incorrect except if for where when"
_BOUNDS = "least most under above below about approximately almost nearly exactly around"
_TIMES_OF_DAY = "am pm noon midnight morning afternoon evening night"
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety double twice triple"
)
NUMERALS = frozenset(_NUMBER_WORDS.split())
NO_UNITS = OPERATORS | frozenset(
    f"{_CHOICES} {_FUNCTIONS} {_BOUNDS} {_TIMES_OF_DAY} {_NUMBER_WORDS} {' '.join(MAGNITUDES)}".split()
)
"""None of these is a part of a unit."""
_HALVES = (
    (re.compile(r"(?<=\d) (?:and|&) (?:a|one)[ -]half\b", re.IGNORECASE), " 1/2"),
    (re.compile(r"(?<=\d) and (?:a|one)[ -](?:quarter|fourth)\b", re.IGNORECASE), " 1/4"),
    (re.compile(r"(?<=\d) and (?:a|one)[ -]third\b", re.IGNORECASE), " 1/3"),
    (re.compile(r"(?<=\d) and three[ -](?:quarters|fourths)\b", re.IGNORECASE), " 3/4"),
    (re.compile(r"(?<=\d) and two[ -]thirds\b", re.IGNORECASE), " 2/3"),
)


def with_halves(text: str) -> str:
    """The text with "5 and a half" as "5 1/2"."""
    if " and " in text or " & " in text:
        for pattern, fraction in _HALVES:
            text = pattern.sub(fraction, text)
    return text
