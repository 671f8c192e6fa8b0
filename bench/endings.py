"""How a signal ended a process, in words: with its number, and the host's memory where that may be the reason."""

import signal
from pathlib import Path


def killed(number: int) -> str:
    """The ending of a process that signal `number` killed; said when it is noticed, so that the memory is of then."""
    if number == signal.SIGKILL:
        return f"killed by signal {number} (often out of memory); {_host_memory()}"
    return f"killed by signal {number} ({signal.strsignal(number)})"


def _host_memory() -> str:
    path = Path("/proc/meminfo")
    if not path.exists():
        return "the host's memory then is not known"
    fields = {line.partition(":")[0]: line.split()[1] for line in path.read_text().splitlines()}
    available, total = (int(fields[name]) / 2**20 for name in ("MemAvailable", "MemTotal"))
    return f"host memory then: {available:.1f} of {total:.1f} GiB available"
