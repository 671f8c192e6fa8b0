"""True values by Monte Carlo continuation, in two rounds, without the bias of stopping where the samples look settled.

Continuations that go on until their own standard error is small stop early just where the first few happen to agree, so
their mean is biased: rewards of 0 and 1 at a rate of 0.1 are underestimated by a seventh. Here the continuations of a
prefix come in three parts, and the second round of each is as long as the first round of the *part before it* asks for,
in a circle. So a part's length says nothing about its own samples, its mean is unbiased, and no two parts' means are
correlated: the value is the mean of the three, and its variance the sum of theirs over 9. (With two parts that decide
for each other, the means are unbiased and yet correlated, and the stated variance is too small.)

After VinePPO's values by continuation (arXiv:2410.01679), which takes the same number for every prefix.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.config_quality import BaselineQuality

PRIOR = 2.0
"""How many degrees of freedom the variance within all prefixes counts for, beside a prefix's own: a first round of
equal rewards does not make a value certain."""

PARTS = 3
Block = tuple[int, int]
"""Index of a prefix, and of one of its blocks of a third of a first round; block 4 is of the second part, as is 1."""
Draw = Callable[[Sequence[Block]], list[np.ndarray]]
"""The returns of blocks of continuations, NaN where one could not be scored."""


@dataclass(frozen=True)
class Truth:
    """A true value as it is known."""

    mean: float
    """NaN where too few of the continuations could be scored."""
    variance: float
    """Of the mean; unbiased, so 0 where all returns were equal, whatever others of the prefix would have been."""
    count: int
    """Continuations that could be scored."""


def true_values(num_prefixes: int, draw: Draw, config: BaselineQuality) -> list[Truth]:
    """The value of each prefix, from continuations until the standard error is expected to be met, or the maximum."""
    first = [(prefix, part) for prefix in range(num_prefixes) for part in range(PARTS)]
    returns = {block: [own] for block, own in zip(first, draw(first), strict=True)}
    wanted = [
        _blocks([returns[prefix, (part - 1) % PARTS][0] for prefix in range(num_prefixes)], config)
        for part in range(PARTS)
    ]
    more = [(prefix, part, i) for prefix, part in first for i in range(1, wanted[part][prefix])]
    drawn = draw([(prefix, PARTS * i + part) for prefix, part, i in more])
    for (prefix, part, _), own in zip(more, drawn, strict=True):
        returns[prefix, part].append(own)
    whole = {block: np.concatenate(own) for block, own in returns.items()}
    return [_truth(*(whole[prefix, part] for part in range(PARTS))) for prefix in range(num_prefixes)]


def _blocks(others: Sequence[np.ndarray], config: BaselineQuality) -> list[int]:
    """How many blocks a part of each prefix takes, by the first block of the part that decides for it."""
    known = [own[np.isfinite(own)] for own in others]
    squares = np.array([((own - own.mean()) ** 2).sum() if len(own) else 0.0 for own in known])
    degrees = np.array([max(len(own) - 1, 0) for own in known])
    pooled = squares.sum() / max(degrees.sum(), 1)
    variance = (squares + PRIOR * pooled) / (degrees + PRIOR)
    # A first round has a block of each part, and as many rounds have this variance over their continuations.
    needed = np.ceil(variance / config.standard_error**2 / config.continuations)
    return np.clip(needed, 1, config.max_continuations // config.continuations).astype(int).tolist()


def _truth(*parts: np.ndarray) -> Truth:
    known = [own[np.isfinite(own)] for own in parts]
    count = sum(map(len, known))
    if min(map(len, known)) < 2:
        return Truth(math.nan, math.nan, count)
    mean = sum(float(own.mean()) for own in known) / PARTS
    return Truth(mean, sum(float(own.var(ddof=1)) / len(own) for own in known) / PARTS**2, count)
