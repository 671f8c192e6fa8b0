"""Runs: every run with its state, also those that no average holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.store import RunRecord
from reports.parts.arms import arms_of
from reports.parts.page import Page
from reports.parts.scores import evaluated
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

position = 80


def render(runs: Sequence[RunRecord]) -> Page:
    """The list of all runs."""
    return Page("runs", "Runs", (_run_table(runs),))


def _run_table(runs: Sequence[RunRecord]) -> Table:
    rows, records = [], []
    for arm in arms_of(runs):
        scores = {run.id: float(test.pass_at(1).mean()) for run, test in evaluated(arm) if 1 in test.ks}
        for run in arm.runs:
            updates = max((record.get("update", 0) for record in run.metrics), default=None)
            seed = NOT_AVAILABLE if run.seed is None else str(run.seed)
            state = Cell(run.status.state, (run.status.error,) if run.status.error else ())
            budget = run.run.get("budget", {}).get("updates")
            done = NOT_AVAILABLE if updates is None else f"{updates} of {budget or NOT_AVAILABLE}"
            pass_at_1 = scores.get(run.id)
            rows.append(
                cells(arm.label, arm.task, state, seed, str(run.status.attempt), done, number(pass_at_1), run.id)
            )
            record: dict[str, Any] = {**arm.keys, "seed": run.seed, "state": run.status.state}
            record |= {
                "error": run.status.error,
                "attempt": run.status.attempt,
                "updates": updates,
                "pass@1": pass_at_1,
            }
            records.append(record | {"run": run.id, **_provenance(run)})
    columns = ("Algorithm", "Task", "State", "Seed", "Attempts", "Updates", "Pass@1", "Run")
    caption = "Every run of the sweep; Pass@1 on test. Only finished runs enter the means above."
    return Table("runs", caption, columns, tuple(rows), tuple(records), num_text_columns=3)


def _provenance(run: RunRecord) -> Mapping[str, Any]:
    known = run.provenance or {}
    return {key: known.get(key) for key in ("git_commit", "git_dirty", "device")}
