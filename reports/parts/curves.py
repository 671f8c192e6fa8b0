"""A learning curve is a metric over what was spent: updates, generated tokens or seconds of training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.store import RunRecord

Spent = Literal["updates", "tokens", "seconds"]
SPARSE = "validation/pass@1"
NOT_TRAINING = ("validation", "baseline_quality")
"""Phases that look at training and are no part of it."""


@dataclass(frozen=True)
class Curve:
    """One metric over updates, thousands of generated tokens or seconds; one point where no token is generated."""

    x: np.ndarray
    y: np.ndarray


def curve(run: RunRecord, metric: str, over: Spent) -> Curve:
    """A metric of a run, smoothed; tokens and seconds are counted up to the update that recorded it."""
    clock = seconds_at(run) if over == "seconds" else {}
    tokens, counts, x, y = 0.0, set[float](), [], []
    for record in run.metrics:
        tokens = record.get("tokens/generated") or tokens
        counts |= {tokens} if record["update"] else set()
        place = {"updates": record["update"], "tokens": tokens / 1000, "seconds": clock.get(record["update"])}[over]
        if record.get(metric) is not None and place is not None:
            x.append(place)
            y.append(record[metric])
    smoothed = smooth(np.array(y, float), window(metric, len(y)))
    # All tokens were generated before the first update: one point.
    last = -1 if over == "tokens" and len(counts) == 1 else 0
    return Curve(np.array(x, float)[last:], smoothed[last:])


def seconds_at(run: RunRecord) -> dict[int, float]:
    """Seconds spent by the end of each update, without validation and diagnostics.

    Work that an interruption lost was spent too.

    Empty without timings. Update 0 is the start: what a preference objective does there comes before its first update.
    """
    spent = 0.0
    clock: dict[int, float] = {}
    for record in run.timings:
        spent += sum(seconds for phase, seconds in record["seconds"].items() if phase not in NOT_TRAINING)
        update = record["update"]
        clock[update] = spent if update else clock.get(0, spent)  # a resume does not move the start
    return {0: 0.0} | clock if clock else {}


def window(metric: str, num_points: int) -> int:
    """Points in the running mean: a twelfth of the curve, made odd; validation is sparse and stays as it is."""
    return 1 if metric == SPARSE else 2 * (num_points // 24) + 1


def smooth(y: np.ndarray, width: int) -> np.ndarray:
    """Centred running mean over `width` points, over fewer at the ends, so that nothing is shifted."""
    reach = [min(i, len(y) - 1 - i, width // 2) for i in range(len(y))]
    return np.array([y[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def average(curves: Sequence[Curve]) -> Curve:
    """Mean of curves over the stretch of x that all of them cover, at their own points where these pair up."""
    curves = [one for one in curves if len(one.x)]
    if not curves:
        return Curve(np.array([]), np.array([]))
    low, high = max(one.x[0] for one in curves), min(one.x[-1] for one in curves)
    if low >= high:
        ends = np.array([[one.x[-1], one.y[-1]] for one in curves]).mean(axis=0)
        return Curve(ends[:1], ends[1:])
    paired = len({len(one.x) for one in curves}) == 1
    grid = np.mean([one.x for one in curves], axis=0) if paired else np.linspace(low, high, 80)
    grid = np.unique(np.clip(grid, low, high))
    return Curve(grid, np.mean([np.interp(grid, one.x, one.y) for one in curves], axis=0))
