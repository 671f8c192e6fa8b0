"""The table of results: each score with its intervals, and beside it how much was sampled and how the answers ended."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.statistics import Interval, accuracy_interval
from reports.parts.arms import Arm, numbered
from reports.parts.cards import ENDED, SAMPLED, Card, by_model, ended, mean, sampled, timeouts
from reports.parts.critic import critic_note
from reports.parts.page import sentences, slug
from reports.parts.scores import (
    ESTIMANDS,
    NAMES,
    Measure,
    bracket,
    cautions,
    evaluated,
    measures_of,
    new_seeds,
    protocol,
    score,
    score_over_problems,
    starts_of,
    values,
)
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number


def score_table(task: str, arms: Sequence[Arm]) -> Table:
    """A row for the starting model and one for each algorithm, also where no run of it came to an end."""
    measures, cards = measures_of(arms), by_model(arms)
    rows, records, intervals = [], [], []
    for name, start in starts_of(arms).items():
        found = [accuracy_interval(values(start, measure, k)) for measure, k in measures]
        intervals += found
        own = cards.get("Starting model", [])
        scores = [Cell(number(one.mean), (bracket(one, within=(0.0, 1.0)),)) for one in found]
        rows.append(cells(name, "-", *scores, sampled(own), ended(own)))
        keys = {"task": task, "algorithm": "", "arm": name}
        records += [_record(keys, m, k, None, one, own) for (m, k), one in zip(measures, found, strict=True)]
    for arm in arms:
        both = [(score(arm, *one), score_over_problems(arm, *one)) for one in measures]
        intervals += [one for pair in both for one in pair if one]
        own = cards.get(arm.label, []) if evaluated(arm) else []
        rows.append(
            cells(arm.label, seeds_cell(arm), *(score_cell(arm, *one) for one in both), sampled(own), ended(own))
        )
        counts = {"seeds": len(evaluated(arm)), "runs": len(arm.runs)}
        records += [_record(arm.keys, *m, *one, own) | counts for m, one in zip(measures, both, strict=True)]
    columns = ("Algorithm", "Seeds", *(f"{NAMES[measure]}@{k}" for measure, k in measures))
    caption = sentences(
        f"Accuracy on test, mean over seeds. First bracket: 95 % t interval over seeds (these problems, "
        f"{new_seeds(arms)}). Second, and that of the starting model: 95 % interval over problems (these checkpoints, "
        "new problems), clustered by problem. Cut at 0 and 1. Only finished runs enter a mean; Seeds says how many of "
        "how many. Last column: shares of the samples, and responses on which the grader timed out.",
        cautions(intervals),
        numbered(arms),
        critic_note(arms),
        protocol(arms),
    )
    columns += (SAMPLED, ENDED)
    return Table(f"results_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def seeds_cell(arm: Arm, name: str = "test") -> Cell:
    """How many runs were evaluated of how many, and what became of the others."""
    others = Counter(run.status.state for run in arm.runs if run.status.state != "finished")
    states = ", ".join(f"{count} {state}" for state, count in sorted(others.items()))
    return Cell(f"{len(evaluated(arm, name))} of {len(arm.runs)}", (f"({states})",) if states else ())


def score_cell(arm: Arm, seeds: Interval | None, problems: Interval | None = None) -> Cell:
    """The mean and its brackets; the states of the runs where none was evaluated."""
    if seeds is None:
        return Cell("/".join(sorted({run.status.state for run in arm.runs})))
    if math.isnan(seeds.mean):
        return Cell(NOT_AVAILABLE, ("too few samples",))
    over_seeds = "n/a (n=1)" if seeds.n == 1 else bracket(seeds, within=(0.0, 1.0))
    over_problems = (bracket(problems, within=(0.0, 1.0)),) if problems else ()
    return Cell(number(seeds.mean), (over_seeds, *over_problems))


def gain_cell(both: Mapping[str, Interval]) -> Cell:
    """A change and its bracket for each of `ESTIMANDS`."""
    if not both or math.isnan(both["problems"].mean):
        return Cell(NOT_AVAILABLE)
    brackets = [bracket(both[name], sign=True) if name in both else "n/a (n=1)" for name in ESTIMANDS]
    return Cell(number(both["problems"].mean, sign=True), tuple(brackets))


def _record(
    keys: Mapping[str, Any],
    measure: Measure,
    k: int,
    seeds: Interval | None,
    problems: Interval | None,
    cards: Sequence[Card],
) -> dict[str, Any]:
    """A line of the CSV file: one score with all that stands beside it."""
    found = seeds or problems
    record: dict[str, Any] = {**keys, "measure": f"{measure}@{k}", "k": k, "mean": found.mean if found else None}
    if seeds:
        record |= {"low": seeds.low, "high": seeds.high, "half_width": seeds.half_width}
    if problems:
        record |= {"problems_low": problems.low, "problems_high": problems.high}
    record |= {key: mean(cards, key) for key in ("num_problems", "samples", "truncated_rate", "unparsed_rate")}
    return record | {"timeouts": timeouts(cards)}
