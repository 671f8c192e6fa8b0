"""The tensors of one optimizer step and of one graded rollout, in the form in which TRL's losses and ours are compared.

Shapes: `rows` completions, `tokens` positions, right-padded. Rows of one group are neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import cast

import torch
from torch import Tensor

Microbatches = Sequence[Sequence[int]]
"""Row indices of each microbatch of a step."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything that the loss of one optimizer step reads."""

    logp: Tensor
    """(rows, tokens): the policy's log-probabilities, which gradients are taken for."""
    old_logp: Tensor
    """(rows, tokens)."""
    ref_logp: Tensor | None = None
    """(rows, tokens)."""
    advantage: Tensor
    """(rows,)."""
    mask: Tensor
    """(rows, tokens) bool."""
    weight: Tensor | None = None
    """(rows, tokens): correction of the sampler's mismatch, a factor on the surrogate."""
    entropy: Tensor | None = None
    """(rows, tokens): entropy of the policy, in nats; gradients are taken for it too where a bonus reads it."""
    group_size: int

    def rows(self, index: Sequence[int]) -> "Step":
        """The step cut down to some of its rows."""
        tensors = {name: value[list(index)] for name, value in self.tensors().items()}
        return replace(self, **tensors)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A rollout with its rewards, before advantages are taken."""

    rewards: Tensor
    """(rows, functions): what each reward function said; NaN where it said nothing."""
    group_size: int
    mask: Tensor
    """(rows, tokens) bool: a prefix of each row; the longest row fills the width."""
    terminated: Tensor
    """(rows,) bool: the completion ended with an end-of-sequence token."""
    old_logp: Tensor
    """(rows, tokens)."""
    ref_logp: Tensor | None = None
    """(rows, tokens)."""
    sampler_logp: Tensor | None = None
    """(rows, tokens): the sampling engine's log-probabilities, NaN where it gave none."""
    entropy: Tensor | None = None
    """(rows, tokens): entropy of the policy, in nats, the same before and after the update."""

    def step(self, logp: Tensor, advantage: Tensor, mask: Tensor, weight: Tensor | None) -> Step:
        """One optimizer step on the whole rollout, with the advantages that were made of it."""
        return Step(
            logp=logp,
            old_logp=self.old_logp,
            ref_logp=self.ref_logp,
            advantage=advantage,
            mask=mask,
            weight=weight,
            entropy=self.entropy,
            group_size=self.group_size,
        )


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """The loss of a whole optimizer step, as its backward passes add it up."""

    value: float
    gradient: Tensor
    """(rows, tokens): with respect to the log-probabilities."""
    entropy_gradient: Tensor | None = None
    """(rows, tokens): with respect to the entropies; None where the loss does not read them."""


def even_split(rows: int, parts: int) -> Microbatches:
    """Neighbouring rows in `parts` microbatches of one size."""
    assert rows % parts == 0, "TRL's microbatches are of one size"
    size = rows // parts
    return [list(range(start, start + size)) for start in range(0, rows, size)]


def accumulate(part: Callable[[Step, Sequence[int]], Tensor], step: Step, microbatches: Microbatches) -> LossResult:
    """Sum `part`, the loss of a microbatch (its rows and their indices) as backpropagated, and differentiate it."""
    logp = step.logp.detach().clone().requires_grad_()
    entropy = None if step.entropy is None else step.entropy.detach().clone().requires_grad_()
    leaves = replace(step, logp=logp, entropy=entropy)
    total = torch.stack([part(leaves.rows(index), index) for index in microbatches]).sum()
    inputs = [logp] if entropy is None else [logp, entropy]
    found = cast(tuple[Tensor | None, ...], torch.autograd.grad(total, inputs, allow_unused=True))
    gradient = torch.zeros_like(logp) if found[0] is None else found[0]
    return LossResult(value=total.item(), gradient=gradient, entropy_gradient=found[1] if len(found) > 1 else None)


def example_mask(lengths: Sequence[int]) -> Tensor:
    """True for the first `length` tokens of each row."""
    return torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]


def example_logp(seed: int = 0) -> Tensor:
    """(6, 7): the policy's log-probabilities of the tokens of `example_rollout`."""
    return -1.5 + 0.5 * torch.randn((6, 7), generator=torch.Generator().manual_seed(seed))


def example_rollout(seed: int = 0, drift_scale: float = 1.0) -> Graded:
    """Six completions in two groups, far enough from the present policy that every bound of every surrogate acts.

    Row 4 is punished and its ratios are around 5, so that a cap at 4 is seen, per token and per completion. With a
    product over tokens such ratios leave float32's useful range: `drift_scale` brings the old policy nearer. Rows 2 and
    4 are truncated, the sampling engine has drifted, and it gave no log-probability for one token.
    """
    generator = torch.Generator().manual_seed(seed + 1)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn((6, 7), generator=generator)

    logp = example_logp(seed)
    old_logp = logp - drift_scale * (torch.tensor([-0.6, 0.05, 0.3, -0.4, 1.7, 0.8])[:, None] + noise(0.5))
    sampler_logp = old_logp - torch.tensor([-0.05, 0.1, 0.6, -0.05, -0.3, -0.1])[:, None] - noise(0.3)
    sampler_logp[3, 2] = torch.nan
    return Graded(
        rewards=torch.tensor([[1.0, 0.2], [0.0, 0.1], [0.0, 0.7], [1.0, -0.9], [0.0, -0.3], [1.0, 0.4]]),
        group_size=3,
        mask=example_mask((3, 5, 1, 7, 4, 6)),
        terminated=torch.tensor([True, True, False, True, False, True]),
        old_logp=old_logp,
        ref_logp=logp + noise(0.5),
        sampler_logp=sampler_logp,
        entropy=noise(1.0).abs() + 0.1,
    )
