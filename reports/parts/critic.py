"""What a critic was good for: its explained variance says whether the advantage had a baseline that knew the state."""

from collections.abc import Sequence
from statistics import fmean

from reports.parts.arms import Arm
from reports.parts.table import number


def critic_note(arms: Sequence[Arm]) -> str:
    """A sentence for a caption; empty where no finished run has a critic that can be judged."""
    parts: list[str] = []
    for arm in arms:
        found = [finding for run in arm.finished for finding in run.health if finding.name == "critic"]
        known = [(f.value, f.threshold) for f in found if f.value is not None and f.threshold is not None]
        if known:
            mean = fmean(value for value, _ in known)
            parts.append(f"{arm.label} {number(mean, 2)}{_meaning(mean, known[0][1])}")
    return f"Critic's explained variance over the last quarter of training: {'; '.join(parts)}." if parts else ""


def _meaning(mean: float, least: float) -> str:
    """What the advantage is worth where the critic explains no more than `least`."""
    if mean > least:
        return ""
    if mean >= -least:
        return " (the advantage is in effect a batch-mean baseline)"
    return " (worse than a constant: the critic adds noise to the advantage)"
