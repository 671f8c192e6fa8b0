"""The clipped surrogate: its value, and above all where its gradient is cut."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.axes.batch import Batch, Totals
from algorithms.axes.ratio import TokenRatio
from algorithms.axes.surrogate import Cispo, CispoMasked, Clip, DualClip, Reinforce, Sapo, Unclipped

MakeBatch = Callable[..., tuple[Batch, Totals]]
CLIP_HIGHER = Clip(low=0.2, high=0.28)
ALL = [Clip(), CLIP_HIGHER, DualClip(), Cispo(high=4.0), CispoMasked(high=4.0), Reinforce(), Sapo(), Unclipped()]


def importance_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    return TokenRatio()(logp, old_logp, torch.ones_like(logp).bool())


def loss_and_gradient(surrogate: Any, ratio: float, advantage: float) -> tuple[float, float]:
    """The token's loss and its derivative with respect to log pi, with an old log-probability of 0."""
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss = surrogate(importance_ratio(logp, torch.zeros_like(logp)), torch.full_like(logp.detach(), advantage), logp)
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
    """rho = 1 lies inside any bounds: d loss / d log pi = -A, so the axis is inert with one update per rollout."""
    batch, _ = make_batch([[-1.0, -2.0, -3.0], [-0.5, -0.1, -7.0]], advantage=[[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
    gradients: list[Tensor] = []
    for clip in (*ALL, Clip(low=1.0, high=9.0)):
        logp = batch.logp.clone().requires_grad_()
        gradients += torch.autograd.grad(
            clip(importance_ratio(logp, batch.old_logp), batch.advantage, logp).sum(), logp
        )
    assert all(torch.allclose(gradient, -batch.advantage, atol=1e-15, rtol=0) for gradient in gradients)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(4.0, -1, 3.0, 0.0), (2.5, -1, 2.5, 2.5), (0.7, -1, 0.8, 0.0), (4.0, 1, -1.2, 0.0), (1.1, 2, -2.2, -2.2)],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    """For A < 0 the objective is never below cap A, so a ratio above 3 costs 3 and pushes no more; A > 0 as ever."""
    assert loss_and_gradient(DualClip(low=0.2, high=0.2, cap=3.0), ratio, advantage) == pytest.approx((loss, gradient))


def test_dual_clip_is_a_ceiling_on_the_unclipped_ratio() -> None:
    """TRL's delta: min(rho, delta) in the unclipped branch is the same function where delta > 1 + high."""
    ratio = torch.linspace(0.1, 8, 200, dtype=torch.float64)[None, :]
    for advantage in (1.5, -0.5, 0.0):
        a = torch.full_like(ratio, advantage)
        delta = -torch.minimum(ratio.clamp(max=3.0) * a, ratio.clamp(min=0.8, max=1.28) * a)
        assert torch.allclose(DualClip(low=0.2, high=0.28, cap=3.0)(ratio, a, ratio.log()), delta, atol=1e-15)


@pytest.mark.parametrize(
    ("surrogate", "ratio", "weight"),
    [
        (Cispo(low=None, high=1.0), 5.0, 2.0),
        (Cispo(low=None, high=1.0), 0.01, 0.01),
        (Cispo(low=0.3, high=1.0), 0.01, 0.7),
        (Cispo(low=0.3, high=1.0), 1.5, 1.5),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_cispo_holds_weights_and_keeps_every_gradient(
    surrogate: Cispo, ratio: float, weight: float, advantage: float
) -> None:
    """-sg[w] A log pi: the value contains log pi = log rho here, the gradient is -w A."""
    assert loss_and_gradient(surrogate, ratio, advantage) == pytest.approx(
        (-weight * advantage * math.log(ratio), -weight * advantage)
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "kept"), [(1.3, 1, False), (1.3, -1, True), (0.7, -1, False), (0.7, 1, True), (1.1, 1, True)]
)
def test_masked_cispo_drops_what_a_clip_would_cut(ratio: float, advantage: float, kept: bool) -> None:
    """2506.13585, Eq. 7: the corners of the clip."""
    masked = CispoMasked(low=None, high=4.0, mask_low=0.2, mask_high=0.2)
    expected = loss_and_gradient(Cispo(low=None, high=4.0), ratio, advantage) if kept else (0.0, 0.0)
    assert loss_and_gradient(masked, ratio, advantage) == pytest.approx(expected)


def test_shares_of_the_other_bounds_by_hand() -> None:
    """Four valid tokens with ratios .5, 2, 6, 6 and advantages -, +, +, -."""
    ratio = torch.tensor([[0.5, 2.0, 6.0, 6.0, 9.0]])
    advantage = torch.tensor([[-1.0, 1.0, 1.0, -1.0, 1.0]])
    mask = torch.tensor([[True, True, True, True, False]])

    def shares(surrogate: Any) -> dict[str, float]:
        return {name: 4 * mean.value() for name, mean in surrogate.metrics(ratio, advantage, mask).items()}

    assert shares(DualClip(cap=3.0)) == {"clip/low": 1, "clip/high": 2, "clip/region": 3, "clip/dual": 1}
    assert shares(Cispo(low=None, high=4.0)) == {"clip/cispo": 2, "clip/cispo_positive": 1}
    assert shares(Cispo(low=0.4, high=4.0)) == {"clip/cispo": 3, "clip/cispo_positive": 1}
    assert shares(CispoMasked(high=4.0)) == {
        "clip/low": 1,
        "clip/high": 2,
        "clip/region": 3,
        "clip/cispo": 2,
        "clip/cispo_positive": 1,
    }
    assert shares(Reinforce()) == shares(Sapo()) == shares(Unclipped()) == {}


def test_sapo_by_hand() -> None:
    """-4 / tau sigmoid(tau (rho - 1)) A, slope -4 s (1 - s) rho A: at rho 1 that is -A for either tau."""
    for advantage, tau in ((1.0, 1.0), (-2.0, 1.05)):
        gate = 1 / (1 + math.exp(-tau * 0.5))
        expected = (-4 / tau * gate * advantage, -4 * gate * (1 - gate) * 1.5 * advantage)
        assert loss_and_gradient(Sapo(), 1.5, advantage) == pytest.approx(expected)


def test_reinforce_and_the_unclipped_surrogate_by_hand() -> None:
    assert loss_and_gradient(Reinforce(), 3.0, 2.0) == pytest.approx((-2 * math.log(3), -2))
    assert loss_and_gradient(Unclipped(), 3.0, 2.0) == pytest.approx((-6, -6))
