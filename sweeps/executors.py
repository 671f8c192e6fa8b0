"""Each trial is a process of this machine in its own process group: started, watched and, if need be, ended whole.

What an executor needs to know about a trial is its command, its log and its lock. The lock is a file that the process
itself holds through an inherited descriptor: the kernel lets go of it when the process dies, however it dies, so "is it
still running?" has an answer that no reused process id can falsify.
"""

import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.endings import killed


class Busy(Exception):
    """A lock is held by a living process; the message names it."""


@dataclass(frozen=True)
class Lock:
    """A lock file that this process holds."""

    path: Path
    descriptor: int
    left_by: str | None
    """The owner that died without releasing the lock."""

    def sign(self, pid: int) -> None:
        """Write down who holds the lock, for the message that others get."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"process {pid} on {socket.gethostname()}".encode(), 0)

    def hand_over(self) -> None:
        """Let go of our copy: the lock now lives as long as the process that inherited it."""
        os.close(self.descriptor)

    def release(self) -> None:
        """Give the lock back."""
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


def take_lock(path: Path) -> Lock:
    """Take the lock at `path`, from a dead owner as well.

    Raises:
        Busy: a living process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 200).decode(errors="replace")
        os.close(descriptor)
        raise Busy(owner or "a process that has just started") from None
    lock = Lock(path, descriptor, os.read(descriptor, 200).decode(errors="replace") or None)
    lock.sign(os.getpid())
    return lock


@dataclass(frozen=True)
class Job:
    """One process to run."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables set on top of ours."""
    log: Path | None = None
    """Where its output is appended; None leaves it on the terminal."""
    lock: Lock | None = None
    """Taken by the caller; the process holds it from its start to its end."""


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    job: Job
    code: int
    """Exit status; minus the signal's number where a signal ended it."""
    seconds: float

    @property
    def sentence(self) -> str:
        """The ending in words."""
        if self.code >= 0:
            return f"exit status {self.code}"
        return killed(-self.code)


class LocalProcesses:
    """The processes that this executor has started and that have not ended yet."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}

    @property
    def running(self) -> dict[str, float]:
        """Seconds since the start of each running job."""
        now = time.monotonic()
        return {name: now - started for name, (_, _, started) in self._running.items()}

    def start(self, job: Job) -> None:
        """Start a process and hand it its lock."""
        output = None if job.log is None else job.log.open("ab")
        try:
            process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env={**os.environ, **job.environment},
                # A group of its own: Ctrl-C in the terminal reaches only us, and we end the trial in good order.
                start_new_session=True,
                pass_fds=() if job.lock is None else (job.lock.descriptor,),
            )
        finally:
            if output is not None:
                output.close()
        if job.lock is not None:
            job.lock.sign(process.pid)
            job.lock.hand_over()
        self._running[job.name] = (job, process, time.monotonic())

    def poll(self) -> list[Exit]:
        """The processes that ended since the last call."""
        ended: list[Exit] = []
        for name, (job, process, started) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                _kill_group(process.pid)  # what it started must not outlive it
                ended.append(Exit(job, code, time.monotonic() - started))
        return ended

    def stop(self, grace_seconds: float, hurry: Callable[[], bool]) -> list[Exit]:
        """Ask every process to end (SIGTERM), and kill its whole group after the grace or when `hurry()` says so."""
        for _, process, _ in self._running.values():
            process.terminate()
        ended: list[Exit] = []
        deadline = time.monotonic() + grace_seconds
        while self._running and time.monotonic() < deadline and not hurry():
            ended += self.poll()
            time.sleep(0.02)
        for _, process, _ in self._running.values():
            _kill_group(process.pid)
            process.wait()
        return ended + self.poll()


def _kill_group(group: int) -> None:
    # PermissionError is what macOS says of a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
