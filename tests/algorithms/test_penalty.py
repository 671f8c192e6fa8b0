"""KL estimators: their expectation and the gradient that each really follows, by enumerating a small softmax."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from algorithms import grpo
from algorithms.axes.batch import Rollout
from algorithms.axes.penalty import Estimator, LossKL, NoPenalty, RewardKL, SequenceRewardKL, kl_estimate

LOGITS = torch.tensor([0.3, -1.2, 2.0, 0.5], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([1.0, 0.2, -0.7, 0.1], dtype=torch.float64), dim=0)
ESTIMATORS = get_args(Estimator)


def reverse_kl(logp: Tensor) -> Tensor:
    """KL(pi || reference)."""
    return (logp.exp() * (logp - REFERENCE)).sum()


def forward_kl(logp: Tensor) -> Tensor:
    """KL(reference || pi)."""
    return (REFERENCE.exp() * (REFERENCE - logp)).sum()


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def test_by_hand() -> None:
    """d = log 2: k1 = 0.693147, k2 = d^2/2 = 0.240227, k3 = 1/2 + d - 1 = 0.193147; d = -log 2: k3 = 2 + d - 1 =
    0.306853."""
    logp = torch.tensor([math.log(0.5), math.log(0.25)], dtype=torch.float64)
    ref_logp = torch.tensor([math.log(0.25), math.log(0.5)], dtype=torch.float64)
    expected = {"k1": [0.693147, -0.693147], "k2": [0.240227, 0.240227], "k3": [0.193147, 0.306853]}
    for estimator in ESTIMATORS:
        assert kl_estimate(logp, ref_logp, estimator).tolist() == pytest.approx(expected[estimator], abs=1e-6)


def test_k1_and_k3_are_unbiased_and_k2_is_not() -> None:
    """E over pi of the estimate, summed over all four tokens, against the exact divergence."""
    logp = torch.log_softmax(LOGITS, dim=0)
    mean = {e: float((logp.exp() * kl_estimate(logp, REFERENCE, e)).sum()) for e in ESTIMATORS}
    exact = float(reverse_kl(logp))
    assert mean["k1"] == pytest.approx(exact, abs=1e-14)
    assert mean["k3"] == pytest.approx(exact, abs=1e-14)
    assert abs(mean["k2"] - exact) > 0.1


def test_k2_and_k3_are_never_negative() -> None:
    logp, ref_logp = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert kl_estimate(logp, ref_logp, "k2").min() >= 0
    assert kl_estimate(logp, ref_logp, "k3").min() >= 0


def test_k3_far_outside_the_reference_is_held_and_never_pushes_away() -> None:
    """Down to d = -20 the gradient is 1 - e^-d < 0, towards the reference; beyond it is 0, and not the other way."""
    logp = torch.tensor([-5.0, -19.0, -21.0, -400.0], requires_grad=True)
    estimate = kl_estimate(logp, torch.zeros(4), "k3")
    assert estimate[3].item() == pytest.approx(math.exp(20), rel=1e-5)
    estimate.sum().backward()
    assert logp.grad is not None
    assert logp.grad[0].item() == pytest.approx(1 - math.exp(5), rel=1e-6)
    assert logp.grad[1].item() == pytest.approx(-math.exp(19), rel=1e-6)
    assert logp.grad[2:].tolist() == [0, 0]


def test_k3_keeps_its_digits_where_the_policies_nearly_agree() -> None:
    """For small d, k3 = d^2/2 - d^3/6 + ...; exp(-d) - 1 in float32 would leave nothing of it."""
    logp, ref_logp = torch.tensor([1e-3]), torch.tensor([0.0])
    assert float(kl_estimate(logp, ref_logp, "k3")) == pytest.approx(1e-6 / 2 - 1e-9 / 6, rel=1e-3)


def test_gradient_in_the_loss_on_policy() -> None:
    """Spec section 5: sum over x of pi(x) held fixed times d k(x): k1 follows nothing, k2 KL(pi || ref), k3 KL(ref ||
    pi)."""
    logits = LOGITS.clone().requires_grad_()
    logp = torch.log_softmax(logits, dim=0)
    followed = {e: gradient((logp.detach().exp() * kl_estimate(logp, REFERENCE, e)).sum(), logits) for e in ESTIMATORS}
    assert followed["k1"].abs().max() < 1e-15
    assert torch.allclose(followed["k2"], gradient(reverse_kl(logp), logits), atol=1e-14, rtol=0)
    assert torch.allclose(followed["k3"], gradient(forward_kl(logp), logits), atol=1e-14, rtol=0)
    assert not torch.allclose(followed["k2"], followed["k3"], atol=1e-2)


def test_gradient_in_the_reward_on_policy() -> None:
    """Score function: sum over x of pi(x) k(x) d log pi(x), k held fixed: k1 follows KL(pi || ref), k2 and k3 do
    not."""
    logits = LOGITS.clone().requires_grad_()
    logp = torch.log_softmax(logits, dim=0)
    exact = gradient(reverse_kl(logp), logits)
    for estimator in ESTIMATORS:
        reward = kl_estimate(logp, REFERENCE, estimator).detach()
        follows = torch.allclose(
            gradient((logp.detach().exp() * reward * logp).sum(), logits), exact, atol=1e-14, rtol=0
        )
        assert follows == (estimator == "k1")


def test_placement_by_hand(make_rollout: Callable[..., Rollout]) -> None:
    """d = 0.2 and -0.4: the reward is -beta k, without a gradient; the loss is +beta k, with one; none is none."""
    old_logp, ref_logp, ratio = torch.tensor([[-1.0, -1.4]]), torch.tensor([[-1.2, -1.0]]), torch.tensor([[1.5, 2.0]])
    rollout = make_rollout([1.0], old_logp=old_logp, ref_logp=ref_logp)
    for penalty in (RewardKL(coefficient=0.5), SequenceRewardKL(coefficient=0.5)):
        assert penalty.token_reward(rollout).tolist() == [pytest.approx([-0.1, 0.2])]
        assert penalty.token_loss(old_logp, ref_logp, ratio) is None
    charges = {"none": [0.01, 0.04], "ratio": [0.015, 0.08], "detached_ratio": [0.015, 0.08]}
    for weight, expected in charges.items():
        charged = LossKL(coefficient=0.5, estimator="k2", weight=weight).token_loss(old_logp, ref_logp, ratio)
        assert charged is not None
        assert charged.tolist() == [pytest.approx(expected)]
    assert LossKL(coefficient=0.5).token_reward(rollout).tolist() == [[0, 0]]
    assert NoPenalty().token_loss(old_logp, None, ratio) is None
    assert NoPenalty().token_reward(rollout).tolist() == [[0, 0]]


# Spec section 5: what each weighted estimate follows in expectation; None: neither divergence.
FOLLOWED = {
    ("k1", "none"): ("nothing", None),
    ("k2", "none"): ("reverse", None),
    ("k3", "none"): ("forward", None),
    ("k1", "ratio"): ("reverse", "reverse"),
    ("k3", "ratio"): ("reverse", "reverse"),
    ("k2", "ratio"): (None, None),
    ("k2", "detached_ratio"): ("reverse", "reverse"),
    ("k3", "detached_ratio"): ("forward", "forward"),
    ("k1", "detached_ratio"): ("nothing", "nothing"),
}


@pytest.mark.parametrize(("estimator", "weight"), FOLLOWED)
def test_the_table_of_gradients_by_enumeration(estimator: Any, weight: Any) -> None:
    """Expectation over the policy itself, then over an older one, of the gradient of the term as it enters the loss."""
    behind = torch.log_softmax(torch.tensor([0.9, -0.2, 1.1, -0.5], dtype=torch.float64), dim=0)
    for old_logp, expected in zip((None, behind), FOLLOWED[estimator, weight], strict=True):
        logits = LOGITS.clone().requires_grad_()
        logp = torch.log_softmax(logits, dim=0)
        old = logp.detach() if old_logp is None else old_logp
        term = LossKL(coefficient=1.0, estimator=estimator, weight=weight).token_loss(
            logp[None, :], REFERENCE[None, :], (logp - old).exp()[None, :]
        )
        assert term is not None
        found = gradient((old.exp() * term[0]).sum(), logits)
        candidates = {
            "nothing": torch.zeros(4, dtype=torch.float64),
            "reverse": gradient(reverse_kl(logp), logits),
            "forward": gradient(forward_kl(logp), logits),
        }
        matches = [name for name, exact in candidates.items() if torch.allclose(found, exact, atol=1e-13, rtol=0)]
        assert matches == ([] if expected is None else [expected])


def test_the_reference_is_needed_exactly_where_it_is_read() -> None:
    assert not NoPenalty().needs_reference
    assert RewardKL(coefficient=0.1).needs_reference
    assert LossKL(coefficient=0.1).needs_reference


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_penalty_does_not_read_what_the_mask_hides(estimator: Any, ragged: Any, value_and_gradient: Any) -> None:
    """NaN log-probabilities under the mask: the same loss, and a gradient of exactly 0 there, where 0 times NaN is
    not."""
    objective = replace(grpo.objective, penalty=LossKL(coefficient=0.1, estimator=estimator))
    example = ragged()
    found, expected = (
        value_and_gradient(lambda batch, totals: objective.loss(batch, totals).loss, batch, example.totals)
        for batch in (example.padded(2, math.nan), example.batch)
    )
    assert found[0] == pytest.approx(expected[0], abs=1e-15)
    assert torch.equal(found[1][:, :-2], expected[1])
    assert torch.equal(found[1][:, -2:], torch.zeros(8, 2, dtype=torch.float64))
