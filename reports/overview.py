"""Overview: what each algorithm made of the starting model, with every run accounted for."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.statistics import Interval
from bench.store import RunRecord
from reports.parts.alarms import alarm_blocks
from reports.parts.arms import Arm, arms_of
from reports.parts.checks import commits_of, warnings_of
from reports.parts.critic import critic_note
from reports.parts.page import Block, Notes, Page, Text, sections, sentences, slug
from reports.parts.scores import (
    ESTIMANDS,
    NAMES,
    Measure,
    chosen_ks,
    gain,
    ks_of,
    new_seeds,
    protocol,
    score,
    starts_of,
    tested,
    values,
)
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

position = 10


def render(runs: Sequence[RunRecord]) -> Page:
    """Warnings, then for each task the scores, their change and the alarms of training."""
    states = Counter(run.status.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    code = "; ".join(commits_of(runs)) or NOT_AVAILABLE
    opening: list[Block] = [Text(f"{len(runs)} runs: {counts}. Made by commit {code}.")]
    warnings = warnings_of(runs)
    opening += [Notes(tuple(warnings), warning=True)] if warnings else []
    return Page("overview", "Overview", (*opening, *sections(arms_of(runs), _of_task)))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    return [_score_table(task, arms), _gain_table(task, arms), *alarm_blocks(task, arms)]


def measures_of(arms: Sequence[Arm]) -> list[tuple[Measure, int]]:
    """What the tables show: Pass@K at the chosen K, then Maj@K without K = 1, where it is Pass@1."""
    ks = chosen_ks(ks_of(arms))
    return [*(("pass", k) for k in ks), *(("maj", k) for k in ks if k > 1)]


def brief_table(task: str, arms: Sequence[Arm]) -> Table:
    """What fits a terminal and a README: Pass@1, its change, and both measures at the largest K."""
    ks = ks_of(arms)
    measures: list[tuple[Measure, int]] = [("pass", 1), ("pass", ks[-1]), ("maj", ks[-1])] if ks else []
    rows: list[tuple[Cell, ...]] = []
    for name, start in starts_of(arms).items():
        means = [number(float(values(start, measure, k).mean())) for measure, k in measures]
        rows.append(cells(name, "-", *means[:1], "-", *means[1:]))
    for arm in arms:
        problems = gain(arm, "pass", 1).get("problems")
        change = Cell(number(problems.mean, sign=True), (_bracket(problems, sign=True),)) if problems else Cell("n/a")
        scores = [_score_cell(arm, score(arm, measure, k)) for measure, k in measures]
        rows.append(cells(arm.label, _seeds(arm), *scores[:1], change, *scores[1:]))
    names = [f"{NAMES[measure]}@{k}" for measure, k in measures]
    columns = ("Algorithm", "Seeds", *names[:1], "Change in Pass@1", *names[1:])
    caption = (
        "Accuracy on test, mean over seeds; in brackets the 95 % t interval over seeds, and for the change the 95 % "
        f"interval over problems (these checkpoints). {protocol(arms)}"
    )
    return Table(f"brief_{slug(task)}", caption, columns, tuple(rows), ())


def _score_table(task: str, arms: Sequence[Arm]) -> Table:
    """A row for the starting model and one for each algorithm, also where no run of it came to an end."""
    measures = measures_of(arms)
    rows, records = [], []
    for name, start in starts_of(arms).items():
        means = [float(values(start, measure, k).mean()) for measure, k in measures]
        rows.append(cells(name, Cell("-", ("one checkpoint",)), *map(number, means)))
        facts = {"task": task, "algorithm": "", "arm": name}
        records += [{**facts, "measure": f"{m}@{k}", "mean": x} for (m, k), x in zip(measures, means, strict=True)]
    for arm in arms:
        scores = [score(arm, measure, k) for measure, k in measures]
        rows.append(cells(arm.label, _seeds(arm), *(_score_cell(arm, one) for one in scores)))
        for (measure, k), one in zip(measures, scores, strict=True):
            facts = {"mean": one.mean, "low": one.low, "high": one.high, "half_width": one.half_width} if one else {}
            counts = {"seeds": len(tested(arm)), "runs": len(arm.runs)}
            records.append({**arm.keys, "measure": f"{measure}@{k}", **facts, **counts})
    columns = ("Algorithm", "Seeds", *(f"{NAMES[measure]}@{k}" for measure, k in measures))
    caption = (
        "Accuracy on test, mean over seeds; in brackets the 95 % t interval over seeds (these problems, "
        f"{new_seeds(arms)}), cut at 0 and 1. Only finished runs enter a mean; Seeds says how many of how many."
    )
    caption = sentences(caption, critic_note(arms), protocol(arms))
    return Table(f"results_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _seeds(arm: Arm) -> Cell:
    others = Counter(run.status.state for run in arm.runs if run.status.state != "finished")
    states = ", ".join(f"{count} {state}" for state, count in sorted(others.items()))
    return Cell(f"{len(tested(arm))} of {len(arm.runs)}", (f"({states})",) if states else ())


def _score_cell(arm: Arm, interval: Interval | None) -> Cell:
    if interval is None:
        return Cell("/".join(sorted({run.status.state for run in arm.runs})))
    if math.isnan(interval.mean):
        return Cell(NOT_AVAILABLE, ("too few samples",))
    if interval.n == 1:
        return Cell(number(interval.mean), ("n/a (n=1)",))
    return Cell(number(interval.mean), (_bracket(interval, within=(0.0, 1.0)),))


def _gain_table(task: str, arms: Sequence[Arm]) -> Table:
    measures = measures_of(arms)
    rows, records = [], []
    for arm in arms:
        gains = [gain(arm, measure, k) for measure, k in measures]
        rows.append(cells(arm.label, *(_gain_cell(both) for both in gains)))
        for (measure, k), both in zip(measures, gains, strict=True):
            record: dict[str, Any] = {**arm.keys, "measure": f"{measure}@{k}", "seeds": len(tested(arm))}
            for name, interval in both.items():
                record |= {"change": interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
            records.append(record)
    columns = ("Algorithm", *(f"Change in {NAMES[measure]}@{k}" for measure, k in measures))
    caption = (
        "Final minus starting model, paired by problem. First bracket: 95 % interval over problems (these checkpoints, "
        f"new problems). Second: 95 % interval over seeds and problems ({new_seeds(arms)}, new problems), which one "
        f"seed cannot give. No correction for several comparisons. {protocol(arms)}"
    )
    return Table(f"change_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _gain_cell(both: Mapping[str, Interval]) -> Cell:
    if not both or math.isnan(both["problems"].mean):
        return Cell(NOT_AVAILABLE)
    brackets = [_bracket(both[name], sign=True) if name in both else "n/a (n=1)" for name in ESTIMANDS]
    return Cell(number(both["problems"].mean, sign=True), tuple(brackets))


def _bracket(interval: Interval, sign: bool = False, within: tuple[float, float] = (-1.0, 1.0)) -> str:
    """The interval, cut at the values that are possible."""
    low, high = max(interval.low, within[0]), min(interval.high, within[1])
    return f"[{number(low, sign=sign)}, {number(high, sign=sign)}]"
