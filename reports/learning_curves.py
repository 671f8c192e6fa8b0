"""Learning curves: what each update bought, what each generated token bought, and what each second bought."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, counted
from reports.parts.curves import SPARSE, Spent, average, curve, seconds_at, window
from reports.parts.figure import Figure, Style, canvas, legend_below, line_of, styles
from reports.parts.page import Block, Page, Text, sections, sentences, slug

position = 30

PANELS = {
    "validation/pass@1": "Validation Pass@1",
    "reward/accuracy": "Training accuracy",
    "reward/mean": "Training reward",
    "len/mean": "Completion length (tokens)",
    "entropy": "Entropy (nats per token)",
    "kl/ref_k3": "KL to the reference (k3)",
    "kl/old_k3": "KL to the old policy (k3)",
    "groups/frac_zero_std": "Groups with equal rewards",
}
WORDS: dict[Spent, str] = {
    "updates": "optimizer updates",
    "tokens": "generated tokens",
    "seconds": "seconds of all training phases, without validation",
}
LABELS: dict[Spent, str] = {
    "updates": "Optimizer updates",
    "tokens": "Generated tokens (thousands)",
    "seconds": "Training seconds",
}


def render(runs: Sequence[RunRecord]) -> Page:
    """Curves of each task against updates, generated tokens and seconds."""
    arms = arms_of(runs)
    return Page("learning_curves", "Learning curves", sections(arms, partial(_of_task, styles(arms))))


def _of_task(looks: Mapping[str, Style], task: str, arms: Sequence[Arm]) -> list[Block]:
    recorded = {name for arm in arms for run in arm.runs for record in run.metrics for name in record}
    shown = [name for name in PANELS if name in recorded]
    if not shown:
        return [Text("No run has recorded a metric yet.")]
    return [
        Figure(f"learning_{over}_{slug(task)}", _caption(arms, shown, over), partial(_draw, arms, shown, looks, over))
        for over in WORDS
    ]


def _draw(arms: Sequence[Arm], shown: Sequence[str], looks: Mapping[str, Style], over: Spent) -> Canvas:
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    drawn = canvas(2.55 * columns + 0.1, 2.05 * rows + 0.5)
    grid = drawn.subplots(rows, columns, squeeze=False)
    for axes, metric in zip(grid.flat, shown, strict=False):
        axes.set_title(PANELS[metric])
        for arm in arms:
            _draw_arm(axes, arm, metric, looks[arm.label], over)
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    for axes in list(grid.flat)[max(0, len(shown) - columns) : len(shown)]:
        axes.set_xlabel(LABELS[over])
    legend_below(drawn, [line_of(looks[arm.label], arm.label) for arm in arms])
    return drawn


def _draw_arm(axes: Axes, arm: Arm, metric: str, look: Style, over: Spent) -> None:
    """Each seed thin, the mean of the finished ones thick; a cross where a run broke off."""
    for run in arm.runs:
        one = curve(run, metric, over)
        if len(one.x) > 1:
            axes.plot(one.x, one.y, color=look.color, linewidth=0.7, alpha=0.4)
        if len(one.x) and run.status.terminal and run.status.state != "finished":
            axes.plot(one.x[-1:], one.y[-1:], color=look.color, marker="x", markersize=6, markeredgewidth=1.6)
    mean = average([curve(run, metric, over) for run in arm.finished])
    marked = metric == SPARSE or len(mean.x) == 1
    axes.plot(mean.x, mean.y, color=look.color, linestyle=look.dash, marker=look.marker if marked else "")


def _caption(arms: Sequence[Arm], shown: Sequence[str], over: Spent) -> str:
    seeds = counted(arms, lambda arm: len(arm.finished))
    lengths = [(name, len(curve(run, name, "updates").y)) for name in shown for arm in arms for run in arm.finished]
    widest = max((window(name, length) for name, length in lengths), default=1)
    absent = "; ".join(f"{arm.label} ({_missing(arm, shown)})" for arm in arms if _missing(arm, shown))
    points = [arm.label for arm in arms if any(len(curve(run, SPARSE, "tokens").x) == 1 for run in arm.runs)]
    untimed = [arm.label for arm in arms if over == "seconds" and not all(seconds_at(run) for run in arm.runs)]
    broken = any(run.status.terminal and run.status.state != "finished" for arm in arms for run in arm.runs)
    return sentences(
        f"Training over {WORDS[over]}.",
        "Wall time: it depends on the machine, and work lost to an interruption counts." if over == "seconds" else "",
        f"Thick: mean over finished seeds ({seeds}); thin: each seed; no interval is drawn.",
        "The mean is drawn where all of its seeds are, so it ends with the first of them." if over != "updates" else "",
        f"Running mean over up to {widest} points; validation as recorded." if widest > 1 else "",
        f"A single point: {', '.join(points)}, generated before training." if over == "tokens" and points else "",
        "A cross: a run broke off there." if broken else "",
        f"Not recorded: {absent}." if absent else "",
        f"Runs without timings are not drawn: {', '.join(untimed)}." if untimed else "",
    )


def _missing(arm: Arm, shown: Sequence[str]) -> str:
    """The panels in which an arm has no curve."""
    names = {name for run in arm.runs for record in run.metrics for name in record}
    missing = [PANELS[name] for name in shown if name not in names]
    present = [PANELS[name] for name in shown if name in names]
    return f"all but {', '.join(present)}" if present and len(missing) > len(present) else ", ".join(missing)
