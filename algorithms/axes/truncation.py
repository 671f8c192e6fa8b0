"""Truncation: what becomes of completions that the budget cut."""

from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.knobs import knobs


@knobs
class KeepTruncated:
    """Truncated completions are trained on like the others."""

    in_baseline: ClassVar[bool] = True

    def trained(self, rollout: Rollout) -> Bool[Tensor, "batch"]:
        """Rows that take part in the loss."""
        return rollout.mask.new_ones(len(rollout.mask))

    def formula(self) -> str:
        return "truncated completions are trained on"


@knobs
class MaskTruncated:
    """Overlong filtering: truncated completions leave the loss, numerator and denominator (DAPO, section 3.4)."""

    in_baseline: bool = True
    """Whether their rewards still enter the statistics that advantages are made of, as in TRL."""

    def trained(self, rollout: Rollout) -> Bool[Tensor, "batch"]:
        """Rows that take part in the loss."""
        return rollout.terminated

    def formula(self) -> str:
        baseline = "their rewards stay in the baseline" if self.in_baseline else "they leave the baseline too"
        return f"truncated completions leave the loss, {baseline}"


Truncation = KeepTruncated | MaskTruncated
