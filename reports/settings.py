"""Settings: what was held equal between the algorithms, and what was not."""

from collections.abc import Sequence

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, settings_of
from reports.parts.page import Block, Notes, Page, sections, slug
from reports.parts.table import Table, cells

position = 70

ELSEWHERE = ("algorithm", "objective.")
"""These make the algorithms what they are and stand under Formulas."""


def render(runs: Sequence[RunRecord]) -> Page:
    """A table for each task: the settings that differ first, then those that all arms share."""
    return Page("settings", "Settings", sections(arms_of(runs), _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    """Before the table what a variant with a number is: its settings had no room in its label."""
    unsaid = tuple(dict.fromkeys(line for arm in arms for line in arm.unsaid))
    return [*([Notes(unsaid)] if unsaid else []), _table(task, arms)]


def _table(task: str, arms: Sequence[Arm]) -> Table:
    of_arm = {arm.label: settings_of(arm.runs[0]) for arm in arms}
    names = sorted({name for settings in of_arm.values() for name in settings if not name.startswith(ELSEWHERE)})
    values = {name: [str(settings.get(name, "none")) for settings in of_arm.values()] for name in names}
    differing = [name for name in names if len(set(values[name])) > 1]
    rows = []
    for name in differing:
        labels: dict[str, list[str]] = {}
        for label, value in zip(of_arm, values[name], strict=True):
            labels.setdefault(value, []).append(label)
        rows.append(cells(name, "; ".join(f"{value} ({', '.join(those)})" for value, those in labels.items())))
    rows += [cells(name, values[name][0]) for name in names if name not in differing]
    records = [
        {"task": task, "setting": name, "arm": label, "value": value}
        for name in names
        for label, value in zip(of_arm, values[name], strict=True)
    ]
    count = f"{len(differing)} of {len(names)} settings differ between the algorithms"
    caption = f"{count}{': they come first' if differing else ''}. The objectives themselves stand under Formulas."
    return Table(
        f"settings_{slug(task)}", caption, ("Setting", "Value"), tuple(rows), tuple(records), num_text_columns=2
    )
