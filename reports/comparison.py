"""Comparison: every algorithm against every other, paired by problem and seed, and which pairs are told apart."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bench.evaluation import Estimates
from bench.statistics import PROBLEMS, SEEDS_AND_PROBLEMS, Interval, align, crossed_interval, paired_difference
from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.page import Block, Page, Text, sections, sentences, slug
from reports.parts.scores import NAMES, Measure, ks_of, new_seeds, protocol, tested, values
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

position = 25


def render(runs: Sequence[RunRecord]) -> Page:
    """A table for each task with at least two arms."""
    return Page("comparison", "Comparison", sections(arms_of(runs), _of_task))


def difference(first: Arm, second: Arm, measure: Measure, k: int) -> Interval | None:
    """First minus second, over the seeds and problems that both have; None where they share none.

    With two common seeds or more the interval is for new training seeds and new problems; with one it is for these two
    checkpoints and new problems.
    """
    one, other = ({run.seed: test for run, test in tested(arm)} for arm in (first, second))
    seeds = [seed for seed in one if seed in other]
    if not seeds or len({frozenset(side[seed].problem_id) for side in (one, other) for seed in seeds}) > 1:
        return None
    ids = one[seeds[0]].problem_id
    left, right = (np.array([_aligned(side[seed], ids, measure, k) for seed in seeds]) for side in (one, other))
    if len(seeds) > 1:
        return crossed_interval(left - right)
    return paired_difference(ids, left, ids, right).interval


def _aligned(estimates: Estimates, ids: Sequence[str], measure: Measure, k: int) -> np.ndarray:
    return values(estimates, measure, k)[align(ids, estimates.problem_id)]


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    ks = ks_of(arms)
    pairs = list(combinations([arm for arm in arms if tested(arm)], 2))
    if not pairs or not ks:
        return [Text("Nothing to compare: fewer than two algorithms were evaluated.")]
    scores: list[tuple[Measure, int]] = [("pass", ks[0]), ("pass", ks[-1]), ("maj", ks[-1])]
    scores = list(dict.fromkeys(scores))
    rows, records, apart = [], [], []
    for first, second in pairs:
        found = [difference(first, second, measure, k) for measure, k in scores]
        told = [f"{NAMES[measure]}@{k}" for (measure, k), one in zip(scores, found, strict=True) if _excludes_zero(one)]
        apart += [f"{first.label} and {second.label} ({', '.join(told)})"] if told else []
        rows.append(cells(f"{first.label} - {second.label}", *map(_cell, found)))
        for (measure, k), one in zip(scores, found, strict=True):
            numbers = {"difference": one.mean, "low": one.low, "high": one.high} if one else {}
            estimand = {"n": one.n, "estimand": one.estimand} if one else {}
            keys = {"task": task, "first": first.label, "second": second.label, "measure": f"{measure}@{k}"}
            records.append({**keys, **numbers, **estimand})
    verdict = f"Intervals that exclude 0: {'; '.join(apart)}." if apart else "No pair is told apart at this size."
    verdict = verdict if any("n" in record for record in records) else "No pair shares seeds and problems."
    labels = sorted({str(r["estimand"]).replace("new training seeds", new_seeds(arms)) for r in records if "n" in r})
    few = any(r.get("estimand") == SEEDS_AND_PROBLEMS and r["n"] <= 3 for r in records)
    caption = sentences(
        f"First minus second, paired by seed and problem; 95 % interval ({'; '.join(labels) or NOT_AVAILABLE}).",
        f"{verdict} Pairs: {len(pairs)}, intervals: {len(records)}, no correction for several comparisons.",
        "With 2 or 3 seeds an interval over seeds can cover less, about 90 %." if few else "",
        protocol(arms),
    )
    columns = ("Pair", *(f"{NAMES[measure]}@{k}" for measure, k in scores))
    return [Table(f"comparison_{slug(task)}", caption, columns, tuple(rows), tuple(records))]


def _excludes_zero(interval: Interval | None) -> bool:
    return interval is not None and (interval.low > 0 or interval.high < 0)


def _cell(interval: Interval | None) -> Cell:
    if interval is None:
        return Cell(NOT_AVAILABLE)
    low, high = (number(bound, 3, sign=True) for bound in (interval.low, interval.high))
    label = ("checkpoint-level only",) if interval.estimand == PROBLEMS else ()
    return Cell(number(interval.mean, 3, sign=True), (f"[{low}, {high}]", *label))
