"""Throughput: where the seconds of an update go, and how many tokens they buy."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, counted
from reports.parts.figure import Figure, stacked_bars
from reports.parts.page import Block, Page, sections, slug
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number, words

position = 50

PHASES = (
    "pairs",
    "rollout",
    "reward",
    "old_logp",
    "ref_logp",
    "values",
    "advantage",
    "policy_update",
    "critic_update",
    "validation",
    "baseline_quality",
)
RATES = {
    "generated_tokens_per_second": "Generated tokens/s",
    "processed_tokens_per_second": "Processed tokens/s",
    "trained_tokens_per_second": "Trained tokens/s",
    "completions_per_second": "Completions/s",
    "updates_counted": "Updates counted",
    "updates_excluded": "Left out",
}


def render(runs: Sequence[RunRecord]) -> Page:
    """Seconds an update by phase as bars, the rates, and all seconds that each run took."""
    return Page("throughput", "Throughput", sections(arms_of(runs), _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    return [_figure(task, arms), _rate_table(task, arms), _total_table(task, arms)]


def seconds_per_update(arm: Arm) -> dict[str, float] | None:
    """Seconds by phase of a counted update, mean over the arm's finished runs; None where none has a record."""
    records = [run.throughput for run in arm.finished if run.throughput and run.throughput["updates_counted"]]
    if not records:
        return None
    phases = sorted({phase for record in records for phase in record["phases"]}, key=_order)
    return {
        phase: fmean(r["phases"].get(phase, {"seconds": 0.0})["seconds"] / r["updates_counted"] for r in records)
        for phase in phases
    }


def total_seconds(run: RunRecord) -> dict[str, float]:
    """All recorded seconds of a run by phase: start-up, metered updates and earlier attempts included."""
    totals: dict[str, float] = {}
    for record in run.timings:
        for phase, seconds in record["seconds"].items():
            totals[phase] = totals.get(phase, 0.0) + seconds
    return totals


def _order(phase: str) -> tuple[int, str]:
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


def _figure(task: str, arms: Sequence[Arm]) -> Figure:
    bars = {arm.label: seconds_per_update(arm) for arm in arms}
    notes = {label: f"{sum(bar.values()):.3g} s" for label, bar in bars.items() if bar}
    caption = f"Seconds of one optimizer update by phase; start-up and metered updates are left out. {_how(arms)}"
    return Figure(f"throughput_{slug(task)}", caption, partial(stacked_bars, bars, PHASES, notes, "Seconds per update"))


def _rate_table(task: str, arms: Sequence[Arm]) -> Table:
    rows, records = [], []
    for arm in arms:
        found = [(run.seed, run.throughput) for run in arm.finished if run.throughput]
        rows.append(cells(arm.label, *(_spread([rates[key] for _, rates in found]) for key in RATES)))
        records += [{**arm.keys, "seed": seed, **{key: rates[key] for key in RATES}} for seed, rates in found]
    caption = (
        "Rates over all seconds of the counted updates except validation. Generated: sampled tokens; processed: prompt "
        "and sampled tokens; trained: completion tokens under the loss; left out: start-up and metered updates. Small "
        f"type: lowest and highest seed. {_how(arms)}"
    )
    columns = ("Algorithm", *RATES.values())
    return Table(f"throughput_rates_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _total_table(task: str, arms: Sequence[Arm]) -> Table:
    totals = {run.id: total_seconds(run) for arm in arms for run in arm.runs}
    phases = sorted({phase for total in totals.values() for phase in total}, key=_order)
    rows, records = [], []
    for arm in arms:
        for run in arm.runs:
            total, state = totals[run.id], run.status.state
            name = Cell(arm.label, () if state == "finished" else (state,))
            texts = [number(total.get(phase), 2) for phase in phases]
            rows.append(cells(name, str(run.seed), number(sum(total.values()) if total else None, 2), *texts))
            seconds = {f"{phase}_seconds": total.get(phase) for phase in phases}
            records.append({**arm.keys, "seed": run.seed, "state": state, **seconds})
    columns = ("Algorithm", "Seed", "All", *(words(phase).capitalize() for phase in phases))
    caption = (
        "All seconds that each run spent, by phase: start-up work, metered updates and earlier attempts included. "
        "n/a: the run has no such phase."
    )
    return Table(f"throughput_seconds_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _spread(values: Sequence[float | None]) -> Cell:
    """Mean over seeds, under it the lowest and the highest; "n/a" where a run does no such work."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Cell(NOT_AVAILABLE)
    low, high = number(min(known), 0), number(max(known), 0)
    return Cell(number(fmean(known), 0), () if low == high else (f"{low} to {high}",))


def _how(arms: Sequence[Arm]) -> str:
    seeds = counted(arms, lambda arm: sum(1 for run in arm.finished if run.throughput))
    return f"Mean over finished seeds ({seeds}), no interval."
