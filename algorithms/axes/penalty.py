"""Penalty: whether, where and with which estimator the KL divergence to the reference is charged."""

from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.knobs import knobs

Estimator = Literal["k1", "k2", "k3"]
Weight = Literal["none", "ratio", "detached_ratio"]


def kl_estimate(
    logp: Float[Tensor, "*shape"], ref_logp: Float[Tensor, "*shape"], estimator: Estimator
) -> Float[Tensor, "*shape"]:
    """Per-token estimate of KL(pi || reference) from samples of pi, with d = logp - ref_logp.

    k1 = d (unbiased, may be negative), k2 = d^2 / 2, k3 = exp(-d) + d - 1 (unbiased, never negative).
    Source: Schulman, "Approximating KL divergence", 2020.
    """
    difference = logp - ref_logp
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    # Held from e^20 on, so that one token far outside the reference cannot overflow; its gradient is 0 there.
    held = difference.clamp(min=-20)
    return torch.expm1(-held) + held


@knobs
class NoPenalty:
    """No KL term: no reference model is loaded."""

    needs_reference: ClassVar[bool] = False
    in_reward: ClassVar[bool] = False
    per_completion: ClassVar[bool] = False
    weight: ClassVar[Weight] = "none"

    def token_reward(self, rollout: Rollout) -> Float[Tensor, "batch tokens"]:
        return torch.zeros_like(rollout.old_logp)

    def token_loss(
        self,
        logp: Float[Tensor, "batch tokens"],
        ref_logp: Float[Tensor, "batch tokens"] | None,
        ratio: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"] | None:
        return None

    def formula(self) -> str:
        return "none"


@knobs
class RewardKL:
    """-coefficient * KL estimate as a reward of each token, before the advantage is taken; no gradient through it."""

    needs_reference: ClassVar[bool] = True
    in_reward: ClassVar[bool] = True
    per_completion: ClassVar[bool] = False
    weight: ClassVar[Weight] = "none"
    coefficient: Annotated[float, Field(gt=0)]
    """Weight of the estimate (beta)."""
    estimator: Estimator = "k1"
    """In the reward only k1 gives the gradient of KL(pi || reference) in expectation."""

    def token_reward(self, rollout: Rollout) -> Float[Tensor, "batch tokens"]:
        assert rollout.ref_logp is not None, "the KL penalty reads the reference"
        return -self.coefficient * kl_estimate(rollout.old_logp, rollout.ref_logp, self.estimator)

    def token_loss(
        self,
        logp: Float[Tensor, "batch tokens"],
        ref_logp: Float[Tensor, "batch tokens"] | None,
        ratio: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"] | None:
        return None

    def formula(self) -> str:
        return f"r_t -= {self.coefficient:g} * {self.estimator}(pi_old, reference) per token, in the reward"


@knobs
class SequenceRewardKL:
    """-coefficient * sum over tokens of k1 in the completion's reward, before the baseline (RLOO; `reward_seq`)."""

    needs_reference: ClassVar[bool] = True
    in_reward: ClassVar[bool] = True
    per_completion: ClassVar[bool] = True
    weight: ClassVar[Weight] = "none"
    coefficient: Annotated[float, Field(gt=0)]
    """Weight of the sum (beta)."""

    def token_reward(self, rollout: Rollout) -> Float[Tensor, "batch tokens"]:
        assert rollout.ref_logp is not None, "the KL penalty reads the reference"
        return -self.coefficient * kl_estimate(rollout.old_logp, rollout.ref_logp, "k1")

    def token_loss(
        self,
        logp: Float[Tensor, "batch tokens"],
        ref_logp: Float[Tensor, "batch tokens"] | None,
        ratio: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"] | None:
        return None

    def formula(self) -> str:
        return f"R -= {self.coefficient:g} * sum over tokens of k1(pi_old, reference), in the reward"


@knobs
class LossKL:
    """+coefficient * KL estimate per token in the loss, reduced like the surrogate."""

    needs_reference: ClassVar[bool] = True
    in_reward: ClassVar[bool] = False
    per_completion: ClassVar[bool] = False
    coefficient: Annotated[float, Field(gt=0)]
    """Weight of the estimate (beta)."""
    estimator: Estimator = "k3"
    """Expected on-policy gradient: k1 none at all, k2 that of KL(pi || reference), k3 that of KL(reference || pi)."""
    weight: Weight = "none"
    """Importance weight on the estimate. With a token's `ratio` and its gradient k1 and k3 follow KL(pi || reference),
    off-policy too; with the `detached_ratio` k2 does, and k3 follows KL(reference || pi). A geometric mean over the
    completion is no importance weight: with `sequence_ratio` all of them are biased."""

    def token_reward(self, rollout: Rollout) -> Float[Tensor, "batch tokens"]:
        return torch.zeros_like(rollout.old_logp)

    def token_loss(
        self,
        logp: Float[Tensor, "batch tokens"],
        ref_logp: Float[Tensor, "batch tokens"] | None,
        ratio: Float[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"] | None:
        assert ref_logp is not None, "the KL penalty reads the reference"
        estimate = self.coefficient * kl_estimate(logp, ref_logp, self.estimator)
        if self.weight == "none":
            return estimate
        return estimate * (ratio if self.weight == "ratio" else ratio.detach())

    def formula(self) -> str:
        weight = {"none": "", "ratio": "rho ", "detached_ratio": "sg[rho] "}[self.weight]
        return f"+ {self.coefficient:g} * {weight}{self.estimator}(pi, reference) per token, in the loss"


Penalty = NoPenalty | RewardKL | SequenceRewardKL | LossKL
