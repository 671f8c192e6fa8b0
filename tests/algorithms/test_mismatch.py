"""Weights on the surrogate: rollout mismatch and the choice of tokens, by hand and inside a whole loss."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from algorithms.axes.baseline import GroupCentred
from algorithms.axes.batch import Batch, Rollout, Totals, group_tokens
from algorithms.axes.focus import AllTokens, TopEntropyTokens
from algorithms.axes.mismatch import NoCorrection, SequenceMask, SequenceTruncate, TokenMask, TokenTruncate
from algorithms.axes.penalty import LossKL, NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

NAN = math.nan
PLAIN: dict[str, Any] = {
    "shaping": NoShaping(),
    "selection": KeepAll(),
    "advantage": GroupCentred(),
    "surrogate": Clip(),
    "penalty": NoPenalty(),
    "reduction": TokenMean(),
    "value": NoCritic(),
}


@pytest.fixture
def rollout(make_rollout: Callable[..., Rollout]) -> Rollout:
    """Token ratios 3, .5 | 1.5, 1 (no log-probability from the engine) | .25, and 7 under the mask; products 1.5, 1.5,
    .25."""
    log = torch.tensor([[3.0, 0.5], [1.5, 1.0], [0.25, 7.0]]).log()
    sampled = torch.tensor([[-1.0, -1.0], [-1.0, NAN], [-1.0, -2.0]])
    old_logp = torch.where(sampled.isnan(), torch.tensor(-1.0), sampled + log)
    entropy = torch.tensor([[0.1, 0.9], [0.5, 0.7], [0.3, 8.0]])
    mask = [[1, 1], [1, 1], [1, 0]]
    return make_rollout([1.0, 0.0, 0.0], mask=mask, old_logp=old_logp, sampler_logp=sampled, entropy=entropy)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (TokenTruncate(high=2.0), [2.0, 0.5, 1.5, 1.0, 0.25]),
        (TokenTruncate(high=2.0, low=0.4), [2.0, 0.5, 1.5, 1.0, 0.4]),
        (TokenMask(high=2.0), [0.0, 0.5, 1.5, 1.0, 0.25]),
        (TokenMask(high=2.0, low=0.4), [0.0, 0.5, 1.5, 1.0, 0.0]),
        (SequenceTruncate(high=1.2), [1.2, 1.2, 1.2, 1.2, 0.25]),
        (SequenceTruncate(high=1.2, low=0.5), [1.2, 1.2, 1.2, 1.2, 0.5]),
        (SequenceMask(high=1.2), [0.0, 0.0, 0.0, 0.0, 0.25]),
        (SequenceMask(high=2.0, low=0.5), [1.5, 1.5, 1.5, 1.5, 0.0]),
    ],
    ids=lambda value: value.formula() if hasattr(value, "formula") else "",
)
def test_weights_by_hand(correction: Any, expected: list[float], rollout: Rollout) -> None:
    weight = correction(rollout)
    assert weight is not None
    assert weight[rollout.mask].tolist() == pytest.approx(expected)


def test_no_correction_and_all_tokens_are_no_weight_at_all(rollout: Rollout) -> None:
    assert NoCorrection()(rollout) is None
    assert AllTokens()(rollout, rollout.mask) is None
    assert PolicyGradient(**PLAIN).credit(rollout).weight is None


@pytest.mark.parametrize(
    ("share", "kept"), [(0.2, [0.9]), (0.35, [0.9, 0.7]), (0.4, [0.9, 0.7]), (0.6, [0.9, 0.7, 0.5]), (0.01, [0.9])]
)
def test_the_tokens_with_the_highest_entropy_are_kept(share: float, kept: list[float], rollout: Rollout) -> None:
    """Five valid tokens with entropies .1 .9 .5 .7 .3; the 8 under the mask does not count."""
    focus = TopEntropyTokens(share=share)(rollout, rollout.mask)
    assert focus is not None
    assert rollout.entropy is not None
    assert sorted(rollout.entropy[focus == 1].tolist(), reverse=True) == pytest.approx(kept)
    assert set(focus.flatten().tolist()) == {0.0, 1.0}


def test_weights_multiply_and_nothing_is_chosen_where_nothing_is_trained(rollout: Rollout) -> None:
    focus = TopEntropyTokens(share=0.4, count_dropped=True)
    objective = PolicyGradient(**PLAIN | {"mismatch": TokenTruncate(high=2.0), "focus": focus})
    weight = objective.credit(rollout).weight
    assert weight is not None
    assert weight.tolist()[:2] == [pytest.approx([0, 0.5]), pytest.approx([0, 1.0])]
    unscored = replace(rollout, reward=torch.full((3,), NAN, dtype=torch.float64))
    weight = objective.credit(unscored).weight
    assert weight is not None
    assert weight.abs().max() == 0


def test_dropped_tokens_leave_the_denominator_or_stay_in_it(rollout: Rollout) -> None:
    """2506.01939, Eq. 6: the mask shrinks to the two tokens kept; as in TRL all five stay, three with weight 0."""
    for count_dropped, tokens in ((False, 2), (True, 5)):
        focus = TopEntropyTokens(share=0.4, count_dropped=count_dropped)
        credit = PolicyGradient(**PLAIN | {"focus": focus}).credit(rollout)
        assert Totals.of(credit.mask, rollout.group, 10).num_tokens == tokens
        assert (credit.weight is None) == (not count_dropped)
        kept = credit.mask if credit.weight is None else credit.mask & (credit.weight == 1)
        assert kept.tolist() == [[False, True], [False, True], [False, False]]


def test_a_weight_scales_the_surrogate_and_neither_the_penalty_nor_the_denominator(rollout: Rollout) -> None:
    """Spec section 1: surrogate, times the weight, plus the penalty, over the tokens of the step."""
    objective = PolicyGradient(**PLAIN | {"penalty": LossKL(coefficient=0.5, estimator="k2")})
    old = rollout.old_logp.double()
    parts = {
        "logp": old + 0.1,
        "old_logp": old,
        "ref_logp": old - 0.3,
        "advantage": torch.tensor([[1.0, 1.0], [-1.0, -1.0], [2.0, 0.0]], dtype=torch.float64),
        "mask": rollout.mask,
        "group_tokens": group_tokens(rollout.mask, rollout.group),
    }
    weight = torch.tensor([[2.0, 0.0], [0.5, 1.0], [0.25, 5.0]], dtype=torch.float64)
    totals = Totals.of(rollout.mask, rollout.group, 10)
    rho, penalty = math.exp(0.1), 0.5 * 0.4**2 / 2
    surrogate = -(rho * (2 * 1 - 0.5 - 1 + 0.25 * 2))
    found = float(objective.loss(Batch(**parts, weight=weight), totals).loss)
    assert found == pytest.approx((surrogate + 5 * penalty) / 5, abs=1e-12)


def test_a_weight_is_data_even_if_it_was_handed_over_with_a_graph(make_batch: Any) -> None:
    batch, totals = make_batch([[-1.0, -2.0]])
    leaves = {name: torch.ones(1, 2, dtype=torch.float64, requires_grad=True) for name in ("logp", "weight")}
    PolicyGradient(**PLAIN).loss(replace(batch, **leaves), totals).loss.backward()
    assert leaves["logp"].grad is not None
    assert leaves["weight"].grad is None
