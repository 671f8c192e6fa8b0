"""Masked statistics: what is under the mask counts, what is not never does, not even a NaN."""

import math

import pytest
import torch

from algorithms.axes.masked import Mean, flat, masked, masked_mean, masked_std, masked_sum, whiten

NAN = math.nan
VALUES = torch.tensor([[1.0, 2.0, NAN], [6.0, NAN, NAN]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_by_hand() -> None:
    """Valid values 1, 2, 6: sum 9, mean 3, squared deviations 4 + 1 + 9 = 14, std sqrt(14/2) with ddof 1, sqrt(14/3)
    with 0."""
    assert float(masked_sum(VALUES, MASK)) == 9
    mean = masked_mean(VALUES, MASK)
    assert (float(mean.total), float(mean.count), mean.value()) == (9, 3, 3)
    assert float(masked_std(VALUES, MASK, ddof=1)) == pytest.approx(math.sqrt(7), abs=1e-15)
    assert float(masked_std(VALUES, MASK, ddof=0)) == pytest.approx(math.sqrt(14 / 3), abs=1e-15)


def test_no_gradient_reaches_what_is_masked() -> None:
    """d sum / dx is 1 under the mask and exactly 0 elsewhere, although there is a NaN there."""
    values = VALUES.clone().requires_grad_()
    masked_sum(values**2, MASK).backward()
    assert values.grad is not None
    assert values.grad[MASK].tolist() == [2, 4, 12]
    plain = VALUES.clone().requires_grad_()
    masked(plain, MASK).sum().backward()
    assert plain.grad is not None
    assert torch.equal(plain.grad, MASK.double())


def test_means_of_parts_add_up_to_the_mean_of_the_whole() -> None:
    """OBJ-04: 100 tokens of mean 0.5 and 900 of mean 0.3 have mean 0.32; the mean of the means would be 0.40."""
    parts = [
        masked_mean(torch.full((1, n), x, dtype=torch.float64), torch.ones(1, n).bool())
        for n, x in ((100, 0.5), (900, 0.3))
    ]
    assert parts[0].plus(parts[1]).value() == pytest.approx(0.32, abs=1e-12)


def test_a_mean_of_nothing_is_not_a_number() -> None:
    assert math.isnan(masked_mean(VALUES, torch.zeros_like(MASK)).value())
    assert Mean(torch.tensor(3.0), torch.tensor(2.0)).value() == 1.5


@pytest.mark.parametrize(("count", "ddof"), [(0, 0), (0, 1), (1, 1)])
def test_std_of_too_few_values_is_zero(count: int, ddof: int) -> None:
    mask = torch.arange(3) < count
    assert float(masked_std(torch.tensor([5.0, NAN, NAN]), mask, ddof=ddof)) == 0


def test_std_does_not_cancel_at_a_large_offset() -> None:
    """Deviations are taken from the mean before they are squared: 1e8 + {0, 1, 2} still has std 1."""
    values = 1e8 + torch.arange(3, dtype=torch.float64)
    assert float(masked_std(values, torch.ones(3).bool(), ddof=1)) == 1


def test_whiten_by_hand() -> None:
    """Valid values 1, 2, 6 have mean 3 and variance 7 (ddof 1): each becomes (x - 3) / sqrt(7 + epsilon)."""
    expected = [(x - 3) / math.sqrt(7 + 1e-8) for x in (1, 2, 6)]
    result = whiten(VALUES, MASK, ddof=1, epsilon=1e-8)
    assert result[MASK].tolist() == pytest.approx(expected, abs=1e-14)
    assert result[~MASK].tolist() == [0, 0, 0]


def test_whitened_values_have_mean_0_and_variance_1_in_their_own_dtype() -> None:
    values = 100 + torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(50)[None, :] < torch.tensor([[50], [3], [20], [1]])
    result = whiten(values, mask, ddof=1, epsilon=1e-8)
    assert result.dtype == torch.float32
    assert float(result[mask].mean()) == pytest.approx(0, abs=1e-6)
    assert float(result[mask].var()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, False, False]])
def test_equal_values_whiten_to_nothing(mask: list[bool]) -> None:
    """Variance 0: the deviation is a rounding residue at most, and 1e4 (one over the root of epsilon) times that is
    still none."""
    assert whiten(torch.full((3,), 0.3), torch.tensor(mask), ddof=1, epsilon=1e-8).abs().max() < 1e-11


@pytest.mark.parametrize("value", [0.35, 0.1, 0.7, 1 / 3, -17.25, 1e8, 0.0])
def test_equal_values_whiten_to_exactly_nothing(value: float) -> None:
    """Their mean is rounded, and 1 / sqrt(variance + 1e-8) would make 1e4 of what is left; other values still count."""
    mask = torch.ones(2, 5).bool()  # of nine equal values; sums of four or five would be exact
    mask[1, 4] = False
    values = torch.full((2, 5), value, dtype=torch.float64)
    values[1, 4] = 5.0
    assert whiten(values, mask, ddof=1, epsilon=1e-8).abs().max() == 0
    assert bool(flat(values, mask))
    assert not bool(flat(values, torch.ones_like(mask)))
    assert bool(flat(values, torch.zeros_like(mask)))


def test_equal_is_relative_to_the_size() -> None:
    """max - min <= 1e-6 (1 + |mean|): 5e-5 apart at 99 is equal, at 0 it is not."""
    mask = torch.ones(2).bool()
    for centre, equal in ((99.0, True), (0.0, False)):
        assert bool(flat(torch.tensor([centre, centre + 5e-5], dtype=torch.float64), mask)) == equal
