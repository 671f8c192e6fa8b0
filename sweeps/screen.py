"""What a sweep shows: its plan, a line for every trial that ends, a table of the running ones, and how it came out."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from bench.config import Run
from bench.engines import EngineFailed, check_installed
from bench.store import Status, read_run
from sweeps import ledger
from sweeps.cores import Jobs
from sweeps.grid import Sweep
from sweeps.ledger import Entry

_COLOURS = {"finished": "green", "failed": "red", "oom": "red", "diverged": "red", "interrupted": "yellow"}
_SECONDS_BETWEEN_TABLES = 0.5
_SECONDS_BETWEEN_LINES = 30.0


def say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line as it is: not wrapped, not read as markup."""
    console.print(Text(line, style=style or ""), soft_wrap=True)


def print_plan(console: Console, sweep: Sweep, jobs: Jobs, command: str) -> None:
    """Show every trial and where it stands, the size of the whole and how to start it; changes nothing on disk."""
    entries = ledger.entries(sweep)
    for line in sweep.spec.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        say(console, line.removeprefix("#").strip(), "italic")
    table = Table("trial", "id", "state", "updates", "completions")
    for entry in entries:
        run, state = entry.trial.run, entry.status.state
        shown = "to run" if state == "pending" else state if entry.settled else f"{state}, to run again"
        table.add_row(entry.trial.name, entry.id, shown, f"{run.budget.updates:,}", f"{_completions(run):,}")
    console.print(table)
    todo = [entry.trial.run for entry in entries if not entry.settled]
    size = f"{sum(run.budget.updates for run in todo):,} updates and {sum(map(_completions, todo)):,} completions"
    done = len(entries) - len(todo)
    say(console, f"{len(entries)} trials in {sweep.directory}: {done} done, {len(todo)} to run with {size} in training")
    print_jobs(console, jobs)
    for line in [*ledger.differences(sweep), *_missing(todo)]:
        say(console, f"in the way: {line}", "red")
    strays = ledger.strays(sweep)
    if strays:
        say(console, f"also in {sweep.directory}, not asked for by this specification: {', '.join(strays)}", "yellow")
    if todo:
        say(console, f"start it with: {command}")


def _missing(runs: Sequence[Run]) -> list[str]:
    """What these runs need and this machine lacks, each once."""
    lines: dict[str, None] = {}
    for run in runs:
        try:
            check_installed(run)
        except EngineFailed as error:
            lines[str(error)] = None
    return list(lines)


def _completions(run: Run) -> int:
    """Completions sampled for training; dynamic sampling may need more."""
    if not run.objective.needs.samples:
        return 0
    rollouts = run.budget.updates // (run.rollout.updates_per_rollout * run.rollout.epochs)
    return rollouts * run.rollout.prompts * run.rollout.group_size


def print_jobs(console: Console, jobs: Jobs) -> None:
    """Say how many trials run side by side and why, and what is wrong with that."""
    say(console, jobs.reason)
    if jobs.warning:
        say(console, f"warning: {jobs.warning}", "yellow")


class Follow:
    """Shows a sweep while it runs: lines for what ended, and what is running in a table or now and then in a line."""

    def __init__(self, console: Console, entries: Sequence[Entry], live: Live | None) -> None:
        self._console, self._live = console, live
        self._total = len(entries)
        self._num_done = sum(entry.settled for entry in entries)
        self._shown = time.monotonic()

    def ended(self, entry: Entry, status: Status, seconds: float) -> None:
        """Say how a trial ended, at once."""
        self._num_done += status.state != "interrupted"
        line = f"[{self._num_done}/{self._total}] {entry.trial.name} {status.state}"
        if status.state == "finished":
            line += f" in {_duration(seconds)}  {ledger.progress(entry.directory).figures}"
        elif status.state == "interrupted":
            line += f" after {_duration(seconds)}"
        else:
            first_line = (status.error or "no reason given").strip().partition("\n")[0]
            line += f" after {_duration(seconds)}: {first_line}  (log: {entry.log})"
        looks = _looks(_answers(entry))
        line += f"  look at: {', '.join(looks)}" if looks and status.state != "interrupted" else ""
        say(self._console, line.rstrip(), _COLOURS.get(status.state))

    def stopping(self, count: int, grace_seconds: float) -> None:
        """Say that the running trials were asked to end, which takes a moment."""
        noun = "trial" if count == 1 else "trials"
        say(self._console, f"ending {count} {noun}, at most {grace_seconds:g} s (interrupt again to kill)", "yellow")

    def running(self, trials: Sequence[tuple[Entry, float]]) -> None:
        """Show how far the running trials have come, if it is time to."""
        now = time.monotonic()
        if now - self._shown < (_SECONDS_BETWEEN_TABLES if self._live else _SECONDS_BETWEEN_LINES):
            return
        self._shown = now
        if self._live is not None:
            self._live.update(self._table(trials), refresh=True)
        elif trials:
            say(self._console, "running: " + ", ".join(f"{entry.trial.name} {_updates(entry)}" for entry, _ in trials))

    def _table(self, trials: Sequence[tuple[Entry, float]]) -> Table:
        table = Table("running", "update", "time", "", title=f"{self._num_done} of {self._total} trials done")
        for entry, seconds in trials:
            figures = ledger.progress(entry.directory).figures
            table.add_row(entry.trial.name, _updates(entry), _duration(seconds), figures)
        return table


def _answers(entry: Entry) -> list[tuple[str, bool]]:
    """The questions on the trial's health that have an answer, and whether it asks for a look."""
    health = read_run(entry.directory).health if (entry.directory / "run.yaml").exists() else ()
    return [(found.name, found.look) for found in health if found.answer in ("yes", "no")]


def _looks(answers: Sequence[tuple[str, bool]]) -> list[str]:
    return [name for name, look in answers if look]


def _updates(entry: Entry) -> str:
    return f"{ledger.progress(entry.directory).update}/{entry.trial.run.budget.updates}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def following(console: Console, entries: Sequence[Entry]) -> Iterator[Follow]:
    """A `Follow` with a live table where the console is a terminal."""
    if not console.is_terminal:
        yield Follow(console, entries, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Follow(console, entries, live)


def print_tracker(console: Console, sweep: Sweep) -> None:
    """Say how to look at the runs in MLflow."""
    run = sweep.trials[0].run
    if not run.tracking.enabled:
        return
    uri = run.tracking.uri or f"sqlite:///{run.output.root}/mlflow.db"
    if uri.startswith("sqlite:///"):
        artifacts = Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts"
        uri = f"mlflow ui --backend-store-uri {uri} --artifacts-destination {artifacts}"
    say(console, f"MLflow: {uri}")


def _print_health(console: Console, entries: Sequence[Entry]) -> None:
    """Say in how many trials which question on their health asks for a look; nothing where none has an answer."""
    answered = [answers for entry in entries if entry.settled and (answers := _answers(entry))]
    counts = Counter(name for answers in answered for name in _looks(answers))
    if answered:
        asking = sum(bool(_looks(answers)) for answers in answered)
        named = f": {', '.join(f'{name} {count}' for name, count in counts.most_common())}" if counts else ""
        explained = "see Run health in the report, and docs/health.md"
        say(console, f"health: {asking} of {len(answered)} trials ask for a look{named} ({explained})")


def print_end(console: Console, sweep: Sweep, command: str) -> int:
    """Say how the sweep came out, with a table where some trial did not finish; returns the exit status."""
    entries = ledger.entries(sweep)
    counts = ledger.count_states(entries)
    say(console, f"{sweep.directory}: {counts.get('finished', 0)} of {len(entries)} trials finished")
    _print_health(console, entries)
    unfinished = [entry for entry in entries if entry.status.state != "finished"]
    if not unfinished:
        return 0
    table = Table("trial", "state", "attempts", "why", Column("log", overflow="fold"))
    for entry in unfinished:
        status = entry.status
        why = (status.error or "").strip().partition("\n")[0]
        log = str(entry.log) if entry.log.exists() else ""
        table.add_row(*map(Text, (entry.trial.name, status.state, str(status.attempt), why, log)))
    console.print(table)
    if any(entry.settled for entry in unfinished):
        say(console, "diverged and oom are results: such a trial is run again only after its directory is removed")
    if not all(entry.settled for entry in unfinished):
        say(console, f"run the others with: {command}")
    return 1
