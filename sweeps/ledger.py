"""Where each trial of a sweep stands, read from the files of its run directory: nothing is remembered elsewhere."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import store
from bench.loading import ConfigError, flat
from sweeps.executors import Busy, Exit, take_lock
from sweeps.grid import Sweep, Trial

SETTLED = frozenset({"finished", "diverged", "oom"})
"""States that are results: such a trial is not run again. One that failed or was interrupted is."""

_NOT_COMPARED = ("output", "tracking", "checkpoint")
_TAIL_BYTES = 65536
_ATTEMPT = "---- attempt "


@dataclass(frozen=True)
class Entry:
    """A trial and the directory it writes to."""

    trial: Trial
    directory: Path

    @property
    def id(self) -> str:
        """The run's id."""
        return self.directory.name

    @property
    def log(self) -> Path:
        """What the trial's processes printed, attempt after attempt."""
        return self.directory / "log.txt"

    @property
    def lock(self) -> Path:
        """Held by the trial's process as long as it lives."""
        return self.directory / "trial.lock"

    @property
    def status(self) -> store.Status:
        """Where it stands now."""
        return store.read_status(self.directory)

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to run."""
        return self.status.state in SETTLED


def entries(sweep: Sweep) -> list[Entry]:
    """The trials of a sweep with their directories, in the order of the specification."""
    return [Entry(trial, sweep.directory / trial.run.id) for trial in sweep.trials]


# What is on disk against what is asked for


def differences(sweep: Sweep) -> list[str]:
    """Lines about runs on disk that go by the name of a trial and are another run: mixing the two would be silent."""
    lines: list[str] = []
    found: dict[str, list[str]] = {}
    known = _recorded(sweep.directory)
    for entry in entries(sweep):
        labels = _record(entry.trial) | {"id": None}
        olds = [Path(old["id"]) for old in known if {**old, "id": None} == labels and old["id"] != entry.id]
        for directory in [entry.directory, *(sweep.directory / old for old in olds)]:
            if (directory / "run.yaml").exists():
                changed = _changed(store.read_run(directory).run, entry.trial.run.dump())
                if directory != entry.directory and not changed:
                    changed = "the task's version or the content of a file"
                if changed:
                    found.setdefault(changed, []).append(f"{entry.trial.name} ({directory.name})")
    for changed, names in found.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{sweep.directory} holds another version of {names[0]}{others}, which differs in {changed}")
    if lines:
        lines.append(f"give this version a name of its own (output.sweep=NAME) or move {sweep.directory} away")
    return lines


def strays(sweep: Sweep) -> list[str]:
    """Ids of runs on disk that the specification does not ask for."""
    asked = {entry.id for entry in entries(sweep)}
    return sorted(path.parent.name for path in sweep.directory.glob("*/run.yaml") if path.parent.name not in asked)


def still_running(sweep: Sweep) -> list[str]:
    """Lines about trials that a process of an earlier runner is still working on."""
    lines: list[str] = []
    for entry in entries(sweep):
        if entry.lock.exists():
            try:
                take_lock(entry.lock).release()
            except Busy as owner:
                lines.append(f"{entry.trial.name} ({entry.id}) is still being run by {owner}; wait for it or end it")
    return lines


def _changed(old: dict[str, Any], new: dict[str, Any]) -> str:
    before, after = (
        flat({name: part for name, part in run.items() if name not in _NOT_COMPARED}) for run in (old, new)
    )
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    shown = [f"{key}: {before.get(key, 'nothing')} there, {after.get(key, 'nothing')} asked for" for key in keys[:3]]
    return ", ".join(shown) + (f" and {len(keys) - 3} more knobs" if len(keys) > 3 else "")


def _recorded(directory: Path) -> list[dict[str, Any]]:
    """The trials that earlier versions of the sweep asked for.

    Raises:
        ConfigError: the record is there and cannot be read.
    """
    path = directory / "sweep.json"
    try:
        trials = json.loads(path.read_bytes())["trials"] if path.exists() else []
        if not all(isinstance(trial["id"], str) for trial in trials):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            [f"{path} is damaged; it lists the trials asked for before: move it away, and it is written anew"]
        ) from None
    return trials


def _record(trial: Trial) -> dict[str, Any]:
    return {"id": trial.run.id, "algorithm": trial.algorithm, "task": trial.task, "seed": trial.seed, "arm": trial.arm}


# Writing


def write_sweep(sweep: Sweep) -> None:
    """Write sweep.json and the run.yaml of every trial that is not settled.

    Trials of earlier versions whose directories are still there stay listed.
    """
    current = [_record(entry.trial) for entry in entries(sweep)]
    ids = {record["id"] for record in current}
    earlier = [old for old in _recorded(sweep.directory) if old["id"] not in ids]
    record = {
        "name": sweep.directory.name,
        "spec": sweep.spec.read_text(encoding="utf-8"),
        "overrides": list(sweep.overrides),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "trials": [*current, *(old for old in earlier if (sweep.directory / old["id"]).exists())],
    }
    store.write_json(sweep.directory / "sweep.json", record)
    for entry in entries(sweep):
        if not entry.settled:
            store.write_yaml(entry.directory / "run.yaml", entry.trial.run.dump())


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git here, or no checkout
        return None


def begin(entry: Entry) -> None:
    """Mark a trial as about to start, so that what an earlier attempt left cannot be taken for this one's."""
    attempt = entry.status.attempt
    store.set_status(entry.directory, "pending", attempt=attempt)
    with entry.log.open("a", encoding="utf-8") as log:
        log.write(f"{_ATTEMPT}{attempt + 1}\n")


def settle(entry: Entry, ended: Exit, *, stopped: bool) -> store.Status:
    """Record how a trial's process ended where it could not do so itself; returns where the trial stands."""
    status = entry.status
    attempt = status.attempt + (status.state == "pending")  # it died before it could count itself
    if status.state in ("pending", "running"):
        if stopped:
            store.set_status(entry.directory, "interrupted", attempt=attempt)
        else:
            store.set_status(entry.directory, "failed", attempt=attempt, error=_why(entry, ended))
    return entry.status


def _why(entry: Entry, ended: Exit) -> str:
    if ended.code == 0:
        return "its process ended with exit status 0 but did not finish the run"
    printed = _tail(entry.log).decode(errors="replace").rpartition(_ATTEMPT)[2].partition("\n")[2]
    last = printed.strip().rpartition("\n")[2].strip()
    return f"{last} ({ended.sentence})" if last and ended.code > 0 else ended.sentence


# Progress


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    update: int
    reward: float | None
    pass_at_1: float | None
    """On validation problems."""

    @property
    def figures(self) -> str:
        """The latest measurements, as far as there are any."""
        named = {"reward": self.reward, "validation pass@1": self.pass_at_1}
        return "  ".join(f"{name} {value:.2f}" for name, value in named.items() if value is not None)


def progress(directory: Path) -> Progress:
    """The latest update and measurements in a run's metrics, read from the end of the file."""
    latest: dict[str, Any] = {}
    for line in _tail(directory / "metrics.jsonl").split(b"\n"):
        try:
            latest |= json.loads(line)
        except ValueError:  # the line that the tail cuts in two, or one being written
            continue
    return Progress(latest.get("update", 0), latest.get("reward/mean"), latest.get("validation/pass@1"))


def _tail(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read()


def count_states(trials: Sequence[Entry]) -> dict[str, int]:
    """How many trials are in each state."""
    states = [entry.status.state for entry in trials]
    return {state: states.count(state) for state in dict.fromkeys(states)}
