"""How many processor cores this process may use, and how many trials at a time they carry."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench.config import Run


@dataclass(frozen=True)
class Demand:
    """What one trial takes of the machine while it runs."""

    processes: int
    threads: int
    """Of each process."""
    gpu: bool = False

    @property
    def cores(self) -> int:
        """Cores that keep all of its threads running."""
        return self.processes * self.threads


@dataclass(frozen=True)
class Jobs:
    """How many trials run side by side, and why."""

    number: int
    reason: str
    warning: str | None = None
    """What is wrong with the number that was asked for."""


def demand(run: Run) -> Demand:
    """What a run takes."""
    return Demand(run.parallel.processes, run.threads, run.device == "cuda")


def choose_jobs(asked: int | None, cores: float, demands: Sequence[Demand]) -> Jobs:
    """The number that was asked for, or as many as the cores carry: at least one, never more than there are trials.

    Trials that differ are all counted as the largest. Memory is not looked at. Trials on a GPU run one at a time unless
    more are asked for, because each of them may want all of its memory.
    """
    if not demands:
        return Jobs(asked or 1, "nothing to run")
    most = max(demands, key=lambda each: each.cores)
    size = f"{_count(most.threads, 'thread')} each"
    if most.processes > 1:
        size = f"{most.processes} processes of {_count(most.threads, 'thread')} each"
    machine = f"{size}, {cores:g} {'core' if cores == 1 else 'cores'} here"
    if asked is not None:
        crowded = min(asked, len(demands)) * most.cores > cores and asked > 1
        fits = choose_jobs(None, cores, demands).number
        warning = f"--jobs {asked}: {machine}: they will slow each other down; without --jobs it is {fits}"
        return Jobs(asked, f"{asked} at a time, as asked: {machine}", warning if crowded else None)
    if any(each.gpu for each in demands):
        return Jobs(1, "1 at a time: trials share the GPU, --jobs N runs more side by side")
    number = max(1, int(cores // most.cores))
    if number >= len(demands):
        return Jobs(len(demands), f"{len(demands)} at a time, no more are left to run: {machine}")
    return Jobs(number, f"{number} at a time: {machine}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"


def usable_cores() -> float:
    """Cores that this process may run on, and no more than its control group's share of processor time."""
    # Only Linux can tell which cores a process is bound to.
    bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(float(bound), cpu_quota(Path("/")) or float("inf"))


def cpu_quota(root: Path) -> float | None:
    """Cores' worth of time that the control groups of this process grant, None without a limit.

    `root` holds `proc/self/cgroup` and `sys/fs/cgroup`. A group's limit binds all groups below it, so the smallest one
    on the way up counts. Both versions of control groups are read; what cannot be read limits nothing.
    """
    found = [limit for folder in _groups(root) if (limit := _limit(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the groups that this process is in, as far as this system shows them."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        path = PurePosixPath(group)
        for base in [root / "sys/fs/cgroup" / controllers] if controllers else _unified(root):
            for step in (path, *path.parents):
                yield base / str(step).lstrip("/")


def _unified(root: Path) -> list[Path]:
    return [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]


def _limit(folder: Path) -> float | None:
    second = _read(folder / "cpu.max")
    if second is not None:
        quota, period = second.split()
        return None if quota == "max" else int(quota) / int(period)
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota is None or period is None or int(quota) < 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
