"""Calls in worker processes with a time limit: one that hangs is killed with its process, and the others go on.

No signals are used and nothing of the caller is forked, so it works off the main thread, under an event loop, inside
daemonic processes and from several threads at once. One thread, the caller's, supervises the workers of a call.

    parent                                   worker (a fresh interpreter in a session of its own)
    run_all -- length, pickled request --->  a thread reads requests: end of file or a new parent means exit
            <-- length, pickled reply -----  the main thread calls the function
"""

import atexit
import contextlib
import math
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.parts.processor_time import cpu_seconds, num_cores, seconds_owed
from tasks.parts.worker_process import death, described, packed, take_message

_CHUNK = 1 << 20
_START_SECONDS = 120.0
"""For importing the function's module, which is no part of any call."""
_SLOW = 0.125
"""Part of the limit after which a call may be one that hangs, and a spare worker is started."""
_MAX_LIMITS = 3
"""Wall clock of a call in its limits, however little of the processor it was given; and what may be granted in vain."""
_MAX_KEPT = 4
"""Idle workers that are kept for one function."""
_MAX_LIVE = max(16, os.cpu_count() or 1)
"""Workers of this process, whoever uses them: threads that find none free wait for one."""
_BOOT = """
import sys
sys.path[:] = sys.argv[4:]
from tasks.parts.worker_process import serve
serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one call: its value, or why there is none."""

    value: Any = None
    error: str | None = None
    """Type and text of the exception ("ZeroDivisionError: division by zero"), or what ended the call."""
    timed_out: bool = False
    died: bool = False
    """The process ended during the call: out of memory, a crash, an exit."""


class _Kind(NamedTuple):
    """What a worker was started for; a worker is used again only for the same."""

    function: str
    memory_bytes: int
    path: tuple[str, ...]


class _Worker:
    """A process, its pipes, and the call that it is busy with."""

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        # One thread each, as many run at once; and one order of hashing, so that a result is the same in each of them.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(os.getpid()), str(kind.memory_bytes), kind.function, *kind.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests, self.replies = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.requests, False)
        os.set_blocking(self.replies, False)
        self.ready = False
        self.item: int | None = None
        self.deadline = time.monotonic() + _START_SECONDS
        self.slow_at = self.latest = math.inf
        self.cpu_before: float | None = None
        self.outbox = memoryview(b"")
        self.inbox = bytearray()

    def send(self) -> None:
        """Write what the pipe takes. A process that has died is noticed when it is read."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self.outbox:
                self.outbox = self.outbox[os.write(self.requests, self.outbox) :]

    def receive(self) -> bytes | None:
        """A whole reply, or None while it is not complete.

        Raises:
            EOFError: the process has died.
        """
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self.replies, _CHUNK)
            if not chunk:
                raise EOFError
            self.inbox += chunk
        return take_message(self.inbox)

    def begin(self, item: int, request: bytes, limit_seconds: float) -> None:
        """Send an item, whose clock starts now."""
        self.item, self.outbox = item, memoryview(request)
        now = time.monotonic()
        self.deadline, self.slow_at = now + limit_seconds, now + limit_seconds * _SLOW
        self.latest, self.cpu_before = now + limit_seconds * _MAX_LIMITS, cpu_seconds(self.process.pid)
        self.send()

    def is_late(self, now: float, cpu_limit: float) -> bool:
        """Whether its time is up. A call that waits for the processor is given what it lacks to its share."""
        if self.deadline <= now and self.item is not None:
            owed = seconds_owed(self.process.pid, self.cpu_before, cpu_limit)
            self.deadline = min(now + owed, self.latest)
        return self.deadline <= now

    def close(self) -> int:
        """Kill the process with what it has started, reap it, and return its status (as `Popen.returncode`)."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        if self.process.returncode is None:
            # A process that has ended keeps its own status, and the kill reaches what it has left behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
        return self.process.returncode or 0


class _Pool:
    """The workers of this process. The lock guards the two collections; a worker that is lent is its user's alone."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.live: set[_Worker] = set()
        self.idle: list[_Worker] = []

    def lend(self, kind: _Kind, *, wait: bool) -> _Worker | None:
        """An idle worker of this kind or a new one; None, or a wait, where too many are live."""
        with self.changed:
            while True:
                for worker in [worker for worker in self.idle if worker.kind == kind]:
                    self.idle.remove(worker)
                    if worker.process.poll() is None:
                        return worker
                    self._discard(worker)
                # Only for a first worker: functions called in turn would else end each other's at every call.
                if wait and len(self.live) >= _MAX_LIVE and self.idle:
                    self._discard(self.idle.pop(0))
                if len(self.live) < _MAX_LIVE:
                    try:
                        worker = _Worker(kind)
                    except OSError:
                        # No more processes now: one worker is enough.
                        if wait:
                            raise
                        return None
                    self.live.add(worker)
                    return worker
                if not wait:
                    return None
                self.changed.wait()

    def take_back(self, worker: _Worker) -> None:
        """Keep a worker that is not busy, unless there are enough."""
        with self.changed:
            if sum(idle.kind == worker.kind for idle in self.idle) < _MAX_KEPT:
                self.idle.append(worker)
            else:
                self._discard(worker)
            self.changed.notify()

    def remove(self, worker: _Worker) -> int:
        """Kill a worker; its exit status."""
        status = worker.close()
        with self.changed:
            self.live.discard(worker)
            self.changed.notify()
        return status

    def _discard(self, worker: _Worker) -> None:
        self.live.discard(worker)
        worker.close()

    def shut_down(self) -> None:
        """Kill all workers."""
        with self.changed:
            for worker in list(self.live):
                self._discard(worker)
            self.idle.clear()

    def forget(self) -> None:
        """In a forked process: the workers are the parent's, and the lock may be held by a thread that is not here."""
        for worker in self.live:
            for pipe in (worker.process.stdin, worker.process.stdout):
                assert pipe
                pipe.close()
            # Or Popen would warn of a child that is not ours to wait for.
            worker.process.returncode = 0
        self.__init__()


_POOL = _Pool()
atexit.register(_POOL.shut_down)
os.register_at_fork(after_in_child=_POOL.forget)


def run_all(
    function: str,
    arguments: Sequence[tuple[Any, ...]],
    *,
    limit_seconds: float,
    workers: int | None = None,
    memory_bytes: int | None = None,
) -> list[Outcome]:
    """Call a function on each tuple of arguments in worker processes that are kept between calls.

    Args:
        function: "package.module:name", importable with this process's `sys.path`. What it prints is lost. A new
            worker first calls the module's `prepare_worker`, if it has one, and no limit runs.
        arguments: picklable.
        limit_seconds: wall clock of one call, from when a worker takes it; starting a worker does not count. On Linux
            it is put off, to three limits at most, while the call waits for a processor that other programs have, so
            that a result does not hang on what else the machine does; until three limits were put off in vain.
        workers: processes at a time. None: the number of cores, at most 4.
        memory_bytes: address space of a worker. None: no bound.

    Returns:
        One outcome for each tuple, in order. Whatever the function does, the others are not affected.

    Raises:
        ValueError: a limit is not positive.
        ImportError: the function cannot be imported in a worker.
    """
    if not (limit_seconds > 0 and math.isfinite(limit_seconds)) or (workers is not None and workers < 1):
        raise ValueError(f"limit_seconds {limit_seconds!r} and workers {workers!r} must be positive numbers")
    kind = _Kind(function, memory_bytes or 0, tuple(str(place) or os.getcwd() for place in sys.path))
    crew = _Crew(kind, arguments, limit_seconds, workers or _default_workers())
    try:
        while crew.waiting or crew.busy():
            crew.hire()
            crew.prepare()
            crew.step()
    finally:
        crew.dismiss()
    return [outcome for outcome in crew.outcomes if outcome is not None]


class _Crew:
    """The workers that one call has borrowed, and its items: waiting, with a worker, or done."""

    def __init__(self, kind: _Kind, arguments: Sequence[tuple[Any, ...]], limit_seconds: float, size: int) -> None:
        self.kind, self.arguments, self.limit_seconds, self.size = kind, arguments, limit_seconds, size
        # What a call gets of the processor within its limit where nobody but its own crew uses the machine.
        self.cpu_limit = limit_seconds * min(1.0, num_cores() / size)
        self.patience = limit_seconds * _MAX_LIMITS
        self.waiting = deque(range(len(arguments)))
        self.outcomes: list[Outcome | None] = [None] * len(arguments)
        self.members: set[_Worker] = set()
        self.selector = selectors.DefaultSelector()
        self.started = False

    def busy(self) -> int:
        return sum(worker.item is not None for worker in self.members)

    def hire(self) -> None:
        """Borrow as many workers as there is work for; at least one, if need be after waiting for it."""
        for spare in [worker for worker in self.members if worker.ready and worker.item is None]:
            if self.busy() < self.size:
                self.assign(spare)
        while len(self.members) < min(self.size, len(self.waiting) + self.busy()):
            worker = self.borrow(wait=not self.members)
            if worker is None:
                return
            if worker.ready:
                self.assign(worker)

    def prepare(self) -> None:
        """Start one more worker for each call that may hang, so that its successor is ready when it is killed."""
        now = time.monotonic()
        slow = sum(worker.item is not None and worker.slow_at <= now for worker in self.members)
        spares = len(self.members) - self.busy()
        while spares < min(slow, len(self.waiting)) and self.borrow(wait=False):
            spares += 1

    def borrow(self, *, wait: bool) -> _Worker | None:
        worker = _POOL.lend(self.kind, wait=wait)
        if worker is not None:
            self.members.add(worker)
            self.selector.register(worker.replies, selectors.EVENT_READ, worker)
            self.started = self.started or worker.ready
        return worker

    def assign(self, worker: _Worker) -> None:
        """Give a worker the next item, whose clock starts now; back to the pool where there is none."""
        while self.waiting:
            item = self.waiting.popleft()
            try:
                request = packed((self.limit_seconds, tuple(self.arguments[item])))
            except Exception as error:
                self.outcomes[item] = Outcome(error=described(error))
                continue
            worker.begin(item, request, self.limit_seconds)
            if worker.outbox:
                self.selector.register(worker.requests, selectors.EVENT_WRITE, worker)
            return
        self.leave(worker)
        _POOL.take_back(worker)

    def step(self) -> None:
        """Wait for the next reply or deadline and act on it. Replies come first: a late look is not a late reply."""
        now = time.monotonic()
        times = [worker.deadline for worker in self.members if worker.item is not None or not worker.ready]
        if len(self.waiting) > len(self.members) - self.busy():
            times += [worker.slow_at for worker in self.members if worker.item is not None and worker.slow_at > now]
        for key, _ in self.selector.select(max(0.0, min(times, default=now) - now)):
            worker: _Worker = key.data
            if worker not in self.members:
                continue
            if key.events & selectors.EVENT_WRITE:
                worker.send()
                if not worker.outbox:
                    self.selector.unregister(worker.requests)
                continue
            try:
                message = worker.receive()
            except EOFError:
                self.lose(worker)
                continue
            if message is not None:
                self.reply(worker, message)
        now = time.monotonic()
        for worker in [one for one in self.members if one.item is not None or not one.ready]:
            if worker.is_late(now, self.cpu_limit if self.patience > 0 else 0.0):
                self.lose(worker, late=True)

    def reply(self, worker: _Worker, message: bytes) -> None:
        """Take a reply: (value, error, whether the worker should be replaced)."""
        try:
            value, error, tired = pickle.loads(message)
        except Exception as trouble:
            value, error, tired = None, described(trouble), False
        if worker.item is None:
            if error is not None:
                raise ImportError(f"{self.kind.function} cannot be loaded in a worker process: {error}")
            self.started = worker.ready = True
        else:
            self.outcomes[worker.item] = Outcome(value=value, error=error)
            worker.item = None
        if tired:
            self.leave(worker)
            _POOL.remove(worker)
        elif self.busy() < self.size:
            self.assign(worker)

    def lose(self, worker: _Worker, *, late: bool = False) -> None:
        """End a worker that is late or has died, and settle its item."""
        self.leave(worker)
        status = _POOL.remove(worker)
        if worker.item is not None:
            error = f"no result within {self.limit_seconds:g} s" if late else death(status)
            self.outcomes[worker.item] = Outcome(error=error, timed_out=late, died=not late)
            if late:
                self.patience -= time.monotonic() - (worker.latest - self.limit_seconds * (_MAX_LIMITS - 1))
        elif not self.started:
            reason = f"not ready within {_START_SECONDS:g} s" if late else death(status)
            raise ImportError(f"{self.kind.function} cannot be loaded in a worker process: {reason}")

    def leave(self, worker: _Worker) -> None:
        self.members.discard(worker)
        self.selector.unregister(worker.replies)
        with contextlib.suppress(KeyError):
            self.selector.unregister(worker.requests)

    def dismiss(self) -> None:
        """Give back who is idle or still starting, end who is busy: the caller has been interrupted."""
        self.selector.close()
        for worker in self.members:
            (_POOL.take_back if worker.item is None else _POOL.remove)(worker)


def _default_workers() -> int:
    return min(4, num_cores())
