"""Alarms of an arm: which thresholds its runs crossed, in how many of them, and from which update on."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from reports.parts.arms import Arm, counted
from reports.parts.page import Block, Text, sentences, slug
from reports.parts.table import Cell, Table, cells, words


def alarm_blocks(task: str, arms: Sequence[Arm]) -> list[Block]:
    """A table with a row for each alarm of each arm, or a sentence where there is none."""
    kept = _kept(arms)
    rows, records = [], []
    for arm in arms:
        for name, raised in _by_name(arm).items():
            one, first = raised[0], [int(alarm["first"]) for alarm in raised]
            held, checked = (sum(int(alarm[key]) for alarm in raised) for key in ("count", "checked"))
            of = sum(1 for run in arm.runs if run.alarms is not None)
            rows.append(
                cells(
                    arm.label,
                    Cell(words(name), (f"({one['condition']})",)),
                    str(one["meaning"]),
                    f"{len(raised)} of {of}",
                    f"{median(first):g}",
                    f"{held} of {checked}",
                )
            )
            facts = {"alarm": name, "metric": one["metric"], "condition": one["condition"], "runs": len(raised)}
            facts |= {"runs_checked": of, "first_update": min(first), "count": held, "checked": checked}
            records.append({**arm.keys, **facts, "meaning": one["meaning"], "advice": one["advice"]})
    if not rows:
        return [
            Text(
                sentences("No alarm." if any(run.alarms is not None for arm in arms for run in arm.runs) else "", kept)
            )
        ]
    columns = ("Algorithm", "Alarm", "Meaning", "Runs", "First update", "Records")
    caption = sentences(
        "Alarms: thresholds that training metrics crossed. They are places to look, no proof of a fault, and stop no "
        "run. Runs: those with the alarm, of those that were checked. First update: median over these. Records: those "
        "beyond the threshold, of all that could be checked in these runs. What to try stands in the CSV file.",
        kept,
    )
    return [Table(f"alarms_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=3)]


def _by_name(arm: Arm) -> dict[str, list[Mapping[str, Any]]]:
    """The alarms of all runs of an arm, by name."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in arm.runs:
        for alarm in run.alarms or []:
            found.setdefault(str(alarm["name"]), []).append(alarm)
    return found


def _kept(arms: Sequence[Arm]) -> str:
    """Which runs have no list of alarms, for they have not ended or are older than alarms."""
    if all(run.alarms is not None for arm in arms for run in arm.runs):
        return ""
    return f"Checked for alarms: {counted(arms, lambda arm: sum(1 for run in arm.runs if run.alarms is not None))}."
