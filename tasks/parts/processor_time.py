"""Whether a process is late because it computes for long, or because others have the processor."""

import os
import time
from pathlib import Path


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds(process_id: int) -> float | None:
    """Processor time of a process of this user, all its threads; None where the system (not Linux) does not tell."""
    try:
        # The clock of a process is its inverted id and a kind: clock_getcpuclockid(3), which Python does not have.
        return time.clock_gettime(~process_id << 3 | 2) if _stat(process_id).exists() else None
    except (AttributeError, OSError):
        return None


def is_runnable(process_id: int) -> bool:
    """Whether its main thread has the processor or waits for it; false where it sleeps, has ended, or nobody knows."""
    try:
        text = _stat(process_id).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The state follows the name, which stands in brackets and may hold some.
    return text.rpartition(")")[2].split()[:1] == ["R"]


def seconds_owed(process_id: int, cpu_before: float | None, limit_seconds: float) -> float:
    """What a process that wants the processor lacks to `limit_seconds` of it since `cpu_before`; at least 0."""
    now = cpu_seconds(process_id)
    if now is None or cpu_before is None or not is_runnable(process_id):
        return 0.0
    return max(0.0, limit_seconds - (now - cpu_before))


def _stat(process_id: int) -> Path:
    return Path(f"/proc/{process_id}/stat")
