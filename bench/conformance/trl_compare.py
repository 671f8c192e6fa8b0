"""One case, twice: from rewards to the gradient of a whole optimizer step, by TRL's code and by our composition."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.conformance.own_losses import own_credit, own_loss, own_pair_loss
from bench.conformance.trl_dpo import DpoSettings, Pairs, dpo_loss, example_pairs
from bench.conformance.trl_grpo import GrpoSettings, grpo_advantages, grpo_loss
from bench.conformance.trl_mapping import dpo_objective, grpo_objective, rloo_objective
from bench.conformance.trl_rloo import RlooSettings, rloo_advantages, rloo_loss
from bench.conformance.trl_step import Graded, LossResult, even_split, example_logp, example_rollout

Settings = GrpoSettings | RlooSettings | DpoSettings


@dataclass(frozen=True, kw_only=True)
class Online:
    """A graded rollout and the policy that is updated on it."""

    rollout: Graded
    logp: Tensor
    """(rows, tokens)."""


Inputs = Online | Pairs


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What both sides must agree on."""

    loss: LossResult
    advantages: Tensor | None = None
    """(rows,); None where the family has none."""
    trained: Tensor | None = None
    """(rows,) bool: completions with a token in the loss; None where the family leaves none out."""


def example_inputs(name: str, settings: Settings, seed: int = 0) -> Inputs:
    """The tensors of a case.

    Args:
        name: `plain`, `near` (an old policy close to the present one), or `unscorable` (some rewards are missing, all
            of them for rows 1 and 3).
        settings: of which family.
        seed: of the random numbers, in torch's default dtype.
    """
    if isinstance(settings, DpoSettings):
        return example_pairs(seed)
    rollout = example_rollout(seed, drift_scale=0.2 if name == "near" else 1.0)
    if name == "unscorable":
        rollout.rewards[1] = torch.nan
        rollout.rewards[3] = torch.nan
        rollout.rewards[4, 1] = torch.nan
    return Online(rollout=rollout, logp=example_logp(seed))


def trl_outcome(inputs: Inputs, settings: Settings, num_microbatches: int = 1) -> Outcome:
    """The case by TRL's own code."""
    if isinstance(settings, DpoSettings):
        assert isinstance(inputs, Pairs)
        parts = even_split(len(inputs.chosen_logp), num_microbatches)
        return Outcome(loss=dpo_loss(inputs, settings, parts))
    assert isinstance(inputs, Online)
    rollout, parts = inputs.rollout, even_split(len(inputs.logp), num_microbatches)
    if isinstance(settings, RlooSettings):
        scored = rloo_advantages(rollout, settings)
        loss = rloo_loss(rollout.step(inputs.logp, scored.advantages, scored.mask, None), settings, parts)
    else:
        scored = grpo_advantages(rollout, settings)
        step = rollout.step(inputs.logp, scored.advantages, scored.mask, scored.importance_sampling_ratio)
        loss = grpo_loss(step, settings, parts)
    return Outcome(loss=loss, advantages=scored.advantages, trained=scored.mask.any(dim=1))


def own_outcome(inputs: Inputs, settings: Settings, num_microbatches: int = 1) -> Outcome:
    """The case by our composition for the same settings."""
    if isinstance(settings, DpoSettings):
        assert isinstance(inputs, Pairs)
        parts = even_split(len(inputs.chosen_logp), num_microbatches)
        return Outcome(loss=own_pair_loss(dpo_objective(settings), inputs, parts))
    assert isinstance(inputs, Online)
    rollout, parts = inputs.rollout, even_split(len(inputs.logp), num_microbatches)
    rloo = isinstance(settings, RlooSettings)
    objective = rloo_objective(settings) if rloo else grpo_objective(settings)
    budget = inputs.logp.shape[1] if rloo else settings.max_completion_length
    credit = own_credit(objective, rollout, budget)
    advantages = credit.advantage[:, 0]
    step = rollout.step(inputs.logp, advantages, credit.mask, credit.weight)
    loss = own_loss(objective, step, budget, parts)
    return Outcome(loss=loss, advantages=advantages, trained=credit.mask.any(dim=1))


def differences(own: Outcome, reference: Outcome) -> dict[str, float]:
    """Largest absolute difference of the loss, its gradients and the advantages, and rows that only one side trains.

    Advantages are compared where we train on the completion: one that left the loss has an idle advantage in TRL.
    """
    found = {
        "value": abs(own.loss.value - reference.loss.value),
        "gradient": _largest(own.loss.gradient - reference.loss.gradient),
    }
    if own.advantages is not None and own.trained is not None:
        assert reference.advantages is not None
        assert reference.trained is not None
        found["advantages"] = _largest((own.advantages - reference.advantages)[own.trained])
        found["trained"] = float((own.trained != reference.trained).sum())
    if own.loss.entropy_gradient is not None:
        assert reference.loss.entropy_gradient is not None
        found["entropy_gradient"] = _largest(own.loss.entropy_gradient - reference.loss.entropy_gradient)
    return found


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())
