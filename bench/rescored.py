"""What grading again changed: each verdict before and after, the counts, and how `bench score` prints them."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.completions import StoredCompletion
from bench.console import columns
from bench.evaluation import Outcome, outcome_matrix, strict_accuracy
from tasks.parts.problem import Task
from tasks.parts.verify import VERSION

_TAIL_CHARACTERS = 60
_VERDICTS = {True: "correct", False: "wrong", None: "unscorable"}


def printable(text: str | None) -> str:
    """A text on one line that cannot disturb a terminal: controls, line ends and invisible characters are escaped."""
    if text is None:
        return "none"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


@dataclass(frozen=True)
class Change:
    """A verdict that is not what it was."""

    stored: StoredCompletion
    gold: str
    before: Outcome
    after: Outcome

    @property
    def direction(self) -> str:
        """Such as "wrong -> correct"."""
        return f"{_VERDICTS[self.before.correct]} -> {_VERDICTS[self.after.correct]}"

    def lines(self) -> tuple[str, str]:
        """Which completion and how its verdict changed; what was read in it."""
        after = f"{printable(self.after.answer_key)} ({self.after.method})"
        # A foreign file gives verdicts without answers and methods.
        before = f"{printable(self.before.answer_key)} ({self.before.method}) -> " if self.before.method else ""
        tail = printable(self.stored.completion[-_TAIL_CHARACTERS:])
        timed_out = ", timed out" if self.after.timed_out else ""
        return (
            f"{printable(self.stored.problem_id)}  sample {self.stored.sample}  {self.direction}{timed_out}",
            f"    answer {before}{after}, gold {printable(self.gold)}, ends: {tail}",
        )


@dataclass(frozen=True)
class Rescored:
    """Completions graded again."""

    task: Task
    before: tuple[Outcome | None, ...]
    """The stored verdicts, None where there is none; one with an empty method has a verdict and nothing else."""
    after: tuple[Outcome, ...]
    changes: tuple[Change, ...]
    keys_changed: int
    """Answers that are read otherwise under the same verdict: they can change majorities."""
    notes: tuple[str, ...]
    folder: Path
    name: str

    def directions(self) -> dict[str, int]:
        """How many verdicts changed, by direction, most frequent first."""
        return dict(Counter(change.direction for change in self.changes).most_common())

    def lines(self) -> Iterator[str]:
        """Everything that `bench score` prints."""
        for change in self.changes:
            yield from change.lines()
        yield from [""] if self.changes else []
        num_problems = len({outcome.problem_id for outcome in self.after})
        yield (
            f"{len(self.after)} completions of {num_problems} problems, graded by {self.task.name} version "
            f"{self.task.version} with verifier version {VERSION}"
        )
        yield ""
        yield from columns(["", "before", "now"], _table(self.before, self.after))
        yield ""
        for direction, count in self.directions().items():
            yield f"{direction}: {count}"
        if not self.changes:
            yield "no verdict changed" if any(self.before) else "no stored verdicts to compare with"
        if self.keys_changed:
            yield f"same verdict, answer read otherwise: {self.keys_changed}"
        yield from self.notes
        yield f"{self.folder / self.name}.*"


def _table(before: Sequence[Outcome | None], after: Sequence[Outcome]) -> list[list[str]]:
    stored = [outcome for outcome in before if outcome is not None]
    complete = len(stored) == len(after)
    # Only verdicts are known of a foreign file.
    detailed = complete and all(outcome.method for outcome in stored)
    old, new = _counts(stored), _counts(after)
    rows: list[list[str]] = []
    for name, count in new.items():
        known = detailed if name in ("no answer found", "timed out") else complete
        rows.append([name, str(old[name]) if known else "n/a", str(count)])
    return [*rows, ["Pass@1", _pass_at_1(stored) if complete else "n/a", _pass_at_1(after)]]


def _pass_at_1(outcomes: Sequence[Outcome]) -> str:
    accuracy = strict_accuracy(outcome_matrix(outcomes))
    return "n/a (a problem has no scorable sample)" if math.isnan(accuracy) else f"{accuracy:.4f}"


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    verdicts = {word: sum(o.correct is verdict for o in outcomes) for verdict, word in _VERDICTS.items()}
    return {
        **verdicts,
        "no answer found": sum(not o.parsed for o in outcomes),
        "timed out": sum(o.timed_out for o in outcomes),
    }
