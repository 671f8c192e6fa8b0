"""The preference family: DPO's loss, and which graded samples may make a pair."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import dpo
from algorithms.axes.batch import PairBatch, PairTotals
from algorithms.axes.needs import Needs
from algorithms.axes.preference import (
    ChosenLikelihood,
    FixedPairs,
    GradedPairs,
    Ipo,
    LogRatios,
    NoLikelihood,
    Preference,
    Sigmoid,
    SigmoidNorm,
)

NAN = math.nan
OBJECTIVES = [
    Preference(loss_function=loss_function, likelihood=likelihood, pairing=GradedPairs())
    for loss_function in (Sigmoid(beta=0.1), SigmoidNorm(beta=5.0), Ipo(beta=0.1), Ipo(beta=0.1, per_token=False))
    for likelihood in (NoLikelihood(), ChosenLikelihood(coefficient=1.0, normalise="token"))
]


def pairs(chosen: list[float], rejected: list[float], ref_chosen: list[float], ref_rejected: list[float]) -> PairBatch:
    columns = [torch.tensor(values, dtype=torch.float64) for values in (chosen, rejected, ref_chosen, ref_rejected)]
    return PairBatch(
        chosen_logp=columns[0],
        rejected_logp=columns[1],
        ref_chosen_logp=columns[2],
        ref_rejected_logp=columns[3],
        chosen_length=torch.full((len(chosen),), 4.0, dtype=torch.float64),
        rejected_length=torch.full((len(chosen),), 2.0, dtype=torch.float64),
    )


def totals(num_pairs: int, num_chosen_tokens: int = 1) -> PairTotals:
    return PairTotals(num_pairs=num_pairs, num_chosen_tokens=num_chosen_tokens)


def test_dpo_by_hand() -> None:
    """OBJ-40: log-ratios 1 and -1, margin 2, beta 0.1: -log sigmoid(0.2) = 0.598139, reward margin 0.2."""
    objective = Preference(loss_function=Sigmoid(beta=0.1), pairing=GradedPairs())
    parts = objective.loss(pairs([-10], [-12], [-11], [-11]), totals(1))
    assert float(parts.loss) == pytest.approx(0.598139, abs=1e-6)
    assert {name: mean.value() for name, mean in parts.means.items()} == {
        "dpo/accuracy": 1,
        "dpo/margin": pytest.approx(0.2),
        "dpo/chosen_reward": pytest.approx(0.1),
        "dpo/rejected_reward": pytest.approx(-0.1),
        "dpo/chosen_logp": -10,
        "dpo/rejected_logp": -12,
    }


def test_gradient_by_hand() -> None:
    """d loss / d chosen = -beta sigmoid(-beta margin) = -(d loss / d rejected); the reference is data and gets none."""
    batch = pairs([-10, -5], [-12, -4], [-11, -5], [-11, -5])
    leaves = {name: values.clone().requires_grad_() for name, values in vars(batch).items()}
    dpo.objective.loss(PairBatch(**leaves), totals(2)).loss.backward()
    expected = [-0.1 / (1 + math.exp(0.2)) / 2, -0.1 / (1 + math.exp(-0.1)) / 2]
    chosen, rejected = leaves["chosen_logp"].grad, leaves["rejected_logp"].grad
    assert chosen is not None
    assert rejected is not None
    assert chosen.tolist() == pytest.approx(expected, abs=1e-15)
    assert torch.equal(rejected, -chosen)
    assert leaves["ref_chosen_logp"].grad is None
    assert leaves["ref_rejected_logp"].grad is None


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.formula()["loss_function"])
def test_any_split_into_microbatches_gives_the_same_update(objective: Preference) -> None:
    """OBJ-05 for DPO: four pairs in one part and in four, one SGD step at rate 1 on what produced the log-
    probabilities."""
    generator = torch.Generator().manual_seed(0)
    weights, features = (torch.randn(8, generator=generator, dtype=torch.float64) for _ in range(2))
    reference = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([[3.0, 1, 60, 5], [2, 9, 1, 4]], dtype=torch.float64)

    def update(parts: list[list[int]]) -> Tensor:
        leaf = weights.clone().requires_grad_()
        for rows in parts:
            own = (leaf * features).view(2, 4)[:, rows]
            batch = PairBatch(
                chosen_logp=own[0],
                rejected_logp=own[1],
                ref_chosen_logp=reference[0, rows],
                ref_rejected_logp=reference[1, rows],
                chosen_length=lengths[0, rows],
                rejected_length=lengths[1, rows],
            )
            objective.loss(batch, totals(4, int(lengths[0].sum()))).loss.backward()
        assert leaf.grad is not None
        return -leaf.grad

    whole, parts = update([[0, 1, 2, 3]]), update([[0], [1], [2], [3]])
    assert whole.norm() > 1e-3
    assert float((whole - parts).norm() / whole.norm()) <= 1e-12


def test_the_start_is_indifference() -> None:
    """Policy = reference: every margin is 0, the loss log 2, accuracy 0 (a tie is not a preference)."""
    parts = dpo.objective.loss(pairs([-3, -4], [-5, -1], [-3, -4], [-5, -1]), totals(2))
    assert float(parts.loss) == pytest.approx(math.log(2), abs=1e-12)
    assert parts.means["dpo/accuracy"].value() == 0


def test_extreme_margins_stay_finite() -> None:
    """-log sigmoid(-m) -> m for large m, with no overflow on the way."""
    one = torch.ones(1)
    for loss in (Sigmoid(beta=1.0), SigmoidNorm(beta=1.0)):
        assert float(loss(LogRatios(-1e4 * one, 0 * one, one, one))) == pytest.approx(1e4)
        assert float(loss(LogRatios(1e4 * one, 0 * one, one, one))) == 0


def test_losses_on_lengths_by_hand() -> None:
    """Log-ratios 1 over 4 tokens and -1 over 2: sums differ by 2, means by 1/4 + 1/2 = 3/4."""
    batch = pairs([-10], [-12], [-11], [-11])

    def loss_of(loss_function: Any, likelihood: Any = None) -> float:
        extra = {} if likelihood is None else {"likelihood": likelihood}
        objective = Preference(loss_function=loss_function, pairing=GradedPairs(), **extra)
        return float(objective.loss(batch, totals(1, 5)).loss)

    plain = math.log1p(math.exp(-0.2))
    assert loss_of(SigmoidNorm(beta=2.0)) == pytest.approx(math.log1p(math.exp(-1.5)), abs=1e-12)
    assert loss_of(Ipo(beta=0.1)) == pytest.approx((0.75 - 5) ** 2, abs=1e-12)
    assert loss_of(Ipo(beta=0.1, per_token=False)) == pytest.approx((2 - 5) ** 2, abs=1e-12)
    assert loss_of(Sigmoid(beta=0.1), ChosenLikelihood(coefficient=2.0)) == pytest.approx(plain + 2 * 10 / 4)
    by_token = ChosenLikelihood(coefficient=2.0, normalise="token")
    assert loss_of(Sigmoid(beta=0.1), by_token) == pytest.approx(plain + 2 * 10 / 5)


@pytest.mark.parametrize(
    ("reward", "ended", "chosen", "rejected"),
    [
        ([1, 0, 1, 0], [1, 1, 1, 1], [0, 2], [1, 3]),
        ([1, 1, 1, 1], [1, 1, 1, 1], [], []),
        ([0, 0, 0, 0], [1, 1, 1, 1], [], []),
        ([0.35] * 4, [1, 1, 1, 1], [], []),
        ([0.1] * 3 + [0.1 + 1e-9], [1, 1, 1, 1], [], []),
        ([1, 0, 1, 0], [0, 1, 1, 0], [2], [1]),
        ([1, 0, 0, 0], [1, 0, 0, 0], [], []),
        ([1, NAN, 0, math.inf], [1, 1, 1, 1], [0], [2]),
        ([3, 2, NAN, NAN], [1, 1, 1, 1], [0], [1]),
        ([NAN] * 4, [1, 1, 1, 1], [], []),
        ([1.2, 0.2, 0.0, 0.0], [1, 1, 1, 1], [0], [1, 2, 3]),
        ([1.0, 0.5, 0.0, 0.5], [1, 1, 1, 1], [0], [2]),
    ],
)
def test_members_fit_for_pairs(reward: list[float], ended: list[int], chosen: list[int], rejected: list[int]) -> None:
    """Above and below the mean of the usable members; ties, truncated and unscorable ones make no pair."""
    split = GradedPairs().split(torch.tensor(reward, dtype=torch.float64), torch.tensor(ended).bool())
    assert split == (chosen, rejected)


def test_truncated_members_may_be_allowed() -> None:
    reward, ended = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([True, False, False])
    assert GradedPairs(require_termination=False).split(reward, ended) == ([0], [1, 2])
    assert replace(GradedPairs(), require_termination=True).split(reward, ended) == ([], [])


def test_needs_and_formula() -> None:
    assert dpo.objective.needs == Needs(critic=False, reference=True, groups=True)
    assert list(dpo.objective.formula()) == ["loss_function", "likelihood", "pairing", "reduction"]


def test_matched_lengths_meet_the_nearest_and_use_each_rejected_one_before_any_again() -> None:
    pairing = GradedPairs(length_match=True, max_pairs_per_prompt=4)
    assert pairing.couples([5, 1], [1, 6, 4]) == [(0, 1), (1, 0), (0, 2)]
    assert pairing.couples([2, 2, 2, 9], [9, 3]) == [(0, 1), (1, 0), (2, 1), (3, 0)]
    assert GradedPairs(max_pairs_per_prompt=4).couples([5, 1], [1, 6, 4]) == [(0, 0), (1, 1), (0, 2)]
    assert len(pairing.couples([1] * 9, [1] * 3)) == 4


def test_fixed_pairs_ask_for_nothing_but_the_reference() -> None:
    fixed = Preference(loss_function=Sigmoid(beta=0.1), pairing=FixedPairs(path="some/set"))
    assert fixed.needs == Needs(critic=False, reference=True, groups=False, reward=False, samples=False)
