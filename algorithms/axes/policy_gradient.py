"""The policy-gradient family: axes composed into credit for a rollout and a loss for a microbatch."""

from typing import Annotated

import torch
from pydantic import Field, model_validator

from algorithms.axes.advantage import Advantage
from algorithms.axes.batch import Batch, Credit, LossParts, Rollout, Totals
from algorithms.axes.bonus import Bonus, NoBonus
from algorithms.axes.fitting import mistakes
from algorithms.axes.focus import AllTokens, Focus
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked
from algorithms.axes.mismatch import Mismatch, NoCorrection
from algorithms.axes.needs import Needs
from algorithms.axes.penalty import Penalty
from algorithms.axes.ratio import Ratio, TokenRatio
from algorithms.axes.reduction import Reduction
from algorithms.axes.returns import GAE, LengthAdaptiveGAE
from algorithms.axes.selection import Selection
from algorithms.axes.shaping import Shaping
from algorithms.axes.step_metrics import movement
from algorithms.axes.surrogate import Surrogate
from algorithms.axes.truncation import KeepTruncated, Truncation
from algorithms.axes.value import Value

_tagged = Field(discriminator="kind")
AXES = (
    "shaping",
    "selection",
    "truncation",
    "advantage",
    "ratio",
    "surrogate",
    "focus",
    "mismatch",
    "penalty",
    "reduction",
    "bonus",
    "value",
)


@knobs
class PolicyGradient:
    """sum_i w_i sum_t [ u_it surrogate(ratio, advantage) + penalty ] / Z - bonus, with every part an axis.

    Axes with a default are off unless a preset names them.
    """

    shaping: Annotated[Shaping, _tagged]
    """What is added to a completion's reward."""
    selection: Annotated[Selection, _tagged]
    """Which groups are trained on."""
    truncation: Annotated[Truncation, _tagged] = KeepTruncated()
    """What becomes of completions that the budget cut."""
    advantage: Annotated[Advantage, _tagged]
    """How a reward becomes the weight of each token."""
    ratio: Annotated[Ratio, _tagged] = TokenRatio()
    """How far the policy has moved since the rollout: per token or per completion."""
    surrogate: Annotated[Surrogate, _tagged]
    """The loss of a token, given its ratio and its advantage."""
    focus: Annotated[Focus, _tagged] = AllTokens()
    """Which tokens the surrogate is taken of."""
    mismatch: Annotated[Mismatch, _tagged] = NoCorrection()
    """How the gap between sampling engine and trainer is weighed."""
    penalty: Annotated[Penalty, _tagged]
    """Whether and where divergence from the reference is charged."""
    reduction: Annotated[Reduction, _tagged]
    """How the losses of tokens become one number."""
    bonus: Annotated[Bonus, _tagged] = NoBonus()
    """Whether entropy is rewarded."""
    value: Annotated[Value, _tagged]
    """How a critic is fitted, where there is one."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "PolicyGradient":
        found = mistakes(self)
        if found:
            raise ValueError("; ".join(found))
        return self

    @property
    def needs(self) -> Needs:
        """What the run must provide, derived from the components."""
        advantage = self.advantage
        with_critic = isinstance(advantage, GAE | LengthAdaptiveGAE)
        return Needs(
            critic=advantage.needs_critic,
            reference=self.penalty.needs_reference,
            groups=advantage.needs_groups or self.selection.needs_groups,
            old_logp=self.penalty.in_reward or self.mismatch.needs_old_logp or self.focus.needs_entropy,
            entropy=self.focus.needs_entropy,
            entropy_gradient=self.bonus.needs_entropy_gradient,
            next_value=with_critic and advantage.truncation_bootstrap,
            reward=advantage.reads_reward,
            one_update=not self.ratio.is_ratio,
        )

    def credit(self, rollout: Rollout) -> Credit:
        """Advantages (and returns for the critic) of a whole rollout; taken once, before its optimizer steps."""
        reward, token_reward = self.shaping(rollout), self.penalty.token_reward(rollout)
        if self.penalty.per_completion:
            reward = reward + masked(token_reward, rollout.mask).double().sum(dim=1)
            token_reward = torch.zeros_like(token_reward)
        trained = self.truncation.trained(rollout)
        unknown = torch.full_like(reward, torch.nan)
        seen = reward if self.truncation.in_baseline else torch.where(trained, reward, unknown)
        credit = self.advantage(seen, token_reward, rollout)
        mask = credit.mask & trained[:, None]
        focus, weight = self.focus(rollout, mask), self.mismatch(rollout)
        if focus is not None and not self.focus.count_dropped:
            mask, focus = mask & (focus == 1), None
        if focus is not None:
            weight = focus if weight is None else focus * weight
        advantage = masked(credit.advantage, mask)
        return Credit(
            advantage=advantage,
            returns=credit.returns,
            mask=mask,
            reward=reward,
            weight=weight,
            monte_carlo=credit.monte_carlo,
        )

    def loss(self, batch: Batch, totals: Totals) -> LossParts:
        """A microbatch's share of the step's loss; the gradient flows through `batch.logp` (and `batch.entropy`)."""
        logp, old_logp = masked(batch.logp, batch.mask), masked(batch.old_logp.detach(), batch.mask)
        advantage = masked(batch.advantage.detach(), batch.mask)
        ref_logp = None if batch.ref_logp is None else masked(batch.ref_logp.detach(), batch.mask)
        ratio = self.ratio(logp, old_logp, batch.mask)
        per_token = self.surrogate(ratio, advantage, logp)
        if batch.weight is not None:
            per_token = per_token * masked(batch.weight.detach(), batch.mask)
        penalty = self.penalty.token_loss(logp, ref_logp, ratio)
        if penalty is not None:
            per_token = per_token + penalty
        loss, bonus = self.reduction(per_token, batch, totals), self.bonus(batch, totals)
        with torch.no_grad():
            means = self.surrogate.metrics(ratio, advantage, batch.mask) | movement(ratio, logp, old_logp, batch.mask)
            highest = {"ratio/max": masked(ratio, batch.mask).max()}
        return LossParts(loss=loss if bonus is None else loss + bonus, means=means, maxima=highest)

    def formula(self) -> dict[str, str]:
        """The formula in force, one line an axis."""
        return {axis: getattr(self, axis).formula() for axis in AXES}
