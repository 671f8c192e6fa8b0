"""Selection: which groups carry a signal, by the verifier's bit alone."""

import math

import torch

from algorithms.axes.selection import DropUniformGroups, KeepAll

NAN = math.nan
CORRECT = torch.tensor(
    [
        [1.0, 1, 1, 1],
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 1, 0],
        [1, NAN, 1, 1],
        [0, NAN, 0, 0],
        [1, NAN, 0, NAN],
        [NAN] * 4,
    ]
)


def test_dynamic_sampling_keeps_groups_with_both_verdicts() -> None:
    """0 < #correct < G; an unscorable member is neither right nor wrong, so it never makes a uniform group
    informative."""
    assert DropUniformGroups().keep(CORRECT).tolist() == [False, False, True, True, False, False, True, False]


def test_keeping_all_keeps_all_at_the_first_round() -> None:
    assert KeepAll().keep(CORRECT).all()
    assert KeepAll().max_rounds == 1
