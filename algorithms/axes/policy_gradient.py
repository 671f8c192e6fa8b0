"""The policy-gradient family: axes composed into credit for a rollout and a loss for a microbatch."""

from typing import Annotated

import torch
from pydantic import Field, model_validator

from algorithms.axes.advantage import Advantage
from algorithms.axes.batch import Batch, Credit, LossParts, Rollout, Totals
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked, masked_mean
from algorithms.axes.needs import Needs
from algorithms.axes.penalty import Penalty, kl_estimate
from algorithms.axes.reduction import Reduction
from algorithms.axes.selection import DropUniformGroups, Selection
from algorithms.axes.shaping import Shaping
from algorithms.axes.surrogate import Surrogate, importance_ratio
from algorithms.axes.value import NoCritic, Value

_tagged = Field(discriminator="kind")


@knobs
class PolicyGradient:
    """sum_i w_i sum_t [ surrogate(ratio, advantage) + penalty ] / Z, with every part an axis."""

    shaping: Annotated[Shaping, _tagged]
    """What is added to a completion's reward."""
    selection: Annotated[Selection, _tagged]
    """Which groups are trained on."""
    advantage: Annotated[Advantage, _tagged]
    """How a reward becomes the weight of each token."""
    surrogate: Surrogate
    """The loss of a token, given its ratio and its advantage."""
    penalty: Annotated[Penalty, _tagged]
    """Whether and where divergence from the reference is charged."""
    reduction: Annotated[Reduction, _tagged]
    """How the losses of tokens become one number."""
    value: Annotated[Value, _tagged]
    """How a critic is fitted, where there is one."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "PolicyGradient":
        has_critic = not isinstance(self.value, NoCritic)
        if self.advantage.needs_critic and not has_critic:
            raise ValueError("this advantage reads a critic: give value.kind=value_loss")
        if has_critic and not self.advantage.needs_critic:
            raise ValueError("no component reads the critic: give value.kind=no_critic or advantage.kind=gae")
        if self.penalty.needs_token_credit and not self.advantage.needs_critic:
            raise ValueError(
                "a KL penalty in the reward is per token, a group baseline is per completion: give penalty.kind=loss_kl"
            )
        return self

    @property
    def needs(self) -> Needs:
        """What the run must provide, derived from the components."""
        return Needs(
            critic=self.advantage.needs_critic,
            reference=self.penalty.needs_reference,
            groups=self.advantage.needs_groups or isinstance(self.selection, DropUniformGroups),
        )

    def credit(self, rollout: Rollout) -> Credit:
        """Advantages (and returns for the critic) of a whole rollout; taken once, before its optimizer steps."""
        reward = self.shaping(rollout)
        token_reward = self.penalty.token_reward(rollout.old_logp, rollout.ref_logp)
        return self.advantage(reward, token_reward, rollout)

    def loss(self, batch: Batch, totals: Totals) -> LossParts:
        """A microbatch's share of the step's loss; the gradient flows through `batch.logp` alone."""
        logp, old_logp = masked(batch.logp, batch.mask), masked(batch.old_logp.detach(), batch.mask)
        advantage = masked(batch.advantage.detach(), batch.mask)
        ref_logp = None if batch.ref_logp is None else masked(batch.ref_logp.detach(), batch.mask)
        ratio = importance_ratio(logp, old_logp)
        per_token = self.surrogate(ratio, advantage)
        penalty = self.penalty.token_loss(logp, ref_logp)
        if penalty is not None:
            per_token = per_token + penalty
        loss = self.reduction(per_token, batch, totals)
        with torch.no_grad():
            means = self.surrogate.metrics(ratio, advantage, batch.mask)
            means["ratio/mean"] = masked_mean(ratio, batch.mask)
            for estimator in ("k1", "k3"):
                means[f"kl/old_{estimator}"] = masked_mean(kl_estimate(old_logp, logp, estimator), batch.mask)
            highest = {"ratio/max": masked(ratio, batch.mask).max()}
        return LossParts(loss=loss, means=means, maxima=highest)

    def formula(self) -> dict[str, str]:
        """The formula in force, one line an axis."""
        axes = ("shaping", "selection", "advantage", "surrogate", "penalty", "reduction", "value")
        return {axis: getattr(self, axis).formula() for axis in axes}
