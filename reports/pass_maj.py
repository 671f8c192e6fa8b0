"""Pass@K and Maj@K against the starting model: did an objective widen what can be solved, or only sharpen it?"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bench.evaluation import Estimates
from bench.statistics import Band, seeds_band
from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.claims import claims_table
from reports.parts.curve_table import change_band, curves_table
from reports.parts.figure import START, Figure, Style, canvas, empty, legend_below, line_of, log2_axis, styles, wrapped
from reports.parts.page import Block, Page, Text, sections, sentences, slug
from reports.parts.scores import (
    NAMES,
    Measure,
    cautions,
    evaluated,
    gain,
    ks_of,
    new_seeds,
    protocol,
    starts_of,
    values,
)

position = 20

DASH: dict[Measure, str] = {"pass": "-", "maj": "--"}
NUM_COLUMNS = 5
MIN_SEEDS = 3
"""With two, a band over seeds fills the frame and says nothing."""


def render(runs: Sequence[RunRecord]) -> Page:
    """For each task small multiples of the curves, all changes in one figure, and the numbers."""
    arms = arms_of(runs)
    return Page("pass_maj", "Pass@K and Maj@K", sections(arms, partial(_of_task, styles(arms))))


def _of_task(looks: Mapping[str, Style], task: str, arms: Sequence[Arm]) -> list[Block]:
    ks = ks_of(arms)
    if not ks:
        return [Text("No evaluation yet.")]
    claims = [claims_table(task, arms, ks)] if any(evaluated(arm) for arm in arms) else []
    levels = (
        "Pass@K (solid) and Maj@K (dashed), final model in colour, starting model in grey. Line: mean over seeds; "
        f"thin: each seed; band: 95 % simultaneous over all K, over seeds (these problems, {new_seeds(arms)}; Sidak's "
        f"inequality, Student's t) where there are at least three, cut at 0, 1 and the frame."
    )
    over_seeds = [_seeds_band(arm, measure, ks) for arm in arms for measure in DASH]
    levels = sentences(levels, cautions(over_seeds, ""), protocol(arms))
    changes = (
        "Change against the starting model, paired by problem, mean over seeds. Bars: 95 % band, simultaneous over all "
        "K (the largest |t| under random signs), over problems (these checkpoints, new problems); algorithms stand "
        "side by side at each K."
    )
    bands = [change_band(arm, measure, ks) for arm in arms for measure in DASH]
    changes = sentences(changes, cautions(bands, ""), protocol(arms))
    if len(ks) == 1:
        return [Text(f"Only K = {ks[0]} was estimated, so there is no curve."), *claims]
    return [
        *claims,
        Figure(f"pass_maj_{slug(task)}", levels, partial(_draw_levels, arms, ks, looks)),
        Figure(f"pass_maj_change_{slug(task)}", changes, partial(_draw_changes, arms, ks, looks)),
        curves_table(task, arms, ks),
    ]


def _draw_levels(arms: Sequence[Arm], ks: Sequence[int], looks: Mapping[str, Style]) -> Canvas:
    columns = min(NUM_COLUMNS, len(arms))
    rows = -(-len(arms) // columns)
    drawn = canvas(max(2.04 * columns, 4.0), 2.3 * rows + 0.5)
    grid = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, arm in zip(grid.flat, arms, strict=False):
        axes.set_title(wrapped(arm.label, 24))
        log2_axis(axes, ks)
        axes.tick_params(labelbottom=True)
        for start in starts_of([arm]).values():
            _draw_curves(axes, [start], ks, START["color"], 1.1)
        tests = [test for _, test in evaluated(arm)]
        if tests:
            _draw_curves(axes, tests, ks, looks[arm.label].color, 1.9)
            _draw_bands(axes, arm, ks, looks[arm.label].color)
        else:
            empty(axes, "/".join(sorted({run.status.state for run in arm.runs})))
    for axes in list(grid.flat)[len(arms) :]:
        axes.remove()
    shown = [*starts_of(arms).values(), *(test for arm in arms for _, test in evaluated(arm))]
    highest = max(float(np.nanmax([values(one, "pass", k).mean() for k in ks])) for one in shown)
    grid[0, 0].set_ylim(0, min(1.03, 1.08 * highest) or 1)
    for axes in grid[:, 0]:
        axes.set_ylabel("Accuracy on test")
    entries = [Style("#000000", dash, "") for dash in DASH.values()]
    handles = [line_of(entry, f"{NAMES[name]}@K", marker=False) for entry, name in zip(entries, DASH, strict=True)]
    handles.append(line_of(Style(START["color"], "-", ""), START["label"], marker=False))
    legend_below(drawn, handles)
    return drawn


def _draw_curves(axes: Axes, evaluations: Sequence[Estimates], ks: Sequence[int], color: str, width: float) -> None:
    """The mean over evaluations, and each of them thin where there are several."""
    for measure, dash in DASH.items():
        curves = np.array([[values(one, measure, k).mean() for k in ks] for one in evaluations])
        if len(curves) > 1:
            axes.plot(ks, curves.T, color=color, linestyle=dash, linewidth=0.6, alpha=0.6)
        axes.plot(
            ks, curves.mean(axis=0), color=color, linestyle=dash, linewidth=width, marker="o", markersize=1.6 * width
        )


def _seeds_band(arm: Arm, measure: Measure, ks: Sequence[int]) -> Band | None:
    curves = np.array([[values(test, measure, k).mean() for k in ks] for _, test in evaluated(arm)])
    return seeds_band(curves) if len(curves) >= MIN_SEEDS and np.isfinite(curves).all() else None


def _draw_bands(axes: Axes, arm: Arm, ks: Sequence[int], color: str) -> None:
    for measure in DASH:
        band = _seeds_band(arm, measure, ks)
        if band is not None:
            low, high = np.clip(band.low, 0, 1), np.clip(band.high, 0, 1)
            axes.fill_between(ks, low, high, color=color, alpha=0.13, linewidth=0)


def _draw_changes(arms: Sequence[Arm], ks: Sequence[int], looks: Mapping[str, Style]) -> Canvas:
    shown = [arm for arm in arms if gain(arm, "pass", ks[0])]
    drawn = canvas(10.2, 3.5)
    left, right = drawn.subplots(1, 2, sharey=True)
    for axes, measure in zip((left, right), DASH, strict=True):
        axes.set_title(f"Change in {NAMES[measure]}@K")
        axes.axhline(0, color=START["color"], linewidth=1)
        log2_axis(axes, ks)
        for index, arm in enumerate(shown):
            _draw_change(axes, arm, measure, ks, looks[arm.label], index - (len(shown) - 1) / 2)
        if not shown:
            empty(axes, "no finished run")
    left.set_ylabel("Final minus starting model")
    if shown:
        legend_below(drawn, [line_of(looks[arm.label], arm.label) for arm in shown])
    return drawn


def _draw_change(axes: Axes, arm: Arm, measure: Measure, ks: Sequence[int], look: Style, place: float) -> None:
    """One arm's changes, moved sideways by its place so that no bar hides another."""
    band = change_band(arm, measure, ks)
    if band is None:
        return
    x = [k * 2 ** (0.1 * place) for k in ks]
    axes.plot(x, band.mean, color=look.color, linestyle=look.dash, linewidth=0.9, alpha=0.8)
    axes.errorbar(
        x, band.mean, yerr=band.high - band.mean, color=look.color, linestyle="", marker=look.marker, elinewidth=1.1
    )
