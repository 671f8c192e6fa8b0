"""Counts: an optimizer step's denominators, and the tokens of each row's group."""

import math

import torch

from algorithms.axes.batch import Rollout, Totals, group_tokens

MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]]).bool()


def test_totals_count_what_is_under_the_mask() -> None:
    """Lengths 2, 3, 0, 1: six tokens, three completions with a token; groups 7 and 5 have one, group 9 has none."""
    totals = Totals.of(MASK, torch.tensor([7, 7, 9, 5]), completion_budget=3)
    assert (totals.num_tokens, totals.num_sequences, totals.num_groups, totals.completion_budget) == (6, 3, 2, 3)


def test_totals_of_nothing_are_zero() -> None:
    totals = Totals.of(torch.zeros(2, 3).bool(), torch.tensor([0, 1]), completion_budget=3)
    assert (totals.num_tokens, totals.num_sequences, totals.num_groups) == (0, 0, 0)


def test_group_tokens_are_the_groups_sum_on_each_of_its_rows() -> None:
    """Groups may have any labels and stand in any order: 7 has 2 + 0 tokens, 5 has 3 + 1."""
    assert group_tokens(MASK, torch.tensor([7, 5, 7, 5])).tolist() == [2, 4, 2, 4]


def test_scorable_rewards_are_finite_numbers() -> None:
    shape = (4, 1)
    rollout = Rollout(
        reward=torch.tensor([0.0, math.nan, math.inf, -1.0], dtype=torch.float64),
        group=torch.zeros(4, dtype=torch.int64),
        mask=torch.ones(shape).bool(),
        terminated=torch.ones(4).bool(),
        old_logp=torch.zeros(shape),
        ref_logp=None,
        value=None,
        completion_budget=1,
    )
    assert rollout.scorable.tolist() == [True, False, False, True]
