"""A metric over a run as eight equal stretches: where it began, where it ended, and how much of that is noise.

A run's own records tell its noise. A difference between neighbouring stretches holds little of a trend and all of the
noise, also of noise that lasts for a few records, because a stretch is a mean. So the change from the first stretch to
the last two is held against the mean square of those differences (von Neumann 1941), and `CRITICAL` says how large it
must be.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from bench.thresholds import at

STRETCHES = int(at("stretches"))
CRITICAL = 2.31
"""Change / root mean square of half the differences that one in twenty series of eight independent normal values
exceeds; `tests/bench/test_health_series.py` measures it."""


@dataclass(frozen=True)
class Series:
    """The values of one metric that are numbers, with the updates that they are of."""

    updates: tuple[int, ...]
    values: tuple[float, ...]
    recorded: bool
    """Whether the metric stands in any record, if only as null."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def long_enough(self) -> bool:
        """Whether each stretch has a value."""
        return len(self) >= STRETCHES

    @property
    def stretches(self) -> list[float]:
        """The means of eight stretches as equal as they can be."""
        edges = [len(self) * i // STRETCHES for i in range(STRETCHES + 1)]
        return [fmean(self.values[start:end]) for start, end in pairwise(edges)]

    @property
    def last_quarter(self) -> float:
        """The mean of the last two stretches."""
        return fmean(self.last_values)

    @property
    def last_values(self) -> tuple[float, ...]:
        """The values of the last two stretches."""
        return self.values[len(self) * (STRETCHES - 2) // STRETCHES :]

    @property
    def quarter_before(self) -> float:
        """The mean of the two stretches before these."""
        edges = (len(self) * (STRETCHES - quarter) // STRETCHES for quarter in (4, 2))
        return fmean(self.values[slice(*edges)])


@dataclass(frozen=True)
class Change:
    """What a metric did: its level at the start and at the end, and what noise alone would reach."""

    start: float
    end: float
    noise: float
    """A change beyond this has one chance in twenty of being noise, upwards and as much downwards."""

    @property
    def size(self) -> float:
        return self.end - self.start

    @property
    def rose(self) -> bool:
        return self.size > self.noise

    @property
    def fell(self) -> bool:
        return self.size < -self.noise


def series(records: Iterable[Mapping[str, Any]], name: str, only_with: str | None = None) -> Series:
    """A metric's values in order; what is null or not finite is left out, and records without `only_with`."""
    found: list[tuple[int, float]] = []
    recorded = False
    for record in records:
        recorded = recorded or name in record
        value = number(record, name)
        if value is not None and (only_with is None or number(record, only_with) is not None):
            found.append((update_of(record), value))
    return Series(tuple(update for update, _ in found), tuple(value for _, value in found), recorded)


def number(record: Mapping[str, Any], name: str) -> float | None:
    """A record's value where that is a finite number."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def update_of(record: Mapping[str, Any]) -> int:
    """A record's update; 0, that of the starting model, where a damaged line has none."""
    return int(number(record, "update") or 0)


def change(own: Series) -> Change:
    """From the first stretch to the last quarter, of a series that is long enough."""
    start, end = own.stretches[0], own.last_quarter
    squares = [(after - before) ** 2 for before, after in pairwise(own.stretches)]
    rounding = 1e-9 * max(abs(start), abs(end))  # means of equal values may differ in their last bits
    return Change(start, end, CRITICAL * math.sqrt(fmean(squares) / 2) + rounding)


def change_of_shares(start: float, end: float, samples: int) -> Change:
    """Of two accuracies on the same problems, each over `samples` completions, by the binomial bound.

    Sampling noise on fixed problems is at most the binomial's, so this calls less a rise than it might. One success and
    one failure are added, for a share of 0 or 1 has no spread of its own.
    """
    padded = ((share * samples + 1) / (samples + 2) for share in (start, end))
    spread = math.sqrt(sum(share * (1 - share) for share in padded) / samples)
    return Change(start, end, NORMAL * spread)


NORMAL = 1.6449
"""The normal quantile that one in twenty exceeds."""
