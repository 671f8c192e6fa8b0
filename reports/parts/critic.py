"""What a critic was good for: its explained variance says whether the advantage had a baseline that knew the state."""

from collections.abc import Sequence
from statistics import fmean

from bench.store import RunRecord
from reports.parts.arms import Arm
from reports.parts.table import number

METRIC = "value/explained_variance"
SMALL = 0.05


def critic_note(arms: Sequence[Arm]) -> str:
    """A sentence for a caption; empty where no finished run has a critic."""
    found = {arm.label: [late_mean(run) for run in arm.finished] for arm in arms}
    known = {label: [value for value in values if value is not None] for label, values in found.items()}
    means = {label: fmean(values) for label, values in known.items() if values}
    parts = [f"{label} {number(mean, 2)}{_meaning(mean)}" for label, mean in means.items()]
    return f"Critic's explained variance over the last half of training: {'; '.join(parts)}." if parts else ""


def late_mean(run: RunRecord) -> float | None:
    """Mean of the critic's explained variance over the last half of the updates; None where none is recorded."""
    last = max((record["update"] for record in run.metrics), default=0)
    values = [record.get(METRIC) for record in run.metrics if 2 * record["update"] > last]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _meaning(mean: float) -> str:
    if mean >= SMALL:
        return ""
    if mean > -SMALL:
        return " (the advantage is in effect a batch-mean baseline)"
    return " (worse than a constant: the critic adds noise to the advantage)"
