"""Formulas: the objective in force for each algorithm, axis by axis, and where each of its constants comes from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.page import Block, Page, Text, slug
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, words

position = 60


def render(runs: Sequence[RunRecord]) -> Page:
    """One table for each objective that was run, from the formula.json that the runs wrote."""
    blocks: list[Block] = [
        Text("What each run optimised, as it was resolved at its start, whatever its file is called.")
    ]
    tables: dict[str, Table] = {}
    for arm in arms_of(runs):
        table = _formula_table(arm)
        if table and tables.get(table.name, table).rows != table.rows:  # a label is unique within one task only
            table = _formula_table(arm, f"{arm.label} on {arm.task}")
        if table:
            tables.setdefault(table.name, table)
        else:
            blocks.append(Text(f"{arm.label}: {NOT_AVAILABLE}, its runs have no formula.json."))
    return Page("formulas", "Formulas", (*blocks, *tables.values()))


def _formula_table(arm: Arm, name: str = "") -> Table | None:
    """The formula of an arm, by default under its label; None where none of its runs wrote one."""
    name = name or arm.label
    formula = next((run.formula for run in arm.runs if run.formula), None)
    if formula is None:
        return None
    sources: Mapping[str, str] = formula["sources"]
    rows: list[tuple[Cell, ...]] = []
    records: list[dict[str, Any]] = []
    for axis, line in formula["formula"].items():
        of_knobs = {key: source for key, source in sources.items() if key.startswith(f"{axis}.")}
        knobs = tuple(f"{key.removeprefix(f'{axis}.')}: {source}" for key, source in of_knobs.items())
        rows.append(cells(words(axis), str(line), Cell(sources.get(axis, NOT_AVAILABLE), knobs)))
        records.append(
            {"axis": axis, "formula": line, "source": sources.get(axis, ""), "source_of_knobs": "; ".join(knobs)}
        )
    title = str(formula["title"]).rstrip(".")
    caption = f"{title}." if name in title else f"{name}. {title}."
    columns = ("Axis", "In force", "Source")
    return Table(f"formula_{slug(name)}", caption, columns, tuple(rows), tuple(records), num_text_columns=3)


def objective_tables(runs: Sequence[RunRecord]) -> list[Table]:
    """A table for each family of objectives: rows are algorithms, columns axes, cells components with their knobs.

    An axis on which all agree, with a component that has no knob, stands in the caption.
    """
    families: dict[str, dict[str, Mapping[str, Any]]] = {}
    for arm in arms_of(runs):
        formula = next((run.formula for run in arm.runs if run.formula), None)
        if formula:
            objective: Mapping[str, Any] = formula["objective"]
            families.setdefault(objective["kind"], {}).setdefault(arm.label, objective)
    tables: list[Table] = []
    for family, members in families.items():
        axes = list(dict.fromkeys(axis for objective in members.values() for axis in objective if axis != "kind"))
        agreed = [axis for axis in axes if _agreed(axis, members.values())]
        axes = [axis for axis in axes if axis not in agreed]
        rows = [cells(label, *(component(of.get(axis)) for axis in axes)) for label, of in members.items()]
        records = [{"arm": label, **{axis: component(of.get(axis)) for axis in axes}} for label, of in members.items()]
        columns = ("Algorithm", *(words(axis).capitalize() for axis in axes))
        one = next(iter(members.values()))
        same = ", ".join(f"{words(axis)}: {component(one[axis])}" for axis in agreed)
        caption = f"Objectives of the family {words(family)}.{f' The same in all: {same}.' if same else ''}"
        tables.append(Table(f"objectives_{family}", caption, columns, tuple(rows), tuple(records), len(columns)))
    return tables


def _agreed(axis: str, objectives: Collection[Mapping[str, Any]]) -> bool:
    found = [objective.get(axis) for objective in objectives]
    return len(objectives) > 1 and all(one == found[0] and isinstance(one, Mapping) and len(one) == 1 for one in found)


def component(value: Any) -> str:
    """A component of an objective in words: its kind, then its knobs."""
    if not isinstance(value, Mapping):
        return NOT_AVAILABLE if value is None else str(value)
    knobs = ", ".join(f"{words(key)} {component(item)}" for key, item in value.items() if key != "kind")
    kind = words(str(value.get("kind", "")))
    return f"{kind} ({knobs})" if knobs else kind
