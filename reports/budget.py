"""Budget: what each algorithm spent, because equal updates are not equal samples, tokens or seconds."""

from collections.abc import Sequence
from statistics import fmean

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, counted
from reports.parts.curves import NOT_TRAINING
from reports.parts.page import Page, sections, slug
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number
from reports.throughput import total_seconds

position = 15

SPENT = {
    "updates": "Updates",
    "prompts": "Prompts sampled",
    "completions": "Completions sampled",
    "generated_tokens": "Tokens generated",
    "trained_tokens": "Tokens trained",
    "training_seconds": "Seconds",
}
DIGITS = {"training_seconds": 1}


def render(runs: Sequence[RunRecord]) -> Page:
    """A table for each task."""
    return Page("budget", "Budget", sections(arms_of(runs), lambda task, arms: [_table(task, arms)]))


def spent(run: RunRecord) -> dict[str, float | None]:
    """What a run consumed in training, the validation and the final evaluation left out; None where it is not known."""
    completions = _last(run, "completions/generated")
    group_size = run.run.get("rollout", {}).get("group_size")
    seconds = total_seconds(run)
    return {
        "updates": _last(run, "update"),
        "prompts": completions / group_size if completions and group_size else None,
        "completions": completions,
        "generated_tokens": _last(run, "tokens/generated"),
        "trained_tokens": _last(run, "tokens/trained"),
        "training_seconds": sum(value for phase, value in seconds.items() if phase not in NOT_TRAINING) or None,
    }


def _last(run: RunRecord, name: str) -> float | None:
    values = [record[name] for record in run.metrics if record.get(name) is not None]
    return values[-1] if values else None


def _table(task: str, arms: Sequence[Arm]) -> Table:
    rows, records = [], []
    for arm in arms:
        found = [(run.seed, spent(run)) for run in arm.finished]
        columns = {name: [one[name] for _, one in found] for name in SPENT}
        rows.append(cells(arm.label, *(_spread(values, DIGITS.get(name, 0)) for name, values in columns.items())))
        records += [{**arm.keys, "seed": seed, **one} for seed, one in found]
    caption = (
        "What training consumed; validation and the final evaluation are left out. Equal updates are not equal "
        "samples: dynamic sampling draws more than it trains on, and a preference objective samples everything before "
        "its first update and trains on the pairs it can form. Tokens trained count every pass of a token through the "
        "loss. Seconds are wall time of all training phases, lost attempts included, and depend on what else the "
        "machine did. Small type: lowest and highest seed. Mean over finished seeds "
        f"({counted(arms, lambda arm: len(arm.finished))}), no interval."
    )
    return Table(f"budget_{slug(task)}", caption, ("Algorithm", *SPENT.values()), tuple(rows), tuple(records))


def _spread(values: Sequence[float | None], digits: int) -> Cell:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Cell(NOT_AVAILABLE)
    low, high = number(min(known), digits), number(max(known), digits)
    return Cell(number(fmean(known), digits), () if low == high else (f"{low} to {high}",))
