"""How a problem's samples voted: the counts on which Pass@K, Maj@K and their relatives depend."""

import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

Ties = Literal["random", "pessimistic", "optimistic"]
Missing = Literal["abstain", "vote", "drop"]

TIE_RULES: tuple[Ties, ...] = ("random", "pessimistic", "optimistic")
MISSING_RULES: tuple[Missing, ...] = ("abstain", "vote", "drop")

Integer = int | np.integer
Integers = Int[np.ndarray, "..."] | Sequence[int]


@dataclass(frozen=True)
class Votes:
    """How each problem's samples voted, which is all that Pass@K and Maj@K depend on.

    The number of samples is the sum of the three; unscorable samples are in none of them.
    """

    num_correct: Int[np.ndarray, " problems"]
    """Samples whose answer is correct; together they are one class, however they are written."""
    num_missing: Int[np.ndarray, " problems"]
    """Samples without an answer: wrong, and by default without a vote."""
    wrong: Int[np.ndarray, "problems sizes"]
    """wrong[i, v] is the number of distinct wrong answers that got exactly v votes; column 0 is not used."""

    @property
    def num_samples(self) -> Int[np.ndarray, " problems"]:
        """Samples of each problem, scorable ones only."""
        return self.num_correct + self.num_missing + self.wrong @ np.arange(int(self.wrong.shape[1]))


def count_votes(
    answers: Sequence[Hashable | None], correct: Sequence[bool | np.bool | None]
) -> tuple[int, int, Counter[int]]:
    """Votes of one problem: (correct, missing, Counter{votes: how many wrong answers got that many}).

    Correct samples are counted by their verdict and never by their text, so no answer can collide with the correct
    class. Samples with correct=None are unscorable and left out.

    Raises: ValueError for a verdict that is neither true, false nor None, or a wrong answer that is NaN, into which
        tables turn None.
    """
    if len(answers) != len(correct):
        raise ValueError(f"answers and correct must have one entry per sample, got {len(answers)} and {len(correct)}")
    if not set(correct) <= {True, False, None}:
        raise ValueError(f"a verdict is true, false or None, got {set(correct) - {True, False, None}}")
    num_correct = sum(1 for verdict in correct if verdict)
    wrong = Counter(
        answer for answer, verdict in zip(answers, correct, strict=True) if verdict is not None and not verdict
    )
    num_missing = wrong.pop(None, 0)
    if any(answer != answer for answer in wrong):
        raise ValueError("an answer is a key or None, got NaN")
    return num_correct, num_missing, Counter(wrong.values())


def stack_votes(problems: Sequence[tuple[int, int, Counter[int]]]) -> Votes:
    """Votes of many problems, each as count_votes returns them."""
    largest = max((max(wrong, default=0) for _, _, wrong in problems), default=0)
    table = np.zeros((len(problems), largest + 1), dtype=np.int64)
    for row, (_, _, wrong) in enumerate(problems):
        for votes, num_answers in wrong.items():
            table[row, votes] = num_answers
    return Votes(
        num_correct=np.array([correct for correct, _, _ in problems], dtype=np.int64),
        num_missing=np.array([missing for _, missing, _ in problems], dtype=np.int64),
        wrong=table,
    )


def resolve_missing(votes: Votes, missing: Missing) -> Votes:
    """The same votes with the samples that have no answer treated as the rule says."""
    if missing == "abstain":
        return votes
    none = np.zeros_like(votes.num_missing)
    if missing == "drop":
        return Votes(votes.num_correct, none, votes.wrong)
    if missing == "vote":
        sizes = max(votes.wrong.shape[1], int(votes.num_missing.max(initial=0)) + 1)
        wrong = np.zeros((len(none), sizes), dtype=np.int64)
        wrong[:, : votes.wrong.shape[1]] = votes.wrong
        voting = np.flatnonzero(votes.num_missing)
        wrong[voting, votes.num_missing[voting]] += 1
        return Votes(votes.num_correct, none, wrong)
    raise ValueError(f"missing must be one of {', '.join(MISSING_RULES)}, got {missing!r}")


def take(votes: Votes, rows: Int[np.ndarray, " rows"]) -> Votes:
    """The votes of some of the problems, by row."""
    return Votes(votes.num_correct[rows], votes.num_missing[rows], votes.wrong[rows])


def check_k(k: Integer, num_samples: int) -> None:
    """Raises ValueError unless 1 <= k <= num_samples, TypeError for a k that is no whole number."""
    operator.index(k)  # 2.5 would be cut to 2, and NaN passes both comparisons
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if k > num_samples:
        raise ValueError(f"k={k} exceeds the {num_samples} samples of a problem; ask for fewer or draw more")


def counts(name: str, value: Integer | Integers) -> Int[np.ndarray, "..."]:
    """`value` as int64. Raises: ValueError when a count is negative, TypeError when one is a fraction."""
    # numpy refuses to cast a fraction to an integer, which is right: it is no count.
    counts = np.asarray(value).astype(np.int64, casting="same_kind")
    if np.any(counts < 0):
        raise ValueError(f"{name} must not be negative, got {value}")
    return counts
