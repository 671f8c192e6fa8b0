"""Comparison: every algorithm against every other, paired by problem and seed, and which of them tie with the best."""

from collections.abc import Sequence
from math import isnan

import numpy as np

from bench.statistics import PROBLEMS, SEEDS_AND_PROBLEMS, TiedSet, tied_with_best
from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.page import Block, Page, Text, sections, sentences, slug
from reports.parts.pairs import ALGORITHMS, ALPHA, Comparison, compare, score_tables
from reports.parts.scores import NAMES, Measure, bracket, cautions, evaluated, measures_of, new_seeds, protocol
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

position = 25

MANY_PAIRS = 21
"""Above it, the page shows only pairs that are told apart or have a best arm; the CSV file has all."""


def render(runs: Sequence[RunRecord]) -> Page:
    """Two tables for each task with at least two arms."""
    return Page("comparison", "Comparison", sections(arms_of(runs), _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    measures = measures_of(arms)
    if len([arm for arm in arms if evaluated(arm)]) < 2 or not measures:
        return [Text("Nothing to compare: fewer than two algorithms were evaluated.")]
    best = {one: tied_with_best(score_tables(arms, *one)) for one in measures}
    return [_best_table(task, arms, best), _pair_table(task, arms, measures, {tied.best for tied in best.values()})]


def _best_table(task: str, arms: Sequence[Arm], best: dict[tuple[Measure, int], TiedSet]) -> Table:
    rows, records = [], []
    for (measure, k), found in best.items():
        unknown = [name for name, p in found.adjusted.items() if isnan(p)]
        tied = [name for name in found.tied[1:] if name not in unknown]
        below = [f"{name} ({_p(found.adjusted[name])})" for name in found.adjusted if name not in (*tied, *unknown)]
        known = [row for row in score_tables(arms, measure, k)[found.best] if np.isfinite(row).all()]
        if not known:
            rows.append(cells(f"{NAMES[measure]}@{k}", *[NOT_AVAILABLE] * 4))
            continue
        mean = float(np.mean(known))
        lists = [", ".join(tied) or "none", ", ".join(below) or "none"]
        lists[1] += f"; not comparable: {', '.join(unknown)}" if unknown else ""
        rows.append(cells(f"{NAMES[measure]}@{k}", found.best, *lists, number(mean)))
        record = {"task": task, "measure": f"{measure}@{k}", "best": found.best, "mean": mean, "rule": found.rule}
        records += [
            {**record, "arm": name, "adjusted_p": p, "difference": found.differences[name].mean, "tied": name in tied}
            for name, p in found.adjusted.items()
        ]
    differences = [one for found in best.values() for one in found.differences.values()]
    one_seed = any(one.estimand == PROBLEMS and not isnan(one.mean) for one in differences)
    caption = sentences(
        "The highest mean by each measure, and the set that is statistically tied with it.",
        f"Rule: {next(iter(best.values())).rule}; tied is an adjusted p above {ALPHA:g} "
        f"({new_seeds(arms)}, new problems). Tied means not told apart at this size, not equal.",
        "Pairs with one common seed are compared as checkpoints only." if one_seed else "",
        cautions(differences, ""),
        protocol(arms),
    )
    columns = ("Measure", "Best", "Tied with the best", "Below it", "Mean of the best")
    return Table(f"best_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=4)


def _pair_table(task: str, arms: Sequence[Arm], measures: Sequence[tuple[Measure, int]], best: set[str]) -> Table:
    found = compare(arms, measures)
    pairs = list(dict.fromkeys((one.first, one.second) for one in found))
    apart = {(one.first, one.second) for one in found if one.apart}
    shown = [pair for pair in pairs if len(pairs) <= MANY_PAIRS or best & set(pair) or pair in apart]
    columns = ("Pair", *(f"{NAMES[measure]}@{k}" for measure, k in measures))
    of_pair = {pair: [one for one in found if (one.first, one.second) == pair] for pair in shown}
    rows = [cells(f"{first} - {second}", *map(_cell, of)) for (first, second), of in of_pair.items()]
    caption = sentences(
        "First minus second, paired by seed and problem.",
        _labels(arms, found),
        f"Family for Holm's correction, named before the results: {_count(pairs, 'pair')} x "
        f"{_count(measures, 'measure')} = {_count(found, 'comparison')}; adjusted p in the CSV file. Bold: adjusted p "
        f"at most {ALPHA:g} for both intervals.",
        _verdict(found),
        f"Shown: the {len(shown)} of {len(pairs)} pairs that are told apart or have an algorithm that is best "
        "by some measure."
        if len(shown) < len(pairs)
        else "",
        cautions([interval for one in found for interval in one.intervals.values()]),
        protocol(arms),
    )
    records = [_record(task, one) for one in found]
    return Table(f"comparison_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _labels(arms: Sequence[Arm], found: Sequence[Comparison]) -> str:
    """What the brackets are."""
    estimands = {estimand for one in found for estimand in one.intervals}
    if not estimands:
        return "No pair shares seeds and problems."
    algorithms = (
        f"First bracket: 95 % t interval over seeds (these problems, {new_seeds(arms)}); second: 95 % interval over "
        f"seeds and problems ({new_seeds(arms)}, new problems)."
    )
    checkpoints = f"One common seed: 95 % interval over problems ({PROBLEMS})."
    return sentences(algorithms if estimands & set(ALGORITHMS) else "", checkpoints if PROBLEMS in estimands else "")


def _verdict(found: Sequence[Comparison]) -> str:
    apart: dict[str, list[str]] = {}
    for one in found:
        if one.apart:
            apart.setdefault(f"{one.first} and {one.second}", []).append(f"{NAMES[one.measure]}@{one.k}")
    if not apart:
        return "No pair is told apart at this size."
    return f"Pairs told apart: {len(apart)}." if len(apart) > 6 else f"Told apart: {_listed(apart)}."


def _listed(apart: dict[str, list[str]]) -> str:
    return "; ".join(f"{pair} ({', '.join(measures)})" for pair, measures in apart.items())


def _cell(one: Comparison) -> Cell:
    if not one.intervals:
        return Cell(NOT_AVAILABLE)
    brackets = [bracket(interval, sign=True) for interval in one.intervals.values()]
    label = ("checkpoint-level only",) if PROBLEMS in one.intervals else ()
    mean = next(iter(one.intervals.values())).mean
    return Cell(number(mean, sign=True), (*brackets, *label), bold=one.apart)


def _record(task: str, one: Comparison) -> dict[str, object]:
    keys = {"task": task, "first": one.first, "second": one.second, "measure": f"{one.measure}@{one.k}"}
    names = {PROBLEMS: "problems", SEEDS_AND_PROBLEMS: "crossed"}
    record: dict[str, object] = {**keys, "seeds": None, "difference": None}
    for estimand, interval in one.intervals.items():
        name = names.get(estimand, "seeds")
        record |= {"difference": interval.mean, "seeds": 1 if estimand == PROBLEMS else interval.n}
        record |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        record |= {f"{name}_adjusted_p": one.adjusted[estimand]}
    return record


def _count(of: Sequence[object], name: str) -> str:
    return f"{len(of)} {name}{'' if len(of) == 1 else 's'}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
