"""Reduction: how per-token losses become one number, with denominators that are global to the optimizer step.

Each reduction is sum_i w_i sum_t m_it l_it / Z. Because Z is handed in, a microbatch's result is its exact share of the
step's loss: shares add up, whatever the split.
"""

from jaxtyping import Float
from torch import Tensor

from algorithms.axes.batch import Batch, Totals
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked


def _sums(loss: Float[Tensor, "batch tokens"], batch: Batch) -> Float[Tensor, "batch"]:
    """sum_t m_it l_it of each completion."""
    return masked(loss, batch.mask).sum(dim=1)


def _completions(totals: Totals, count_masked: bool) -> int:
    return max(totals.num_rows if count_masked else totals.num_sequences, 1)


def _counted(count_masked: bool) -> str:
    return "Z = completions in the step" + (", those that left the loss included" if count_masked else "")


@knobs
class SequenceMean:
    """Mean over completions of their token means: w = 1 / L_i, Z = #completions (GRPO; `seq_mean_token_mean`)."""

    count_masked: bool = False
    """Whether completions that left the loss still count in Z, as they do in TRL."""

    def __call__(self, loss: Float[Tensor, "batch tokens"], batch: Batch, totals: Totals) -> Float[Tensor, ""]:
        lengths = batch.mask.sum(dim=1).clamp(min=1)
        return (_sums(loss, batch) / lengths).sum() / _completions(totals, self.count_masked)

    def formula(self) -> str:
        return f"mean over completions of the mean over their tokens; {_counted(self.count_masked)}"


@knobs
class TokenMean:
    """Mean over all tokens of the step: w = 1, Z = #tokens (DAPO as implemented; `token_mean_global`)."""

    def __call__(self, loss: Float[Tensor, "batch tokens"], batch: Batch, totals: Totals) -> Float[Tensor, ""]:
        return _sums(loss, batch).sum() / max(totals.num_tokens, 1)

    def formula(self) -> str:
        return "mean over all tokens; Z = tokens in the step"


@knobs
class GroupTokenMean:
    """Mean over groups of the mean over the group's tokens (DAPO as written, Eq. 8; `token_mean_group`)."""

    def __call__(self, loss: Float[Tensor, "batch tokens"], batch: Batch, totals: Totals) -> Float[Tensor, ""]:
        weighted = _sums(loss, batch) / batch.group_tokens.clamp(min=1).to(loss.dtype)
        return weighted.sum() / max(totals.num_groups, 1)

    def formula(self) -> str:
        return "mean over groups of the mean over their tokens; Z = groups in the step"


@knobs
class ConstantLength:
    """Sum over tokens divided by the completion budget, mean over completions (Dr. GRPO; `const_len`)."""

    count_masked: bool = False
    """Whether completions that left the loss still count in Z, as they do in TRL."""

    def __call__(self, loss: Float[Tensor, "batch tokens"], batch: Batch, totals: Totals) -> Float[Tensor, ""]:
        return _sums(loss, batch).sum() / (totals.completion_budget * _completions(totals, self.count_masked))

    def formula(self) -> str:
        return f"sum over tokens / completion budget, mean over completions; {_counted(self.count_masked)}"


@knobs
class SequenceSum:
    """Mean over completions of the sum over their tokens: w = 1, Z = #completions (`seq_mean_token_sum`)."""

    count_masked: bool = False
    """Whether completions that left the loss still count in Z, as they do in TRL."""

    def __call__(self, loss: Float[Tensor, "batch tokens"], batch: Batch, totals: Totals) -> Float[Tensor, ""]:
        return _sums(loss, batch).sum() / _completions(totals, self.count_masked)

    def formula(self) -> str:
        return f"mean over completions of the sum over their tokens; {_counted(self.count_masked)}"


@knobs
class MicrobatchTokenMean:
    """Mean over microbatches of the mean over their tokens (TRL's `bnpo`; `microbatch_token_mean`).

    The one reduction that the split into microbatches changes: for parity and for showing what that costs.
    """

    def __call__(self, loss: Float[Tensor, "batch tokens"], batch: Batch, totals: Totals) -> Float[Tensor, ""]:
        return _sums(loss, batch).sum() / batch.mask.sum().clamp(min=1) / totals.num_microbatches

    def formula(self) -> str:
        return "mean over microbatches of the mean over their tokens; Z = tokens in the microbatch"


Reduction = SequenceMean | TokenMean | GroupTokenMean | ConstantLength | SequenceSum | MicrobatchTokenMean
