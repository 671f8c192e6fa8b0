"""Our presets behind the adapter: each objective's own code, as the training loop calls it."""

from collections.abc import Callable

import torch
from torch import Tensor

from algorithms.axes.batch import Batch, PairBatch, PairTotals, Rollout, Totals, group_tokens
from algorithms.axes.imitation import Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from algorithms.axes.returns import generalised_advantage
from algorithms.axes.shaping import SoftOverlong
from bench import catalog
from bench.conformance.adapter import Implementation, resolve_claims
from bench.conformance.step import PairStep, Step, accumulate


def ours(name: str) -> Implementation:
    """One preset, claiming to be itself."""
    objective = catalog.load_preset(name).objective
    claims, claimed = resolve_claims(name)
    if isinstance(objective, Preference):
        return Implementation(
            name=name, claims=claims, claimed=claimed, own=True, loss=lambda step: _pair_loss(objective, step)
        )
    online = objective if isinstance(objective, PolicyGradient) else None
    shaping = online.shaping if online else None
    return Implementation(
        name=name,
        claims=claims,
        claimed=claimed,
        own=True,
        loss=lambda step: _loss(objective, step),
        advantages=online and (lambda reward, group: online.credit(_rollout(reward, group)).advantage[:, 0]),
        trained=online and (lambda reward, group, ended: online.credit(_rollout(reward, group, ended)).mask[:, 0]),
        gae=generalised_advantage if online and online.needs.critic else None,
        overlong=_penalty(shaping) if isinstance(shaping, SoftOverlong) else None,
    )


def _loss(objective: PolicyGradient | Imitation, step: Step) -> Tensor:
    microbatches = sum(len(rank) for rank in step.ranks)
    totals = Totals.of(step.mask, step.group, step.completion_budget, num_microbatches=microbatches)
    of_group = dict(zip(step.group.tolist(), group_tokens(step.mask, step.group).tolist(), strict=True))

    def part(rows: Step) -> Tensor:
        batch = Batch(
            logp=rows.logp,
            old_logp=rows.old_logp,
            ref_logp=rows.ref_logp,
            advantage=rows.advantage,
            mask=rows.mask,
            group_tokens=torch.tensor([of_group[group] for group in rows.group.tolist()], dtype=torch.float64),
        )
        # Denominators are global, so that the average over processes must not divide once more.
        return objective.loss(batch, totals).loss * len(step.ranks)

    return accumulate(step, part)


def _pair_loss(objective: Preference, step: PairStep) -> Tensor:
    totals = PairTotals(num_pairs=len(step.chosen_mask), num_chosen_tokens=int(step.chosen_mask.sum()))

    def summed(logp: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, logp, 0.0).sum(dim=1)

    def part(rows: PairStep) -> Tensor:
        batch = PairBatch(
            chosen_logp=summed(rows.chosen_logp, rows.chosen_mask),
            rejected_logp=summed(rows.rejected_logp, rows.rejected_mask),
            ref_chosen_logp=summed(rows.ref_chosen_logp, rows.chosen_mask),
            ref_rejected_logp=summed(rows.ref_rejected_logp, rows.rejected_mask),
            chosen_length=rows.chosen_mask.sum(dim=1).double(),
            rejected_length=rows.rejected_mask.sum(dim=1).double(),
        )
        return objective.loss(batch, totals).loss * len(step.ranks)

    return accumulate(step, part)


def _rollout(reward: Tensor, group: Tensor, terminated: Tensor | None = None) -> Rollout:
    """Completions of one token that the reference finds as likely as the policy, and that the critic values at 0."""
    zeros = torch.zeros((len(reward), 1), dtype=torch.float64)
    return Rollout(
        reward=reward.double(),
        group=group,
        mask=torch.ones_like(zeros, dtype=torch.bool),
        terminated=torch.ones(len(reward), dtype=torch.bool) if terminated is None else terminated,
        old_logp=zeros,
        ref_logp=zeros,
        value=zeros,
        completion_budget=10,
        correct=torch.where(reward.isfinite(), (reward == 1).double(), torch.nan),
        next_value=zeros[:, 0],
    )


def _penalty(shaping: SoftOverlong) -> Callable[[int, int, int], float]:
    def overlong(length: int, budget: int, buffer: int) -> float:
        assert buffer == round(shaping.buffer * budget), "the buffer is a share of the budget"
        return float(shaping.penalty(torch.tensor([length], dtype=torch.float64), budget))

    return overlong
