"""Overlap of training and test questions: how many test problems a model may have been trained on word for word.

Counted are test problems, by two rules. Exact: the same question once case, white space and punctuation are gone.
Ten-gram: ten words in a row that a training question has as well, the rule by which training data are usually
decontaminated (arXiv:2402.03300, section 2.1). A number, a word and an operator of arithmetic are one word each.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.problems import load_problems, num_problems
from tasks.parts.problem import Problem, ProceduralTask, Split, Task

GRAM_WORDS = 10
RULE = (
    "exact: equal without case, white space and punctuation; ten_gram: 10 words in a row in common "
    "(a test question with fewer words: all of it); ten words that over half of the test questions share do not count"
)
_PROCEDURAL_TRAIN, _PROCEDURAL_TEST = 2000, 2000
"""Problems made to compare, of tasks that make them: they may have millions."""
_SHOWN_IDS = 20
# Below this a test set says nothing about which of its words are the task's instruction.
_FEWEST_FOR_INSTRUCTION = 10

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff'\u2018\u2019]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|[+*/^=<>%|\u00d7\u00f7\u00b1\u221a\u2264\u2265]|-(?=\s?\d)")


@dataclass(frozen=True)
class Overlap:
    """How many test problems are found among the training problems."""

    num_train: int
    num_test: int
    exact: int
    """Test problems whose question is also a training question."""
    ten_gram: int
    """Test problems that share ten words in a row with some training question; the exact ones are among them."""
    ids: tuple[str, ...]
    """The test problems of either kind, exact ones first."""
    rule: str = RULE

    def record(self) -> dict[str, Any]:
        """As plain data, with the first 20 ids."""
        counts = {name: getattr(self, name) for name in ("exact", "ten_gram", "num_train", "num_test")}
        return {**counts, "ids": list(self.ids[:_SHOWN_IDS]), "rule": self.rule}


def words(text: str) -> list[str]:
    """The words of a question by which two questions are compared; never empty."""
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-").casefold()
    return _WORD.findall(_THOUSANDS.sub("", _INVISIBLE.sub("", plain))) or [text.strip()]


def question_words(problem: Problem) -> str:
    """A problem's question in the form in which two are compared: without case, white space and punctuation."""
    return " ".join(words(_question(problem)))


def overlap(train: Sequence[Problem], test: Sequence[Problem], *, grams: bool = True) -> Overlap:
    """Compare the questions (the prompt, where a problem has no question of its own) of two sets of problems.

    Args:
        grams: whether ten words in common count; for questions made from a template, they would always.
    """
    asked = [words(_question(problem)) for problem in test]
    given = [words(_question(problem)) for problem in train]
    texts = {" ".join(text) for text in given}
    exact = {i for i, text in enumerate(asked) if " ".join(text) in texts}
    shared = exact | (_sharing(given, asked) if grams else set())
    order = [*sorted(exact), *sorted(shared - exact)]
    return Overlap(len(train), len(test), len(exact), len(shared), tuple(test[i].id for i in order))


def _question(problem: Problem) -> str:
    return problem.prompt if problem.question is None else problem.question


def _sharing(given: Iterable[list[str]], asked: Sequence[list[str]]) -> set[int]:
    """Numbers of the test questions of which some gram stands in a training question."""
    own = [set(_grams(text, min(GRAM_WORDS, len(text)))) for text in asked]
    places = Counter(gram for grams in own for gram in grams)
    most = max(len(asked) / 2, _FEWEST_FOR_INSTRUCTION)
    wanted = {gram for gram, count in places.items() if count <= most}
    # Only the test set's grams are kept, so that a large training set costs time and no memory.
    lengths = sorted({min(GRAM_WORDS, len(text)) for text in asked})
    found = {gram for text in given for length in lengths for gram in _grams(text, length) if gram in wanted}
    return {i for i, grams in enumerate(own) if not grams.isdisjoint(found)}


def _grams(text: Sequence[str], length: int) -> Iterator[str]:
    return (" ".join(text[i : i + length]) for i in range(len(text) - length + 1))


def task_overlap(task: Task, other: Task | None = None, *, max_train: int | None = None) -> dict[str, Any]:
    """What a run records of the overlap of its training problems with its test problems, or with another task's.

    A task that makes its own problems keeps its splits apart by construction; a sample is compared all the same.

    Args:
        other: the task whose test split is compared; None is the task itself.
        max_train: training problems to look at; None is all of them (a sample of those that a task makes).

    Raises:
        ValueError: the data cannot be found or read.
    """
    test = _problems(other or task, "test", None)
    train = _problems(task, "train", max_train)
    if not isinstance(task, ProceduralTask):
        return overlap(train, test).record()
    found = overlap(train, test, grams=False)
    record = {name: value for name, value in found.record().items() if name != "ten_gram"}
    record["rule"] = f"exact: {RULE.partition(': ')[2].partition(';')[0]}, among the first training problems"
    if other is None or other == task:
        why = f"{task.name} gives every item to one split alone; {found.num_train} training problems were compared"
        record |= {"disjoint": found.exact == 0, "why": why}
    return record


def _problems(task: Task, split: Split, most: int | None) -> list[Problem]:
    """A split's problems: all of them, at most `most`, or as many as are compared of a task that makes them."""
    there = num_problems(task, split)
    if isinstance(task, ProceduralTask):
        most = most or (_PROCEDURAL_TRAIN if split == "train" else _PROCEDURAL_TEST)
    counts = [count for count in (there, most) if count is not None]
    assert counts, "only a task that makes its problems never runs out of them"
    return load_problems(task, split, 0, min(counts))
