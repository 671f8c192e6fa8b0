"""Runs: how answers ended, and every run with its state, also those that no average holds."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, by_task
from reports.parts.page import Block, Page, slug
from reports.parts.scores import tested
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

position = 80

CARD = {
    "num_problems": "Problems",
    "samples": "Samples",
    "temperature": "Temperature",
    "max_completion_tokens": "Max tokens",
}
RATES = {
    "parsed_rate": "Parsed",
    "truncated_rate": "Truncated",
    "timed_out_rate": "Grader timed out",
    "unscorable_rate": "Unscorable",
    "tied_rate": "Tied at largest K",
}


def render(runs: Sequence[RunRecord]) -> Page:
    """The evaluations' cards for each task, then the list of all runs."""
    tasks = by_task(arms_of(runs))
    blocks: list[Block] = [_evaluation_table(task, arms) for task, arms in tasks.items()]
    return Page("runs", "Runs", (*blocks, _run_table(runs)))


def _evaluation_table(task: str, arms: Sequence[Arm]) -> Table:
    cards: dict[str, list[Mapping[str, Any]]] = {}
    records = []
    for arm in arms:
        for name in ("start", "test"):
            for run, card in [(run, _card(run.manifest(name))) for run in arm.runs]:
                if card:
                    cards.setdefault("Starting model" if name == "start" else arm.label, []).append(card)
                    facts = {key: card.get(key) for key in ("split", *CARD, *RATES)}
                    records.append({**arm.keys, "seed": run.seed, "evaluation": name, **facts})
    rows = []
    for label, found in cards.items():
        shown = [_same([card.get(key) for card in found]) for key in CARD]
        rates = [_mean([card.get(key) for card in found]) for key in RATES]
        rows.append(cells(label, str(len(found)), *shown, *rates))
    columns = ("Algorithm", "Evaluations", *CARD.values(), *RATES.values())
    caption = (
        f"Evaluations on the test split of {task} and how their answers ended: shares of all samples, mean over "
        "evaluations, no interval. An answer that was not found, one cut by the token limit and a wrong one are three "
        "different things. Tied: votes over the largest K answers in which the correct answer shares the first place; "
        "there the rule for ties decides Maj@K."
    )
    return Table(f"evaluations_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _card(manifest: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The manifest of an evaluation with its tie rate at the largest K; empty where there is none."""
    rates: Mapping[str, float] = (manifest or {}).get("tie_rate") or {}
    return {**(manifest or {}), "tied_rate": rates[max(rates, key=int)]} if rates else manifest or {}


def _run_table(runs: Sequence[RunRecord]) -> Table:
    rows, records = [], []
    for arm in arms_of(runs):
        scores = {run.id: float(test.pass_at(1).mean()) for run, test in tested(arm) if 1 in test.ks}
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


def _same(values: Sequence[Any]) -> str:
    """The value that all share, or all of them."""
    return " / ".join(dict.fromkeys(NOT_AVAILABLE if value is None else str(value) for value in values))


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(fmean(known)) if known and len(known) == len(values) else NOT_AVAILABLE
