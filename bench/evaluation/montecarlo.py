"""Maj@K from random subsets, with its standard error, for the few problems where the exact average costs too much."""

import numpy as np
from jaxtyping import Float

from bench.evaluation.ballots import TIE_RULES, Votes
from bench.seeding import generator

NUM_SUBSETS = 4_000
"""Subsets drawn: the standard error is at most 0.5 / sqrt(NUM_SUBSETS) = 0.008 of one problem."""

# Subsets held at once, so that thousands of classes fit into memory.
_AT_ONCE = 250


def sampled_majority(votes: Votes, problem: int, k: int) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
    """Maj@K of one problem under the three tie rules, and the standard error of each.

    The generator is seeded by what is estimated, the counts and k, so a problem has the same value on every call, at
    any place among others and whatever its answers are called. Two problems with equal counts share their draws. The
    error is 0 where all subsets agree.
    """
    sizes = np.flatnonzero(votes.wrong[problem])
    numbers = votes.wrong[problem, sizes]
    correct, missing = int(votes.num_correct[problem]), int(votes.num_missing[problem])
    profile = [int(value) for pair in zip(sizes, numbers, strict=True) for value in pair]
    draw = generator(0, "maj@k", k, correct, missing, *profile)
    # Answers that occur once are drawn as one heap: each can have one vote, so only their number matters.
    once = int(votes.wrong[problem, 1:2].sum())
    often = sizes > 1
    classes = np.concatenate([[correct, missing, once], np.repeat(sizes[often], numbers[often])])
    parts = [
        _credit(draw.multivariate_hypergeometric(classes, k, size=_AT_ONCE, method="marginals"))
        for _ in range(NUM_SUBSETS // _AT_ONCE)
    ]
    credit = np.concatenate(parts, axis=1)
    return credit.mean(axis=1), credit.std(axis=1, ddof=1) / np.sqrt(NUM_SUBSETS)


def _credit(drawn: np.ndarray) -> Float[np.ndarray, "3 subsets"]:
    """What the correct answer gets in each election, in the order of TIE_RULES; drawn[i] is [correct, missing, answers
    that occur once, then each other answer]."""
    correct, once, others = drawn[:, 0], drawn[:, 2], drawn[:, 3:]
    most = np.maximum(others.max(axis=1, initial=0), np.minimum(once, 1))
    tied = (others == most[:, None]).sum(axis=1) + np.where(most == 1, once, 0)
    leads, shares = correct > most, (correct == most) & (correct > 0)
    credit = np.zeros((len(TIE_RULES), len(drawn)))
    credit[:, leads] = 1.0
    credit[0, shares] = 1.0 / (tied[shares] + 1)
    credit[2, shares] = 1.0
    return credit
