"""reasoning-gym in a worker process: which generators there are, one item of one of them, the score of one answer.

Everything here runs in the workers of `tasks.parts.workers`, never in the process that trains: a generator may hang,
some draw by the order of hashes, which only the workers fix, and the library takes a second to import.
"""

import copy
import dataclasses
import difflib
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tasks.parts.problem import Split
from tasks.parts.verify import equal

LIBRARY_VERSION = "0.1.25"
MAX_TRIES = 200
"""Items that are made in search of one of a given split; a quarter of all items is test, which 200 cannot miss."""
_EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
"""Where generators without one right answer keep an example of a right one."""
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
_SLOW_TO_OPEN = frozenset({"arc_agi", "codeio", "figlet_font", "group_anagrams", "spell_backward", "word_ladder"})


def call(action: str, *arguments: Any) -> Any:
    """The one function that workers serve, so that all three actions share them."""
    return {"check": check, "make": make, "score": score}[action](*arguments)


def check(generator: str, options: str) -> str | None:
    """What is wrong with a generator's name or its options (JSON); None: nothing."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return f"needs the package reasoning-gym {LIBRARY_VERSION}, which is not installed"
    installed = importlib.metadata.version("reasoning-gym")
    if installed != LIBRARY_VERSION:
        return f"needs the package reasoning-gym {LIBRARY_VERSION}: {installed} is installed, and may make other items"
    if generator not in DATASETS:
        near = difflib.get_close_matches(generator, DATASETS, 1)
        hint = f"; did you mean reasoning_gym/{near[0]}?" if near else ""
        return f"reasoning-gym has no generator {generator!r}{hint}"
    known = {field.name for field in dataclasses.fields(DATASETS[generator][1])} - {"seed", "size"}
    for option in json.loads(options):
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            return f"{generator} has no option {option!r}; {hint}it has {', '.join(sorted(known)) or 'none'}"
    try:
        _dataset(generator, options, 0)
    except Exception as error:  # the library's own checks are assertions and errors of every kind
        return f"{generator} refuses its options: {type(error).__name__}: {error}"
    return None


def make(generator: str, options: str, split: Split, index: int) -> tuple[str, dict[str, Any]]:
    """Item `index` of a split, a right answer to it and the item as the library gives it.

    It is the first in its own stream of seeds whose question belongs to the split.

    Raises:
        ValueError: no such item was found, so that the generator has too few distinct ones.
    """
    for attempt in range(MAX_TRIES):
        key = f"{generator}|{options}|{split}|{index}|{attempt}"
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) >> 1
        entry = _dataset(generator, options, seed)[0]
        if split_of(entry["question"]) == split:
            return _gold(entry), entry
    raise ValueError(
        f"reasoning_gym/{generator} has too few distinct items for a {split} split: {MAX_TRIES} were made and none "
        "belongs to it; widen its options"
    )


def split_of(question: str) -> Split:
    """The split that a question belongs to, by its content: a quarter is test, a quarter validation."""
    digest = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place = int.from_bytes(digest) % 4
    return "test" if place == 0 else "validation" if place == 1 else "train"


def score(generator: str, options: str, entry: dict[str, Any] | None, answer: str) -> float | None:
    """The library's own score of an answer, in [0, 1]; None where its scorer fails on it, as on text it cannot read.

    Raises:
        ValueError: the problem was not made here, so that there is nothing to score against.
    """
    if entry is None:
        raise ValueError("the problem has no `entry` column, in which the item is kept as the library gives it")
    if generator in _OWN:
        return float(_OWN[generator](str(entry["answer"]), answer))
    if _NO_NUMBER.search(answer) and not _NO_NUMBER.search(str(entry["answer"])):
        return 0.0  # min(1, NaN) is 1: the scorer of complex_arithmetic takes NaN for every answer
    try:
        return float(_dataset(generator, options, 0).score_answer(answer, entry))
    except Exception:  # scorers parse the answer with whatever is at hand, and most do not expect nonsense
        return None


def _same_text(gold: str, answer: str) -> bool:
    return answer == gold


def _same_number(gold: str, answer: str) -> bool:
    return bool(equal(gold=gold, answer=answer, style="gsm8k"))


def _near(gold: str, answer: str) -> bool:
    """The library's own tolerance, without its credit for a common beginning."""
    try:
        return abs(Fraction(answer) - Fraction(gold)) <= Fraction(1, 10_000)
    except (ValueError, ZeroDivisionError):
        return False


_OWN: Mapping[str, Callable[[str, str], bool]] = {
    "coin_flip": _near,  # the library accepts "0" for every probability
    "game_of_life_halting": _same_text,  # the library accepts every text, as bool("False") is true
    "gsm_symbolic": _same_number,  # the library accepts "-69" for 69
}
"""Generators whose scorer in the library accepts wrong answers, as (gold, answer) -> right."""


def _dataset(generator: str, options: str, seed: int) -> Any:
    """A data set of one item.

    One seed for each item, because the library seeds item i with seed + i: of two data sets of 500 whose seeds are 1
    and 2, 499 items are the same.
    """
    if generator not in _SLOW_TO_OPEN:
        return _opened(generator, options, seed)
    # Items of these depend on the seed alone, and opening them reads files of megabytes.
    dataset = copy.copy(_opened_once(generator, options))
    dataset.seed = seed
    dataset.config = dataclasses.replace(dataset.config, seed=seed)
    return dataset


@lru_cache(maxsize=8)
def _opened_once(generator: str, options: str) -> Any:
    return _opened(generator, options, 0)


def _opened(generator: str, options: str, seed: int) -> Any:
    import reasoning_gym

    knobs: dict[str, Any] = json.loads(options)
    if generator == "composite":
        from reasoning_gym.composite import DatasetSpec

        knobs["datasets"] = [DatasetSpec(**{"weight": 1.0, "config": {}, **spec}) for spec in knobs.get("datasets", [])]
    return reasoning_gym.create_dataset(generator, **knobs, seed=seed, size=1)


def _gold(entry: dict[str, Any]) -> str:
    """A right answer as text; "" where the library knows none and only checks."""
    answer, known = entry["answer"], entry["metadata"]
    if answer is None:
        answer = next((known[name] for name in _EXAMPLES if known.get(name) is not None), "")
    return json.dumps(answer) if isinstance(answer, dict | list) else str(answer)
