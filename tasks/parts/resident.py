"""The memory of this process, as far as the system tells it."""

from pathlib import Path


def peak_resident_bytes() -> int | None:
    """The most memory this process ever had resident, in bytes; None where the system (not Linux) does not tell.

    From /proc and not from getrusage: the latter's maximum is inherited from the process that started this one, so that
    every worker of a large trainer would seem to have grown as large.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8", errors="replace").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
