"""Reductions: different numbers from the same losses, and one number however the step is cut up."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from algorithms.axes.batch import Batch, Totals, group_tokens
from algorithms.axes.reduction import (
    ConstantLength,
    GroupTokenMean,
    MicrobatchTokenMean,
    Reduction,
    SequenceMean,
    SequenceSum,
    TokenMean,
)

REDUCTIONS = get_args(Reduction)
SPLIT_FREE = [cls for cls in REDUCTIONS if cls is not MicrobatchTokenMean]
COUNTED = [SequenceMean, ConstantLength, SequenceSum]
SPLITS = [
    [range(8)],
    [range(4), range(4, 8)],
    [range(0, 8, 2), range(1, 8, 2)],
    [[i] for i in range(8)],
    [range(7), [7]],
]
MakeBatch = Callable[..., tuple[Batch, Totals]]


@pytest.fixture(params=SPLIT_FREE, ids=lambda cls: cls.__name__)
def reduce(request: pytest.FixtureRequest) -> Callable[[Batch, Totals], Tensor]:
    """The reduction of a loss that is the log-probability itself, so that its gradient is the weight of each token."""
    reduction = request.param()
    return lambda batch, totals: reduction(batch.logp, batch, totals)


@pytest.mark.parametrize(
    ("reduction", "one_group", "two_groups"),
    [
        (TokenMean(), 10 / 5, 10 / 5),
        (SequenceMean(), (4 / 4 + 6 / 1) / 2, (4 / 4 + 6 / 1) / 2),
        (ConstantLength(), (4 + 6) / (2 * 10), (4 + 6) / (2 * 10)),
        (SequenceSum(), (4 + 6) / 2, (4 + 6) / 2),
        (GroupTokenMean(), 10 / 5, (4 / 4 + 6 / 1) / 2),
    ],
)
def test_by_hand(reduction: Any, one_group: float, two_groups: float, make_batch: MakeBatch) -> None:
    """OBJ-01: four tokens of loss 1 and one of loss 6, budget 10: DAPO 2.0, GRPO 3.5, Dr. GRPO 0.5."""
    loss = torch.tensor([[1.0, 1, 1, 1], [6, 99, 99, 99]], dtype=torch.float64)
    for group, expected in (([0, 0], one_group), ([0, 1], two_groups)):
        batch, totals = make_batch(loss, mask=[[1, 1, 1, 1], [1, 0, 0, 0]], group=group, budget=10)
        assert float(reduction(loss, batch, totals)) == pytest.approx(expected, abs=1e-12)


def test_no_two_reductions_are_the_same(ragged: Any) -> None:
    example = ragged()
    results = [float(cls()(example.batch.logp, example.batch, example.totals)) for cls in SPLIT_FREE]
    assert len({round(result, 9) for result in results}) == len(SPLIT_FREE)


def test_the_microbatch_mean_depends_on_the_split_and_on_nothing_else_in_one_part(ragged: Any) -> None:
    """OBJ-04's bug as a component: 4 tokens of loss 1 and 1 token of loss 6 are 2.0 in one part, (1 + 6) / 2 in two."""
    example = ragged(lengths=(4, 1))
    loss = torch.tensor([[1.0, 1, 1, 1], [6, 99, 99, 99]], dtype=torch.float64)
    whole, halves = example.totals, replace(example.totals, num_microbatches=2)
    assert float(MicrobatchTokenMean()(loss, example.batch, whole)) == pytest.approx(2.0)
    parts = [MicrobatchTokenMean()(loss[[row]], example.rows([row]), halves) for row in (0, 1)]
    assert float(sum(parts)) == pytest.approx(3.5)


@pytest.mark.parametrize("cls", COUNTED, ids=lambda cls: cls.__name__)
def test_rows_that_left_the_loss_may_count(cls: Any, make_batch: MakeBatch) -> None:
    """Four rows, one without a token: Z is 3, or 4 where masked rows count as they do in TRL."""
    batch, totals = make_batch([[-1.0, -2.0]] * 4, mask=[[1, 1], [1, 0], [0, 0], [1, 1]])
    assert (totals.num_sequences, totals.num_rows) == (3, 4)
    own, counted = (float(cls(count_masked=flag)(batch.logp, batch, totals)) for flag in (False, True))
    assert own * 3 == pytest.approx(counted * 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_split_into_microbatches_gives_the_same_loss_and_gradient(
    reduce: Any, dtype: torch.dtype, ragged: Any, value_and_gradient: Any
) -> None:
    """OBJ-02: lengths 3, 5, 2, 7, 4, 6, 1, 8, cut into 1, 2 and 8 parts: the shares add up to the whole step."""
    example = ragged(dtype)
    value, gradient = value_and_gradient(reduce, example.batch, example.totals)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    for split in SPLITS:
        parts = [value_and_gradient(reduce, example.rows(rows), example.totals) for rows in split]
        assert sum(part for part, _ in parts) == pytest.approx(value, rel=tolerance * 10)
        joined = torch.zeros_like(gradient)
        for rows, (_, piece) in zip(split, parts, strict=True):
            joined[list(rows)] = piece
        assert torch.allclose(joined, gradient, atol=tolerance, rtol=0)


def test_the_token_mean_divides_by_the_tokens_of_the_whole_step(ragged: Any) -> None:
    """OBJ-02: 36 tokens of loss 1, whatever the split: each has the gradient 1/36, with no factor for the number of
    parts."""
    example = ragged(torch.float32)
    assert example.totals.num_tokens == 36
    for split in SPLITS:
        for rows in split:
            part = example.rows(rows)
            loss = torch.ones_like(part.logp, requires_grad=True)
            TokenMean()(loss, part, example.totals).backward()
            assert loss.grad is not None
            assert torch.allclose(loss.grad, part.mask / 36, atol=1e-8, rtol=0)


def test_shares_are_weighted_by_tokens_not_averaged(make_batch: MakeBatch) -> None:
    """OBJ-04: 100 tokens of loss 0.5 in one microbatch, 900 of 0.3 in the other: 0.32 in all, not (0.5 + 0.3) / 2."""
    parts = [make_batch(torch.full((1, count), loss, dtype=torch.float64)) for count, loss in ((100, 0.5), (900, 0.3))]
    totals = replace(parts[0][1], num_tokens=1000, num_sequences=2)
    assert sum(float(TokenMean()(batch.logp, batch, totals)) for batch, _ in parts) == pytest.approx(0.32, abs=1e-12)


def test_a_batch_given_twice_has_the_same_gradient(reduce: Any, ragged: Any) -> None:
    """OBJ-08: with every sequence duplicated (in groups of its own), the gradient on what produced them is
    unchanged."""
    example = ragged()
    source = example.batch.logp.clone().requires_grad_()
    once = torch.autograd.grad(reduce(replace(example.batch, logp=source), example.totals), source)[0]
    mask, group = torch.cat([example.batch.mask] * 2), torch.cat([example.group, example.group + 100])
    doubled = example.map(lambda values: torch.cat([values] * 2))
    doubled = replace(doubled, logp=source.repeat(2, 1), group_tokens=group_tokens(mask, group))
    twice = torch.autograd.grad(reduce(doubled, Totals.of(mask, group, example.totals.completion_budget)), source)[0]
    assert torch.allclose(once, twice, atol=1e-15, rtol=1e-12)


@pytest.mark.parametrize("filler", [0.0, 7.0, math.nan, -math.inf])
def test_padding_neither_counts_nor_leaks(reduce: Any, filler: float, ragged: Any, value_and_gradient: Any) -> None:
    """Five more columns under a False mask, whatever they hold: the same value, the same gradient, exactly none on
    them."""
    example = ragged()
    value, gradient = value_and_gradient(reduce, example.batch, example.totals)
    with_padding, wide = value_and_gradient(reduce, example.padded(5, filler), example.totals)
    assert with_padding == pytest.approx(value, rel=1e-15)
    assert torch.equal(wide[:, :-5], gradient)
    assert torch.equal(wide[:, -5:], torch.zeros(8, 5, dtype=torch.float64))


def test_the_order_of_rows_does_not_matter(reduce: Any, ragged: Any, value_and_gradient: Any) -> None:
    example = ragged()
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    value, gradient = value_and_gradient(reduce, example.batch, example.totals)
    permuted, moved = value_and_gradient(reduce, example.rows(order), example.totals)
    assert permuted == pytest.approx(value, rel=1e-14)
    assert torch.equal(moved, gradient[order])


def test_a_completion_without_valid_tokens_leaves_every_denominator(reduce: Any, ragged: Any) -> None:
    """Filtered or unscorable rows: the loss is that of the batch without them."""
    example = ragged()
    batch, group = example.batch, example.group
    rest = torch.arange(8) != 3
    mask = batch.mask & rest[:, None]
    filtered = replace(batch, mask=mask, group_tokens=group_tokens(mask, group))
    without = replace(example.map(lambda values: values[rest]), group_tokens=group_tokens(mask[rest], group[rest]))
    values = [
        float(reduce(filtered, Totals.of(mask, group, 12))),
        float(reduce(without, Totals.of(mask[rest], group[rest], 12))),
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-14)


def test_a_step_without_valid_tokens_is_zero_and_keeps_its_graph(
    reduce: Any, make_batch: MakeBatch, value_and_gradient: Any
) -> None:
    """Z = 0: the loss is 0 with a gradient of exactly 0, so that every process still takes part in the backward
    pass."""
    batch, totals = make_batch([[-1.0, -2.0, -3.0]] * 2, mask=[[0, 0, 0]] * 2)
    value, gradient = value_and_gradient(reduce, batch, totals)
    assert value == 0
    assert gradient.abs().max() == 0


def test_the_constant_is_the_budget_and_not_the_width(make_batch: MakeBatch) -> None:
    """Dr. GRPO: the sum over tokens over budget x completions; wider padding changes nothing, a larger budget does."""
    for budget, expected in ((3, 1.0), (6, 0.5)):
        batch, totals = make_batch([[1.0, 1, 1, 0], [1, 1, 1, 0]], mask=[[1, 1, 1, 0]] * 2, budget=budget)
        assert float(ConstantLength()(batch.logp, batch, totals)) == expected
