"""Focus: which tokens of a completion the surrogate is taken of."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.knobs import knobs


@knobs
class AllTokens:
    """Every token of every completion."""

    needs_entropy: ClassVar[bool] = False
    count_dropped: ClassVar[bool] = True

    def __call__(self, rollout: Rollout, mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens"] | None:
        return None

    def formula(self) -> str:
        return "all tokens"


@knobs
class TopEntropyTokens:
    """The share of the rollout's tokens with the highest entropy (2506.01939: a fifth of the tokens does the learning).

    Entropies are the sampling policy's, and the threshold is taken once over the whole rollout, so neither the split
    into microbatches nor the order of updates changes which tokens count.
    """

    needs_entropy: ClassVar[bool] = True
    share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of tokens that is kept."""
    count_dropped: bool = False
    """Whether the other tokens still count in the denominators, as in TRL; in the paper's Eq. 6 they do not, and leave
    the whole loss, a penalty in it too."""

    def __call__(self, rollout: Rollout, mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens"] | None:
        """1 for tokens at or above the threshold, ties included, 0 for the others."""
        assert rollout.entropy is not None, "the choice of tokens reads entropies"
        if not bool(mask.any()):
            return torch.zeros_like(rollout.entropy)
        ordered = rollout.entropy[mask].sort(descending=True).values
        kept = max(1, round(self.share * len(ordered)))
        return (mask & (rollout.entropy >= ordered[kept - 1])).to(rollout.entropy.dtype)

    def formula(self) -> str:
        counted = "all" if self.count_dropped else "these"
        return f"the {100 * self.share:g} % of the rollout's tokens with the highest entropy; Z counts {counted}"


Focus = AllTokens | TopEntropyTokens
