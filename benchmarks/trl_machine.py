"""The machine under a measurement: what it is, and whether anything else was running on it. Linux; standard library."""

import os
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

IDLE_LOAD = 0.5
FOREIGN_CORES = 0.1
"""Above these, other work took part in the times, and they are no claim."""
TICKS = os.sysconf("SC_CLK_TCK")


def load_average() -> float:
    """Processes that ran or waited to run, over the last minute."""
    return os.getloadavg()[0]


def describe() -> dict[str, Any]:
    """Processor, cores, the control group's quota, and versions."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    quota = _lines("/sys/fs/cgroup/cpu.max") or _lines("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    return {
        "processor": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "cgroup_quota": quota[0] if quota else "none",
        "load_before": load_average(),
        "versions": {name: installed(name) for name in ("torch", "transformers", "trl", "accelerate")},
    }


def installed(name: str) -> str | None:
    """The installed version of a distribution; None where there is none. Imports nothing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


class ForeignWork:
    """Cores that others kept busy while the block ran: all of the machine's busy time less that of our processes."""

    def __init__(self, processes: list[int]) -> None:
        self.processes = [os.getpid(), *processes]
        self.cores = 0.0

    def __enter__(self) -> "ForeignWork":
        self._before = time.monotonic(), _busy(), self._own()
        return self

    def __exit__(self, *exception: object) -> None:
        start, busy, own = self._before
        seconds = max(time.monotonic() - start, 1e-9)
        self.cores = max(0.0, (_busy() - busy - (self._own() - own)) / TICKS / seconds)

    def _own(self) -> int:
        return sum(_process_ticks(pid) for pid in {*self.processes, *descendants(self.processes)})


def descendants(processes: list[int]) -> set[int]:
    """What these processes have started, and what that has: an engine of its own process is no foreign work."""
    found: set[int] = set()
    left = list(processes)
    while left:
        own = {int(pid) for task in Path(f"/proc/{left.pop()}/task").glob("*/children") for pid in _text(task).split()}
        left += own - found
        found |= own
    return found


def warnings(load_before: float, foreign_cores: float) -> list[str]:
    """Why the times are no claim; nothing on an idle machine."""
    found: list[str] = []
    if load_before > IDLE_LOAD:
        found.append(
            f"warning: the load average was {load_before:.2f} before the start, above {IDLE_LOAD}: the machine was not "
            "idle, so these times are no claim"
        )
    if foreign_cores > FOREIGN_CORES:
        found.append(
            f"warning: other processes kept {foreign_cores:.2f} cores busy during the measurement, above "
            f"{FOREIGN_CORES}: these times are no claim"
        )
    return found


def _lines(path: str) -> list[str]:
    return _text(Path(path)).splitlines()


def _text(file: Path) -> str:
    """What a file says; nothing where it is not there, or its process has ended meanwhile."""
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _busy() -> int:
    """Ticks that all cores spent working since the start, stolen ones included."""
    user, nice, system, _, _, irq, softirq, steal, *_ = (int(ticks) for ticks in _lines("/proc/stat")[0].split()[1:])
    return user + nice + system + irq + softirq + steal


def _process_ticks(pid: int) -> int:
    """Ticks of a process and its threads; 0 where it has ended."""
    lines = _lines(f"/proc/{pid}/stat")
    if not lines:
        return 0
    fields = lines[0].rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
