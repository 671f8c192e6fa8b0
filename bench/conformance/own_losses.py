"""Our objectives on the tensors that TRL's losses are given: advantages of a rollout, and the loss of a whole step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from algorithms.axes.batch import Batch, Credit, PairBatch, PairTotals, Rollout, Totals, group_tokens
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from bench.conformance.trl_dpo import Pairs, split_sides
from bench.conformance.trl_step import Graded, LossResult, Microbatches, Step, accumulate


def own_credit(
    objective: PolicyGradient, graded: Graded, completion_budget: int, reward_weights: Tensor | None = None
) -> Credit:
    """Advantages, mask and weights of a rollout whose reward is the weighted sum of its reward functions.

    A completion that no function could score has no reward; one that some could not score has the sum of the others.
    """
    rewards = graded.rewards.double()
    weights = torch.ones(rewards.shape[1]).double() if reward_weights is None else reward_weights.double()
    reward = (rewards * weights).nansum(dim=1)
    reward[rewards.isnan().all(dim=1)] = torch.nan
    rows = len(reward)
    return objective.credit(
        Rollout(
            reward=reward,
            group=torch.arange(rows) // graded.group_size,
            mask=graded.mask,
            terminated=graded.terminated,
            old_logp=graded.old_logp,
            ref_logp=graded.ref_logp,
            value=None,
            completion_budget=completion_budget,
            sampler_logp=graded.sampler_logp,
            entropy=graded.entropy,
        )
    )


def own_loss(
    objective: PolicyGradient, step: Step, completion_budget: int, microbatches: Microbatches | None = None
) -> LossResult:
    """Loss and gradient of one optimizer step: the sum of its microbatches' shares, nothing divided afterwards."""
    parts = [range(len(step.mask))] if microbatches is None else microbatches
    group = torch.arange(len(step.mask)) // step.group_size
    totals = Totals.of(step.mask, group, completion_budget, num_microbatches=len(parts))
    of_group = group_tokens(step.mask, group)

    def part(rows: Step, index: Sequence[int]) -> Tensor:
        batch = Batch(
            logp=rows.logp,
            old_logp=rows.old_logp,
            ref_logp=rows.ref_logp,
            advantage=rows.advantage[:, None].expand(rows.mask.shape),
            mask=rows.mask,
            group_tokens=of_group[list(index)],
            weight=rows.weight,
            entropy=rows.entropy,
        )
        return objective.loss(batch, totals).loss

    return accumulate(part, step, parts)


def own_pair_loss(objective: Preference, pairs: Pairs, microbatches: Microbatches | None = None) -> LossResult:
    """Loss and gradient of one optimizer step on pairs; the gradient's columns are the chosen, then the rejected."""
    parts = [range(len(pairs.chosen_logp))] if microbatches is None else microbatches
    totals = PairTotals(num_pairs=len(pairs.chosen_logp), num_chosen_tokens=int(pairs.chosen_mask.sum()))

    def part(rows: Step, index: Sequence[int]) -> Tensor:
        sides = split_sides(rows)
        batch = PairBatch(
            chosen_logp=(sides.chosen_logp * sides.chosen_mask).sum(dim=1),
            rejected_logp=(sides.rejected_logp * sides.rejected_mask).sum(dim=1),
            ref_chosen_logp=(sides.ref_chosen_logp * sides.chosen_mask).sum(dim=1),
            ref_rejected_logp=(sides.ref_rejected_logp * sides.rejected_mask).sum(dim=1),
            chosen_length=sides.chosen_mask.sum(dim=1).float(),
            rejected_length=sides.rejected_mask.sum(dim=1).float(),
        )
        return objective.loss(batch, totals).loss

    return accumulate(part, pairs.as_step(), parts)
