"""One optimizer step as the kit hands it to a loss: rows of tokens or pairs, cut into microbatches and ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor

Ranks = tuple[tuple[tuple[int, ...], ...], ...]
"""For each process, for each of its microbatches, the rows of that microbatch."""


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """What both kinds of step share: tensors whose first dimension is the row."""

    LEAVES: ClassVar[tuple[str, ...]]
    MASKS: ClassVar[tuple[str, ...]]
    """The mask that belongs to each leaf, in the same order."""
    ranks: Ranks
    """Rows of each microbatch of each process. One process and one microbatch in the simplest case. Each process adds
    up the gradients of its microbatches; the processes' sums are averaged, as DDP and FSDP do."""

    def tensors(self) -> dict[str, Tensor]:
        """The step's tensors by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The step with every tensor changed."""
        return replace(self, **{name: change(value) for name, value in self.tensors().items()})

    def rows(self, index: Sequence[int]) -> Self:
        """Some of the rows, as one microbatch of one process."""
        picked = self.map(lambda values: values[list(index)])
        return replace(picked, ranks=((tuple(range(len(index))),),))

    def split(self, *ranks: Sequence[Sequence[int]]) -> Self:
        """The same step, cut into these microbatches of these processes."""
        return replace(self, ranks=tuple(tuple(tuple(rows) for rows in rank) for rank in ranks))

    def padded(self, width: int, filler: float = 0.0) -> Self:
        """The step with `width` more masked columns that hold `filler`."""

        def pad(values: Tensor) -> Tensor:
            if values.dim() == 1:
                return values
            columns = torch.full((len(values), width), filler).to(values.dtype)
            return torch.cat([values, torch.zeros_like(columns) if values.dtype == torch.bool else columns], dim=1)

        return self.map(pad)

    @property
    def used(self) -> Tensor:
        """The masks of the leaves side by side: bool, like the gradient that `evaluate` gives."""
        return torch.cat([getattr(self, name) for name in self.MASKS], dim=1)


@dataclass(frozen=True, kw_only=True)
class Step(_Rows):
    """A whole optimizer step of an online method. Shapes: `rows` completions, `tokens` positions, right-padded."""

    LEAVES: ClassVar[tuple[str, ...]] = ("logp",)
    MASKS: ClassVar[tuple[str, ...]] = ("mask",)
    logp: Tensor
    """(rows, tokens) float64: the policy's log-probabilities; the one tensor that requires a gradient."""
    old_logp: Tensor
    """(rows, tokens): those of the policy that sampled the rollout."""
    ref_logp: Tensor
    """(rows, tokens): those of the reference, for objectives with a KL term in the loss."""
    advantage: Tensor
    """(rows, tokens): already made from rewards; the same for all tokens of a completion unless a critic is claimed."""
    mask: Tensor
    """(rows, tokens) bool: tokens that take part in the loss. A completion that left the loss has none."""
    reward: Tensor
    """(rows,) float64: NaN where a completion could not be scored. Such a completion has no token under the mask."""
    group: Tensor
    """(rows,) int64: completions of one prompt share it, wherever their rows stand."""
    terminated: Tensor
    """(rows,) bool: False where the budget cut the completion."""
    completion_budget: int
    """Most tokens that a completion may have: Dr. GRPO's constant. Not the padded width."""


@dataclass(frozen=True, kw_only=True)
class PairStep(_Rows):
    """A whole optimizer step on preference pairs. Shapes: `rows` pairs, `tokens` positions of either side."""

    LEAVES: ClassVar[tuple[str, ...]] = ("chosen_logp", "rejected_logp")
    MASKS: ClassVar[tuple[str, ...]] = ("chosen_mask", "rejected_mask")
    chosen_logp: Tensor
    """(rows, tokens) float64, requires a gradient; per token, not summed."""
    rejected_logp: Tensor
    """(rows, tokens) float64, requires a gradient."""
    ref_chosen_logp: Tensor
    ref_rejected_logp: Tensor
    chosen_mask: Tensor
    """(rows, tokens) bool."""
    rejected_mask: Tensor
    """(rows, tokens) bool."""


@dataclass(frozen=True)
class Outcome:
    """Value and gradient of a whole step."""

    value: float
    gradient: Tensor
    """Like the leaves side by side: (rows, tokens), or (rows, 2 x tokens) for pairs."""


AnyStep = Step | PairStep
S = TypeVar("S", Step, PairStep)


def accumulate(step: S, part: Callable[[S], Tensor]) -> Tensor:
    """The loss that the optimizer sees: sums over each process's microbatches, averaged over processes.

    Args:
        step: the whole step.
        part: from a microbatch's rows to the number that the trainer calls `backward` on.
    """
    sums = [torch.stack([part(step.rows(rows)) for rows in rank]).sum() for rank in step.ranks]
    return torch.stack(sums).mean()
