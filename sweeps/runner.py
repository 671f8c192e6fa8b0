"""Run a sweep: say what would be done, then get every trial done once, each in its own process.

Running the same command again is the resume. Exit status: 0 every trial finished, 1 some did not (or a shared stage
failed), 2 the sweep cannot start as asked, 130 it was interrupted.
"""

import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.loading import ConfigError
from sweeps import ledger, screen
from sweeps.cores import Jobs, choose_jobs, demand, usable_cores
from sweeps.executors import Busy, Exit, Job, LocalProcesses, take_lock
from sweeps.grid import Sweep, load_sweep
from sweeps.ledger import Entry

_BENCH = (sys.executable, "-m", "bench.cli")
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Commands:
    """What is launched; the argument (specification, run.yaml, sweep directory) is put at the end."""

    prepare: tuple[str, ...] = (*_BENCH, "prepare")
    run: tuple[str, ...] = (*_BENCH, "run")
    report: tuple[str, ...] = (*_BENCH, "report")


@dataclass(frozen=True)
class Options:
    """How a sweep is run; nothing here changes a result."""

    jobs: int | None = None
    """Trials side by side; None is as many as the cores carry."""
    fail_fast: bool = False
    """Stop after the first trial that does not finish."""
    report: bool = True
    """Write the report at the end."""
    grace_seconds: float = 30.0
    """Time that a trial has to end in good order before it is killed."""
    commands: Commands = Commands()


class _Signals:
    """Counts SIGINT and SIGTERM while a sweep runs: the first asks the trials to end, the second kills them."""

    def __init__(self) -> None:
        self.count = 0

    def _caught(self, *_: object) -> None:
        self.count += 1

    def impatient(self) -> bool:
        return self.count > 1

    @contextmanager
    def handled(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._caught) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_sweep(spec: Path, overrides: Sequence[str], *, go: bool, options: Options, console: Console) -> int:
    """Print the plan of a sweep, or with `go` run what is left of it; returns the exit status."""
    signals = _Signals()
    try:
        if options.jobs is not None and options.jobs < 1:
            raise ConfigError([f"--jobs: {options.jobs} given, must be at least 1"])
        sweep = load_sweep(spec, overrides)
        if not go:
            screen.print_plan(console, sweep, _jobs(ledger.entries(sweep), options), _command(sweep, options))
            return 0
        lock = take_lock(sweep.directory / "sweep.lock")
        try:
            if lock.left_by:
                screen.say(console, f"took over the lock of {lock.left_by}, which is gone")
            refusal = ledger.differences(sweep) + ledger.still_running(sweep)
            if refusal:
                raise ConfigError(refusal)
            with signals.handled():
                return _go(sweep, options, console, signals)
        finally:
            lock.release()
    except Busy as owner:
        screen.say(console, f"error: this sweep is being run by {owner}; two runners would do each trial twice", "red")
    except ConfigError as error:
        for line in error.lines:
            screen.say(console, f"error: {line}", "red")
    except OSError as error:  # a full or read-only disk; where it has no file name, the message names the path
        where = f"{error.filename}: " if error.filename else ""
        screen.say(console, f"error: {where}{error.strerror}", "red")
    return 2


def _command(sweep: Sweep, options: Options) -> str:
    """What to type to start or resume this sweep."""
    jobs = [] if options.jobs is None else ["--jobs", str(options.jobs)]
    flags = ["--go", *jobs] + ["--fail-fast"] * options.fail_fast
    return shlex.join(["bench", "sweep", str(sweep.spec), *sweep.overrides, *flags])


def _jobs(entries: Sequence[Entry], options: Options) -> Jobs:
    """How many of the trials that are left run side by side."""
    left = [demand(entry.trial.run) for entry in entries if not entry.settled]
    return choose_jobs(options.jobs, usable_cores(), left)


def _go(sweep: Sweep, options: Options, console: Console, signals: _Signals) -> int:
    """Prepare, run the trials, report."""
    entries = ledger.entries(sweep)
    commands, todo = options.commands, [entry for entry in entries if not entry.settled]
    if todo:
        prepared = _child("prepare", (*commands.prepare, str(sweep.spec), *sweep.overrides), options, signals)
        if signals.count:
            return _interrupted(console, sweep, options)
        if prepared.code:
            screen.say(console, f"error: nothing was started, because preparing ended with {prepared.sentence}", "red")
            return 2 if prepared.code == 2 else 1
        ledger.write_sweep(sweep)
        jobs = _jobs(todo, options)
        screen.print_jobs(console, jobs)
        with screen.following(console, entries) as follow:
            _run_trials(todo, jobs.number, options, signals, follow)
    else:
        screen.say(console, f"all {len(entries)} trials of {sweep.directory} are done; nothing to run")
    if signals.count:
        return _interrupted(console, sweep, options)
    no_report = 0
    if options.report and any(entry.status.state == "finished" for entry in entries):
        reported = _child("report", (*commands.report, str(sweep.directory)), options, signals)
        if signals.count:
            return _interrupted(console, sweep, options)
        if reported.code:
            screen.say(console, f"error: the report could not be written ({reported.sentence})", "red")
            no_report = 1
    screen.print_tracker(console, sweep)
    return screen.print_end(console, sweep, _command(sweep, options)) or no_report


def _interrupted(console: Console, sweep: Sweep, options: Options) -> int:
    counts = ledger.count_states(ledger.entries(sweep))
    screen.say(console, f"interrupted: {', '.join(f'{count} {state}' for state, count in counts.items())}", "yellow")
    screen.say(console, f"go on with: {_command(sweep, options)}")
    return 130


def _child(name: str, command: tuple[str, ...], options: Options, signals: _Signals) -> Exit:
    """Run one process on our terminal to its end, or to a signal."""
    processes = LocalProcesses()
    processes.start(Job(name, command, {}))
    ended: list[Exit] = []
    while not ended:
        time.sleep(_POLL_SECONDS)
        ended = processes.stop(options.grace_seconds, signals.impatient) if signals.count else processes.poll()
    return ended[0]


def _run_trials(todo: Sequence[Entry], jobs: int, options: Options, signals: _Signals, follow: screen.Follow) -> None:
    """Run trials side by side until none is left, a signal comes, or one fails and that is enough."""
    waiting = deque(todo)
    by_id = {entry.id: entry for entry in todo}
    processes = LocalProcesses()
    stop = False

    def ended(exits: Sequence[Exit], stopped: bool) -> bool:
        """Record and announce; true where some trial did not finish."""
        statuses = [ledger.settle(by_id[end.job.name], end, stopped=stopped) for end in exits]
        for end, status in zip(exits, statuses, strict=True):
            follow.ended(by_id[end.job.name], status, end.seconds)
        return any(status.state != "finished" for status in statuses)

    try:
        while (waiting or processes.running) and not stop and not signals.count:
            while waiting and len(processes.running) < jobs:
                processes.start(_job(waiting.popleft(), options.commands))
            time.sleep(_POLL_SECONDS)
            stop = ended(processes.poll(), stopped=False) and options.fail_fast
            follow.running([(by_id[name], seconds) for name, seconds in processes.running.items()])
    finally:
        if processes.running:
            follow.stopping(len(processes.running), options.grace_seconds)
        ended(processes.stop(options.grace_seconds, signals.impatient), stopped=True)


def _job(entry: Entry, commands: Commands) -> Job:
    """A trial's process. Thread counts are environment variables, read once when numeric libraries load."""
    ledger.begin(entry)
    threads = str(entry.trial.run.threads)
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    command = (*commands.run, str(entry.directory / "run.yaml"))
    return Job(entry.id, command, environment, entry.log, take_lock(entry.lock))
