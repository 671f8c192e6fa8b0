"""The critic's loss: the square, its clipped form, and the share of variance that it explains."""

import math
from dataclasses import replace

import pytest
import torch

from algorithms.axes.batch import Totals, ValueBatch
from algorithms.axes.value import ValueLoss, explained_variance

MASK = torch.tensor([[True, True, True], [True, True, False]])
TOTALS = Totals.of(MASK, torch.tensor([0, 0]), completion_budget=3)
BATCH = ValueBatch(
    value=torch.tensor([[0.1, 0.5, 0.5], [-0.5, 2.0, math.nan]], dtype=torch.float64),
    old_value=torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, math.nan]], dtype=torch.float64),
    returns=torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, math.nan]], dtype=torch.float64),
    mask=MASK,
)


def loss_and_gradient(component: ValueLoss, batch: ValueBatch) -> tuple[float, torch.Tensor]:
    value = batch.value.clone().requires_grad_()
    loss = component(replace(batch, value=value), TOTALS).loss
    return loss.item(), torch.autograd.grad(loss, value)[0]


def test_plain_square_by_hand() -> None:
    """Errors -0.9, -0.5, 0.5, -0.5, 1: (0.81 + 3 x 0.25 + 1) / (2 x 5) = 0.256, gradient error / 5, nothing on the
    NaN."""
    loss, gradient = loss_and_gradient(ValueLoss(clip=None), BATCH)
    assert loss == pytest.approx(0.256, abs=1e-12)
    expected = [[-0.18, -0.1, 0.1], [-0.1, 0.2, 0.0]]
    assert torch.allclose(gradient, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_clipped_by_hand() -> None:
    """Values held within 0.2 of the old ones: 0.1 stays; 0.5 is held at 0.2, where its error is -0.8 and larger, so it
    is charged 0.64 and has no gradient; the second 0.5 has a held error of 0.2, smaller than 0.5, so the plain square
    counts; -0.5 likewise; 2 has not moved. (0.81 + 0.64 + 0.25 + 0.25 + 1) / 10 = 0.295."""
    loss, gradient = loss_and_gradient(ValueLoss(clip=0.2), BATCH)
    assert loss == pytest.approx(0.295, abs=1e-12)
    expected = [[-0.18, 0.0, 0.1], [-0.1, 0.2, 0.0]]
    assert torch.allclose(gradient, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_value_is_held_on_either_side(side: float) -> None:
    """From 0 to +-.5 with a return of +-1: held at +-.2, an error of .8: .64 / 2, and no gradient."""
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = ValueBatch(value=side * one / 2, old_value=0 * one, returns=side * one, mask=one.bool())
    totals = Totals.of(batch.mask, torch.tensor([0]), completion_budget=1)
    value = batch.value.clone().requires_grad_()
    loss = ValueLoss(clip=0.2)(replace(batch, value=value), totals).loss
    assert loss.item() == pytest.approx(0.32)
    assert torch.autograd.grad(loss, value)[0].item() == 0


def test_metrics_are_the_loss_and_the_share_of_held_tokens() -> None:
    means = ValueLoss(clip=0.2)(BATCH, TOTALS).means
    assert {name: mean.value() for name, mean in means.items()} == {
        "value/loss": pytest.approx(0.295),
        "value/clip_frac": pytest.approx(1 / 5),
    }


def test_parts_of_a_step_add_up() -> None:
    whole, gradient = loss_and_gradient(ValueLoss(), BATCH)
    rows = [
        ValueBatch(**{k: getattr(BATCH, k)[i : i + 1] for k in ("value", "old_value", "returns", "mask")})
        for i in (0, 1)
    ]
    parts = [loss_and_gradient(ValueLoss(), row) for row in rows]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, abs=1e-15)
    assert torch.allclose(torch.cat([piece for _, piece in parts]), gradient, atol=1e-15)


def test_only_the_estimate_carries_a_gradient() -> None:
    """Old values and returns are data, even if they were handed over with a graph."""
    old, returns = (values.clone().requires_grad_() for values in (BATCH.old_value, BATCH.returns))
    value = BATCH.value.clone().requires_grad_()
    ValueLoss()(replace(BATCH, value=value, old_value=old, returns=returns), TOTALS).loss.backward()
    assert value.grad is not None
    assert old.grad is None
    assert returns.grad is None


def test_explained_variance_by_hand() -> None:
    """Returns 0, 1, 2 (variance 1). Values equal: 1 - 0. Constant: 1 - 1. Opposite: residuals -2, 0, 2, 1 - 4 = -3."""
    returns = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.full((3,), 7.0), returns) == pytest.approx(0, abs=2e-5)
    assert explained_variance(returns.flip(0), returns) == pytest.approx(-3, abs=1e-4)
    assert math.isnan(explained_variance(returns[:1], returns[:1]))
    assert explained_variance(torch.ones(3), torch.ones(3)) == 1  # equal returns, whose variance is 0
