"""What an answer of a run's health consists of, and why there may be none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.health_series import STRETCHES, Change, Series, update_of

Answer = Literal["yes", "no", "cannot be told", "not measured"]


@dataclass(frozen=True)
class Told:
    """An answer with what stands behind it."""

    answer: Answer
    numbers: str
    """The number and its threshold in a few characters; where there is none, the reason."""
    text: str = ""
    """A sentence that says what was compared."""
    value: float | None = None
    threshold: float | None = None
    look: bool = False
    """Whether the answer is one that a reader should look into."""
    metric: str | None = None
    """What the value is of, where that is another metric than the question's own."""
    advice: str | None = None
    """What to try, where that is not what the question advises."""


@dataclass(frozen=True)
class Seen:
    """What a question may read beside its own metric."""

    records: Sequence[Mapping[str, Any]]
    run: Mapping[str, Any]
    """The content of run.yaml; empty where it is not known."""
    reward: Told | None = None
    """Whether the reward rose, once that is answered."""


def against_noise(found: Change) -> str:
    """A change with its noise in brackets."""
    return f"{found.size:+.3g} (noise {found.noise:.2g})"


def another_objective(seen: Seen) -> str:
    """Says so where the run learns from a fixed set, which has metrics of its own."""
    offline = any(name.startswith(("dpo/", "imitation/")) for record in seen.records for name in record)
    return "not of this objective" if offline else ""


def short(own: Series, seen: Seen) -> Told | None:
    """Why a series answers nothing, if it is too short for that."""
    if own.long_enough:
        return None
    updates = sum(update_of(record) > 0 for record in seen.records)
    if not own.recorded:
        return Told("not measured", another_objective(seen) or "not recorded")
    once = sum(update_of(record) > 0 and "reward/mean" in record for record in seen.records) <= 1
    if len(own) == 1 and updates >= STRETCHES and own.updates[0] <= 1 and once:
        return Told("not measured", "sampled once, before training")
    return Told("cannot be told", f"{len(own)} {'value' if len(own) == 1 else 'values'}, {STRETCHES} needed")
