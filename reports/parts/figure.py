"""A figure in the house style: one colour, dash and marker for each algorithm, legible also without colour."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from reports.parts.arms import Arm
from reports.parts.table import words

# Okabe and Ito's palette, told apart by colour-blind readers, without its yellow (too faint for lines) and its black,
# which belongs to the starting model.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.3, 1.3)), (0, (6, 1.5, 1.3, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
START = {"color": "#4d4d4d", "label": "Starting model"}
# Tol's muted and light schemes: parts of a whole, never an algorithm.
PARTS = ("#332288", "#88CCEE", "#44AA99", "#DDCC77", "#CC6677", "#AA4499", "#999933", "#882255", "#BBBBBB")
HATCHES = ("", "///", "", "\\\\\\", "", "...", "", "xxx", "")

LINE = 36
"""Characters in a line of a legend or beside a bar."""

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "hatch.linewidth": 0.5,
    "figure.facecolor": "white",
    "savefig.dpi": 160,
    # Fixed ids and outlined letters: the same bytes wherever it is made, the same look wherever it is read.
    "svg.hashsalt": "reports",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Figure:
    """A captioned figure; `draw` is called when it is saved, inside the house style."""

    name: str
    """Stem of its files, unique in the whole report."""
    caption: str
    draw: Callable[[], Canvas]


@dataclass(frozen=True)
class Style:
    """How an arm looks in every figure."""

    color: str
    dash: Any
    marker: str


def styles(arms: Sequence[Arm]) -> dict[str, Style]:
    """One style for each arm's label; the hue is the algorithm's, its variants differ in shade, dash and marker."""
    algorithms = sorted({arm.algorithm for arm in arms})
    chosen: dict[str, Style] = {}
    for index, algorithm in enumerate(algorithms):
        labels = sorted({arm.label for arm in arms if arm.algorithm == algorithm})
        for variant, label in enumerate(labels):
            mark = index + index // len(PALETTE) + variant
            color = _lighter(PALETTE[index % len(PALETTE)], 0.55 * variant / len(labels))
            chosen[label] = Style(color, DASHES[mark % len(DASHES)], MARKERS[mark % len(MARKERS)])
    return chosen


def _lighter(color: str, share: float) -> str:
    """The colour with a share of white mixed in."""
    red, green, blue = (1 - (1 - part) * (1 - share) for part in to_rgb(color))
    return to_hex((red, green, blue))


def save(figure: Figure) -> dict[str, bytes]:
    """The figure's files by suffix: PNG for people, SVG for print. No date, no machine, no version enters them."""
    files: dict[str, bytes] = {}
    with matplotlib.rc_context(STYLE):
        canvas = figure.draw()
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            out = io.BytesIO()
            canvas.savefig(out, format=suffix, metadata=metadata)
            files[suffix] = out.getvalue()
            canvas.set_layout_engine("none")  # the layout is found: the second file takes it over
    return files


def canvas(width: float, height: float) -> Canvas:
    """An empty canvas, sizes in inches, that lays its parts out without overlap."""
    made = Canvas(figsize=(width, height), layout="constrained")
    made.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr]
    return made


def legend_below(on: Canvas, handles: Sequence[Any]) -> None:
    """One legend for all panels, under them, in as many columns as there is room for.

    Long labels run over several lines, and the canvas grows by what the legend needs beyond two, not the panels shrink.
    """
    width, height = on.get_size_inches()
    for handle in handles:
        handle.set_label(wrapped(str(handle.get_label()), min(LINE, int((width - 0.75) / 0.075))))
    lines = [str(handle.get_label()).split("\n") for handle in handles]
    widest = 0.75 + 0.075 * max(len(line) for label in lines for line in label)
    columns = max(1, min(len(handles), int(width / widest)))
    num_lines = -(-len(handles) // columns) * max(map(len, lines))
    on.set_size_inches(width, height + 0.19 * max(0, num_lines - 2))
    on.legend(handles=list(handles), loc="outside lower center", ncols=columns, handlelength=2.8)


def wrapped(label: str, width: int) -> str:
    """A label in lines of at most `width` characters, broken also after an equals sign."""
    return fill(label.replace("=", "= "), width).replace("= ", "=")


def line_of(style: Style, label: str, marker: bool = True) -> Line2D:
    """The legend entry of an arm."""
    return Line2D([], [], color=style.color, linestyle=style.dash, marker=style.marker if marker else "", label=label)


def log2_axis(axes: Axes, ks: Sequence[int]) -> None:
    """A log2 axis for K with a tick at each K that was estimated."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(ks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("K")


def empty(axes: Axes, text: str) -> None:
    """Say in a panel why it shows nothing."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 3}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#555555", bbox=box)


def stacked_bars(
    bars: Mapping[str, Mapping[str, float] | None], order: Sequence[str], notes: Mapping[str, str], title: str
) -> Canvas:
    """One horizontal bar for each name, made of its parts; None draws "n/a" where the bar would be.

    Args:
        bars: from a bar's name to the sizes of its parts, or to None where they are not known.
        order: the parts in the order in which they are stacked; others follow.
        notes: what stands at the end of each bar.
        title: what the length of a bar measures, with its unit.
    """
    present = list(dict.fromkeys(part for bar in bars.values() if bar for part in bar))
    parts = [*(part for part in order if part in present), *(part for part in present if part not in order)]
    names = [wrapped(name, LINE) for name in bars]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    drawn = canvas(10.2, max(0.42, 0.17 * lines) * len(bars) + 1.2 + 0.25 * -(-len(parts) // 6))
    axes = drawn.subplots()
    longest = max((sum(bar.values()) for bar in bars.values() if bar), default=0.0) or 1.0
    looks = {part: _fill(index) for index, part in enumerate(parts)}
    for row, (name, bar) in enumerate(bars.items()):
        left = 0.0
        sizes = {part: bar[part] for part in parts if part in bar} if bar else {}
        for part, size in sizes.items():
            axes.barh(row, size, left=left, height=0.62, **looks[part])
            left += size
        axes.text(left + 0.01 * longest, row, notes[name] if bar else "n/a", va="center", color="#444444", fontsize=8)
    axes.set_yticks(range(len(bars)), names)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.22 * longest)  # room for the notes
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(title)
    if parts:
        legend_below(drawn, [Patch(**look, label=words(part)) for part, look in looks.items()])
    return drawn


def _fill(index: int) -> dict[str, Any]:
    """Colour and hatch of a part."""
    return {
        "facecolor": PARTS[index % len(PARTS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.6,
    }
