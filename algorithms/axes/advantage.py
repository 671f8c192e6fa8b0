"""Advantage: how a completion's reward becomes the weight of each of its tokens."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Credit, Rollout, group_index, group_sum
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked, whiten


@dataclass(frozen=True, kw_only=True)
class GroupStatistics:
    """For each row, statistics of its group over the group's scorable members, in float64."""

    mean: Float[Tensor, "batch"]
    square: Float[Tensor, "batch"]
    """Sum of the squared deviations from the mean."""
    count: Float[Tensor, "batch"]
    spread: Float[Tensor, "batch"]
    """Largest reward minus smallest."""
    scorable: Bool[Tensor, "batch"]

    @classmethod
    def of(cls, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> "GroupStatistics":
        index, scorable = group_index(group), reward.isfinite()
        exact = masked(reward.double(), scorable)
        count = group_sum(scorable.double(), index)
        mean = group_sum(exact, index) / count.clamp(min=1)
        square = group_sum(masked((exact - mean) ** 2, scorable), index)
        zeros, place, known = torch.zeros_like(exact), index[scorable], exact[scorable]
        highest = zeros.scatter_reduce(0, place, known, "amax", include_self=False)[index]
        lowest = zeros.scatter_reduce(0, place, known, "amin", include_self=False)[index]
        return cls(mean=mean, square=square, count=count, spread=highest - lowest, scorable=scorable)

    @property
    def degenerate(self) -> Bool[Tensor, "batch"]:
        """True in groups whose rewards are equal up to rounding: max - min <= 1e-6 (1 + |mean|).

        Rounding makes the standard deviation of equal rewards non-zero, so it is not asked (spec section 2.4).
        """
        return self.spread <= 1e-6 * (1 + self.mean.abs())


def degenerate(reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Bool[Tensor, "batch"]:
    """True for members of groups whose scorable rewards are all equal, up to rounding."""
    return GroupStatistics.of(reward, group).degenerate


def _spread_over_tokens(score: Float[Tensor, "batch"], rollout: Rollout) -> Credit:
    """The same advantage for every token of a completion; unscorable completions leave the loss."""
    mask = rollout.mask & rollout.scorable[:, None]
    per_token = score[:, None].expand(mask.shape).to(rollout.old_logp.dtype)
    return Credit(advantage=masked(per_token, mask), returns=None, mask=mask)


@knobs
class GroupStandardised:
    """(r - mean of the group) / (std of the group + epsilon); exactly 0 in groups of equal rewards (`group_std`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    ddof: Annotated[int, Field(ge=0, le=1)] = 1
    """Bessel's correction of the standard deviation; papers do not state it, torch code uses 1."""
    epsilon: Annotated[float, Field(ge=0)] = 1e-4
    """Added to the standard deviation."""

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        stats = GroupStatistics.of(reward, group)
        std = (stats.square / (stats.count - self.ddof).clamp(min=1)).sqrt()
        return masked((reward.double() - stats.mean) / (std + self.epsilon), stats.scorable & ~stats.degenerate)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> Credit:
        return _spread_over_tokens(self.score(reward, rollout.group), rollout)

    def formula(self) -> str:
        return f"(R - mean_group R) / (std_group R + {self.epsilon:g}), ddof = {self.ddof}"


@knobs
class GroupCentred:
    """r - mean of the group, with no division; exactly 0 in groups of equal rewards (`group_mean`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        stats = GroupStatistics.of(reward, group)
        return masked(reward.double() - stats.mean, stats.scorable & ~stats.degenerate)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> Credit:
        return _spread_over_tokens(self.score(reward, rollout.group), rollout)

    def formula(self) -> str:
        return "R - mean_group R"


@knobs
class GAE:
    """Generalised advantage estimation on a critic's values (1506.02438), whitened over the whole rollout if asked.

    The completion's reward sits on its last generated token; truncation counts as an end. V after the last token is 0.
    """

    needs_critic: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token."""
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Lambda: 1 is the Monte Carlo return minus the value, 0 the one-step error."""
    whiten: bool = True
    """Shift and scale advantages to mean 0, variance 1 over all valid tokens (ddof 1, 1e-8 in the root)."""

    def estimate(
        self,
        reward: Float[Tensor, "batch tokens"],
        value: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        """delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, from the last valid token back.

        Masked positions pass V and A through unchanged, so neither padding nor a gap can leak into valid tokens.
        """
        reward, value = masked(reward, mask).double(), masked(value, mask).double()
        next_value = next_advantage = value.new_zeros(len(value))
        columns: list[Tensor] = []
        for t in reversed(range(value.shape[1])):
            delta = reward[:, t] + self.gamma * next_value - value[:, t]
            advantage = delta + self.gamma * self.lam * next_advantage
            columns.append(masked(advantage, mask[:, t]))
            next_value = torch.where(mask[:, t], value[:, t], next_value)
            next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        return torch.stack(columns[::-1], dim=1)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> Credit:
        assert rollout.value is not None, "GAE reads the critic's values"
        mask = rollout.mask & rollout.scorable[:, None]
        last = mask & (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True))
        at_the_end = masked(reward.double()[:, None].expand(mask.shape), last)
        advantage = self.estimate(token_reward.double() + at_the_end, rollout.value, mask)
        returns = (advantage + masked(rollout.value, mask)).to(rollout.value.dtype)
        if self.whiten:
            advantage = whiten(advantage, mask, ddof=1, epsilon=1e-8)
        return Credit(advantage=advantage.to(rollout.old_logp.dtype), returns=returns, mask=mask)

    def formula(self) -> str:
        whitened = ", whitened over the rollout (ddof = 1, epsilon = 1e-08 on the variance)" if self.whiten else ""
        return f"GAE(gamma = {self.gamma:g}, lambda = {self.lam:g}) on the critic{whitened}"


Advantage = GroupStandardised | GroupCentred | GAE
