"""Reward shaping: what is added to a completion's reward before any baseline is taken."""

from typing import Annotated

from jaxtyping import Float
from pydantic import Field
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


Shaping = NoShaping | SoftOverlong
