"""How well a baseline or an advantage did, drawn: one row of panels an arm, one line an estimator, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bench.statistics.agreement import Agreement
from reports.parts.figure import Style, canvas, empty, legend_below, line_of, wrapped

LOOKS = {
    "critic": Style("#332288", "-", "o"),
    "group_mean": Style("#CC6677", (0, (5, 1.5)), "s"),
    "leave_one_out": Style("#44AA99", (0, (1.3, 1.3)), "D"),
    "standardised": Style("#999933", (0, (6, 1.5, 1.3, 1.5)), "^"),
    "in_force": Style("#4d4d4d", "-", "v"),
}
TRIVIAL = Style("#777777", (0, (1, 2.5)), "")
REFERENCES = {"error_of_mean": "Mean of V", "error_of_zero": "No advantage"}
NAMES = {
    "critic": "Critic",
    "group_mean": "Group mean",
    "leave_one_out": "Leave-one-out mean",
    "standardised": "Group-standardised",
    "in_force": "As trained on",
}


@dataclass(frozen=True)
class Panel:
    """One measure of several estimators over something."""

    title: str
    measure: str
    over: str
    """What stands under the panel."""
    series: Mapping[str, Mapping[str, Agreement]]
    """By estimator, by the label of a place on the x axis."""
    reference: str | None = None
    """Measure that is drawn as what any estimator has to be below: the error of a trivial one."""


def draw(rows: Mapping[str, Sequence[Panel]]) -> Canvas:
    """A row of panels for each arm."""
    columns = max(map(len, rows.values()))
    drawn = canvas(2.9 * columns + 0.2, 2.25 * len(rows) + 0.6)
    grid = drawn.subplots(len(rows), columns, squeeze=False)
    shown: dict[str, None] = {}
    for (label, panels), own in zip(rows.items(), grid, strict=True):
        for index, (panel, axes) in enumerate(zip(panels, own, strict=False)):
            axes.set_title(wrapped(f"{label}: {panel.title}" if index == 0 else panel.title, 40))
            axes.set_xlabel(panel.over)
            _draw_panel(axes, panel)
            shown |= dict.fromkeys(name for name, series in panel.series.items() if series)
        for axes in own[len(panels) :]:
            axes.remove()
    trivial = {panel.reference for panels in rows.values() for panel in panels if panel.reference}
    legend = [line_of(LOOKS[name], NAMES[name]) for name in LOOKS if name in shown]
    legend_below(drawn, [*legend, *(line_of(TRIVIAL, REFERENCES[name], marker=False) for name in sorted(trivial))])
    return drawn


def _draw_panel(axes: Axes, panel: Panel) -> None:
    labels = list(dict.fromkeys(label for series in panel.series.values() for label in series))
    if not labels:
        empty(axes, "nothing measured")
        return
    if panel.measure in ("bias", "correlation"):
        axes.axhline(0, color="#888888", linewidth=0.8)
    if panel.reference:
        known = {label: one[panel.reference].value for series in panel.series.values() for label, one in series.items()}
        trivial = [known[label] for label in labels]
        axes.plot(range(len(labels)), trivial, color=TRIVIAL.color, linestyle=TRIVIAL.dash, linewidth=1.0)
    for index, (name, series) in enumerate(panel.series.items()):
        look, shift = LOOKS[name], 0.08 * (index - (len(panel.series) - 1) / 2)
        found = [(labels.index(label) + shift, one[panel.measure]) for label, one in series.items()]
        x, y = [place for place, _ in found], [one.value for _, one in found]
        axes.plot(x, y, color=look.color, linestyle=look.dash, marker=look.marker)
        for place, one in found:
            axes.plot([place, place], [one.low, one.high], color=look.color, linewidth=0.9)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)
