"""Surrogate: the per-token loss as a function of the importance ratio and the advantage."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.knobs import knobs
from algorithms.axes.masked import Mean, masked_mean


def importance_ratio(
    logp: Float[Tensor, "batch tokens"], old_logp: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch tokens"]:
    """Token-level ratio pi / pi_old; the logarithm is held within +-20 so that a stray token cannot overflow."""
    return (logp - old_logp).clamp(min=-20, max=20).exp()


@knobs
class Clip:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A): PPO's clipped surrogate, with separate bounds."""

    low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """How far below 1 the ratio still counts where the advantage is negative."""
    high: Annotated[float, Field(gt=0)] = 0.2
    """How far above 1 the ratio still counts where the advantage is positive."""

    def __call__(
        self, ratio: Float[Tensor, "batch tokens"], advantage: Float[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        clipped = ratio.clamp(min=1 - self.low, max=1 + self.high)
        return -torch.minimum(ratio * advantage, clipped * advantage)

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """Shares of tokens whose gradient the bounds cut."""
        low = (ratio < 1 - self.low) & (advantage < 0)
        high = (ratio > 1 + self.high) & (advantage > 0)
        shares = {"clip/low": low, "clip/high": high, "clip/region": low | high}
        return {name: masked_mean(share.to(ratio.dtype), mask) for name, share in shares.items()}

    def formula(self) -> str:
        return f"-min(rho A, clip(rho, 1 - {self.low:g}, 1 + {self.high:g}) A), rho = pi / pi_old per token"


Surrogate = Clip
