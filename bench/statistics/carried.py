"""How many problems the variation of a mean rests on, and what to say where they are too few to judge it by."""

import numpy as np
from jaxtyping import Float

FEW = 8
"""Below so many, 95 % intervals were seen to cover far less than they promise (docs/statistics.md)."""
ROUNDING = 1e-12
"""Of the largest value, or of 1 where all are smaller: values closer together than this are equal but for rounding."""


def no_spread(spread: float, values: Float[np.ndarray, "*shape"]) -> bool:
    """Whether a spread (a standard deviation or error) of these values is 0 but for the last bits; NaN is not."""
    return bool(spread <= ROUNDING * max(1.0, float(np.abs(values).max(initial=0.0))))


def num_carrying(values: Float[np.ndarray, "problems *ks"]) -> float:
    """How many problems the variation rests on: (sum of squared deviations)**2 / sum of their fourth powers.

    n for a fair coin, n / 3 for a normal distribution, the number of exceptions where all the others are equal, and 0
    where no two problems differ. For several columns, the fewest. NaN where a value is.
    """
    deviations = values - values.mean(axis=0)
    largest = np.abs(deviations).max(axis=0)
    equal = largest <= ROUNDING * np.maximum(1.0, np.abs(values).max(axis=0))
    squares = (deviations / np.where(equal, 1.0, largest)) ** 2
    carried = squares.sum(axis=0) ** 2 / np.where(equal, 1.0, (squares**2).sum(axis=0))
    return float(np.where(equal, 0.0, carried).min())


def few_carry(carried: float, interval: bool = True) -> str | None:
    """What to say where a mean rests on so few problems (a nearly solved Pass@64, say) that no t interval can be right.

    Args: carried, from num_carrying; interval, whether there is one (there is none where nothing else varies).
    """
    if not carried < FEW:
        return None
    covers = "this covers less than it promises" if interval else "no interval"
    if carried == 0:
        return f"no two problems differ, which does not make the mean certain: {covers}"
    count = max(1, int(carried))
    return f"the variation rests on about {count} problem{'s' * (count > 1)}: {covers}"
