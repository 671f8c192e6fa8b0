"""Learning curves: what each update bought, and what each generated token bought."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, counted
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
SPARSE = "validation/pass@1"


@dataclass(frozen=True)
class Curve:
    """One metric over updates, or over thousands of generated tokens; a single point where no token is generated."""

    x: np.ndarray
    y: np.ndarray


def render(runs: Sequence[RunRecord]) -> Page:
    """Curves of each task against updates, then against generated tokens."""
    arms = arms_of(runs)
    return Page("learning_curves", "Learning curves", sections(arms, partial(_of_task, styles(arms))))


def _of_task(looks: Mapping[str, Style], task: str, arms: Sequence[Arm]) -> list[Block]:
    recorded = {name for arm in arms for run in arm.runs for record in run.metrics for name in record}
    shown = [name for name in PANELS if name in recorded]
    if not shown:
        return [Text("No run has recorded a metric yet.")]
    return [
        Figure(f"learning_{axis}_{slug(task)}", _caption(arms, shown, by), partial(_draw, arms, shown, looks, by))
        for axis, by in (("updates", False), ("tokens", True))
    ]


def curve(run: RunRecord, metric: str, by_tokens: bool) -> Curve:
    """A metric of a run, smoothed; tokens are counted up to the update that recorded it."""
    tokens, spent, x, y = 0.0, set[float](), [], []
    for record in run.metrics:
        tokens = record.get("tokens/generated") or tokens
        spent |= {tokens} if record["update"] else set()
        if record.get(metric) is not None:
            x.append(tokens / 1000 if by_tokens else record["update"])
            y.append(record[metric])
    smoothed = smooth(np.array(y, float), window(metric, len(y)))
    last = -1 if by_tokens and len(spent) == 1 else 0  # all tokens were generated before the first update: one point
    return Curve(np.array(x, float)[last:], smoothed[last:])


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


def _draw(arms: Sequence[Arm], shown: Sequence[str], looks: Mapping[str, Style], by_tokens: bool) -> Canvas:
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    drawn = canvas(2.55 * columns + 0.1, 2.05 * rows + 0.5)
    grid = drawn.subplots(rows, columns, squeeze=False)
    for axes, metric in zip(grid.flat, shown, strict=False):
        axes.set_title(PANELS[metric])
        for arm in arms:
            _draw_arm(axes, arm, metric, looks[arm.label], by_tokens)
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    for axes in list(grid.flat)[max(0, len(shown) - columns) : len(shown)]:
        axes.set_xlabel("Generated tokens (thousands)" if by_tokens else "Optimizer updates")
    legend_below(drawn, [line_of(looks[arm.label], arm.label) for arm in arms])
    return drawn


def _draw_arm(axes: Axes, arm: Arm, metric: str, look: Style, by_tokens: bool) -> None:
    """Each seed thin, the mean of the finished ones thick; a cross where a run broke off."""
    for run in arm.runs:
        one = curve(run, metric, by_tokens)
        if len(one.x) > 1:
            axes.plot(one.x, one.y, color=look.color, linewidth=0.7, alpha=0.4)
        if len(one.x) and run.status.terminal and run.status.state != "finished":
            axes.plot(one.x[-1:], one.y[-1:], color=look.color, marker="x", markersize=6, markeredgewidth=1.6)
    mean = average([curve(run, metric, by_tokens) for run in arm.finished])
    marked = metric == SPARSE or len(mean.x) == 1
    axes.plot(mean.x, mean.y, color=look.color, linestyle=look.dash, marker=look.marker if marked else "")


def _caption(arms: Sequence[Arm], shown: Sequence[str], by_tokens: bool) -> str:
    seeds = counted(arms, lambda arm: len(arm.finished))
    lengths = [(name, len(curve(run, name, False).y)) for name in shown for arm in arms for run in arm.finished]
    widest = max((window(name, length) for name, length in lengths), default=1)
    absent = "; ".join(f"{arm.label} ({_missing(arm, shown)})" for arm in arms if _missing(arm, shown))
    points = [arm.label for arm in arms if any(len(curve(run, SPARSE, True).x) == 1 for run in arm.runs)]
    broken = any(run.status.terminal and run.status.state != "finished" for arm in arms for run in arm.runs)
    return sentences(
        f"Training over {'generated tokens' if by_tokens else 'optimizer updates'}.",
        f"Thick: mean over finished seeds ({seeds}); thin: each seed; no interval is drawn.",
        f"Running mean over up to {widest} points; validation as recorded." if widest > 1 else "",
        f"A single point: {', '.join(points)}, generated before training." if by_tokens and points else "",
        "A cross: a run broke off there." if broken else "",
        f"Not recorded: {absent}." if absent else "",
    )


def _missing(arm: Arm, shown: Sequence[str]) -> str:
    """The panels in which an arm has no curve."""
    names = {name for run in arm.runs for record in run.metrics for name in record}
    missing = [PANELS[name] for name in shown if name not in names]
    present = [PANELS[name] for name in shown if name in names]
    return f"all but {', '.join(present)}" if present and len(missing) > len(present) else ", ".join(missing)
