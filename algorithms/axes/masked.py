"""Masked sums, means and standard deviations: the only place that divides by a token count.

Values under a False mask never matter, not even when they are NaN.
"""

from dataclasses import dataclass
from typing import Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """A mean that is not taken yet: numerator and count, so that parts of a batch add up exactly."""

    total: Float[Tensor, ""]
    count: Float[Tensor, ""]

    def plus(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    def value(self) -> float:
        """The mean; NaN where nothing was counted."""
        count = float(self.count)
        return float(self.total) / count if count else float("nan")


@dataclass(frozen=True)
class Moments:
    """A statistic of the first two moments that is not taken yet: three sums, so that parts of a batch add up."""

    total: Float[Tensor, ""]
    square: Float[Tensor, ""]
    count: Float[Tensor, ""]
    statistic: Literal["variance", "effective_share"]
    """Variance with ddof 0; or, of weights, total^2 / (count * square): effective over actual sample size."""

    def plus(self, other: "Moments") -> "Moments":
        assert self.statistic == other.statistic, f"{self.statistic} and {other.statistic} do not add up"
        sums = (self.total + other.total, self.square + other.square, self.count + other.count)
        return Moments(*sums, self.statistic)

    def value(self) -> float:
        """The statistic; NaN where nothing was counted."""
        total, square, count = float(self.total), float(self.square), float(self.count)
        if not count:
            return float("nan")
        if self.statistic == "variance":
            return max(square / count - (total / count) ** 2, 0.0)
        return total**2 / (count * square) if square else float("nan")


Summed = Mean | Moments
"""What a microbatch may report: it adds up over microbatches and processes, and becomes one number at the end."""


def masked(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`values` with exact zeros where the mask is False."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Sum over the positions where the mask is True."""
    return masked(values, mask).sum()


def masked_mean(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Mean:
    """Mean over the positions where the mask is True, as numerator and count."""
    return Mean(masked_sum(values, mask), mask.sum().to(values.dtype))


def masked_moments(
    values: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    statistic: Literal["variance", "effective_share"],
) -> Moments:
    """Sums behind a statistic over the positions where the mask is True, in float64."""
    exact = masked(values, mask).double()
    return Moments(exact.sum(), (exact**2).sum(), mask.sum().double(), statistic)


def masked_std(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], ddof: int) -> Float[Tensor, ""]:
    """Two-pass standard deviation over the positions where the mask is True; 0 where there are no more than `ddof`."""
    count = mask.sum()
    mean = masked_sum(values, mask) / count.clamp(min=1)
    square = masked_sum((values - mean) ** 2, mask)
    return torch.where(count > ddof, (square / (count - ddof).clamp(min=1)).sqrt(), torch.zeros_like(square))


@overload
def slack(mean: float) -> float: ...
@overload
def slack(mean: Tensor) -> Tensor: ...
def slack(mean: float | Tensor) -> float | Tensor:
    """How far apart values around `mean` may be and still be equal up to rounding: 1e-6 (1 + |mean|)."""
    return 1e-6 * (1 + abs(mean))


def flat(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Bool[Tensor, ""]:
    """Whether all values under the mask are equal up to rounding."""
    infinite = torch.full((), torch.inf, dtype=values.dtype, device=values.device)
    spread = torch.where(mask, values, -infinite).amax() - torch.where(mask, values, infinite).amin()
    return spread <= slack(masked_sum(values, mask) / mask.sum().clamp(min=1))


def whiten(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], ddof: int, epsilon: float
) -> Float[Tensor, "*shape"]:
    """Shift and scale to mean 0 and variance 1 over the mask; `epsilon` is added to the variance. Zero elsewhere.

    Equal values end at exactly 0: what rounding leaves of them is no signal.
    As `masked_whiten` of verl and TRL 1.12 has it. Computed in float64.
    """
    exact = values.double()
    mean = masked_sum(exact, mask) / mask.sum().clamp(min=1)
    variance = masked_std(exact, mask, ddof) ** 2
    return masked((exact - mean) * torch.rsqrt(variance + epsilon), mask & ~flat(exact, mask)).to(values.dtype)
