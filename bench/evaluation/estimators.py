"""Pass@K and Maj@K, exact over all k-subsets of a problem's samples: pure functions of counts, in numpy.

Pass@K is the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374). Maj@K is the share of k-subsets whose most
voted answer is the correct one. Both average over every subset, so no random draw enters and no sample order matters.

How Maj@K is made exact in polynomial time. Fix t, the votes for the correct class. The number of subsets in which no
other class gets more than t votes and s of them get exactly t is a coefficient of a product over the classes,

    [z^(k-t) u^s]   (1 + z)^abstentions * prod_j ( sum_{x<t} C(n_j, x) z^x  +  u C(n_j, t) z^t ).

u = 0 keeps the subsets without a tie, u = 1 all of them, and the fair credit 1/(s+1) is the integral of u^s over
[0, 1], which Gauss-Legendre nodes give exactly. The coefficient of z is read off by a discrete Fourier transform, so
the product is taken pointwise: a matrix product in logarithms over all problems at once, equal counts merged.
C(n_j, x) is replaced by the binomial probability at rate k/n, which cancels in the quotient and puts the wanted
coefficient at the mode of its distribution: nothing overflows, no factor exceeds 1, and the error stays near 1e-15.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from jaxtyping import Complex, Float, Int

Ties = Literal["random", "pessimistic", "optimistic"]
Missing = Literal["abstain", "vote", "drop"]

TIE_RULES: tuple[Ties, ...] = ("random", "pessimistic", "optimistic")
MISSING_RULES: tuple[Missing, ...] = ("abstain", "vote", "drop")

Integer = int | np.integer
Integers = Int[np.ndarray, "..."] | Sequence[int]

# Mass that the Fourier transform may fold onto the wanted coefficient, relative to it: below double precision.
_FOLDED_MASS = 1e-18
# Problems times points held at once, in complex numbers (16 bytes each).
_MAX_BLOCK = 2_000_000


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
    """
    if len(answers) != len(correct):
        raise ValueError(f"answers and correct must have one entry per sample, got {len(answers)} and {len(correct)}")
    num_correct = sum(1 for verdict in correct if verdict)
    wrong = Counter(
        answer for answer, verdict in zip(answers, correct, strict=True) if verdict is not None and not verdict
    )
    num_missing = wrong.pop(None, 0)
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


@overload
def pass_at_k(num_samples: Integer, num_correct: Integer, k: Integer) -> float: ...
@overload
def pass_at_k(num_samples: Integers, num_correct: Integers, k: Integer) -> Float[np.ndarray, "..."]: ...
def pass_at_k(
    num_samples: Integer | Integers, num_correct: Integer | Integers, k: Integer
) -> float | Float[np.ndarray, "..."]:
    """Probability that k of a problem's samples, drawn without replacement, hold a correct one.

    The unbiased estimator 1 - C(n-c, k) / C(n, k).

    Args: num_samples n and num_correct c, two integers or two arrays with one entry per problem; k, an integer >= 1.
    Returns: a float, or an array with NaN where a problem has fewer than k samples.
    Raises: ValueError when k exceeds n (for arrays: every n), which is undefined and not 1; or for impossible counts.
    Source: Chen et al. 2021, arXiv:2107.03374, section 2.1.
    """
    samples, correct = _counts("num_samples", num_samples), _counts("num_correct", num_correct)
    if samples.shape != correct.shape:
        raise ValueError(f"num_samples and num_correct must have one shape, got {samples.shape} and {correct.shape}")
    if np.any(correct > samples):
        raise ValueError(f"num_correct must not exceed num_samples, got {num_correct} of {num_samples}")
    check_k(k, int(samples.max(initial=0)))
    estimate = _pass_at_ks(samples, correct, [int(k)])[..., 0]
    return float(estimate) if samples.ndim == 0 else estimate


def maj_at_k(
    answers: Sequence[Hashable | None],
    correct: Sequence[bool | np.bool | None],
    k: Integer,
    *,
    ties: Ties = "random",
    missing: Missing = "abstain",
) -> float:
    """Probability that the most voted answer among k samples of one problem, drawn without replacement, is correct.

    Args:
        answers: one hashable key per sample, None where there is no answer. Equal keys vote together.
        correct: one verdict per sample. All correct samples vote together whatever their keys; None is unscorable and
            left out.
        k: votes per election.
        ties: credit where s wrong answers share the first place: "random" 1/(s+1), "pessimistic" 0, "optimistic" 1.
        missing: a sample without an answer is drawn but has no vote ("abstain"), votes as one wrong answer ("vote"),
            or is left out of the samples ("drop"). An election without votes is lost.
    Returns: the exact average over all subsets; NaN where fewer than k of the samples can be used.
    Raises: ValueError when k exceeds the number of samples given.
    """
    votes = stack_votes([count_votes(answers, correct)])
    check_k(k, len(answers))
    return float(majority(votes, [int(k)], ties=ties, missing=missing)[0, 0])


def pass_curve(votes: Votes, ks: Sequence[int]) -> Float[np.ndarray, "problems ks"]:
    """Pass@K of every problem for every k; NaN where a problem has fewer than k scorable samples."""
    return _pass_at_ks(votes.num_samples, votes.num_correct, ks)


def majority(
    votes: Votes, ks: Sequence[int], *, ties: Ties = "random", missing: Missing = "abstain"
) -> Float[np.ndarray, "problems ks"]:
    """Maj@K of every problem for every k, as maj_at_k defines it; NaN where fewer than k samples can be used."""
    if ties not in TIE_RULES:
        raise ValueError(f"ties must be one of {', '.join(TIE_RULES)}, got {ties!r}")
    return majority_by_tie_rule(votes, ks, missing=missing)[TIE_RULES.index(ties)]


def tie_rate(by_tie_rule: Float[np.ndarray, "3 problems ks"]) -> Float[np.ndarray, "problems ks"]:
    """Share of the k-subsets in which the correct answer shares the first place: all that a tie rule decides."""
    _, pessimistic, optimistic = by_tie_rule
    return optimistic - pessimistic


def majority_by_tie_rule(
    votes: Votes, ks: Sequence[int], *, missing: Missing = "abstain"
) -> Float[np.ndarray, "3 problems ks"]:
    """Maj@K of every problem for every k under the three tie rules at once, in the order of TIE_RULES."""
    votes = _resolve_missing(votes, missing)
    samples = votes.num_samples
    estimate = np.full((len(TIE_RULES), len(samples), len(ks)), np.nan)
    for num_samples in np.unique(samples):
        rows = np.flatnonzero(samples == num_samples)
        group = _take(votes, rows)
        for column, k in enumerate(ks):
            if k <= num_samples:
                estimate[:, rows, column] = _majority(group, int(num_samples), k)
    return estimate


def check_k(k: Integer, num_samples: int) -> None:
    """Raises ValueError unless 1 <= k <= num_samples."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if k > num_samples:
        raise ValueError(f"k={k} exceeds the {num_samples} samples of a problem; ask for fewer or draw more")


def _counts(name: str, value: Integer | Integers) -> Int[np.ndarray, "..."]:
    # numpy refuses to cast a fraction to an integer, which is right: it is no count.
    counts = np.asarray(value).astype(np.int64, casting="same_kind")
    if np.any(counts < 0):
        raise ValueError(f"{name} must not be negative, got {value}")
    return counts


def _pass_at_ks(
    samples: Int[np.ndarray, "*problems"], correct: Int[np.ndarray, "*problems"], ks: Sequence[int]
) -> Float[np.ndarray, "*problems ks"]:
    """The estimator as a product of k factors in [0, 1]: no overflow, exactly 0 and 1 at the ends, monotone in k."""
    drawn = np.arange(max(ks))
    wrong_left = np.clip((samples - correct)[..., None] - drawn, 0, None)
    all_wrong = np.cumprod(wrong_left / np.maximum(samples[..., None] - drawn, 1), axis=-1)
    votes = np.array(ks)
    return np.where(samples[..., None] >= votes, 1.0 - all_wrong[..., votes - 1], np.nan)


def _resolve_missing(votes: Votes, missing: Missing) -> Votes:
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


def _take(votes: Votes, rows: Int[np.ndarray, " rows"]) -> Votes:
    return Votes(votes.num_correct[rows], votes.num_missing[rows], votes.wrong[rows])


def _majority(votes: Votes, num_samples: int, k: int) -> Float[np.ndarray, "3 problems"]:
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
        part = _take(votes, rows)
        outright = pmf[part.num_correct, k // 2 + 1 :] * pmf[num_samples - part.num_correct, k - k // 2 - 1 :: -1]
        by_plurality = np.real(_plurality(part, pmf, powers, k) @ read_off)
        estimate[:, rows] = np.clip((outright.sum(axis=1) + by_plurality) / pmf[num_samples, k], 0.0, 1.0)
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


def _fourier(num_samples: int, k: int) -> tuple[Complex[np.ndarray, "half_k points"], Complex[np.ndarray, " points"]]:
    """Powers 0..k/2 of the Fourier points, and the weights that read off the coefficient of z^k of a real polynomial.

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
    num_points = (int(np.argmax(beyond <= _FOLDED_MASS)) + 1) | 1
    angles = 2 * np.pi * np.arange(num_points // 2 + 1) / num_points
    powers = np.exp(1j * np.outer(np.arange(k // 2 + 1), angles))
    read_off = np.exp(-1j * k * angles) * np.where(angles == 0, 1.0, 2.0) / num_points
    return powers, read_off
