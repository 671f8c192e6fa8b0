"""Maj@K exactly, as one coefficient of a generating function, for many problems at once.

Fix t, the votes for the correct class. The number of subsets in which no other class gets more than t votes and s of
them get exactly t is a coefficient of a product over the classes,

    [z^(k-t) u^s]   (1 + z)^abstentions * prod_j ( sum_{x<t} C(n_j, x) z^x  +  u C(n_j, t) z^t ).

u = 0 keeps the subsets without a tie, u = 1 all of them, and the fair credit 1/(s+1) is the integral of u^s over
[0, 1], which Gauss-Legendre nodes give exactly. The coefficient of z is read off by a discrete Fourier transform, so
the product is taken pointwise: a matrix product in logarithms over all problems at once, equal counts merged.
C(n_j, x) is replaced by the binomial probability at rate k/n, which cancels in the quotient and puts the wanted
coefficient at the mode of its distribution: nothing overflows, no factor exceeds 1, and the error stays near 1e-15.
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Complex, Float, Int

from bench.evaluation.ballots import TIE_RULES, Votes, take
from bench.evaluation.reliability import pass_curve

# Mass that the Fourier transform may fold onto the wanted coefficient, relative to it: below double precision.
_FOLDED_MASS = 1e-18
# Problems times points held at once, in complex numbers (16 bytes each).
_MAX_BLOCK = 2_000_000

_ROUNDING = 1e-14
"""What the Fourier transform leaves of nothing: the absolute error of an estimate."""


def exact_majority(votes: Votes, num_samples: int, k: int) -> Float[np.ndarray, "3 problems"]:
    """Maj@K under the three tie rules for problems that all have num_samples >= k samples."""
    # Without a rival, or with a single vote, the correct answer wins whenever it is drawn.
    estimate = np.tile(pass_curve(votes, [k])[:, 0], (len(TIE_RULES), 1))
    contested = np.flatnonzero((votes.num_correct > 0) & votes.wrong.any(axis=1))
    if k == 1 or not len(contested):
        return estimate
    pmf = _binomial_table(num_samples, k)
    powers, read_off = _fourier(num_samples, k)
    block = max(1, _MAX_BLOCK // (powers.shape[1] * (k // 2 + 3)))
    for start in range(0, len(contested), block):
        rows = contested[start : start + block]
        part = take(votes, rows)
        outright = pmf[part.num_correct, k // 2 + 1 :] * pmf[num_samples - part.num_correct, k - k // 2 - 1 :: -1]
        by_plurality = np.real(_plurality(part, pmf, powers, k) @ read_off)
        found = (outright.sum(axis=1) + by_plurality) / pmf[num_samples, k]
        # An election that cannot be won leaves the transform's rounding, which is not 0.
        estimate[:, rows] = np.clip(np.where(found < _ROUNDING, 0.0, found), 0.0, 1.0)
    return estimate


def _plurality(
    votes: Votes, pmf: Float[np.ndarray, "counts draws"], powers: Complex[np.ndarray, "half_k points"], k: int
) -> Complex[np.ndarray, "3 problems points"]:
    """Generating function, at the Fourier points, of the elections won with at most half of the k votes."""
    sizes = np.flatnonzero(votes.wrong.any(axis=0))
    num_classes = votes.wrong[:, sizes].astype(np.float64)
    fewer = np.zeros((len(sizes), powers.shape[1]), dtype=np.complex128)
    won = np.zeros((len(TIE_RULES), len(num_classes), powers.shape[1]), dtype=np.complex128)
    for t in range(1, min(k // 2, int(votes.num_correct.max())) + 1):
        fewer += pmf[sizes, t - 1, None] * powers[t - 1]
        exactly = pmf[sizes, t, None] * powers[t]
        max_ties = min((k - t) // t, int(num_classes[:, sizes >= t].sum(axis=1).max()))
        nodes, credit = _tie_nodes(max_ties)
        factors = fewer[:, None, :] + nodes[:, None] * exactly[:, None, :]
        logs = np.log(np.where(factors == 0, np.finfo(float).tiny, factors)).reshape(len(sizes), -1)
        rows = np.flatnonzero(votes.num_correct >= t)
        # A real product over the interleaved real and imaginary parts: twice as fast as a complex one.
        products = np.exp((num_classes[rows] @ logs.view(np.float64)).view(np.complex128))
        by_rule = np.einsum("ru,bup->rbp", credit, products.reshape(len(rows), len(nodes), -1))
        won[:, rows] += by_rule * (pmf[votes.num_correct[rows], t, None] * powers[t])
    abstaining = (1 - pmf[1, 1]) + pmf[1, 1] * powers[1]
    return won * abstaining ** votes.num_missing[:, None]


@lru_cache(maxsize=512)
def _tie_nodes(max_ties: int) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, "3 nodes"]]:
    """Values of u, and the weights by which each tie rule turns a polynomial of that degree into its credit."""
    nodes, weights = np.polynomial.legendre.leggauss(max_ties // 2 + 1)
    credit = np.zeros((len(TIE_RULES), len(nodes) + 2))
    credit[0, 2:] = weights / 2
    credit[1, 0] = 1.0
    credit[2, 1] = 1.0
    return np.concatenate([[0.0, 1.0], (nodes + 1) / 2]), credit


def _binomial_table(num_samples: int, k: int) -> Float[np.ndarray, "counts draws"]:
    """table[v, x]: probability of x draws from a class of v samples at rate k/n, summed from positive terms."""
    rate = k / num_samples
    table = np.zeros((num_samples + 1, k + 1))
    table[0, 0] = 1.0
    for count in range(1, num_samples + 1):
        table[count] = (1 - rate) * table[count - 1]
        table[count, 1:] += rate * table[count - 1, :-1]
    return table


def cost_of_exact(votes: Votes, num_samples: int, k: int) -> Int[np.ndarray, " problems"]:
    """Complex numbers that Maj@K of each problem goes through, if it is alone.

    Fourier points, times the nodes of all vote counts t (their number follows from k and the number of wrong answers),
    times the different sizes of its classes.
    """
    elections = np.arange(1, k // 2 + 1)
    rivals = np.minimum((k - elections) // elections, votes.wrong.sum(axis=1)[:, None])
    nodes = np.where(elections <= votes.num_correct[:, None], rivals // 2 + 3, 0).sum(axis=1)
    sizes = votes.wrong.astype(np.bool).sum(axis=1)
    return np.where((sizes > 0) & (k > 1), nodes * (sizes + 1) * (_num_points(num_samples, k) // 2 + 1), 0)


def _fourier(num_samples: int, k: int) -> tuple[Complex[np.ndarray, "half_k points"], Complex[np.ndarray, " points"]]:
    """Powers 0..k/2 of the Fourier points, and the weights that read off a real polynomial's coefficient of z^k."""
    num_points = _num_points(num_samples, k)
    angles = 2 * np.pi * np.arange(num_points // 2 + 1) / num_points
    powers = np.exp(1j * np.outer(np.arange(k // 2 + 1), angles))
    read_off = np.exp(-1j * k * angles) * np.where(angles == 0, 1.0, 2.0) / num_points
    return powers, read_off


def _num_points(num_samples: int, k: int) -> int:
    """Fourier points that tell the coefficient of z^k from all others.

    With N points the coefficients k + N, k + 2N, k - N, ... fold onto k. None of them exceeds the binomial distribution
    Bin(n, k/n), so N is taken just large enough that its mass beyond N does not matter. N is odd, because z = -1 is
    where a factor can vanish.
    """
    above = np.arange(k, num_samples)
    below = np.arange(k, 0, -1)
    folded = np.zeros(max(len(above), len(below)) + 1)
    # Probabilities relative to the mode, by the ratio of neighbours; at k = n there is nothing above and 0 below.
    folded[: len(above)] += np.cumprod((num_samples - above) / (above + 1) * k / max(num_samples - k, 1))
    folded[: len(below)] += np.cumprod(below / (num_samples - below + 1) * (num_samples - k) / k)
    beyond = np.cumsum(folded[::-1])[::-1]
    return (int(np.argmax(beyond <= _FOLDED_MASS)) + 1) | 1
