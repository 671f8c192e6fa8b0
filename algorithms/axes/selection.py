"""Selection: which groups of a rollout are trained on, and what happens when too few qualify."""

from typing import Annotated, ClassVar, Literal

from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.knobs import knobs


@knobs
class KeepAll:
    """Every group is trained on, uniform ones too: their advantage is zero, their tokens stay in the denominator."""

    max_rounds: ClassVar[int] = 1
    needs_groups: ClassVar[bool] = False
    surplus: ClassVar[str] = "discard"

    def keep(self, correct: Float[Tensor, "groups members"]) -> Bool[Tensor, "groups"]:
        return correct.new_ones(len(correct)).bool()

    def formula(self) -> str:
        return "all groups"


@knobs
class DropUniformGroups:
    """Dynamic sampling: keep prompts with 0 < #correct < G and sample on until the batch is full (DAPO, Eq. 11).

    The verifier's bit decides, never the shaped reward: a length penalty makes all-correct groups look informative.
    The policy does not change between the rounds of one rollout.
    """

    needs_groups: ClassVar[bool] = True
    max_rounds: Annotated[int, Field(ge=1)] = 10
    """Rounds of sampling after which the rollout is exhausted."""
    on_exhausted: Literal["error", "use_partial", "pad_with_uniform"] = "error"
    """End the run, train on the groups found, or fill up with uniform groups."""
    surplus: Literal["discard", "carry_over"] = "discard"
    """Drop informative groups beyond the batch, or train on them first in the next rollout, as an older policy's."""

    def keep(self, correct: Float[Tensor, "groups members"]) -> Bool[Tensor, "groups"]:
        """True for groups with both a correct and a wrong member. Unscorable members (NaN) are neither."""
        return (correct == 1).any(dim=1) & (correct == 0).any(dim=1)

    def formula(self) -> str:
        ending = f"at most {self.max_rounds} rounds, then {self.on_exhausted}; surplus: {self.surplus}"
        return f"groups with 0 < #correct < G, {ending}"


Selection = KeepAll | DropUniformGroups
