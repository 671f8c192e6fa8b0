"""Reward shaping: the soft overlong punishment, piece by piece."""

import math
from collections.abc import Callable

import pytest
import torch

from algorithms import dapo
from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.batch import Rollout
from algorithms.axes.shaping import MissingEos, NoShaping, Rescale, SoftOverlong

MakeRollout = Callable[..., Rollout]
LENGTHS = [80, 85, 90, 100, 101]


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_soft_overlong_is_piecewise_linear(factor: float) -> None:
    """OBJ-44: budget 100, buffer 20: 0 up to 80, then (80 - L) / 20, and -1 beyond 100; times the factor."""
    penalty = SoftOverlong(buffer=0.2, factor=factor).penalty(torch.tensor(LENGTHS, dtype=torch.float64), budget=100)
    assert penalty.tolist() == pytest.approx([factor * x for x in (0, -0.25, -0.5, -1, -1)], abs=1e-12)


def test_the_papers_numbers() -> None:
    """L_max = 20480, L_cache = 4096: the punishment begins at 16384 and is half way at 18432."""
    lengths = torch.tensor([1.0, 16384, 18432, 20480], dtype=torch.float64)
    assert SoftOverlong(buffer=0.2).penalty(lengths, budget=20480).tolist() == pytest.approx(
        [0, 0, -0.5, -1], abs=1e-12
    )


def test_length_is_the_number_of_generated_tokens(make_rollout: MakeRollout) -> None:
    """Budget 10, buffer 5: eight tokens cost (5 - 8) / 5, five cost nothing; an unscorable reward stays unscorable."""
    mask = [[1] * 8 + [0] * 2, [1] * 5 + [0] * 5, [1] * 10]
    rollout = make_rollout([1.0, 1.0, math.nan], mask=mask)
    shaped = SoftOverlong(buffer=0.5)(rollout).tolist()
    assert shaped[:2] == pytest.approx([0.4, 1.0])
    assert math.isnan(shaped[2])


def test_no_shaping_is_the_reward_itself(make_rollout: MakeRollout) -> None:
    rollout = make_rollout([1.0, -3.5])
    assert NoShaping()(rollout).tolist() == [1.0, -3.5]


def test_the_presets_halved_factor_is_the_papers_penalty_on_its_own_scale() -> None:
    """r' = (r + 1) / 2 takes rewards of -1 and 1 to 0 and 1; the same map takes r + P to r' + P/2, and standardising
    undoes it."""
    group = torch.zeros(5, dtype=torch.int64)
    bits = torch.tensor([1.0, 0, 1, 1, 0], dtype=torch.float64)
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    advantage = GroupStandardised(ddof=1, epsilon=0.0)
    shaping = dapo.objective.shaping
    assert isinstance(shaping, SoftOverlong)
    ours = advantage.score(bits + shaping.penalty(lengths, 100), group)
    papers = advantage.score(
        2 * bits - 1 + SoftOverlong(buffer=shaping.buffer, factor=1.0).penalty(lengths, 100), group
    )
    assert torch.allclose(ours, papers, atol=1e-12)


def test_a_missing_end_costs_and_an_ending_does_not(make_rollout: MakeRollout) -> None:
    rollout = make_rollout([1.0, 1.0, 0.0], terminated=torch.tensor([True, False, False]))
    assert MissingEos(penalty=0.25)(rollout).tolist() == [1.0, 0.75, -0.25]


def test_a_reward_is_scaled_then_clipped_and_an_unknown_one_stays_unknown(make_rollout: Callable[..., Rollout]) -> None:
    """2 R held within -1 and 1; NaN and infinity could not be told, and a bound must not make numbers of them."""
    rollout = make_rollout([0.3, 5.0, -5.0, math.nan, math.inf])
    assert Rescale(scale=2.0, low=-1.0, high=1.0)(rollout).isfinite().tolist() == [True, True, True, False, False]
    assert Rescale(scale=2.0, low=-1.0, high=1.0)(rollout)[:3].tolist() == pytest.approx([0.6, 1.0, -1.0])
    assert Rescale(scale=2.0)(rollout)[:3].tolist() == pytest.approx([0.6, 10.0, -10.0])
    assert Rescale(high=1.0)(rollout)[:3].tolist() == pytest.approx([0.3, 1.0, -5.0])
