"""Advantages: group baselines and GAE, by hand, against an oracle, and under rounding and missing rewards."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.axes.baseline import GroupCentred, GroupStandardised, degenerate
from algorithms.axes.batch import Rollout
from algorithms.axes.returns import GAE, generalised_advantage

NAN = math.nan
MakeRollout = Callable[..., Rollout]
EQUAL_REWARDS = [0.0, 1.0, 3.0, -17.25, 0.1, 0.3, 0.7, 1 / 3, 0.35]


def score(component: Any, rewards: list[float], group: list[int] | None = None) -> list[float]:
    labels = torch.tensor(group) if group is not None else torch.zeros(len(rewards), dtype=torch.int64)
    return component.score(torch.tensor(rewards, dtype=torch.float64), labels).tolist()


def test_group_statistics_are_per_group() -> None:
    """OBJ-12: means 0.5 and 5, deviations +-0.5 and +-5, stds 0.5 sqrt(4/3) and 5 sqrt(4/3): both groups give
    +-0.866025."""
    result = score(GroupStandardised(ddof=1, epsilon=0.0), [1, 1, 0, 0, 10, 10, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    assert result == pytest.approx([0.866025, 0.866025, -0.866025, -0.866025] * 2, abs=1e-6)


def test_groups_may_have_any_labels_and_stand_in_any_order() -> None:
    """The same two groups, interleaved under the labels 7 and -2."""
    result = score(GroupCentred(), [1, 10, 1, 10, 0, 0, 0, 0], [7, -2, 7, -2, 7, -2, 7, -2])
    assert result == [0.5, 5, 0.5, 5, -0.5, -5, -0.5, -5]


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("reward", EQUAL_REWARDS)
@pytest.mark.parametrize(
    "component",
    [GroupCentred(), *(GroupStandardised(ddof=d, epsilon=e) for d in (0, 1) for e in (0.0, 1e-8, 1e-4))],
    ids=lambda component: component.formula(),
)
def test_equal_rewards_give_exactly_nothing(component: Any, reward: float, size: int) -> None:
    """OBJ-09 and OBJ-10: rounding of the mean must not turn equal rewards into advantages, nor 0/0 into NaN."""
    rewards = torch.full((size,), reward)
    for exact in (rewards, rewards.double(), torch.tensor([reward] * size, dtype=torch.float64)):
        group = torch.zeros(size, dtype=torch.int64)
        assert component.score(exact, group).tolist() == [0.0] * size
        assert bool(degenerate(exact, group).all())


def test_one_different_reward_among_inexact_ones_does_not_blow_up() -> None:
    """OBJ-10: seven 0.35 and one 0: mean 0.30625; the odd one is at -7/sqrt(8) = -2.4749 standard deviations (ddof
    1)."""
    rewards = [0.35] * 7 + [0.0]
    assert score(GroupStandardised(ddof=1, epsilon=0.0), rewards) == pytest.approx(
        [1 / math.sqrt(8)] * 7 + [-7 / math.sqrt(8)]
    )
    assert score(GroupCentred(), rewards) == pytest.approx([0.04375] * 7 + [-0.30625])


def test_equal_means_equal_up_to_rounding() -> None:
    """max - min <= 1e-6 (1 + |mean|): 2e-6 apart at 1 is the edge, at 99 it is far inside."""
    group = torch.zeros(2, dtype=torch.int64)
    assert degenerate(torch.tensor([1.0, 1.0 + 1.9e-6], dtype=torch.float64), group).all()
    assert not degenerate(torch.tensor([1.0, 1.0 + 2.1e-6], dtype=torch.float64), group).any()
    assert degenerate(torch.tensor([99.0, 99.0 + 9e-5], dtype=torch.float64), group).all()


@pytest.mark.parametrize(
    ("size", "winner", "loser"),
    [(2, 0.707, -0.707), (4, 1.5, -0.5), (8, 2.475, -0.354), (16, 3.75, -0.25), (64, 7.875, -0.125)],
)
def test_one_correct_of_many(size: int, winner: float, loser: float) -> None:
    """Spec section 2.2: with p = 1/G, winner (1-p)/s and loser -p/s, where s^2 = p (1-p) G/(G-1)."""
    result = score(GroupStandardised(ddof=1, epsilon=0.0), [1.0] + [0.0] * (size - 1))
    assert result == pytest.approx([winner] + [loser] * (size - 1), abs=5e-4)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_degrees_of_freedom_are_a_constant_factor(size: int) -> None:
    """A(ddof 0) / A(ddof 1) = sqrt(G / (G - 1))."""
    rewards = [float(i * i) for i in range(size)]
    pairs = zip(*(score(GroupStandardised(ddof=d, epsilon=0.0), rewards) for d in (0, 1)), strict=True)
    assert [a / b for a, b in pairs if b] == pytest.approx([math.sqrt(size / (size - 1))] * size)


def test_epsilon_is_added_to_the_standard_deviation() -> None:
    """Rewards 0 and 2: deviation 1, std sqrt(2); with epsilon 0.5 it is 1 / (sqrt(2) + 0.5)."""
    assert score(GroupStandardised(ddof=1, epsilon=0.5), [0, 2]) == pytest.approx(
        [-1 / (math.sqrt(2) + 0.5), 1 / (math.sqrt(2) + 0.5)]
    )


def test_an_unscorable_reward_takes_no_part() -> None:
    """OBJ-14: the mean of 1, 0, 0 is 1/3, its std sqrt(1/3): 1.154701 and -0.577350; the unscorable one gets 0."""
    expected = [1.154701, 0, -0.577350, -0.577350]
    for missing in (NAN, math.inf, -math.inf):
        assert score(GroupStandardised(ddof=1, epsilon=0.0), [1, missing, 0, 0]) == pytest.approx(expected, abs=1e-6)
        assert score(GroupCentred(), [1, missing, 0, 0]) == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])


@pytest.mark.parametrize("rewards", [[NAN, NAN, NAN, 1.0], [NAN, NAN, NAN, NAN]])
def test_too_few_scorable_rewards_give_nothing(rewards: list[float]) -> None:
    """OBJ-15: one scored member has no baseline and no spread: advantage 0, never NaN."""
    for component in (GroupStandardised(ddof=1, epsilon=0.0), GroupCentred()):
        assert score(component, rewards) == [0, 0, 0, 0]


def test_every_token_of_a_completion_has_its_advantage(make_rollout: MakeRollout) -> None:
    """Rewards 3 and 1: +-1 on the tokens of each completion, 0 beyond its end; an unscorable one leaves the mask."""
    rollout = make_rollout([3, 1, NAN], mask=[[1, 1, 0], [1, 1, 1], [1, 1, 1]])
    credit = GroupCentred()(rollout.reward, torch.zeros(3, 3), rollout)
    assert credit.advantage.tolist() == [[1, 1, 0], [-1, -1, -1], [0, 0, 0]]
    assert credit.mask.int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert credit.advantage.dtype == torch.float32
    assert credit.returns is None


def test_gae_by_hand() -> None:
    """OBJ-34: rewards 0, 1, 0, values 0, 0, 100, the last masked out: A_1 = 1, A_0 = 0 + 0.95 * 1."""
    rows = [torch.tensor([values]) for values in ([0.0, 1.0, 0.0], [0.0, 0.0, 100.0])]
    advantage = generalised_advantage(*rows, torch.tensor([[True, True, False]]), gamma=1.0, lam=0.95)
    assert advantage.tolist() == [[0.95, 1.0, 0.0]]


def test_gae_on_two_rows_by_hand() -> None:
    """gamma = lambda = 1/2. Row 1: delta = 0 + 2/2 - 4 = -3, 0 + 6/2 - 2 = 1, 8 - 6 = 2; A = -2.625, 1.5, 2.
    Row 2 (two tokens): delta = 0 + 1/2 - 1 = -0.5, 3 - 1 = 2; A = 0, 2."""
    reward = torch.tensor([[0.0, 0.0, 8.0], [0.0, 3.0, NAN]])
    value = torch.tensor([[4.0, 2.0, 6.0], [1.0, 1.0, NAN]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    assert generalised_advantage(reward, value, mask, gamma=0.5, lam=0.5).tolist() == [
        [-2.625, 1.5, 2.0],
        [0.0, 2.0, 0.0],
    ]


def oracle(reward: Tensor, value: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = sum over l >= 0 of (gamma lambda)^l delta_{t+l}, over the valid positions only: O(T^2), one row at a
    time."""
    result = torch.zeros_like(reward)
    for row in range(len(reward)):
        valid = mask[row].nonzero().flatten().tolist()
        following = {a: float(value[row, b]) for a, b in pairwise(valid)}
        delta = {t: float(reward[row, t]) + gamma * following.get(t, 0.0) - float(value[row, t]) for t in valid}
        for i, t in enumerate(valid):
            result[row, t] = sum((gamma * lam) ** step * delta[later] for step, later in enumerate(valid[i:]))
    return result


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (1.0, 0.0), (0.0, 1.0)])
def test_gae_agrees_with_its_definition(gamma: float, lam: float) -> None:
    """Random rewards, values and masks, with gaps, empty rows and NaN wherever the mask is False."""
    generator = torch.Generator().manual_seed(3)
    reward, value = (torch.randn(12, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(12, 9, generator=generator) < torch.linspace(0, 1.1, 12)[:, None]
    hidden = torch.where(mask, 0.0, NAN)
    estimate = generalised_advantage(reward + hidden, value + hidden, mask, gamma, lam)
    assert torch.allclose(estimate, oracle(reward, value, mask, gamma, lam), atol=1e-12, rtol=0)


def test_the_reward_sits_on_the_last_generated_token(make_rollout: MakeRollout) -> None:
    """OBJ-36: gamma = 0, completion of 3 in width 5: A = r - V is -V before the end, 1 - V on the end, nothing on
    pads."""
    value = torch.tensor([[0.5, 0.25, 0.125, 9.0, NAN]])
    rollout = make_rollout([1.0], mask=[[1, 1, 1, 0, 0]], value=value, old_logp=torch.zeros(1, 5))
    credit = GAE(gamma=0.0, whiten=False)(rollout.reward, torch.zeros(1, 5), rollout)
    assert credit.advantage.tolist() == [[-0.5, -0.25, 0.875, 0, 0]]
    assert credit.returns is not None
    assert credit.returns.tolist() == [[0, 0, 1, 0, 0]]


def test_the_last_generated_token_is_found_behind_a_gap(make_rollout: MakeRollout) -> None:
    """Tokens 0 and 2 are generated, 1 is not: the reward belongs to 2, although only two tokens were generated."""
    rollout = make_rollout([1.0], mask=[[1, 0, 1, 0]], value=torch.zeros(1, 4), old_logp=torch.zeros(1, 4))
    credit = GAE(gamma=0.0, whiten=False)(rollout.reward, torch.zeros(1, 4), rollout)
    assert credit.advantage.tolist() == [[0, 0, 1, 0]]


def test_truncation_counts_as_an_end(make_rollout: MakeRollout) -> None:
    """Values 0.2 and 0.4, no reward, gamma = lambda = 1: A = -0.2 and -0.4, whether the completion ended or was cut."""
    for terminated in (True, False):
        rollout = make_rollout([0.0], value=torch.tensor([[0.2, 0.4]]), terminated=torch.tensor([terminated]))
        credit = GAE(whiten=False)(rollout.reward, torch.zeros(1, 2), rollout)
        assert credit.advantage.tolist() == [pytest.approx([-0.2, -0.4])]


def test_without_values_the_advantage_is_the_reward_on_every_token(make_rollout: MakeRollout) -> None:
    """lambda = gamma = 1 and V = 0 (a zero-initialised critic before its first update): A = R everywhere."""
    rollout = make_rollout([0.3, -2.0, 1.0], mask=[[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    credit = GAE(gamma=1.0, lam=1.0, whiten=False)(rollout.reward, torch.zeros(3, 3), rollout)
    expected = torch.where(rollout.mask, rollout.reward[:, None], 0.0).float()
    assert torch.equal(credit.advantage, expected)
    assert credit.returns is not None
    assert torch.equal(credit.returns, expected)


def test_advantages_are_whitened_over_the_whole_rollout_and_returns_are_not(make_rollout: MakeRollout) -> None:
    """Mean 0 and variance 1 (ddof 1) over all valid tokens together, not row by row."""
    mask = [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]
    value = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))
    rollout = make_rollout([1.0, 0.0, 5.0], mask=mask, value=value)
    plain, whitened = (GAE(whiten=flag)(rollout.reward, torch.zeros(3, 4), rollout) for flag in (False, True))
    valid = plain.advantage[rollout.mask].double()
    expected = (valid - valid.mean()) / (valid.var() + 1e-8).sqrt()
    assert torch.allclose(whitened.advantage[rollout.mask].double(), expected, atol=1e-6)
    assert whitened.advantage[~rollout.mask].abs().max() == 0
    assert plain.returns is not None
    assert whitened.returns is not None
    assert torch.equal(plain.returns, whitened.returns)


def test_an_unscorable_completion_leaves_gae_as_it_would_be_without_it(make_rollout: MakeRollout) -> None:
    value = torch.randn(3, 2, generator=torch.Generator().manual_seed(6))
    whole = make_rollout([1.0, NAN, -1.0], value=value)
    rest = make_rollout([1.0, -1.0], value=value[[0, 2]])
    credit = GAE()(whole.reward, torch.zeros(3, 2), whole)
    expected = GAE()(rest.reward, torch.zeros(2, 2), rest)
    assert torch.equal(credit.advantage[[0, 2]], expected.advantage)
    assert credit.advantage[1].tolist() == [0, 0]
    assert credit.mask.tolist() == [[True, True], [False, False], [True, True]]
