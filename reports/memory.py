"""Memory: whose bytes stand at the peak, and how high each phase reaches."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, counted
from reports.parts.figure import Figure, stacked_bars
from reports.parts.page import Block, Page, sections, slug
from reports.parts.table import NOT_AVAILABLE, Table, cells, mebibytes, words

position = 40

ROLES = ("policy", "critic", "reference", "reward_model", "optimizer", "gradients", "activations", "rollout")
PROCESS = {
    "process_rss_bytes": "Process RSS",
    "gpu_allocated_bytes": "GPU allocated",
    "gpu_reserved_bytes": "GPU reserved",
}


def render(runs: Sequence[RunRecord]) -> Page:
    """The peak by role as bars, then by role and by phase as tables, the process beside them."""
    return Page("memory", "Memory", sections(arms_of(runs), _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    heaviest = {arm.label: heaviest_of(arm) for arm in arms}
    return [_figure(task, arms, heaviest), _peak_table(task, arms, heaviest), _phase_table(task, arms, heaviest)]


def heaviest_of(arm: Arm) -> Mapping[str, Any] | None:
    """The memory record of the arm's run with the highest peak; None where no run has a measured peak."""
    records = [run.memory for run in arm.runs if run.memory and run.memory["peak"]]
    return max(records, key=lambda record: record["peak"]["allocated_bytes"], default=None)


def process_of(arm: Arm) -> dict[str, int | None]:
    """Bytes of the whole process and on the GPU, the largest over the arm's runs; None where no run knows them."""
    known = {
        key: [run.memory[key] for run in arm.runs if run.memory and run.memory[key] is not None] for key in PROCESS
    }
    return {key: max(values, default=None) for key, values in known.items()}


def _roles(record: Mapping[str, Any] | None) -> dict[str, int | None]:
    """Bytes by role at the peak, in a fixed order; None where they are not known or the run has no such part."""
    roles = record["peak"]["roles"] if record else {}
    return {role: roles.get(role) for role in (*ROLES, *(role for role in roles if role not in ROLES))}


def _figure(task: str, arms: Sequence[Arm], heaviest: Mapping[str, Mapping[str, Any] | None]) -> Figure:
    bars: dict[str, Mapping[str, float] | None] = {}
    notes: dict[str, str] = {}
    for label, record in heaviest.items():
        sizes = {role: size / 2**20 for role, size in _roles(record).items() if size}
        bars[label] = sizes or None
        notes[label] = (
            f"{sum(sizes.values()):.1f} MiB, in {words(record['peak']['phase'])}" if record else NOT_AVAILABLE
        )
    caption = f"Bytes by role at the peak; its total and its phase stand beside the bar. {_how(arms)}"
    return Figure(f"memory_{slug(task)}", caption, partial(stacked_bars, bars, ROLES, notes, "Peak memory (MiB)"))


def _peak_table(task: str, arms: Sequence[Arm], heaviest: Mapping[str, Mapping[str, Any] | None]) -> Table:
    roles = list(dict.fromkeys(role for record in heaviest.values() for role in _roles(record)))
    rows, records = [], []
    for arm in arms:
        record = heaviest[arm.label]
        phase = record["peak"]["phase"] if record else None
        sizes = {"peak": record["peak"]["allocated_bytes"] if record else None}
        sizes |= {role: _roles(record).get(role) for role in roles}
        rows.append(cells(arm.label, words(phase or NOT_AVAILABLE), *map(mebibytes, sizes.values())))
        records.append({**arm.keys, "phase": phase, **{f"{name}_bytes": size for name, size in sizes.items()}})
    columns = ("Algorithm", "Peak in", "Peak", *(words(role).capitalize() for role in roles))
    caption = f"Memory at the peak by role, in MiB. n/a: not known, or the run has no such part. {_how(arms)}"
    return Table(f"memory_peak_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=2)


def _phase_table(task: str, arms: Sequence[Arm], heaviest: Mapping[str, Mapping[str, Any] | None]) -> Table:
    phases = list(dict.fromkeys(phase for record in heaviest.values() if record for phase in record["phases"]))
    rows, records = [], []
    for arm in arms:
        record, process = heaviest[arm.label], process_of(arm)
        totals = {phase: record["phases"].get(phase, {}).get("total") if record else None for phase in phases}
        rows.append(cells(arm.label, *map(mebibytes, totals.values()), *map(mebibytes, process.values())))
        records.append({**arm.keys, **{f"{phase}_bytes": total for phase, total in totals.items()}, **process})
    columns = ("Algorithm", *(words(phase).capitalize() for phase in phases), *PROCESS.values())
    caption = (
        "Highest memory in each phase, then of the whole process and on the GPU, in MiB. n/a: not known, or the run "
        f"has no such phase. {_how(arms)}"
    )
    return Table(f"memory_phases_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _how(arms: Sequence[Arm]) -> str:
    """How the numbers came about, for captions."""
    found = [run.memory for arm in arms for run in arm.runs if run.memory]
    kinds = " and ".join(sorted({f"{record['kind']} on {record['device']}" for record in found})) or "not recorded"
    counts = counted(arms, lambda arm: sum(1 for run in arm.runs if run.memory))
    return f"{kinds.capitalize()}; the largest over runs with a record ({counts}), no interval."
