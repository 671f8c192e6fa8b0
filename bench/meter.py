"""Seconds and tokens by phase: a clock for the training loop, and the rates that follow from its records.

A rate is only as good as its numerator, so each has one definition. The loop reports these counts, summed over
microbatches:

- `prompt`: prompt tokens of every sampled completion; a group of G counts its prompt G times, even if it is read once.
- `generated`: sampled tokens, the end token included, padding not. Completions dropped later were sampled and count.
- `trained`: completion tokens under the loss mask of an update; a second epoch over a rollout counts again.
- `padded`: positions the update's forward passes computed, prompts and padding included. A completion's last token is
  trained on and not computed where rows are packed, so trained / padded may exceed 1.
- `completions`: sampled completions.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

TOKENS = ("prompt", "generated", "trained", "padded")
# A phase without an entry has no counter that describes its work, so it gets seconds and no rate.
NUMERATORS = {"rollout": "generated", "policy_update": "trained", "critic_update": "trained"}
# What an engine takes to start says nothing about the updates that it samples for, and a diagnostic changes none.
NOT_TRAINING = frozenset({"validation", "engine_start", "baseline_quality"})


def device_clock(device: str) -> Callable[[], float]:
    """A clock in seconds that first waits for the work queued on `device`: a GPU's kernels outlive the calls."""
    if device != "cuda":
        return time.perf_counter
    import torch

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


class PhaseClock:
    """Collects the seconds and tokens of one update. Phases do not nest: a second would belong to two of them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` returns seconds; `device_clock` makes the one that fits a device."""
        self._clock = clock
        self._running: str | None = None
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a phase of the present update, also when the block raises."""
        assert self._running is None, f"phase {name!r} opened inside {self._running!r}"
        self._running, start = name, self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - start
            self._running = None

    @contextmanager
    def instead(self, name: str) -> Iterator[None]:
        """Count the seconds of the block to another phase than the one that it is in, if it is in one."""
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            self._seconds[name] += seconds
            if self._running is not None:
                self._seconds[self._running] -= seconds

    def count(
        self, *, prompt: int = 0, generated: int = 0, trained: int = 0, padded: int = 0, completions: int = 0
    ) -> None:
        """Add tokens and completions, as the top of this file defines them, to the present update."""
        self._counts.update(prompt=prompt, generated=generated, trained=trained, padded=padded, completions=completions)

    def take(self, *, attempt: int, update: int, metered: bool) -> dict[str, Any]:
        """The present update as a line of `timings.jsonl`; the next update starts from zero."""
        assert self._running is None, f"record taken inside phase {self._running!r}"
        record = {
            "attempt": attempt,
            "update": update,
            "metered": metered,
            "seconds": dict(self._seconds),
            "tokens": {name: self._counts[name] for name in TOKENS},
            "completions": self._counts["completions"],
        }
        self._seconds, self._counts = defaultdict(float), Counter()
        return record


def throughput(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rates over the records of `timings.jsonl`, in the form of `throughput.json`.

    Counted are the ordinary updates, and update 0 where an objective samples for training before its first step; a
    metered update is slowed by its meter and left out. What that
    leaves out is stated. The rates on top divide by all seconds of the counted updates except validation
    and diagnostics, so that a fast rollout behind a slow update does not look fast. A phase divides by its own seconds.

    Returns:
        Seconds, tokens and tokens a second by phase; four rates a second; how many updates were counted and excluded,
        the excluded seconds and their share of all seconds. A rate whose numerator or time is zero is None: the run
        does no such work, or nothing was counted.
    """
    counted = [
        record for record in records if not record["metered"] and (record["update"] > 0 or record["completions"] > 0)
    ]
    seconds, tokens = _sum(record["seconds"] for record in counted), _sum(record["tokens"] for record in counted)
    everything = sum(_sum(record["seconds"] for record in records).values())
    excluded = everything - sum(seconds.values())
    training = sum(value for phase, value in seconds.items() if phase not in NOT_TRAINING)
    phases = {}
    for phase, value in seconds.items():
        done = int(tokens[NUMERATORS[phase]]) if phase in NUMERATORS else None
        phases[phase] = {"seconds": value, "tokens": done, "tokens_per_second": _rate(done, value)}
    return {
        "phases": phases,
        "generated_tokens_per_second": _rate(tokens["generated"], training),
        "processed_tokens_per_second": _rate(tokens["prompt"] + tokens["generated"], training),
        "trained_tokens_per_second": _rate(tokens["trained"], training),
        "completions_per_second": _rate(sum(record["completions"] for record in counted), training),
        "updates_counted": sum(1 for record in counted if record["update"] > 0),
        "updates_excluded": len(records) - len(counted),
        "excluded_seconds": excluded,
        "excluded_share": excluded / everything if everything else None,
    }


def _sum(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for row in rows:
        for name, value in row.items():
            total[name] += value
    return total


def _rate(amount: float | None, seconds: float) -> float | None:
    return amount / seconds if amount and seconds else None
