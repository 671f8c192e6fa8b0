"""The clipped surrogate: its value, and above all where its gradient is cut."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from algorithms.axes.batch import Batch, Totals
from algorithms.axes.surrogate import Clip, importance_ratio

MakeBatch = Callable[..., tuple[Batch, Totals]]
CLIP_HIGHER = Clip(low=0.2, high=0.28)


def loss_and_gradient(clip: Clip, ratio: float, advantage: float) -> tuple[float, float]:
    """The token's loss and its derivative with respect to log pi."""
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss = clip(importance_ratio(logp, torch.zeros_like(logp)), torch.full_like(logp.detach(), advantage))
    return loss.item(), torch.autograd.grad(loss.sum(), logp)[0].item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(1.3, 1, -1.28, 0.0), (1.3, -1, 1.3, 1.3), (0.7, 1, -0.7, -0.7), (0.7, -1, 0.8, 0.0)],
)
def test_clip_higher_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    """OBJ-25: -min(rho A, clip(rho) A). The gradient of -rho A is -rho A; it is 0 where the clipped side is the
    smaller."""
    value, slope = loss_and_gradient(CLIP_HIGHER, ratio, advantage)
    assert value == pytest.approx(loss, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)


@pytest.mark.parametrize("advantage", [2.0, -0.5, 0.0])
@pytest.mark.parametrize("ratio", [0.81, 1.0, 1.1, 1.27])
def test_inside_the_bounds_nothing_is_cut(ratio: float, advantage: float) -> None:
    """Both sides of the minimum are equal, and together they give the whole gradient -rho A, not half of it."""
    value, slope = loss_and_gradient(CLIP_HIGHER, ratio, advantage)
    assert value == pytest.approx(-ratio * advantage, abs=1e-12)
    assert slope == pytest.approx(-ratio * advantage, abs=1e-12)


def test_each_bound_is_its_own() -> None:
    """A ratio of 1.25 is cut by high = 0.2 and not by 0.28; one of 0.75 by low = 0.2 and not by 0.3."""
    assert loss_and_gradient(Clip(low=0.2, high=0.2), 1.25, 1) == pytest.approx((-1.2, 0))
    assert loss_and_gradient(Clip(low=0.2, high=0.28), 1.25, 1) == pytest.approx((-1.25, -1.25))
    assert loss_and_gradient(Clip(low=0.2, high=0.2), 0.75, -1) == pytest.approx((0.8, 0))
    assert loss_and_gradient(Clip(low=0.3, high=0.2), 0.75, -1) == pytest.approx((0.75, 0.75))


def test_metrics_are_the_shares_of_tokens_whose_gradient_is_cut() -> None:
    """Of six valid tokens one is cut below, two above; ratios outside on the harmless side, or under the mask, do not
    count."""
    ratio = torch.tensor([[0.7, 0.7, 1.3, 1.3], [1.3, 1.3, 1.0, 5.0]])
    advantage = torch.tensor([[-1.0, 1.0, 1.0, -1.0], [2.0, 0.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    shares = {name: mean.value() for name, mean in CLIP_HIGHER.metrics(ratio, advantage, mask).items()}
    assert shares == {name: pytest.approx(n / 6) for name, n in (("clip/low", 1), ("clip/high", 2), ("clip/region", 3))}


def test_a_stray_token_cannot_overflow() -> None:
    """The log-ratio is held within +-20, so that the loss stays finite in float32 and pushes no further."""
    logp = torch.tensor([[500.0, -500.0, 3.0]], requires_grad=True)
    ratio = importance_ratio(logp, torch.zeros(1, 3))
    assert ratio.tolist() == [[pytest.approx(math.exp(20)), pytest.approx(math.exp(-20)), pytest.approx(math.exp(3))]]
    gradient = torch.autograd.grad(ratio.sum(), logp)[0]
    assert gradient.tolist() == [[0, 0, pytest.approx(math.exp(3))]]


def test_on_policy_every_clip_has_the_same_gradient(make_batch: MakeBatch) -> None:
    """rho = 1 lies inside any bounds: d loss / d log pi = -A, so the clip axis is inert with one update per rollout."""
    batch, _ = make_batch([[-1.0, -2.0, -3.0], [-0.5, -0.1, -7.0]], advantage=[[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
    gradients: list[Tensor] = []
    for clip in (Clip(low=0.2, high=0.2), CLIP_HIGHER, Clip(low=1.0, high=9.0)):
        logp = batch.logp.clone().requires_grad_()
        gradients += torch.autograd.grad(clip(importance_ratio(logp, batch.old_logp), batch.advantage).sum(), logp)
    assert all(torch.equal(gradient, -batch.advantage) for gradient in gradients)
