"""Instruments: one phase of an update, timed always and its memory counted on metered updates."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.memory import MemoryMeter
from bench.meter import PhaseClock


@dataclass(frozen=True)
class Instruments:
    """The clock and the memory meter of a run."""

    clock: PhaseClock
    memory: MemoryMeter

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time and, where the present update is metered, memory of a block."""
        with self.clock.phase(name), self.memory.measure(name):
            yield
