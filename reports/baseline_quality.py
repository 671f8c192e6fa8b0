"""Baseline quality: how far critic and group baseline are from the policy's true values, and so is the advantage."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.statistics import baseline_quality as quality
from bench.statistics.agreement import Agreement
from bench.statistics.baseline_quality import ADVANTAGES, VALUES, Line
from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.figure import Figure
from reports.parts.page import Block, Page, Text, sections, slug
from reports.parts.quality import Panel, draw
from reports.parts.quality_tables import COLUMNS, Measure, by_position, last_of, series_of, table_of, updates_of

position = 45

IN_VALUES = ("error", "bias", "correlation", "rank_correlation", "explained")
IN_ADVANTAGES = ("error", "error_at_best_factor", "bias", "correlation", "rank_correlation")
ESTIMAND = (
    "Measured beside training, on tokens of sampled completions. The true value V(s) of the state before a token is "
    "the expected return of the policy that sampled it, estimated by continuing from there with the run's own engine "
    "and reward; the true advantage of the token is the value after it (at the end: the return itself) minus the value "
    "before it. The continuations' own noise is known, and its variance is subtracted from every squared error."
)
BASELINES = "Error and bias of baselines against the true value V(s) of the state before a token."
CREDITS = (
    "Error, at the factor that suits each best, and correlation of advantages against the true A(s, a) of a token."
)
DRAWN = (
    "From left to right: by the part of the completion (known when it has ended, so these bins look ahead), likewise, "
    "by the size of groups cut down to fewer members, and over training. The first three are of the last measurement, "
    "pooled over seeds; bars are 95 % intervals over problems."
)


def render(runs: Sequence[RunRecord]) -> Page:
    """Figures and tables of each task, from the runs that were asked to measure."""
    arms = [arm for arm in arms_of(runs) if any(run.baseline_quality for run in arm.finished)]
    return Page("baseline_quality", "Baseline quality", sections(arms, _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    name = slug(task)
    values, advantages = (quality.value_quality, VALUES), (quality.advantage_quality, ADVANTAGES)
    return [
        Text(ESTIMAND),
        Figure(f"quality_value_curves_{name}", f"{BASELINES} {DRAWN}", partial(_draw, arms, *values)),
        table_of(f"quality_values_{name}", arms, *values, IN_VALUES),
        by_position(f"quality_positions_{name}", arms),
        Figure(f"quality_advantage_curves_{name}", f"{CREDITS} {DRAWN}", partial(_draw, arms, *advantages)),
        table_of(f"quality_advantages_{name}", arms, *advantages, IN_ADVANTAGES),
    ]


def _draw(arms: Sequence[Arm], measure: Measure, names: Sequence[str]) -> Any:
    of_values = measure is quality.value_quality
    rows: dict[str, list[Panel]] = {}
    for arm in arms:
        lines = [line for run in arm.finished for line in run.baseline_quality]
        last = last_of(arm)
        error = "error" if of_values else "error_at_best_factor"
        second = "bias" if of_values else "correlation"
        by_part = series_of(quality.relative_bins(last), measure, names)
        trivial = "error_of_mean" if of_values else "error_of_zero"
        sizes = {name: _by_size(last, measure, name) for name in names if name not in ("critic", "in_force")}
        updates = {str(u): [line for line in lines if line["update"] == u] for u in updates_of(lines)}
        rows[arm.label] = [
            Panel(COLUMNS[error], error, "Position / length", by_part, trivial),
            Panel(COLUMNS[second], second, "Position / length", by_part),
            Panel(COLUMNS[error], error, "Group size", sizes, trivial),
            Panel(COLUMNS[error], error, "Update", series_of(updates, measure, names), trivial),
        ]
    return draw(rows)


def _by_size(lines: Sequence[Line], measure: Measure, name: str) -> dict[str, Agreement]:
    found = {str(size): measure(lines, name, size) for size in quality.group_sizes(lines)}
    return {size: one for size, one in found.items() if one is not None}
