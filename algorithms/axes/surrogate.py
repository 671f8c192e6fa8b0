"""Surrogate: the per-token loss as a function of the importance ratio, the advantage and the log-probability."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.knobs import knobs
from algorithms.axes.masked import Mean, masked_mean

Below = Annotated[float, Field(gt=0, le=1)]
Above = Annotated[float, Field(gt=0)]


def _shares(shares: dict[str, Bool[Tensor, "batch tokens"]], mask: Bool[Tensor, "batch tokens"]) -> dict[str, Mean]:
    return {name: masked_mean(share.to(torch.float32), mask) for name, share in shares.items()}


def _cut(
    ratio: Float[Tensor, "batch tokens"], advantage: Float[Tensor, "batch tokens"], low: float, high: float
) -> dict[str, Bool[Tensor, "batch tokens"]]:
    """Tokens whose gradient the bounds 1 - low and 1 + high cut, by side."""
    below = (ratio < 1 - low) & (advantage < 0)
    above = (ratio > 1 + high) & (advantage > 0)
    return {"clip/low": below, "clip/high": above, "clip/region": below | above}


def _clipped_objective(
    ratio: Float[Tensor, "batch tokens"], advantage: Float[Tensor, "batch tokens"], low: float, high: float
) -> Float[Tensor, "batch tokens"]:
    return torch.minimum(ratio * advantage, ratio.clamp(min=1 - low, max=1 + high) * advantage)


@knobs
class Clip:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A): PPO's clipped surrogate, with separate bounds."""

    needs_ratio: ClassVar[bool] = True
    low: Below = 0.2
    """How far below 1 the ratio still counts where the advantage is negative."""
    high: Above = 0.2
    """How far above 1 the ratio still counts where the advantage is positive."""

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return -_clipped_objective(ratio, advantage, self.low, self.high)

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """Shares of tokens whose gradient the bounds cut."""
        return _shares(_cut(ratio, advantage, self.low, self.high), mask)

    def formula(self) -> str:
        return f"-min(rho A, clip(rho, 1 - {self.low:g}, 1 + {self.high:g}) A)"


@knobs
class DualClip:
    """`Clip`, and for A < 0 never below cap * A: bounds the loss of a token whose ratio has run away (1912.09729)."""

    needs_ratio: ClassVar[bool] = True
    low: Below = 0.2
    """How far below 1 the ratio still counts where the advantage is negative."""
    high: Above = 0.2
    """How far above 1 the ratio still counts where the advantage is positive."""
    cap: Annotated[float, Field(gt=1)] = 3.0
    """Largest ratio that still counts where the advantage is negative."""

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        clipped = _clipped_objective(ratio, advantage, self.low, self.high)
        return -torch.where(advantage < 0, torch.maximum(clipped, self.cap * advantage), clipped)

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """Shares of tokens whose gradient the bounds or the cap cut."""
        dual = {"clip/dual": (advantage < 0) & (ratio > self.cap)}
        return _shares(_cut(ratio, advantage, self.low, self.high) | dual, mask)

    def formula(self) -> str:
        return (
            f"-min(rho A, clip(rho, 1 - {self.low:g}, 1 + {self.high:g}) A), and for A < 0 -max(that, {self.cap:g} A)"
        )


def _weight(ratio: Float[Tensor, "batch tokens"], low: float | None, high: float) -> Float[Tensor, "batch tokens"]:
    return ratio.detach().clamp(min=None if low is None else 1 - low, max=1 + high)


def _held(
    ratio: Float[Tensor, "batch tokens"], advantage: Float[Tensor, "batch tokens"], low: float | None, high: float
) -> dict[str, Bool[Tensor, "batch tokens"]]:
    """Tokens whose weight a bound holds: all of them, and those that a clip would have cut above."""
    above = ratio > 1 + high
    below = torch.zeros_like(above) if low is None else ratio < 1 - low
    return {"clip/cispo": above | below, "clip/cispo_positive": above & (advantage > 0)}


def _weight_formula(low: float | None, high: float) -> str:
    return f"min(rho, 1 + {high:g})" if low is None else f"clip(rho, 1 - {low:g}, 1 + {high:g})"


@knobs
class Cispo:
    """-sg[clip(ratio, 1 - low, 1 + high)] * A * log pi: every token keeps its gradient, only its weight is held.

    MiniMax-M1, 2506.13585, Eq. 4-5. Loss values contain log pi and cannot be compared with a clipped surrogate's.
    """

    needs_ratio: ClassVar[bool] = True
    low: Below | None = None
    """How far below 1 the weight may fall; null is no bound."""
    high: Above
    """How far above 1 the weight may rise; the cap is 1 + high."""

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return -_weight(ratio, self.low, self.high) * advantage * logp

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """Shares of tokens whose weight a bound holds."""
        return _shares(_held(ratio, advantage, self.low, self.high), mask)

    def formula(self) -> str:
        return f"-sg[{_weight_formula(self.low, self.high)}] A log pi"


@knobs
class CispoMasked:
    """`Cispo` without the tokens that PPO's clip would cut: the bridge between the two (2506.13585, Eq. 6-7)."""

    needs_ratio: ClassVar[bool] = True
    low: Below | None = None
    """How far below 1 the weight may fall; null is no bound."""
    high: Above
    """How far above 1 the weight may rise; the cap is 1 + high."""
    mask_low: Below = 0.2
    """Tokens with a negative advantage are dropped where the ratio is below 1 - mask_low."""
    mask_high: Above = 0.2
    """Tokens with a positive advantage are dropped where the ratio is above 1 + mask_high."""

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        dropped = _cut(ratio.detach(), advantage, self.mask_low, self.mask_high)["clip/region"]
        loss = -_weight(ratio, self.low, self.high) * advantage * logp
        return torch.where(dropped, torch.zeros_like(loss), loss)

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """Shares of tokens that are dropped, and of those whose weight a bound holds."""
        dropped = _cut(ratio, advantage, self.mask_low, self.mask_high)
        return _shares(dropped | _held(ratio, advantage, self.low, self.high), mask)

    def formula(self) -> str:
        dropped = f"rho > 1 + {self.mask_high:g} and A > 0, or rho < 1 - {self.mask_low:g} and A < 0"
        return f"-sg[{_weight_formula(self.low, self.high)}] A log pi; 0 where {dropped}"


@knobs
class Reinforce:
    """-A * log pi: the score function, for completions of the present policy (`reinforce`)."""

    needs_ratio: ClassVar[bool] = False

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return -advantage * logp

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """None: nothing is bounded."""
        return {}

    def formula(self) -> str:
        return "-A log pi"


@knobs
class Sapo:
    """-4 / tau * sigmoid(tau (ratio - 1)) * A: a soft gate in place of the clip (SAPO, 2511.20347).

    The gate's slope is 1 at ratio 1, so on-policy its gradient is the unclipped surrogate's.
    """

    needs_ratio: ClassVar[bool] = True
    temperature_positive: Above = 1.0
    """tau where the advantage is positive."""
    temperature_negative: Above = 1.05
    """tau where it is not; larger, because such tokens raise the rest of the vocabulary and are less stable."""

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        positive = torch.full_like(ratio, self.temperature_positive)
        tau = torch.where(advantage > 0, positive, torch.full_like(ratio, self.temperature_negative))
        return -torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantage

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """None: no token is cut, all are damped."""
        return {}

    def formula(self) -> str:
        taus = f"tau = {self.temperature_positive:g} where A > 0, else {self.temperature_negative:g}"
        return f"-4 / tau sigmoid(tau (rho - 1)) A, {taus}"


@knobs
class Unclipped:
    """-ratio * A: importance-weighted policy gradient with no trust region (`none`)."""

    needs_ratio: ClassVar[bool] = True

    def __call__(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        logp: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return -ratio * advantage

    def metrics(
        self,
        ratio: Float[Tensor, "batch tokens"],
        advantage: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> dict[str, Mean]:
        """None: nothing is bounded."""
        return {}

    def formula(self) -> str:
        return "-rho A"


Surrogate = Clip | DualClip | Cispo | CispoMasked | Reinforce | Sapo | Unclipped
