"""Masked sums, means and standard deviations: the only place that divides by a token count.

Values under a False mask never matter, not even when they are NaN.
"""

from dataclasses import dataclass

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


def masked(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`values` with exact zeros where the mask is False."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Sum over the positions where the mask is True."""
    return masked(values, mask).sum()


def masked_mean(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Mean:
    """Mean over the positions where the mask is True, as numerator and count."""
    return Mean(masked_sum(values, mask), mask.sum().to(values.dtype))


def masked_std(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], ddof: int) -> Float[Tensor, ""]:
    """Two-pass standard deviation over the positions where the mask is True; 0 where there are no more than `ddof`."""
    count = mask.sum()
    mean = masked_sum(values, mask) / count.clamp(min=1)
    square = masked_sum((values - mean) ** 2, mask)
    return torch.where(count > ddof, (square / (count - ddof).clamp(min=1)).sqrt(), torch.zeros_like(square))


def whiten(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], ddof: int, epsilon: float
) -> Float[Tensor, "*shape"]:
    """Shift and scale to mean 0 and variance 1 over the mask; `epsilon` is added to the variance. Zero elsewhere.

    Source: spec section 2.2, row `masked_whiten` of verl and TRL 1.12. Computed in float64.
    """
    exact = values.double()
    mean = masked_sum(exact, mask) / mask.sum().clamp(min=1)
    variance = masked_std(exact, mask, ddof) ** 2
    return masked((exact - mean) * torch.rsqrt(variance + epsilon), mask).to(values.dtype)
