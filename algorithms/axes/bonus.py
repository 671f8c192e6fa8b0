"""Bonus: whether entropy is rewarded in the loss."""

from typing import Annotated, ClassVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Batch, Totals
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked_sum


@knobs
class NoBonus:
    """No entropy term."""

    needs_entropy_gradient: ClassVar[bool] = False

    def __call__(self, batch: Batch, totals: Totals) -> Float[Tensor, ""] | None:
        return None

    def formula(self) -> str:
        return "none"


@knobs
class EntropyBonus:
    """-coefficient * mean over the step's tokens of the policy's entropy, whatever the reduction of the rest."""

    needs_entropy_gradient: ClassVar[bool] = True
    coefficient: Annotated[float, Field(gt=0)]
    """Weight of the mean entropy (alpha_H, PPO's c_2)."""

    def __call__(self, batch: Batch, totals: Totals) -> Float[Tensor, ""] | None:
        """The microbatch's share of the term that is added to the loss."""
        assert batch.entropy is not None, "the bonus reads entropies with their gradient"
        return -self.coefficient * masked_sum(batch.entropy, batch.mask) / max(totals.num_tokens, 1)

    def formula(self) -> str:
        return f"- {self.coefficient:g} * mean over tokens of the entropy, in the loss"


Bonus = NoBonus | EntropyBonus
