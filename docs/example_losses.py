"""Two losses for the conformance kit: a token mean, and the same with a mean of means over microbatches."""

import torch
from torch import Tensor

from bench.conformance.step import Step, accumulate

claims = "grpo_trl"  # clip 0.2, mean over the step's tokens, group-standardised advantages


def token_mean(step: Step) -> Tensor:
    """Every microbatch is divided by the tokens of the whole step."""
    tokens = step.mask.sum()
    # Processes are averaged afterwards, so each one's share is multiplied by their number.
    return accumulate(step, lambda rows: _clipped(rows).sum() * len(step.ranks) / tokens)


def mean_of_means(step: Step) -> Tensor:
    """The bug: each microbatch is divided by its own tokens, and the sum by the number of microbatches."""
    microbatches = len(step.ranks[0])
    return accumulate(step, lambda rows: _clipped(rows).sum() / rows.mask.sum().clamp(min=1) / microbatches)


def advantages(reward: Tensor, group: Tensor) -> Tensor:
    """Optional: from rewards (rows,) and groups (rows,) to advantages (rows,)."""
    score = torch.zeros_like(reward)
    for own in group.unique():
        known = (group == own) & reward.isfinite()
        if known.any() and reward[known].max() > reward[known].min():
            score[known] = (reward[known] - reward[known].mean()) / (reward[known].std() + 1e-4)
    return score


def _clipped(rows: Step) -> Tensor:
    """Per-token loss; what stands in padding is replaced before it is used, so that it cannot reach a gradient."""
    ratio = (rows.logp - rows.old_logp).where(rows.mask, 0.0).exp()
    advantage = rows.advantage.where(rows.mask, 0.0)
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
