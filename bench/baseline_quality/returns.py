"""Returns as an objective defines them: what its critic is fitted to, and what its baseline is subtracted from."""

from dataclasses import replace

import torch
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.masked import masked
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.returns import GAE, LengthAdaptiveGAE, Returns, WhitenedReturns


def discount(objective: PolicyGradient) -> float:
    """Gamma; 1 for advantages of whole completions."""
    advantage = objective.advantage
    discounted = isinstance(advantage, GAE | LengthAdaptiveGAE | Returns | WhitenedReturns)
    return advantage.gamma if discounted else 1.0


def rewards(objective: PolicyGradient, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """The shaped reward of each completion (float64) and of each token, with a penalty where the objective charges it
    in the reward; as `PolicyGradient.credit` takes them, before any completion is left out."""
    reward, token_reward = objective.shaping(rollout), objective.penalty.token_reward(rollout)
    if objective.penalty.per_completion:
        reward = reward + masked(token_reward, rollout.mask).double().sum(dim=1)
        token_reward = torch.zeros_like(token_reward)
    return reward, token_reward


def returns_to_go(objective: PolicyGradient, rollout: Rollout) -> Tensor:
    """float64 (rows, tokens): the discounted rewards from each token on; NaN in rows that could not be scored."""
    reward, token_reward = rewards(objective, rollout)
    exact = replace(rollout, old_logp=rollout.old_logp.double())
    to_go = Returns(gamma=discount(objective))(reward, token_reward, exact).advantage
    return to_go.masked_fill(~rollout.scorable[:, None], torch.nan)


def critic_advantage(objective: PolicyGradient, rollout: Rollout) -> Tensor | None:
    """The critic's advantages of each token before whitening; None where the objective makes none."""
    advantage = objective.advantage
    if not isinstance(advantage, GAE | LengthAdaptiveGAE):
        return None
    return replace(advantage, whiten=False)(*rewards(objective, rollout), rollout).advantage
