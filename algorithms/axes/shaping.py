"""Reward shaping: what is added to a completion's reward before any baseline is taken."""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.knobs import knobs


@knobs
class NoShaping:
    """The reward as the grader gives it."""

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch"]:
        return rollout.reward

    def formula(self) -> str:
        return "R"


@knobs
class SoftOverlong:
    """Soft overlong punishment: a linear penalty on the last part of the completion budget (DAPO, Eq. 13).

    With budget L_max and L_buffer = buffer * L_max: 0 up to L_max - L_buffer, then ((L_max - L_buffer) - L) / L_buffer,
    and -1 beyond L_max; times `factor`.
    """

    buffer: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the completion budget over which the penalty grows."""
    factor: Annotated[float, Field(gt=0)] = 1.0
    """Size of the full penalty, in units of reward."""

    def penalty(self, length: Float[Tensor, "batch"], budget: int) -> Float[Tensor, "batch"]:
        """Length reward in [-factor, 0] for completions of `length` tokens."""
        buffer = self.buffer * budget
        return self.factor * ((budget - buffer - length) / buffer).clamp(min=-1, max=0)

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch"]:
        return rollout.reward + self.penalty(rollout.length.double(), rollout.completion_budget)

    def formula(self) -> str:
        return f"R + {self.factor:g} * clip((L_max - B - L) / B, -1, 0), B = {self.buffer:g} L_max"


@knobs
class MissingEos:
    """R - penalty for completions that the budget cut before they ended by themselves."""

    penalty: Annotated[float, Field(gt=0)]
    """What a missing end costs, in units of reward."""

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch"]:
        return rollout.reward - self.penalty * (~rollout.terminated).double()

    def formula(self) -> str:
        return f"R - {self.penalty:g} where the budget cut the completion"


@knobs
class Rescale:
    """clip(scale * R, low, high): reward scaling and clipping, the latter RLOO's `reward_clip_range` in TRL."""

    scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the reward; no effect on advantages that are divided by a standard deviation."""
    low: float | None = None
    """Smallest shaped reward; null is no bound."""
    high: float | None = None
    """Largest shaped reward; null is no bound."""

    @model_validator(mode="after")
    def _does_something(self) -> "Rescale":
        if self.scale == 1 and self.low is None and self.high is None:
            raise ValueError("rescale does nothing with scale 1 and no bound: give one of them, or kind=no_shaping")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low is {self.low:g}, must be below high = {self.high:g}")
        return self

    def __call__(self, rollout: Rollout) -> Float[Tensor, "batch"]:
        scaled = self.scale * rollout.reward
        if self.low is None and self.high is None:
            return scaled
        # An infinite reward could not be told, and a bound must not make it a number.
        return torch.where(rollout.scorable, scaled.clamp(min=self.low, max=self.high), scaled)

    def formula(self) -> str:
        scaled = "R" if self.scale == 1 else f"{self.scale:g} R"
        if self.low is None and self.high is None:
            return scaled
        low, high = (
            ("-inf" if self.low is None else f"{self.low:g}"),
            ("inf" if self.high is None else f"{self.high:g}"),
        )
        return f"clip({scaled}, {low}, {high})"


Shaping = NoShaping | SoftOverlong | MissingEos | Rescale
