"""The other baselines: leave-one-out, the rollout's scale, whitening, the best of k, acceptance, returns."""

import math
from collections.abc import Callable
from itertools import combinations
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from algorithms.axes.baseline import (
    Accepted,
    BatchScaled,
    GroupCentred,
    GroupCentredWhitened,
    GroupStandardised,
    LeaveOneOut,
    PassAtK,
)
from algorithms.axes.batch import Rollout
from algorithms.axes.returns import Returns, WhitenedReturns

NAN = math.nan
MakeRollout = Callable[..., Rollout]


def score(component: Any, rewards: list[float], group: list[int] | None = None) -> list[float]:
    labels = torch.tensor(group) if group is not None else torch.zeros(len(rewards), dtype=torch.int64)
    return component.score(torch.tensor(rewards, dtype=torch.float64), labels).tolist()


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    rewards = [1.0, 0.0, 0.5, 3.0]
    others = [r - fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert score(LeaveOneOut(), rewards) == pytest.approx(others)
    assert score(LeaveOneOut(), rewards) == pytest.approx([4 / 3 * a for a in score(GroupCentred(), rewards)])


def test_leave_one_out_with_inexact_rewards_stays_small() -> None:
    """OBJ-10: seven .35 and one 0: 1/7 of .35 above for the seven, .35 below for the odd one; the eighth unscorable."""
    assert score(LeaveOneOut(), [0.35] * 7 + [0.0]) == pytest.approx([0.05] * 7 + [-0.35])
    assert score(LeaveOneOut(), [1.0, 0.0, NAN]) == [1.0, -1.0, 0.0]
    assert score(LeaveOneOut(), [1.0, NAN, NAN]) == [0.0, 0.0, 0.0]


def test_the_scale_of_the_rollout_and_the_mean_of_the_group() -> None:
    """Rewards 1, 0 | 5, 3, unscorable: means .5 and 4; std of 1, 0, 5, 3 with ddof 1 is sqrt(59 / 12)."""
    std = math.sqrt(59 / 12)
    found = score(BatchScaled(ddof=1, epsilon=0.0), [1, 0, 5, 3, NAN], [0, 0, 1, 1, 1])
    assert found == pytest.approx([0.5 / std, -0.5 / std, 1 / std, -1 / std, 0])
    wider = score(BatchScaled(ddof=0, epsilon=0.5), [1, 0, 5, 3], [0, 0, 1, 1])
    assert wider[0] == pytest.approx(0.5 / (math.sqrt(59 / 16) + 0.5))


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.3, 0.7, 1 / 3, -17.25])
@pytest.mark.parametrize("component", [LeaveOneOut(), BatchScaled(epsilon=0.0), PassAtK(k=1), PassAtK(k=3)])
def test_equal_rewards_give_exactly_nothing(component: Any, reward: float) -> None:
    assert score(component, [reward] * 4 + [reward, 2.0, 2.0, 2.0], [0] * 4 + [1] * 4)[:4] == [0.0] * 4


def brute_force(rewards: list[float], k: int) -> list[float]:
    """Over all subsets of k: (max - mean) / std of each, averaged over the subsets that hold the member."""
    subsets = list(combinations(range(len(rewards)), k))
    best = [max(rewards[i] for i in subset) for subset in subsets]
    mean, std = fmean(best), pstdev(best)
    held = [[b for b, subset in zip(best, subsets, strict=True) if i in subset] for i in range(len(rewards))]
    return [(fmean(own) - mean) / std for own in held]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "rewards", [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0, 0], [0.2, 1.5, -1, 0.2, 3, 0.7], [0, 0, 0, 0, 0, 1, 1, 1]]
)
def test_the_best_of_k_against_all_subsets(rewards: list[float], k: int) -> None:
    assert score(PassAtK(k=k), rewards) == pytest.approx(brute_force(rewards, k), abs=1e-12)


def test_the_best_of_k_is_the_papers_pair_for_binary_rewards() -> None:
    """2508.10751: mean 1 - C(N-, k)/C(N, k), std sqrt(m (1 - m)); correct (1 - m)/s, wrong (1 - m - q)/s with
    q = C(N- - 1, k - 1)/C(N - 1, k - 1)."""
    n, wrong, k = 8, 5, 3
    mean = 1 - math.comb(wrong, k) / math.comb(n, k)
    std = math.sqrt(mean * (1 - mean))
    q = math.comb(wrong - 1, k - 1) / math.comb(n - 1, k - 1)
    expected = [(1 - mean) / std] * 3 + [(1 - mean - q) / std] * 5
    assert score(PassAtK(k=k), [1.0] * 3 + [0.0] * 5) == pytest.approx(expected)


def test_the_best_of_one_is_the_standardised_reward() -> None:
    rewards = [0.2, 1.5, -1, 0.2, 3]
    assert score(PassAtK(k=1), rewards) == pytest.approx(score(GroupStandardised(ddof=0, epsilon=0.0), rewards))


def test_a_group_that_always_holds_a_winner_has_nothing_to_learn() -> None:
    """Two wrong of six and k = 3: every subset holds a correct one, so the best is always 1."""
    assert score(PassAtK(k=3), [1, 1, 0, 1, 0, 1]) == [0.0] * 6
    assert score(PassAtK(k=3), [1, NAN, NAN, NAN, NAN, 0]) == [0.0] * 6  # fewer scorable members than k
    per_group = score(PassAtK(k=2), [1, 0, 0, 0, 0, 1, 0, NAN], [0, 1, 0, 1, 0, 1, 0, 1])
    assert per_group[::2] == pytest.approx(score(PassAtK(k=2), [1, 0, 0, 0]))
    assert per_group[1::2] == pytest.approx([*score(PassAtK(k=2), [0, 0, 1]), 0])


def test_acceptance_keeps_the_correct_ones_alone(make_rollout: MakeRollout) -> None:
    rollout = make_rollout([1.0, 0.0, NAN, 1.0], mask=[[1, 0], [1, 1], [1, 1], [1, 1]])
    credit = Accepted()(rollout.reward, torch.zeros(4, 2), rollout)
    assert credit.mask.tolist() == [[True, False], [False] * 2, [False] * 2, [True] * 2]
    assert credit.advantage.tolist() == [[1, 0], [0, 0], [0, 0], [1, 1]]


def test_whitening_is_over_tokens_and_centred_first(make_rollout: MakeRollout) -> None:
    """Groups (1, 0) and (3, 3): centred +-.5 and 0 on lengths 2, 1, 3, 1, then mean 0 and variance 1 over 7 tokens."""
    mask = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]]
    rollout = make_rollout([1.0, 0.0, 3.0, 3.0], group_size=2, mask=mask)
    credit = GroupCentredWhitened()(rollout.reward, torch.zeros(4, 3), rollout)
    tokens = torch.tensor([0.5, 0.5, -0.5, 0, 0, 0, 0], dtype=torch.float64)
    expected = (tokens - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    assert credit.advantage[rollout.mask].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_returns_by_hand(make_rollout: MakeRollout) -> None:
    """Rewards -.1, -.2 per token and 1 at the end, gamma .5: second token -.2 + 1 = .8, first -.1 + .4 = .3."""
    rollout = make_rollout([1.0, 0.0], mask=[[1, 1], [1, 0]])
    token_reward = torch.tensor([[-0.1, -0.2], [-0.4, 5.0]])
    credit = Returns(gamma=0.5)(rollout.reward, token_reward, rollout)
    assert credit.advantage.tolist() == [pytest.approx([0.3, 0.8]), pytest.approx([-0.4, 0])]
    centred = Returns(gamma=0.5, baseline="batch_mean")(rollout.reward, token_reward, rollout)
    assert centred.advantage.tolist() == [pytest.approx([0.35, 0.85]), pytest.approx([-0.35, 0])]
    assert centred.returns is None


def test_whitened_returns_have_mean_0_and_variance_1_over_tokens(make_rollout: MakeRollout) -> None:
    rollout = make_rollout([1.0, 0.0, NAN], mask=[[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    credit = WhitenedReturns()(rollout.reward, torch.zeros(3, 3), rollout)
    own = credit.advantage[credit.mask].double()
    assert own.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-6)  # 1, 1, 1, 0: mean .75, std .5
    assert not credit.mask[2].any()


@pytest.mark.parametrize("reward", [0.35, 0.1, 0.7, 1 / 3])
@pytest.mark.parametrize("advantage", [Returns(baseline="batch_mean"), WhitenedReturns(), GroupCentredWhitened()])
def test_a_rollout_of_equal_rewards_has_nothing_to_say(
    advantage: Any, reward: float, make_rollout: MakeRollout
) -> None:
    """OBJ-09 and OBJ-10 for baselines over the whole rollout: no residue of the mean's rounding is left."""
    rollout = make_rollout([reward] * 7, mask=[[1, 1]] * 3 + [[1, 0]] * 4)
    assert advantage(rollout.reward, torch.zeros(7, 2), rollout).advantage.abs().max() == 0
