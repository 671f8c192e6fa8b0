"""Step metrics: against plain loops over the tokens, and the same whichever way the step is cut into microbatches."""

import math

import pytest
import torch
from torch import Tensor

from algorithms.axes.masked import Mean, Moments, masked_moments
from algorithms.axes.step_metrics import movement

LENGTHS = (4, 1, 0, 3)
MASK = torch.arange(4)[None, :] < torch.tensor(LENGTHS)[:, None]


def logps(seed: int) -> tuple[Tensor, Tensor]:
    """New and old log-probabilities; what stands under the mask is not a number and must not matter."""
    draw = torch.Generator().manual_seed(seed)
    new, old = (-torch.rand(4, 4, generator=draw, dtype=torch.float64) * 2 for _ in range(2))
    nothing = torch.full_like(new, torch.nan)
    return torch.where(MASK, new, nothing), torch.where(MASK, old, nothing)


def measured(rows: list[int]) -> dict[str, Mean | Moments]:
    new, old = logps(0)
    ratio = (new - old).exp()
    return movement(ratio[rows], new[rows], old[rows], MASK[rows])


def test_every_metric_equals_a_loop_over_tokens() -> None:
    new, old = logps(0)
    d = [[float(new[i, t] - old[i, t]) for t in range(length)] for i, length in enumerate(LENGTHS)]
    w = [math.exp(x) for row in d for x in row]
    products = [math.exp(sum(row)) for row in d if row]
    mean = sum(w) / 8
    expected = {
        "ratio/mean": mean,
        "ratio/var": sum((x - mean) ** 2 for x in w) / 8,
        "kl/old_k1": sum(-x for row in d for x in row) / 8,
        "kl/old_k3": sum(math.exp(x) - 1 - x for row in d for x in row) / 8,
        "ess/update_token": sum(w) ** 2 / (8 * sum(x * x for x in w)),
        "ess/update_seq": sum(products) ** 2 / (3 * sum(x * x for x in products)),
    }
    assert {name: one.value() for name, one in measured([0, 1, 2, 3]).items()} == pytest.approx(expected, rel=1e-9)
    assert expected["ess/update_seq"] < 0.9, "equal weights could not tell a sum from a mean"


@pytest.mark.parametrize("parts", [[[0], [1], [2], [3]], [[3, 1], [0, 2]], [[2], [0, 1, 3]]])
def test_parts_add_up_to_the_whole(parts: list[list[int]]) -> None:
    """An average of averages would not: the parts have different numbers of tokens."""
    whole = measured([0, 1, 2, 3])
    for name, one in whole.items():
        first, *others = (measured(part)[name] for part in parts)
        for other in others:
            first = first.plus(other)  # type: ignore[arg-type]
        assert first.value() == pytest.approx(one.value(), rel=1e-12), name


def test_a_policy_that_did_not_move_is_exact() -> None:
    new, _ = logps(1)
    found = {name: one.value() for name, one in movement(torch.ones(4, 4), new.float(), new.float(), MASK).items()}
    ones = {"ratio/mean", "ess/update_token", "ess/update_seq"}
    assert found == {name: float(name in ones) for name in found}


def test_the_ratio_is_the_one_the_loss_uses_and_the_weights_are_not() -> None:
    new, old = logps(0)
    found = movement(torch.full((4, 4), 3.0), new, old, MASK)
    assert found["ratio/mean"].value() == 3
    assert found["ratio/var"].value() == 0
    assert found["ess/update_token"].value() < 1


def test_a_runaway_token_leaves_every_metric_a_number() -> None:
    """exp of 400 is no float32: weights are held at e^20, and so is k3."""
    new, old = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-401.0, -2.0]])
    found = movement(torch.ones(1, 2), new, old, torch.ones(1, 2).bool())
    assert all(math.isfinite(one.value()) for one in found.values())
    assert found["ess/update_token"].value() == pytest.approx(0.5)


def test_nothing_counted_is_not_a_number() -> None:
    empty = torch.zeros(2, 3, dtype=torch.bool)
    for one in movement(torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), empty).values():
        assert math.isnan(one.value())


def test_a_small_variance_survives_its_large_mean() -> None:
    """1000 +- 0.001 in float32 inputs: float32 sums of squares would give rubbish or a negative number."""
    values = torch.tensor([1000.0, 1000.001, 999.999, 1000.0])
    found = masked_moments(values, torch.ones(4, dtype=torch.bool), "variance").value()
    assert found == pytest.approx(float(values.double().var(correction=0)), rel=1e-3)


def test_different_statistics_do_not_add_up() -> None:
    one, mask = torch.ones(2), torch.ones(2, dtype=torch.bool)
    with pytest.raises(AssertionError, match="do not add up"):
        masked_moments(one, mask, "variance").plus(masked_moments(one, mask, "effective_share"))
