"""The optimizer's schedule and its limits: learning rates step by step, clipping, and gradients that are no numbers."""

import math

import pytest
import torch
from torch import nn

from bench.config import Optimizer
from bench.optimize import Diverged, schedule_factor, take_step


def factors(updates: int, **knobs: object) -> list[float]:
    config = Optimizer(lr=1.0, microbatch_sequences=1, **knobs)  # type: ignore[arg-type]
    return [schedule_factor(config, update, updates) for update in range(1, updates + 1)]


def test_factors_by_hand() -> None:
    """The warm-up ends at the full rate; a linear fall starts from it and the last step still moves."""
    assert factors(3) == [1, 1, 1]
    assert factors(4, warmup_updates=2) == [1 / 2, 1, 1, 1]
    assert factors(4, schedule="linear") == [1, 3 / 4, 1 / 2, 1 / 4]
    half = 1 / math.sqrt(2)
    assert factors(4, schedule="cosine") == pytest.approx([1, (1 + half) / 2, 1 / 2, (1 - half) / 2])
    assert factors(6, schedule="cosine", warmup_updates=2)[:3] == [1 / 2, 1, 1]
    assert factors(6, schedule="linear", warmup_updates=2) == [1 / 2, 1, 1, 3 / 4, 1 / 2, 1 / 4]


@pytest.mark.parametrize(("limit", "moved"), [(2.5, [1.5, 2.0]), (10.0, [3.0, 4.0])])
def test_a_gradient_is_held_at_its_limit(limit: float, moved: list[float]) -> None:
    """Plain descent at rate 2 on a gradient of (3, 4): norm 5, halved by a limit of 2.5."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert take_step(torch.optim.SGD([parameter], lr=9.0), 2.0, limit) == 5
    assert parameter.tolist() == pytest.approx([-2 * x for x in moved], rel=1e-5)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_no_number_is_never_taken(broken: float) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, broken])
    with pytest.raises(Diverged, match="gradient norm is"):
        take_step(torch.optim.SGD([parameter], lr=1.0), 1.0, 1.0)
    assert parameter.tolist() == [0, 0]
