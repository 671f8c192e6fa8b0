"""Value: how the critic, where there is one, is fitted to its returns."""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import LossParts, Totals, ValueBatch
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked, masked_mean, masked_sum


@knobs
class NoCritic:
    """Critic-free: no value model is loaded."""

    def formula(self) -> str:
        return "none"


@knobs
class ValueLoss:
    """1/2 * mean over tokens of (V - return)^2, or of the larger of that and its value-clipped form."""

    clip: Annotated[float, Field(gt=0)] | None = 0.2
    """How far V may move from its value at rollout time before the clipped form holds it; null is the plain square."""

    def __call__(self, batch: ValueBatch, totals: Totals) -> LossParts:
        old_value, returns = masked(batch.old_value.detach(), batch.mask), masked(batch.returns.detach(), batch.mask)
        value = masked(batch.value, batch.mask)
        square = (value - returns) ** 2
        moved = torch.zeros_like(batch.mask)
        if self.clip is not None:
            held = old_value + (value - old_value).clamp(min=-self.clip, max=self.clip)
            clipped = (held - returns) ** 2
            moved = clipped > square
            square = torch.maximum(square, clipped)
        loss = masked_sum(square, batch.mask) / (2 * max(totals.num_tokens, 1))
        means = {
            "value/loss": masked_mean(square.detach() / 2, batch.mask),
            "value/clip_frac": masked_mean(moved.to(value.dtype), batch.mask),
        }
        return LossParts(loss=loss, means=means, maxima={})

    def formula(self) -> str:
        if self.clip is None:
            return "1/2 (V - return)^2, mean over tokens"
        return f"1/2 max((V - return)^2, (clip(V, V_old +- {self.clip:g}) - return)^2), mean over tokens"


def explained_variance(value: Float[Tensor, "tokens"], returns: Float[Tensor, "tokens"]) -> float:
    """1 - Var(returns - value) / (Var(returns) + 1e-5), over valid tokens; NaN below two tokens."""
    if len(value) < 2:
        return float("nan")
    residual = (returns.double() - value.double()).var()
    return float(1 - residual / (returns.double().var() + 1e-5))


Value = NoCritic | ValueLoss
