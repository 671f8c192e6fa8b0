"""Pass@K and its relatives, from two counts: functions of a problem's samples n and correct samples c.

Each averages over every k-subset of the samples, so no random draw enters and no sample order matters. With X the
number of correct samples in a random k-subset (hypergeometric):

    pass@k = P(X >= 1)    pass^k = P(X = k)    G-Pass@k(tau) = P(X >= tau k)    avg@k = E[X] / k

Two integers give a float; two arrays with one entry a problem give an array, NaN where a problem has fewer than k
samples. The mean over problems is what a paper reports. k > n (for arrays: above every n) is a ValueError, since the
estimate is undefined there and neither 0 nor 1.
"""

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from jaxtyping import Float, Int

from bench.evaluation.ballots import Integer, Integers, Votes, check_k, counts

# tau * k and tau * n are compared with integers: 0.7 * 10 is above 7 by a rounding error, and 7 of 10 are enough.
_ROUNDING = 1e-9

# One value for two integers, an array for two arrays: `float | Float[np.ndarray, "..."]` below.
Estimate = float | Float[np.ndarray, "..."]
_Array = Int[np.ndarray, "..."]


@overload
def pass_at_k(num_samples: Integer, num_correct: Integer, k: Integer) -> float: ...
@overload
def pass_at_k(num_samples: Integers, num_correct: Integers, k: Integer) -> Float[np.ndarray, "..."]: ...
def pass_at_k(num_samples: Integer | Integers, num_correct: Integer | Integers, k: Integer) -> Estimate:
    """Probability that k of a problem's samples, drawn without replacement, hold a correct one.

    The unbiased estimator 1 - C(n-c, k) / C(n, k).

    Args: num_samples n and num_correct c, two integers or two arrays with one entry per problem; k, an integer >= 1.
    Returns: a float, or an array with NaN where a problem has fewer than k samples.
    Raises: ValueError when k exceeds n (for arrays: every n), which is undefined and not 1; or for impossible counts.
    Source: Chen et al. 2021, arXiv:2107.03374, section 2.1.
    """
    return _estimate(num_samples, num_correct, k, lambda n, c: 1.0 - _all_of(n, n - c, [int(k)])[..., 0])


@overload
def pass_hat_k(num_samples: Integer, num_correct: Integer, k: Integer) -> float: ...
@overload
def pass_hat_k(num_samples: Integers, num_correct: Integers, k: Integer) -> Float[np.ndarray, "..."]: ...
def pass_hat_k(num_samples: Integer | Integers, num_correct: Integer | Integers, k: Integer) -> Estimate:
    """pass^k: probability that k samples drawn without replacement are all correct, C(c, k) / C(n, k).

    Arguments, result and errors as for `pass_at_k`. Source: Yao et al. 2024, arXiv:2406.12045, section 3.
    """
    return _estimate(num_samples, num_correct, k, lambda n, c: _all_of(n, c, [int(k)])[..., 0])


@overload
def avg_at_k(num_samples: Integer, num_correct: Integer, k: Integer) -> float: ...
@overload
def avg_at_k(num_samples: Integers, num_correct: Integers, k: Integer) -> Float[np.ndarray, "..."]: ...
def avg_at_k(num_samples: Integer | Integers, num_correct: Integer | Integers, k: Integer) -> Estimate:
    """avg@k: mean accuracy of k samples. Over all k-subsets it is c / n whatever k is: k only says how many were drawn.

    Arguments, result and errors as for `pass_at_k`.
    """
    return _estimate(num_samples, num_correct, k, lambda n, c: c / np.maximum(n, 1))


@overload
def g_pass_at_k(num_samples: Integer, num_correct: Integer, k: Integer, tau: float) -> float: ...
@overload
def g_pass_at_k(num_samples: Integers, num_correct: Integers, k: Integer, tau: float) -> Float[np.ndarray, "..."]: ...
def g_pass_at_k(num_samples: Integer | Integers, num_correct: Integer | Integers, k: Integer, tau: float) -> Estimate:
    """G-Pass@k at tau: probability that of k samples at least m = max(ceil(tau k), 1) are correct.

    tau = 0 is pass@k, tau = 1 is pass^k.

    Args: as for `pass_at_k`; tau, the share that must be correct, in [0, 1].
    Returns and raises: as `pass_at_k`, and ValueError for another tau.
    Source: Liu et al. 2024, arXiv:2412.13147, equations 3 and 4.
    """
    needed = max(_at_least(tau, int(k)), 1)
    return _estimate(num_samples, num_correct, k, lambda n, c: _tails(n, c, int(k))[..., needed])


@overload
def mg_pass_at_k(num_samples: Integer, num_correct: Integer, k: Integer) -> float: ...
@overload
def mg_pass_at_k(num_samples: Integers, num_correct: Integers, k: Integer) -> Float[np.ndarray, "..."]: ...
def mg_pass_at_k(num_samples: Integer | Integers, num_correct: Integer | Integers, k: Integer) -> Estimate:
    """mG-Pass@k: twice the integral of G-Pass@k over tau from 1/2 to 1, which is E[max(2X/k - 1, 0)].

    G-Pass@k is a step function of tau, so the integral is (2/k) sum of P(X >= i) over i from ceil(k/2) + 1 to k, which
    is the published sum, and for odd k the half step from tau = 1/2 to ceil(k/2)/k besides. The published sum leaves
    that half step out, which would give a model without a mistake (k-1)/k instead of 1; for even k both are the same.

    Arguments, result and errors as for `pass_at_k`. Source: Liu et al. 2024, arXiv:2412.13147, equation 5.
    """

    def mean_of_upper_half(n: _Array, c: _Array) -> Float[np.ndarray, "..."]:
        weights = np.clip(np.arange(int(k) + 1) - k / 2, 0.0, 1.0)
        return _tails(n, c, int(k)) @ weights * (2 / k)

    return _estimate(num_samples, num_correct, k, mean_of_upper_half)


@overload
def cover_at_tau(num_samples: Integer, num_correct: Integer, tau: float) -> float: ...
@overload
def cover_at_tau(num_samples: Integers, num_correct: Integers, tau: float) -> Float[np.ndarray, "..."]: ...
def cover_at_tau(num_samples: Integer | Integers, num_correct: Integer | Integers, tau: float) -> Estimate:
    """Cover@tau by problem: 1 where at least a share tau of the samples is correct, else 0.

    The mean over problems is the share of problems that are covered: the survival curve of the accuracy per problem,
    which a few lucky guesses cannot raise as they raise pass@k.

    Args: as for `pass_at_k`; tau in [0, 1]. 3 of 10 reach 0.3, however the product is rounded.
    Returns: a float, or an array with NaN where a problem has no samples.
    Raises: ValueError for no samples at all, impossible counts or another tau.
    Source: arXiv:2510.08325.
    """

    def reached(n: _Array, c: _Array) -> Float[np.ndarray, "..."]:
        _at_least(tau, 1)
        return (c >= tau * n - _ROUNDING).astype(np.float64)

    return _estimate(num_samples, num_correct, 1, reached)


cov_at_k = pass_at_k
"""Coverage, another name of Pass@K."""


def pass_curve(votes: Votes, ks: Sequence[int]) -> Float[np.ndarray, "problems ks"]:
    """Pass@K of every problem for every k; NaN where a problem has fewer than k scorable samples."""
    return 1.0 - _all_of(votes.num_samples, votes.num_samples - votes.num_correct, ks)


def pass_hat_curve(votes: Votes, ks: Sequence[int]) -> Float[np.ndarray, "problems ks"]:
    """pass^k of every problem for every k; NaN where a problem has fewer than k scorable samples."""
    return _all_of(votes.num_samples, votes.num_correct, ks)


def mg_pass_curve(votes: Votes, ks: Sequence[int]) -> Float[np.ndarray, "problems ks"]:
    """mG-Pass@k of every problem for every k; NaN where a problem has fewer than k scorable samples."""
    n, c = votes.num_samples, votes.num_correct
    undefined = np.full(len(n), np.nan)
    return np.stack([mg_pass_at_k(n, c, k) if k <= n.max(initial=0) else undefined for k in ks], axis=1)


def g_pass_curve(votes: Votes, ks: Sequence[int], tau: float) -> Float[np.ndarray, "problems ks"]:
    """G-Pass@k at tau of every problem for every k; NaN where a problem has fewer than k scorable samples."""
    n, c = votes.num_samples, votes.num_correct
    undefined = np.full(len(n), np.nan)
    return np.stack([g_pass_at_k(n, c, k, tau) if k <= n.max(initial=0) else undefined for k in ks], axis=1)


def _estimate(
    num_samples: Integer | Integers,
    num_correct: Integer | Integers,
    k: Integer,
    function: Callable[[_Array, _Array], Float[np.ndarray, "..."]],
) -> Estimate:
    """`function` of the checked counts, NaN where there are fewer than k samples; a float for two integers."""
    samples, correct = counts("num_samples", num_samples), counts("num_correct", num_correct)
    if samples.shape != correct.shape:
        raise ValueError(f"num_samples and num_correct must have one shape, got {samples.shape} and {correct.shape}")
    if np.any(correct > samples):
        raise ValueError(f"num_correct must not exceed num_samples, got {num_correct} of {num_samples}")
    check_k(k, int(samples.max(initial=0)))
    values = np.where(samples >= k, function(np.atleast_1d(samples), np.atleast_1d(correct)), np.nan)
    return float(values[0]) if samples.ndim == 0 else values


def _at_least(tau: float, k: int) -> int:
    """The smallest count that is a share tau of k."""
    if not 0.0 <= tau <= 1.0:
        raise ValueError(f"tau must be a share in [0, 1], got {tau}")
    return int(np.ceil(tau * k - _ROUNDING))


def _all_of(
    samples: Int[np.ndarray, "*problems"], marked: Int[np.ndarray, "*problems"], ks: Sequence[int]
) -> Float[np.ndarray, "*problems ks"]:
    """Probability that k of the samples are all among the marked ones, NaN where there are fewer than k samples.

    A product of k factors in [0, 1]: no overflow, exactly 0 and 1 at the ends, monotone in k.
    """
    drawn = np.arange(max(ks))
    left = np.clip(marked[..., None] - drawn, 0, None)
    products = np.cumprod(left / np.maximum(samples[..., None] - drawn, 1), axis=-1)
    sizes = np.array(ks)
    return np.where(samples[..., None] >= sizes, products[..., sizes - 1], np.nan)


def _tails(
    samples: Int[np.ndarray, "*problems"], correct: Int[np.ndarray, "*problems"], k: int
) -> Float[np.ndarray, "*problems counts"]:
    """P(X >= m) for m = 0..k. Problems with fewer than k samples give numbers without meaning.

    The hypergeometric weights are products of neighbours' ratios outwards from the mode: all positive, so nothing
    cancels and nothing overflows.
    """
    n, c = np.maximum(samples, k)[..., None], correct[..., None]
    x = np.arange(k + 1)
    mode = (k + 1) * (c + 1) // (n + 2)
    spare = n - c - k + x  # wrong samples that stay undrawn when x of the drawn ones are correct
    above, below = x > mode, x < mode
    rising = np.where(above, (c - x + 1) * (k - x + 1), 1) / np.where(above, x * spare, 1)
    falling = np.where(below, (x + 1) * (spare + 1), 1) / np.where(below, (c - x) * (k - x), 1)
    weights = np.cumprod(np.clip(rising, 0.0, None), axis=-1)
    weights *= np.cumprod(np.clip(falling, 0.0, None)[..., ::-1], axis=-1)[..., ::-1]
    tails = np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1]
    return tails / tails[..., :1]
