"""Mismatch: how the gap between the sampling engine's and the trainer's probabilities is weighed out of the loss.

The ratio is pi_old / mu, the trainer's probability over the sampling engine's, both before the first update. Weights
multiply the surrogate and not the penalty, and carry no gradient.
"""

from typing import Annotated, ClassVar

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked
from algorithms.axes.ratio import held_exp

Upper = Annotated[float, Field(ge=1)]
Lower = Annotated[float, Field(gt=0, le=1)]


def token_log_ratio(rollout: Rollout) -> Float[Tensor, "batch tokens"]:
    """log(pi_old / mu) of each token; 0 beyond the completion and where the engine gave no log-probability."""
    assert rollout.sampler_logp is not None, "the correction reads the sampling engine's log-probabilities"
    return masked((rollout.old_logp - rollout.sampler_logp).nan_to_num(nan=0.0), rollout.mask)


def _token_ratio(rollout: Rollout) -> Float[Tensor, "batch tokens"]:
    return held_exp(token_log_ratio(rollout))


def _sequence_ratio(rollout: Rollout) -> Float[Tensor, "batch tokens"]:
    return held_exp(token_log_ratio(rollout).sum(dim=1))[:, None].expand(rollout.mask.shape)


def _inside(ratio: Float[Tensor, "batch tokens"], low: float | None, high: float) -> Bool[Tensor, "batch tokens"]:
    return (ratio <= high) if low is None else (ratio <= high) & (ratio >= low)


@knobs
class NoCorrection:
    """The engine's samples count as the trainer's own."""

    needs_old_logp: ClassVar[bool] = False

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch tokens"] | None:
        return None

    def formula(self) -> str:
        return "none"


@knobs
class TokenTruncate:
    """u = clip(pi_old / mu, low, high) of each token: truncated importance sampling (`token_trunc`)."""

    needs_old_logp: ClassVar[bool] = True
    high: Upper = 2.0
    """Largest weight."""
    low: Lower | None = None
    """Smallest weight; null is no bound."""

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch tokens"] | None:
        return _token_ratio(rollout).clamp(min=self.low, max=self.high)

    def formula(self) -> str:
        return f"times clip(pi_old / mu, {_bounds(self.low, self.high)}) per token"


@knobs
class TokenMask:
    """u = pi_old / mu of each token, 0 where it is out of bounds (IcePop, 2510.18855; `token_mask`)."""

    needs_old_logp: ClassVar[bool] = True
    high: Upper = 2.0
    """Largest weight that counts."""
    low: Lower | None = None
    """Smallest weight that counts; null is no bound."""

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch tokens"] | None:
        ratio = _token_ratio(rollout)
        return masked(ratio, _inside(ratio, self.low, self.high))

    def formula(self) -> str:
        return f"times pi_old / mu per token, 0 outside [{_bounds(self.low, self.high)}]"


@knobs
class SequenceTruncate:
    """u = clip(product over tokens of pi_old / mu, low, high), one weight a completion (`seq_trunc`)."""

    needs_old_logp: ClassVar[bool] = True
    high: Upper = 2.0
    """Largest weight."""
    low: Lower | None = None
    """Smallest weight; null is no bound."""

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch tokens"] | None:
        return _sequence_ratio(rollout).clamp(min=self.low, max=self.high)

    def formula(self) -> str:
        return f"times clip(product of pi_old / mu, {_bounds(self.low, self.high)}) per completion"


@knobs
class SequenceMask:
    """u = product over tokens of pi_old / mu, 0 where it is out of bounds (`seq_mask`).

    The product moves away from 1 with the number of tokens, so long completions are dropped more often.
    """

    needs_old_logp: ClassVar[bool] = True
    high: Upper = 2.0
    """Largest weight that counts."""
    low: Lower | None = None
    """Smallest weight that counts; null is no bound."""

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch tokens"] | None:
        ratio = _sequence_ratio(rollout)
        return masked(ratio, _inside(ratio, self.low, self.high))

    def formula(self) -> str:
        return f"times product of pi_old / mu per completion, 0 outside [{_bounds(self.low, self.high)}]"


def _bounds(low: float | None, high: float) -> str:
    return f"{0 if low is None else low:g}, {high:g}"


Mismatch = NoCorrection | TokenTruncate | TokenMask | SequenceTruncate | SequenceMask
