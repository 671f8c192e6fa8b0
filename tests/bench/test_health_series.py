"""Series and their noise: how often noise alone is called a rise, measured, and what is left out of a series."""

import itertools
import math

import numpy as np
import pytest

from bench.health_series import CRITICAL, STRETCHES, Series, change, change_of_shares, number, series
from bench.thresholds import at


def of(values: np.ndarray) -> Series:
    return Series(tuple(range(1, len(values) + 1)), tuple(values.tolist()), recorded=True)


def rates(rows: np.ndarray) -> tuple[float, float]:
    """Shares of series that rose and that fell."""
    changes = [change(of(row)) for row in rows]
    return sum(one.rose for one in changes) / len(rows), sum(one.fell for one in changes) / len(rows)


def correlated(rng: np.random.Generator, runs: int, length: int, phi: float) -> np.ndarray:
    """Stationary noise, each value `phi` of the one before and the rest new."""
    noise = rng.normal(size=(runs, length))
    for i in range(1, length):
        noise[:, i] = phi * noise[:, i - 1] + math.sqrt(1 - phi**2) * noise[:, i]
    return noise


@pytest.mark.parametrize("length", [8, 19, 64])
def test_noise_is_called_a_rise_once_in_twenty_times(length: int) -> None:
    rows = 0.3 + 0.02 * np.random.default_rng(0).normal(size=(2000, length))
    assert rates(rows) == pytest.approx((at("noise"), at("noise")), abs=0.015)


def test_the_critical_value_is_that_of_eight_stretches() -> None:
    """The definition itself, without the code of `change`."""
    rows = np.random.default_rng(1).normal(size=(200_000, STRETCHES))
    scale = np.sqrt((np.diff(rows, axis=1) ** 2).mean(axis=1) / 2)
    ratio = (rows[:, -2:].mean(axis=1) - rows[:, 0]) / scale
    assert np.quantile(ratio, 1 - at("noise")) == pytest.approx(CRITICAL, abs=0.02)


@pytest.mark.parametrize(("length", "most"), [(8, 0.15), (16, 0.13), (64, 0.085), (200, 0.075)])
def test_noise_that_lasts_is_called_a_rise_more_often_in_short_series(length: int, most: float) -> None:
    """As docs/health.md says: .13, .11, .065 and .06 for a correlation of .5 from one value to the next."""
    rose, fell = rates(correlated(np.random.default_rng(2), 1000, length, 0.5))
    assert max(rose, fell) < most


@pytest.mark.parametrize("shape", ["line", "early", "step"])
def test_a_rise_is_seen_whatever_its_shape(shape: str) -> None:
    """.2 up with noise of .03, in thirty rollouts, as in the quickstart."""
    time = np.linspace(0, 1, 30)
    curve = {"line": time, "early": 1 - np.exp(-8 * time), "step": (time > 0.4).astype(float)}[shape]
    rows = 0.3 + 0.2 * curve + 0.03 * np.random.default_rng(3).normal(size=(300, 30))
    assert rates(rows)[0] > 0.95
    assert rates(-rows)[1] > 0.95


def test_a_rise_that_is_lost_again_is_none() -> None:
    time = np.linspace(0, 1, 40)
    rows = 0.3 + 0.2 * np.sin(np.pi * time) + 0.02 * np.random.default_rng(4).normal(size=(200, 40))
    rose, fell = rates(rows)
    assert max(rose, fell) < 0.05


def test_stretches_hold_each_value_once() -> None:
    own = of(np.arange(19.0))
    sizes = [2, 2, 3, 2, 2, 3, 2, 3]
    edges = np.cumsum([0, *sizes])
    assert own.stretches == [np.arange(start, end).mean() for start, end in itertools.pairwise(edges)]
    assert own.last_quarter == np.arange(14, 19).mean()
    assert own.quarter_before == np.arange(9, 14).mean()
    assert not of(np.arange(7.0)).long_enough
    assert of(np.arange(8.0)).long_enough


def test_equal_values_neither_rise_nor_fall() -> None:
    found = change(of(np.full(12, 0.4)))
    assert (found.size, found.noise) == pytest.approx((0.0, 0.0), abs=1e-8)
    assert [found.rose, found.fell] == [False, False], "their means differ in the last bits"


def test_what_is_no_finite_number_is_left_out() -> None:
    records = [{"update": 1, "a": None}, {"update": 2, "a": 0.5, "b": 1}, {"update": 3, "a": math.nan}, {"update": 4}]
    records += [{"update": 5, "a": True}, {"update": 6, "a": 2, "b": None}]
    assert series(records, "a") == Series((2, 6), (0.5, 2.0), recorded=True)
    assert series(records, "a", only_with="b") == Series((2,), (0.5,), recorded=True)
    assert series(records, "c") == Series((), (), recorded=False)
    assert number({"a": -math.inf}, "a") is None


def test_two_accuracies_differ_beyond_the_binomial_spread() -> None:
    assert not change_of_shares(0.5, 0.55, 400).rose
    assert change_of_shares(0.5, 0.57, 400).rose
    assert change_of_shares(0.57, 0.5, 400).fell
    assert change_of_shares(0.0, 0.0, 16).noise > 0


def test_equal_policies_are_called_better_once_in_twenty_times_at_most() -> None:
    drawn = np.random.default_rng(5).binomial(400, 0.3, size=(2000, 2)) / 400
    rose = np.mean([change_of_shares(first, last, 400).rose for first, last in drawn.tolist()])
    assert rose == pytest.approx(0.05, abs=0.015)
