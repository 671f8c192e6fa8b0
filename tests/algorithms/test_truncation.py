"""Truncated completions, entropy bonus: what leaves the loss, what stays in the baseline, what is added."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from algorithms import dapo
from algorithms.axes.baseline import GroupCentred
from algorithms.axes.batch import Batch, Rollout, Totals, group_tokens
from algorithms.axes.bonus import EntropyBonus, NoBonus
from algorithms.axes.penalty import NoPenalty, SequenceRewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import SequenceMean, TokenMean
from algorithms.axes.returns import Returns
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping, Rescale
from algorithms.axes.surrogate import Clip
from algorithms.axes.truncation import MaskTruncated
from algorithms.axes.value import NoCritic

MakeRollout = Callable[..., Rollout]
PLAIN: dict[str, Any] = {
    "shaping": NoShaping(),
    "selection": KeepAll(),
    "advantage": GroupCentred(),
    "surrogate": Clip(),
    "penalty": NoPenalty(),
    "reduction": TokenMean(),
    "value": NoCritic(),
}


def test_truncated_rewards_stay_in_the_baseline_or_leave_it(make_rollout: MakeRollout) -> None:
    """Rewards 1, 0, 1, the last cut: baseline 2/3 with it (as in TRL), 1/2 without; its tokens leave either way."""
    rollout = make_rollout([1.0, 0.0, 1.0], terminated=torch.tensor([True, True, False]))
    for in_baseline, expected in ((True, [1 / 3, -2 / 3]), (False, [0.5, -0.5])):
        truncation = MaskTruncated(in_baseline=in_baseline)
        credit = PolicyGradient(**PLAIN | {"truncation": truncation}).credit(rollout)
        assert credit.advantage[:2, 0].tolist() == pytest.approx(expected)
        assert credit.advantage[2].tolist() == [0, 0]
        assert credit.mask.tolist() == [[True] * 2, [True] * 2, [False] * 2]
    assert PolicyGradient(**PLAIN).credit(rollout).mask.all()


@pytest.mark.parametrize("reduction", [TokenMean(), SequenceMean()], ids=lambda reduction: reduction.kind)
def test_the_loss_is_that_of_the_batch_without_the_truncated(
    reduction: Any, make_rollout: MakeRollout, value_and_gradient: Any
) -> None:
    """OBJ-18: numerator and denominator; where the reduction counts masked rows, as TRL does, only the numerator."""
    mask = [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    whole = make_rollout([1.0, 0.0, 1.0], mask=mask, terminated=torch.tensor([True, True, False]))
    rest = make_rollout([1.0, 0.0], mask=mask[:2])
    objective = PolicyGradient(**PLAIN | {"truncation": MaskTruncated(in_baseline=False), "reduction": reduction})
    results = []
    for rollout in (whole, rest):
        credit = objective.credit(rollout)
        logp = torch.linspace(-2, -1, rollout.mask.numel(), dtype=torch.float64).view(rollout.mask.shape)
        logp[:2] = torch.linspace(-2, -1, 8, dtype=torch.float64).view(2, 4)
        tokens = group_tokens(credit.mask, rollout.group)
        batch = Batch(
            logp=logp,
            old_logp=logp - 0.05,
            ref_logp=None,
            advantage=credit.advantage,
            mask=credit.mask,
            group_tokens=tokens,
        )
        totals = Totals.of(credit.mask, rollout.group, 10)
        results.append(value_and_gradient(lambda b, t: objective.loss(b, t).loss, batch, totals))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-12)
    assert torch.allclose(results[0][1][:2], results[1][1], atol=1e-12)
    assert results[0][1][2].abs().max() == 0


def test_a_penalty_per_completion_enters_the_baseline_after_shaping(make_rollout: MakeRollout) -> None:
    """RLOO in TRL: rewards 5 and 0 clipped to 1 and 0, minus .5 (.2 + .4) and .5 (0), then the mean .35."""
    old_logp, ref_logp = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]]), torch.tensor([[-1.2, -1.4], [-1.0, -1.0]])
    rollout = make_rollout([5.0, 0.0], old_logp=old_logp, ref_logp=ref_logp)
    parts = {"shaping": Rescale(high=1.0), "penalty": SequenceRewardKL(coefficient=0.5)}
    credit = PolicyGradient(**PLAIN | parts).credit(rollout)
    assert credit.reward.tolist() == pytest.approx([0.7, 0.0])
    assert credit.advantage[:, 0].tolist() == pytest.approx([0.35, -0.35])
    to_go = PolicyGradient(**PLAIN | parts | {"advantage": Returns()}).credit(rollout)
    assert to_go.advantage.tolist() == [pytest.approx([0.7, 0.7]), [0.0, 0.0]]  # not charged to single tokens again


def test_the_bonus_is_the_mean_entropy_of_the_step_whatever_the_split(make_batch: Any) -> None:
    """Entropies 1, 2 | 3 over three valid tokens: -.5 * 2 in one part, in two parts that add up, with its gradient."""
    entropy = torch.tensor([[1.0, 2.0], [3.0, math.nan]], dtype=torch.float64, requires_grad=True)
    batch, totals = make_batch([[-1.0, -2.0], [-3.0, 0.0]], mask=[[1, 1], [1, 0]])
    bonus = EntropyBonus(coefficient=0.5)

    def part(rows: list[int]) -> Any:
        fields = {
            name: getattr(batch, name)[rows] for name in ("logp", "old_logp", "advantage", "mask", "group_tokens")
        }
        return bonus(Batch(**fields, ref_logp=None, entropy=entropy[rows]), totals)

    assert part([0, 1]).item() == pytest.approx(-1.0)
    assert (part([0]) + part([1])).item() == pytest.approx(-1.0)
    gradient = torch.autograd.grad(part([0, 1]), entropy)[0]
    assert gradient.tolist() == [pytest.approx([-0.5 / 3] * 2), [pytest.approx(-0.5 / 3), 0.0]]
    assert NoBonus()(batch, totals) is None
    with_bonus = PolicyGradient(**PLAIN | {"bonus": bonus})
    from_loss = with_bonus.loss(Batch(**{**vars(batch), "entropy": entropy}), totals).loss
    assert from_loss.item() == pytest.approx(float(PolicyGradient(**PLAIN).loss(batch, totals).loss) - 1.0)


def test_dapo_of_a_finished_batch_is_untouched_by_filtering(make_rollout: MakeRollout) -> None:
    assert dapo.objective.truncation.trained(make_rollout([1.0, 0.0])).all()
