"""Ratios: per token and per completion, by hand, and where their gradients flow."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from algorithms.axes.ratio import NoRatio, Ratio, SequenceProductRatio, SequenceRatio, SequenceTokenRatio, TokenRatio

LOGP = torch.tensor([[-1.0, -2.0, -0.5], [-1.5, -0.2, 9.0]], dtype=torch.float64)
OLD = torch.tensor([[-1.2, -1.7, -1.0], [-1.1, -0.8, -9.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False]])
# Differences of the valid tokens: .2, -.3, .5 and -.4, .6: sums .4 and .2, means .4 / 3 and .1.


def gradient(ratio: Any, advantage: Tensor) -> Tensor:
    logp = LOGP.clone().requires_grad_()
    return torch.autograd.grad((ratio(logp, OLD, MASK) * advantage * MASK).sum(), logp)[0]


def test_values_by_hand() -> None:
    expected = {
        TokenRatio: [[math.exp(0.2), math.exp(-0.3), math.exp(0.5)], [math.exp(-0.4), math.exp(0.6)]],
        SequenceRatio: [[math.exp(0.4 / 3)] * 3, [math.exp(0.1)] * 2],
        SequenceTokenRatio: [[math.exp(0.4 / 3)] * 3, [math.exp(0.1)] * 2],
        SequenceProductRatio: [[math.exp(0.4)] * 3, [math.exp(0.2)] * 2],
    }
    for cls, rows in expected.items():
        found = cls()(LOGP, OLD, MASK)
        assert [row[mask].tolist() for row, mask in zip(found, MASK, strict=True)] == [pytest.approx(r) for r in rows]


def test_gradients_by_hand() -> None:
    """d rho = rho for a token; s / L for each token of a completion's mean, L times over; the product's is L rho."""
    one = torch.ones_like(LOGP)
    assert torch.allclose(gradient(TokenRatio(), one), MASK * (LOGP - OLD).exp())
    mean = torch.tensor([[math.exp(0.4 / 3)] * 3, [math.exp(0.1)] * 2 + [0]], dtype=torch.float64)
    assert torch.allclose(gradient(SequenceRatio(), one), mean)
    product = torch.tensor([[3 * math.exp(0.4)] * 3, [2 * math.exp(0.2)] * 2 + [0]], dtype=torch.float64)
    assert torch.allclose(gradient(SequenceProductRatio(), one), product)


def test_the_two_forms_of_gspo_agree_for_one_advantage_a_completion_and_only_then() -> None:
    """2507.18071, Eq. 14-17."""
    same = torch.tensor([[2.0] * 3, [-1.0] * 3], dtype=torch.float64)
    mixed = torch.tensor([[2.0, -1, 0], [1, 1, 1]], dtype=torch.float64)
    assert torch.allclose(gradient(SequenceRatio(), same), gradient(SequenceTokenRatio(), same))
    assert not torch.allclose(gradient(SequenceRatio(), mixed), gradient(SequenceTokenRatio(), mixed), atol=0.1)


def test_no_ratio_is_watched_and_has_no_gradient() -> None:
    logp = LOGP.clone().requires_grad_()
    watched = NoRatio()(logp, OLD, MASK)
    assert not watched.requires_grad
    assert torch.equal(watched, TokenRatio()(LOGP, OLD, MASK))


@pytest.mark.parametrize("cls", get_args(Ratio), ids=lambda cls: cls.__name__)
def test_on_policy_every_ratio_is_one_and_padding_never_matters(cls: Any) -> None:
    wild = torch.where(MASK, LOGP, math.nan)
    assert torch.equal(cls()(LOGP, LOGP, MASK), torch.ones_like(LOGP))
    assert torch.equal(cls()(wild, OLD, MASK)[MASK], cls()(LOGP, OLD, MASK)[MASK])
    empty = torch.zeros_like(MASK)
    assert torch.equal(cls()(wild, OLD, empty), torch.ones_like(LOGP))


@pytest.mark.parametrize("cls", get_args(Ratio), ids=lambda cls: cls.__name__)
def test_a_runaway_completion_stays_finite(cls: Any) -> None:
    assert bool(cls()(LOGP + 400, OLD, MASK).isfinite().all())
