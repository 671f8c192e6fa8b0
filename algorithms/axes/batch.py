"""The tensors that objectives read: what a rollout offers for credit, and what one optimizer step offers for the loss.

Shape legend: `batch` completions (rows), `tokens` completion positions, right-padded; `pairs` preference pairs.
`mask` is True for tokens that the model generated, up to and including its first end-of-sequence token; it is made from
lengths, never from token values. Log-probabilities are natural logarithms of softmax(logits / sampling temperature).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from algorithms.axes.masked import Summed


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Graded completions, before credit is assigned. Nothing here carries a gradient."""

    reward: Float[Tensor, "batch"]
    """The run's whole reward in float64; NaN (or infinite) where a completion could not be scored."""
    group: Int[Tensor, "batch"]
    """Index of the prompt's group; completions of one prompt share it."""
    mask: Bool[Tensor, "batch tokens"]
    terminated: Bool[Tensor, "batch"]
    """True where the completion ended by itself, False where the budget cut it."""
    old_logp: Float[Tensor, "batch tokens"]
    ref_logp: Float[Tensor, "batch tokens"] | None
    value: Float[Tensor, "batch tokens"] | None
    """The critic's estimate for the state before each token."""
    completion_budget: int
    """Largest number of tokens a completion may have."""
    correct: Float[Tensor, "batch"] | None = None
    """The verifier's bit in float64: 1, 0, or NaN where it could not tell."""
    sampler_logp: Float[Tensor, "batch tokens"] | None = None
    """The sampling engine's own log-probabilities; NaN where it gave none."""
    entropy: Float[Tensor, "batch tokens"] | None = None
    """Entropy of the policy's distribution at each token when the rollout was made, in nats."""
    next_value: Float[Tensor, "batch"] | None = None
    """The critic's estimate for the state after the last token."""

    @property
    def scorable(self) -> Bool[Tensor, "batch"]:
        """Completions whose reward is a finite number; the others take part in no statistic and no denominator."""
        return self.reward.isfinite()

    @property
    def length(self) -> Int[Tensor, "batch"]:
        return self.mask.sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class TokenCredit:
    """What an advantage estimator makes of a rollout."""

    advantage: Float[Tensor, "batch tokens"]
    returns: Float[Tensor, "batch tokens"] | None
    """Targets of the critic; None without one."""
    mask: Bool[Tensor, "batch tokens"]
    """The rollout's mask without the rows that the estimator leaves out, such as unscorable ones."""
    monte_carlo: Float[Tensor, "batch tokens"] | None = None
    """Discounted rewards to come, which hold no value of the critic, to judge it by; None without one."""


@dataclass(frozen=True, kw_only=True)
class Credit:
    """What credit assignment gives to the loss."""

    advantage: Float[Tensor, "batch tokens"]
    returns: Float[Tensor, "batch tokens"] | None
    mask: Bool[Tensor, "batch tokens"]
    """Tokens that take part in the loss and in its denominators."""
    reward: Float[Tensor, "batch"]
    """The reward that the baseline saw, in float64: after shaping, and after a penalty charged per completion."""
    weight: Float[Tensor, "batch tokens"] | None
    """Factor on each token's surrogate: rollout mismatch and choice of tokens; None where it is 1 everywhere."""
    monte_carlo: Float[Tensor, "batch tokens"] | None = None
    """Discounted rewards to come, which hold no value of the critic, to judge it by; None without one."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of one microbatch of one optimizer step."""

    logp: Float[Tensor, "batch tokens"]
    """The policy's log-probabilities: the one tensor with a gradient."""
    old_logp: Float[Tensor, "batch tokens"]
    ref_logp: Float[Tensor, "batch tokens"] | None
    advantage: Float[Tensor, "batch tokens"]
    mask: Bool[Tensor, "batch tokens"]
    group_tokens: Float[Tensor, "batch"]
    """Number of tokens that the row's whole group has in this optimizer step."""
    weight: Float[Tensor, "batch tokens"] | None = None
    """Factor on each token's surrogate, without a gradient; None is 1 everywhere."""
    entropy: Float[Tensor, "batch tokens"] | None = None
    """Entropy of the policy's distribution at each token, with its gradient; only an entropy bonus reads it."""


@dataclass(frozen=True, kw_only=True)
class ValueBatch:
    """The critic's side of a microbatch."""

    value: Float[Tensor, "batch tokens"]
    """The critic's estimates: the one tensor with a gradient."""
    old_value: Float[Tensor, "batch tokens"]
    returns: Float[Tensor, "batch tokens"]
    mask: Bool[Tensor, "batch tokens"]


@dataclass(frozen=True, kw_only=True)
class PairBatch:
    """Preference pairs; log-probabilities are summed over the completion's tokens, at temperature 1."""

    chosen_logp: Float[Tensor, "pairs"]
    rejected_logp: Float[Tensor, "pairs"]
    ref_chosen_logp: Float[Tensor, "pairs"]
    ref_rejected_logp: Float[Tensor, "pairs"]
    chosen_length: Float[Tensor, "pairs"]
    """Tokens of the chosen completion."""
    rejected_length: Float[Tensor, "pairs"]


@dataclass(frozen=True, kw_only=True)
class PairTotals:
    """Global counts of one optimizer step on pairs."""

    num_pairs: int
    num_chosen_tokens: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Global counts of one optimizer step, over all its microbatches and processes: the loss's only denominators."""

    num_tokens: int
    num_sequences: int
    """Completions with at least one token in the loss."""
    num_rows: int
    """Completions, those without a token in the loss included."""
    num_groups: int
    num_microbatches: int
    completion_budget: int

    @classmethod
    def of(
        cls,
        mask: Bool[Tensor, "batch tokens"],
        group: Int[Tensor, "batch"],
        completion_budget: int,
        num_microbatches: int = 1,
    ) -> "Totals":
        """Count the rows of a whole optimizer step."""
        used = mask.any(dim=1)
        return cls(
            num_tokens=int(mask.sum()),
            num_sequences=int(used.sum()),
            num_rows=len(mask),
            num_groups=int(group_index(group[used]).max()) + 1 if bool(used.any()) else 0,
            num_microbatches=num_microbatches,
            completion_budget=completion_budget,
        )


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """A microbatch's share of the step's loss, and its metrics in a form that adds up over microbatches."""

    loss: Float[Tensor, ""]
    """Sums to the step's loss over its microbatches: already divided by the step's totals."""
    means: Mapping[str, Summed]
    maxima: Mapping[str, Float[Tensor, ""]]


def group_tokens(mask: Bool[Tensor, "batch tokens"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """For each row, the number of masked-in tokens of its whole group."""
    return group_sum(mask.sum(dim=1).double(), group_index(group))


def group_index(group: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """The groups numbered from 0 without holes, one number a row."""
    return torch.unique(group, return_inverse=True)[1]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def group_sum(values: Float[Tensor, "batch"], index: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """For each row, the sum over the rows of its group; `index` comes from `group_index`."""
    return values.new_zeros(len(values)).index_add(0, index, values)[index]
