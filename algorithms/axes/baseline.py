"""Baselines: advantages of whole completions, from the rewards of their group or of the whole rollout."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Rollout, TokenCredit, group_index, group_sum
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked, masked_std, slack, whiten


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

        Rounding makes the standard deviation of equal rewards non-zero, so it is not asked.
        """
        return self.spread <= slack(self.mean)

    @property
    def informative(self) -> Bool[Tensor, "batch"]:
        """Scorable rows of groups that are not degenerate: the only ones with an advantage other than exactly 0."""
        return self.scorable & ~self.degenerate


def degenerate(reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Bool[Tensor, "batch"]:
    """True for members of groups whose scorable rewards are all equal, up to rounding."""
    return GroupStatistics.of(reward, group).degenerate


def over_tokens(
    score: Float[Tensor, "batch"], counted: Bool[Tensor, "batch"], rollout: Rollout, dtype: torch.dtype | None = None
) -> TokenCredit:
    """The same advantage for every token of a completion; rows that are not counted leave the loss."""
    mask = rollout.mask & counted[:, None]
    per_token = score[:, None].expand(mask.shape).to(dtype or rollout.old_logp.dtype)
    return TokenCredit(advantage=masked(per_token, mask), returns=None, mask=mask)


@knobs
class GroupStandardised:
    """(r - mean of the group) / (std of the group + epsilon); exactly 0 in groups of equal rewards (`group_std`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True
    ddof: Annotated[int, Field(ge=0, le=1)] = 1
    """Bessel's correction of the standard deviation; papers do not state it, torch code uses 1."""
    epsilon: Annotated[float, Field(ge=0)] = 1e-4
    """Added to the standard deviation."""

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        stats = GroupStatistics.of(reward, group)
        std = (stats.square / (stats.count - self.ddof).clamp(min=1)).sqrt()
        return masked((reward.double() - stats.mean) / (std + self.epsilon), stats.informative)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        return over_tokens(self.score(reward, rollout.group), reward.isfinite(), rollout)

    def formula(self) -> str:
        return f"(R - mean_group R) / (std_group R + {self.epsilon:g}), ddof = {self.ddof}"


@knobs
class GroupCentred:
    """r - mean of the group, with no division; exactly 0 in groups of equal rewards (`group_mean`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        stats = GroupStatistics.of(reward, group)
        return masked(reward.double() - stats.mean, stats.informative)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        return over_tokens(self.score(reward, rollout.group), reward.isfinite(), rollout)

    def formula(self) -> str:
        return "R - mean_group R"


@knobs
class LeaveOneOut:
    """r_i - mean of the group's other rewards = n / (n - 1) (r_i - mean of the group) (RLOO; `loo`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        stats = GroupStatistics.of(reward, group)
        scale = stats.count / (stats.count - 1).clamp(min=1)
        return masked(scale * (reward.double() - stats.mean), stats.informative)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        return over_tokens(self.score(reward, rollout.group), reward.isfinite(), rollout)

    def formula(self) -> str:
        return "R - mean of the other R of the group"


@knobs
class BatchScaled:
    """(r - mean of the group) / (std of all rewards of the rollout + epsilon) (Lite PPO; `group_mean_batch_std`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True
    ddof: Annotated[int, Field(ge=0, le=1)] = 1
    """Bessel's correction of the standard deviation."""
    epsilon: Annotated[float, Field(ge=0)] = 1e-4
    """Added to the standard deviation."""

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        stats = GroupStatistics.of(reward, group)
        std = masked_std(masked(reward.double(), stats.scorable), stats.scorable, self.ddof)
        return masked((reward.double() - stats.mean) / (std + self.epsilon), stats.informative)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        return over_tokens(self.score(reward, rollout.group), reward.isfinite(), rollout)

    def formula(self) -> str:
        return f"(R - mean_group R) / (std_rollout R + {self.epsilon:g}), ddof = {self.ddof}"


@knobs
class GroupCentredWhitened:
    """r - mean of the group, whitened over all tokens of the rollout (REINFORCE++-baseline; `group_mean_batch_whiten`).

    Whitening shifts the mean afterwards, so a group of equal rewards does not end at exactly 0 here.
    """

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        score = GroupCentred().score(reward, rollout.group)
        credit = over_tokens(score, reward.isfinite(), rollout, torch.float64)
        whitened = whiten(credit.advantage, credit.mask, ddof=1, epsilon=1e-8).to(rollout.old_logp.dtype)
        return TokenCredit(advantage=whitened, returns=None, mask=credit.mask)

    def formula(self) -> str:
        return "R - mean_group R, whitened over the rollout's tokens (ddof = 1, epsilon = 1e-08 on the variance)"


@knobs
class PassAtK:
    """Advantage of the best of k: the reward of a subset of k completions is its maximum (2508.10751, Eq. 14-15).

    A completion's advantage is the mean of (max - mean) / std over all subsets of its group that hold it, mean and std
    (ddof 0) over all subsets. In closed form, so no subset is drawn. For rewards 0 and 1 this is the paper's pair of
    values, and the mean is Pass@k; k = 1 is the group's standardised reward.
    """

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = True
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True
    k: Annotated[int, Field(ge=1)]
    """Completions in a subset; below the group's size."""

    def score(self, reward: Float[Tensor, "batch"], group: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        scores, index = torch.zeros_like(reward, dtype=torch.float64), group_index(group)
        for own in range(int(index.max()) + 1):
            rows = ((index == own) & reward.isfinite()).nonzero().squeeze(1)
            if len(rows) >= self.k:
                scores[rows] = self._of_group(reward[rows].double())
        return scores

    def _of_group(self, reward: Float[Tensor, "members"]) -> Float[Tensor, "members"]:
        n, k = len(reward), self.k
        ranked, order = reward.sort()
        if ranked[-1] - ranked[k - 1] <= slack(ranked.mean()):
            return torch.zeros_like(reward)  # the best of every subset is the same
        # In rising order, member m (from 0) is the best of C(m, k - 1) subsets; of those that hold member j < m,
        # C(m - 1, k - 2) have m as their best, and j itself is the best of C(j, k - 1).
        best = ranked.new_tensor([math.comb(m, k - 1) / math.comb(n, k) for m in range(n)])
        mean = (best * ranked).sum()
        std = (best * (ranked - mean) ** 2).sum().sqrt()
        above = ranked.new_tensor([math.comb(m - 1, k - 2) if k > 1 and m else 0 for m in range(n)])
        tail = (above * ranked).flip(0).cumsum(0).flip(0) - above * ranked
        own = ranked.new_tensor([math.comb(m, k - 1) for m in range(n)]) * ranked
        held = (own + tail) / math.comb(n - 1, k - 1)
        return torch.empty_like(reward).index_copy(0, order, (held - mean) / std)

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        return over_tokens(self.score(reward, rollout.group), reward.isfinite(), rollout)

    def formula(self) -> str:
        subsets = f"over the group's subsets S of {self.k}"
        return f"mean over S with i of (max_S R - mean) / std, mean and std of max_S R {subsets}, ddof = 0"


@knobs
class Accepted:
    """1 for completions that the verifier calls correct; the others leave the loss (online rejection sampling).

    A completion that the budget cut is taken too if it is correct; truncation.kind=mask_truncated leaves it out.
    """

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    takes_token_reward: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = False
    has_baseline: ClassVar[bool] = False

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        assert rollout.correct is not None, "acceptance reads the verifier's bits"
        accepted = rollout.correct == 1
        return over_tokens(accepted.double(), accepted, rollout)

    def formula(self) -> str:
        return "1 for correct completions, the others are left out"
