"""Reward model: its score beside the verifier's verdict, so that a reward that is gamed shows."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, counted
from reports.parts.curves import average, curve, window
from reports.parts.figure import Figure, Style, canvas, empty, legend_below, line_of, styles, wrapped
from reports.parts.page import Block, Page, sections, sentences, slug
from reports.parts.table import NOT_AVAILABLE, Table, cells, number

position = 35

SCORE, VERDICT, ORDERED = "reward_model/mean", "reward/accuracy", "reward_model/pair_accuracy"
NUM_COLUMNS = 4
VERDICTS = Style("#4d4d4d", (0, (1, 1)), "")
ENDS = 4
"""The first and the last of so many parts of a run are compared."""


def render(runs: Sequence[RunRecord]) -> Page:
    """For each task score and verdict against updates, and what the model orders right, for arms that have one."""
    arms = [arm for arm in arms_of(runs) if any(run.reward_model for run in arm.runs)]
    return Page("reward_model", "Reward model", sections(arms, partial(_of_task, styles(arms))))


def _of_task(looks: Mapping[str, Style], task: str, arms: Sequence[Arm]) -> list[Block]:
    recorded = [arm for arm in arms if any(len(curve(run, SCORE, "updates").x) for run in arm.runs)]
    figure = Figure(f"reward_model_{slug(task)}", _caption(recorded), partial(_draw, recorded, looks))
    return [*([figure] if recorded else []), _table(task, arms)]


def _caption(arms: Sequence[Arm]) -> str:
    lengths = [len(curve(run, SCORE, "updates").y) for arm in arms for run in arm.finished]
    widest = max((window(SCORE, length) for length in lengths), default=1)
    return sentences(
        "What the policy is paid for against what it is meant to do, on the training samples of each update. Colour, "
        "left axis: mean score of the reward model, before its weight. Grey dots, right axis: share that the "
        "verifier calls correct. A reward that is gamed would show as a score that goes on rising while the share of "
        "correct completions stays or falls; where both rise the score still means what it was trained to mean. The "
        "axes have different units, so only directions compare.",
        f"Thick: mean over finished seeds ({counted(arms, lambda arm: len(arm.finished))}); thin: each seed; no "
        "interval is drawn.",
        f"Running mean over up to {widest} points." if widest > 1 else "",
    )


def _draw(arms: Sequence[Arm], looks: Mapping[str, Style]) -> Canvas:
    columns = min(NUM_COLUMNS, len(arms))
    rows = -(-len(arms) // columns)
    drawn = canvas(max(2.9 * columns, 4.5), 2.3 * rows + 0.5)
    grid = drawn.subplots(rows, columns, squeeze=False)
    for axes, arm in zip(grid.flat, arms, strict=False):
        axes.set_title(wrapped(arm.label, 30))
        axes.set_xlabel("Optimizer updates")
        axes.set_ylabel("Reward model's score")
        beside = axes.twinx()
        beside.grid(visible=False)
        beside.set_ylim(0, 1)
        beside.set_ylabel("Share correct (verifier)")
        _draw_metric(axes, arm, SCORE, looks[arm.label])
        _draw_metric(beside, arm, VERDICT, VERDICTS)
        if not arm.finished:
            empty(axes, "/".join(sorted({run.status.state for run in arm.runs})))
    for axes in list(grid.flat)[len(arms) :]:
        axes.remove()
    handles = [line_of(looks[arm.label], f"{arm.label}: score", marker=False) for arm in arms]
    legend_below(drawn, [*handles, line_of(VERDICTS, "Verifier's verdict", marker=False)])
    return drawn


def _draw_metric(axes: Axes, arm: Arm, metric: str, look: Style) -> None:
    for run in arm.runs:
        one = curve(run, metric, "updates")
        axes.plot(one.x, one.y, color=look.color, linestyle=look.dash, linewidth=0.7, alpha=0.4)
    mean = average([curve(run, metric, "updates") for run in arm.finished])
    axes.plot(mean.x, mean.y, color=look.color, linestyle=look.dash, marker="o" if len(mean.x) == 1 else "")


def _table(task: str, arms: Sequence[Arm]) -> Table:
    rows, records = [], []
    cautions = [(run.reward_model or {}).get("caution") for arm in arms for run in arm.runs]
    for arm in arms:
        about = next(run.reward_model for run in arm.runs if run.reward_model)
        ends = {name: _ends(arm, name) for name in (SCORE, VERDICT, ORDERED)}
        rows.append(
            cells(arm.label, str(about.get("kind", NOT_AVAILABLE)), *_held_out(about), *map(_shown, ends.values()))
        )
        records.append(
            {**arm.keys, **_flat(about), **{f"{k}_{end}": v for k, own in ends.items() for end, v in own.items()}}
        )
    columns = ("Algorithm", "Kind", "Held-out accuracy", "Held-out pairs", "Score", "Correct", "Pairs ordered right")
    caption = sentences(
        "The reward model. Held-out accuracy: share of pairs of a correct and a wrong completion of one prompt, from "
        "the starting policy and of prompts that it was not trained on, that it orders as the verifier does; mean over "
        "prompts, 95 % interval over problems (this reward model, new problems); n/a for one that was not trained "
        "here. Then the means over the first and the last quarter of the updates: its score, the share correct by the "
        "verifier, and the share of pairs of the policy's own samples that it still orders right (chance is 0.5). "
        f"Means over finished runs ({counted(arms, lambda arm: len(arm.finished))}).",
        " ".join(dict.fromkeys(f"{caution[:1].upper()}{caution[1:]}." for caution in cautions if caution)),
    )
    return Table(f"reward_model_pairs_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=2)


def _held_out(about: Mapping[str, Any]) -> tuple[str, str]:
    if about.get("accuracy") is None:
        return NOT_AVAILABLE, NOT_AVAILABLE
    low, high = (about["interval"][end] for end in ("low", "high"))
    return f"{number(about['accuracy'])} [{number(low)}, {number(high)}]", str(about["held_out"]["pairs"])


def _flat(about: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the record that a program may want, none nested."""
    interval, held_out = about.get("interval") or {}, about.get("held_out") or {}
    own = {name: about.get(name) for name in ("kind", "path", "weights_sha256", "accuracy", "training_accuracy")}
    return {**own, "low": interval.get("low"), "high": interval.get("high"), "held_out_pairs": held_out.get("pairs")}


def _ends(arm: Arm, metric: str) -> dict[str, float | None]:
    """The metric's mean over the first and the last quarter of the updates of finished runs."""
    found: dict[str, list[float]] = {"first": [], "last": []}
    for run in arm.finished:
        values = [record[metric] for record in run.metrics if record.get(metric) is not None]
        size = max(1, len(values) // ENDS)
        for end, part in (("first", values[:size]), ("last", values[-size:])):
            found[end] += [sum(part) / len(part)] if part else []
    return {end: sum(values) / len(values) if values else None for end, values in found.items()}


def _shown(ends: Mapping[str, float | None]) -> str:
    return f"{number(ends['first'])} to {number(ends['last'])}"
