"""The preference family: DPO's loss, and which graded samples may make a pair."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from algorithms import dpo
from algorithms.axes.batch import PairBatch
from algorithms.axes.needs import Needs
from algorithms.axes.preference import GradedPairs, Preference, Sigmoid

NAN = math.nan


def pairs(chosen: list[float], rejected: list[float], ref_chosen: list[float], ref_rejected: list[float]) -> PairBatch:
    columns = [torch.tensor(values, dtype=torch.float64) for values in (chosen, rejected, ref_chosen, ref_rejected)]
    return PairBatch(
        chosen_logp=columns[0], rejected_logp=columns[1], ref_chosen_logp=columns[2], ref_rejected_logp=columns[3]
    )


def test_dpo_by_hand() -> None:
    """OBJ-40: log-ratios 1 and -1, margin 2, beta 0.1: -log sigmoid(0.2) = 0.598139, reward margin 0.2."""
    objective = Preference(loss_function=Sigmoid(beta=0.1), pairing=GradedPairs())
    parts = objective.loss(pairs([-10], [-12], [-11], [-11]), num_pairs=1)
    assert float(parts.loss) == pytest.approx(0.598139, abs=1e-6)
    assert {name: mean.value() for name, mean in parts.means.items()} == {
        "dpo/accuracy": 1,
        "dpo/margin": pytest.approx(0.2),
        "dpo/chosen_logp": -10,
        "dpo/rejected_logp": -12,
    }


def test_gradient_by_hand() -> None:
    """d loss / d chosen = -beta sigmoid(-beta margin) = -(d loss / d rejected); the reference is data and gets none."""
    batch = pairs([-10, -5], [-12, -4], [-11, -5], [-11, -5])
    leaves = {name: values.clone().requires_grad_() for name, values in vars(batch).items()}
    dpo.objective.loss(PairBatch(**leaves), num_pairs=2).loss.backward()
    expected = [-0.1 / (1 + math.exp(0.2)) / 2, -0.1 / (1 + math.exp(-0.1)) / 2]
    chosen, rejected = leaves["chosen_logp"].grad, leaves["rejected_logp"].grad
    assert chosen is not None
    assert rejected is not None
    assert chosen.tolist() == pytest.approx(expected, abs=1e-15)
    assert torch.equal(rejected, -chosen)
    assert leaves["ref_chosen_logp"].grad is None
    assert leaves["ref_rejected_logp"].grad is None


def test_any_split_into_microbatches_gives_the_same_update() -> None:
    """OBJ-05 for DPO: four pairs in one part and in four, one SGD step at rate 1 on what produced the log-
    probabilities."""
    generator = torch.Generator().manual_seed(0)
    weights, features = (torch.randn(8, generator=generator, dtype=torch.float64) for _ in range(2))
    reference = torch.randn(2, 4, generator=generator, dtype=torch.float64)

    def update(parts: list[list[int]]) -> Tensor:
        leaf = weights.clone().requires_grad_()
        for rows in parts:
            own = (leaf * features).view(2, 4)[:, rows]
            batch = PairBatch(
                chosen_logp=own[0],
                rejected_logp=own[1],
                ref_chosen_logp=reference[0, rows],
                ref_rejected_logp=reference[1, rows],
            )
            dpo.objective.loss(batch, num_pairs=4).loss.backward()
        assert leaf.grad is not None
        return -leaf.grad

    whole, parts = update([[0, 1, 2, 3]]), update([[0], [1], [2], [3]])
    assert whole.norm() > 1e-3
    assert float((whole - parts).norm() / whole.norm()) <= 1e-12


def test_the_start_is_indifference() -> None:
    """Policy = reference: every margin is 0, the loss log 2, accuracy 0 (a tie is not a preference)."""
    parts = dpo.objective.loss(pairs([-3, -4], [-5, -1], [-3, -4], [-5, -1]), num_pairs=2)
    assert float(parts.loss) == pytest.approx(math.log(2), abs=1e-12)
    assert parts.means["dpo/accuracy"].value() == 0


def test_extreme_margins_stay_finite() -> None:
    """-log sigmoid(-m) -> m for large m, with no overflow on the way."""
    assert float(Sigmoid(beta=1.0)(torch.tensor([-1e4]))) == pytest.approx(1e4)
    assert float(Sigmoid(beta=1.0)(torch.tensor([1e4]))) == 0


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
    assert list(dpo.objective.formula()) == ["loss_function", "pairing", "reduction"]
