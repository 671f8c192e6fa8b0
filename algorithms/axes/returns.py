"""Returns: advantages of single tokens, from rewards to come, with or without a critic."""

from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Rollout, TokenCredit
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import flat, masked, whiten

Fraction = Annotated[float, Field(ge=0, le=1)]
WHITENED = "whitened over the rollout's tokens (ddof = 1, epsilon = 1e-08 on the variance)"


def _rewards(
    reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
) -> Float[Tensor, "batch tokens"]:
    """Each token's reward in float64: its own, and the completion's on the last generated token."""
    last = mask & (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True))
    return masked(token_reward.double(), mask) + masked(reward.double()[:, None].expand(mask.shape), last)


def generalised_advantage(
    reward: Float[Tensor, "batch tokens"],
    value: Float[Tensor, "batch tokens"],
    mask: Bool[Tensor, "batch tokens"],
    gamma: float,
    lam: float | Float[Tensor, "batch"],
    next_value: Float[Tensor, "batch"] | None = None,
) -> Float[Tensor, "batch tokens"]:
    """delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, from the last valid token back.

    Masked positions pass V and A through unchanged, so neither padding nor a gap can leak into valid tokens.
    `next_value` stands after the last token; None is 0. Float64. Source: 1506.02438, Eq. 16.
    """
    reward, value = masked(reward, mask).double(), masked(value, mask).double()
    following = value.new_zeros(len(value)) if next_value is None else next_value.double()
    accumulated = torch.zeros_like(following)
    columns: list[Tensor] = []
    for t in reversed(range(value.shape[1])):
        advantage = reward[:, t] + gamma * following - value[:, t] + gamma * lam * accumulated
        columns.append(masked(advantage, mask[:, t]))
        following = torch.where(mask[:, t], value[:, t], following)
        accumulated = torch.where(mask[:, t], advantage, accumulated)
    return torch.stack(columns[::-1], dim=1)


def _reward_to_go(
    reward: Float[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"], gamma: float
) -> Float[Tensor, "batch tokens"]:
    return generalised_advantage(reward, torch.zeros_like(reward), mask, gamma, 1.0)


def _critic_credit(
    reward: Float[Tensor, "batch tokens"],
    rollout: Rollout,
    mask: Bool[Tensor, "batch tokens"],
    knob: "GAE | LengthAdaptiveGAE",
    lam: float | Float[Tensor, "batch"],
    lam_returns: float | Float[Tensor, "batch"],
) -> TokenCredit:
    """Advantages with `lam`, the critic's targets A + V with `lam_returns`, the former whitened if asked."""
    assert rollout.value is not None, "this advantage reads the critic's values"
    after: Tensor | None = None
    if knob.truncation_bootstrap:
        assert rollout.next_value is not None, "bootstrapping reads the critic's value after the last token"
        after = masked(rollout.next_value, ~rollout.terminated)
    advantage = generalised_advantage(reward, rollout.value, mask, knob.gamma, lam, after)
    same = not isinstance(lam, Tensor) and lam == lam_returns
    targets = advantage if same else generalised_advantage(reward, rollout.value, mask, knob.gamma, lam_returns, after)
    returns = (targets + masked(rollout.value, mask)).to(rollout.value.dtype)
    if knob.whiten:
        advantage = whiten(advantage, mask, ddof=1, epsilon=1e-8)
    to_go = _reward_to_go(reward, mask, knob.gamma).to(returns.dtype)
    return TokenCredit(advantage=advantage.to(rollout.old_logp.dtype), returns=returns, mask=mask, monte_carlo=to_go)


@knobs
class GAE:
    """Generalised advantage estimation on a critic's values (1506.02438), whitened over the whole rollout if asked.

    The completion's reward sits on its last generated token.
    """

    needs_critic: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False
    takes_token_reward: ClassVar[bool] = True
    reads_reward: ClassVar[bool] = True
    gamma: Fraction = 1.0
    """Discount per token."""
    lam: Fraction = 1.0
    """Lambda: 1 is the Monte Carlo return minus the value, 0 the one-step error."""
    lam_returns: Fraction | None = None
    """Lambda of the critic's targets (VC-PPO, 2503.01491); null is the same lambda."""
    whiten: bool = True
    """Shift and scale advantages to mean 0, variance 1 over all valid tokens (ddof 1, 1e-8 in the root)."""
    truncation_bootstrap: bool = False
    """Where the budget cut a completion, count on with the critic's value; otherwise a cut is an end."""

    @property
    def has_baseline(self) -> bool:
        return self.whiten

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        mask = rollout.mask & reward.isfinite()[:, None]
        lam_returns = self.lam if self.lam_returns is None else self.lam_returns
        return _critic_credit(_rewards(reward, token_reward, mask), rollout, mask, self, self.lam, lam_returns)

    def formula(self) -> str:
        lambdas = f"lambda = {self.lam:g}"
        if self.lam_returns is not None:
            lambdas += f", {self.lam_returns:g} for the critic's targets"
        return f"GAE(gamma = {self.gamma:g}, {lambdas}) on the critic{_ending(self)}"


@knobs
class LengthAdaptiveGAE:
    """`GAE` with lambda = 1 - 1 / (alpha L) for a completion of L tokens (VAPO, 2504.05118).

    The formula is not positive for L <= 1 / alpha, 20 tokens at the paper's alpha: lambda is 0 there.
    """

    needs_critic: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False
    takes_token_reward: ClassVar[bool] = True
    reads_reward: ClassVar[bool] = True
    gamma: Fraction = 1.0
    """Discount per token."""
    alpha: Annotated[float, Field(gt=0)] = 0.05
    """How fast lambda comes near 1 as completions grow."""
    lam_returns: Fraction = 1.0
    """Lambda of the critic's targets."""
    whiten: bool = True
    """Shift and scale advantages to mean 0, variance 1 over all valid tokens (ddof 1, 1e-8 in the root)."""
    truncation_bootstrap: bool = False
    """Where the budget cut a completion, count on with the critic's value; otherwise a cut is an end."""

    @property
    def has_baseline(self) -> bool:
        return self.whiten

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        mask = rollout.mask & reward.isfinite()[:, None]
        lam = (1 - 1 / (self.alpha * mask.sum(dim=1).clamp(min=1).double())).clamp(min=0)
        return _critic_credit(_rewards(reward, token_reward, mask), rollout, mask, self, lam, self.lam_returns)

    def formula(self) -> str:
        lambdas = f"lambda = max(0, 1 - 1 / ({self.alpha:g} L)), {self.lam_returns:g} for the critic's targets"
        return f"GAE(gamma = {self.gamma:g}, {lambdas}) on the critic{_ending(self)}"


def _ending(knob: GAE | LengthAdaptiveGAE) -> str:
    cut = "counts on with the critic's value" if knob.truncation_bootstrap else "is an end"
    return f"; a cut by the budget {cut}{f'; {WHITENED}' if knob.whiten else ''}"


@knobs
class Returns:
    """Rewards to come, with no critic: sum over s >= t of gamma^(s - t) r_s, minus a baseline (REINFORCE; `none`)."""

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    takes_token_reward: ClassVar[bool] = True
    reads_reward: ClassVar[bool] = True
    gamma: Fraction = 1.0
    """Discount per token."""
    baseline: Literal["none", "batch_mean"] = "none"
    """`batch_mean` subtracts the mean over the rollout's completions of the whole return."""

    @property
    def has_baseline(self) -> bool:
        return self.baseline != "none"

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        mask = rollout.mask & reward.isfinite()[:, None]
        to_go = _reward_to_go(_rewards(reward, token_reward, mask), mask, self.gamma)
        if self.baseline == "batch_mean":
            first = mask & (mask.cumsum(dim=1) == 1)
            to_go = masked(to_go - masked(to_go, first).sum() / first.sum().clamp(min=1), mask & ~flat(to_go, mask))
        return TokenCredit(advantage=to_go.to(rollout.old_logp.dtype), returns=None, mask=mask)

    def formula(self) -> str:
        baseline = " - mean over completions of the whole return" if self.has_baseline else ""
        return f"rewards to come (gamma = {self.gamma:g}){baseline}"


@knobs
class WhitenedReturns:
    """Rewards to come, whitened over all tokens of the rollout (REINFORCE++; `batch_norm`).

    Whitening is over the whole rollout, so a group of equal rewards has an advantage here.
    """

    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    takes_token_reward: ClassVar[bool] = True
    reads_reward: ClassVar[bool] = True
    has_baseline: ClassVar[bool] = True
    gamma: Fraction = 1.0
    """Discount per token."""

    def __call__(
        self, reward: Float[Tensor, "batch"], token_reward: Float[Tensor, "batch tokens"], rollout: Rollout
    ) -> TokenCredit:
        mask = rollout.mask & reward.isfinite()[:, None]
        to_go = _reward_to_go(_rewards(reward, token_reward, mask), mask, self.gamma)
        whitened = whiten(to_go, mask, ddof=1, epsilon=1e-8).to(rollout.old_logp.dtype)
        return TokenCredit(advantage=whitened, returns=None, mask=mask)

    def formula(self) -> str:
        return f"rewards to come (gamma = {self.gamma:g}), {WHITENED}"
