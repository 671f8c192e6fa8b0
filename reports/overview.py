"""Overview: what each algorithm made of the starting model, with every run accounted for."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.statistics import Interval
from bench.store import RunRecord
from reports.health import health_sentence
from reports.parts.alarms import alarm_blocks
from reports.parts.arms import Arm, arms_of, numbered
from reports.parts.cards import decoding
from reports.parts.checks import commits_of, warnings_of
from reports.parts.page import Block, Notes, Page, Text, sections, sentences, slug
from reports.parts.results import gain_cell, score_cell, score_table, seeds_cell
from reports.parts.scores import (
    NAMES,
    Measure,
    bracket,
    cautions,
    evaluated,
    gain,
    ks_of,
    measures_of,
    new_seeds,
    protocol,
    score,
    starts_of,
    values,
)
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

position = 10


def render(runs: Sequence[RunRecord]) -> Page:
    """Warnings, then for each task the scores, their change and the alarms of training."""
    states = Counter(run.status.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    code = "; ".join(commits_of(runs)) or NOT_AVAILABLE
    arms = arms_of(runs)
    opening: list[Block] = [
        Text(sentences(f"{len(runs)} runs: {counts}. Made by commit {code}.", decoding(arms), health_sentence(runs))),
    ]
    warnings = warnings_of(runs)
    opening += [Notes(tuple(warnings), warning=True)] if warnings else []
    return Page("overview", "Overview", (*opening, *sections(arms, _of_task)))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    return [score_table(task, arms), _gain_table(task, arms), *alarm_blocks(task, arms)]


BRACKETS = (
    "Accuracy on test, mean over seeds; in brackets the 95 % t interval over seeds, and for the change the 95 % "
    "interval over problems (these checkpoints)."
)


def brief_table(task: str, arms: Sequence[Arm]) -> Table:
    """What fits a terminal and a README: Pass@1, its change, and both measures at the largest K."""
    ks = ks_of(arms)
    chosen: list[tuple[Measure, int]] = [("pass", 1), ("pass", ks[-1]), ("maj", ks[-1])] if ks else []
    measures = [one for one in dict.fromkeys(chosen) if one != ("maj", 1)]
    rows: list[tuple[Cell, ...]] = []
    intervals: list[Interval | None] = []
    for name, start in starts_of(arms).items():
        means = [number(float(values(start, measure, k).mean())) for measure, k in measures]
        rows.append(cells(name, "-", *means[:1], "-", *means[1:]))
    for arm in arms:
        problems = gain(arm, "pass", 1).get("problems")
        change = Cell(number(problems.mean, sign=True), (bracket(problems, sign=True),)) if problems else Cell("n/a")
        over_seeds = [score(arm, measure, k) for measure, k in measures]
        intervals += [problems, *over_seeds]
        scores = [score_cell(arm, one) for one in over_seeds]
        rows.append(cells(arm.label, seeds_cell(arm), *scores[:1], change, *scores[1:]))
    names = [f"{NAMES[measure]}@{k}" for measure, k in measures]
    columns = ("Algorithm", "Seeds", *names[:1], "Change in Pass@1", *names[1:])
    caption = sentences(
        BRACKETS,
        numbered(arms),
        cautions(intervals),
        protocol(arms),
    )
    return Table(f"brief_{slug(task)}", caption, columns, tuple(rows), ())


def _gain_table(task: str, arms: Sequence[Arm]) -> Table:
    measures = measures_of(arms)
    rows, records, intervals = [], [], []
    for arm in arms:
        gains = [gain(arm, measure, k) for measure, k in measures]
        intervals += [interval for both in gains for interval in both.values()]
        rows.append(cells(arm.label, *map(gain_cell, gains)))
        for (measure, k), both in zip(measures, gains, strict=True):
            record: dict[str, Any] = {**arm.keys, "measure": f"{measure}@{k}", "seeds": len(evaluated(arm))}
            for name, interval in both.items():
                record |= {"change": interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
            records.append(record)
    columns = ("Algorithm", *(f"Change in {NAMES[measure]}@{k}" for measure, k in measures))
    caption = sentences(
        "Final minus starting model, paired by problem. First bracket: 95 % interval over problems (these checkpoints, "
        f"new problems). Second: 95 % interval over seeds and problems ({new_seeds(arms)}, new problems), which one "
        "seed cannot give. No correction for several comparisons.",
        cautions(intervals),
        protocol(arms),
    )
    return Table(f"change_{slug(task)}", caption, columns, tuple(rows), tuple(records))
