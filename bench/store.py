"""A run directory is the truth about a run: this file alone writes it and reads it back, as plain records.

Writers replace whole files atomically (a reader sees the old file or the new one, never half of one) or append one
line to a log. Readers expect the worst: a run may be young, killed or damaged, so a missing file reads as None and a
corrupt line becomes a sentence in `RunRecord.problems`. Nothing here imports the configuration, so that reports and
sweeps can read runs without loading torch.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml

from bench.dialect import to_yaml
from bench.evaluation import Estimates, read_estimates
from bench.health import Finding, health_of

State = Literal["pending", "running", "interrupted", "finished", "failed", "oom", "diverged"]
DOCUMENTS = ("memory", "throughput", "alarms", "overlap", "reward_model")
"""JSON files of a run that are read on access."""
LOGS = ("metrics.jsonl", "timings.jsonl", "baseline_quality.jsonl")
"""What a run writes line by line."""
TERMINAL_STATES: frozenset[str] = frozenset({"finished", "failed", "oom", "diverged"})


# Writing


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into one whose message says what was tried, where and why it failed."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot {action} {path}: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success it replaces `path` atomically, on any error it is removed.

    Raises:
        OSError: the disk is full, read-only or not there; the message names `path` and the reason.
    """
    with _explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        # The rename itself is in the directory, which has to reach the disk as well.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Replace a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a binary file atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically; a number that is not finite is written as null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a YAML file atomically, keys in the order given."""
    write_text(path, to_yaml(value))


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append one object as one line; if the line cannot be written whole, none of it stays.

    The line survives the death of the process. It is not forced to the disk: a power cut may lose the last lines, which
    a resume from a checkpoint writes again.

    Raises:
        OSError: the disk is full, read-only or not there; the message names `path` and the reason.
    """
    line = (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
    with _explained("append to", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # a kill tore the last line: it must not take this one with it
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(end)
                raise


def _finite(value: Any) -> Any:
    """The same value with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


# The status of a run


@dataclass(frozen=True)
class Status:
    """Where a run stands: its state, how many times it was started, and why it ended if it did not finish."""

    state: State
    attempt: int = 0
    error: str | None = None
    refused: bool = False
    """A model cannot be had as the configuration asks, told before training; known to the process that tried."""

    @property
    def terminal(self) -> bool:
        """Whether the run is over, well or badly, and will not be resumed by itself."""
        return self.state in TERMINAL_STATES

    @property
    def exit_status(self) -> int:
        """Of the command that ran it: 130 is what shells say of an interruption, 2 a mistake in the configuration."""
        return 2 if self.refused else {"finished": 0, "interrupted": 130}.get(self.state, 1)


def set_status(directory: Path, state: State, *, attempt: int, error: str | None = None) -> None:
    """Record the state of a run."""
    if state not in get_args(State):
        raise ValueError(f"status of {directory}: {state!r} is not one of {', '.join(get_args(State))}")
    write_json(directory / "status.json", {"state": state, "attempt": attempt, "error": error})


def read_status(directory: Path) -> Status:
    """The state of a run: `pending` where nothing is recorded yet, `interrupted` where the record cannot be read."""
    value, problem = _read_json(directory / "status.json")
    if problem is None and value is None:
        return Status("pending")
    if problem is None and isinstance(value, dict) and value.get("state") in get_args(State):
        return Status(
            value["state"], value["attempt"] if isinstance(value.get("attempt"), int) else 0, value.get("error")
        )
    return Status("interrupted", 0, problem or f"{directory / 'status.json'} names no known state")


# Reading


class Lines(NamedTuple):
    """The objects of a line log, and one sentence for each line that is not one."""

    records: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]


def read_jsonl(path: Path) -> Lines:
    """Read a log of one object a line; a corrupt line is reported and skipped, a missing file has no lines."""
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    if path.exists():
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(lines if lines != [b""] else [], start=1):
            record = _parse_line(line)
            if record is None:
                problems.append(f"{path}, line {number}: not a JSON object, skipped")
            else:
                records.append(record)
    return Lines(tuple(records), tuple(problems))


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:  # this is also what bytes that are not UTF-8 raise
        return None
    return record if isinstance(record, dict) else None


class _Read(NamedTuple):
    value: Any
    problem: str | None


def _read_json(path: Path) -> _Read:
    if not path.exists():
        return _Read(None, None)
    try:
        return _Read(json.loads(path.read_bytes()), None)
    except ValueError as error:
        return _Read(None, f"{path}: not JSON ({error})")


def _read_yaml(path: Path) -> _Read:
    if not path.exists():
        return _Read(None, None)
    try:
        return _Read(yaml.safe_load(path.read_text(encoding="utf-8")), None)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return _Read(None, f"{path}: not YAML ({' '.join(str(error).split())})")


def _read_estimates(path: Path) -> _Read:
    try:
        return _Read(read_estimates(path), None)
    except ValueError as error:  # pyarrow's complaint about a broken file is one too
        return _Read(None, f"{path}: not readable as estimates ({' '.join(str(error).split())})")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run directory as plain records; what is read on access is None or empty where it is missing or damaged."""

    directory: Path
    run: dict[str, Any]
    """The resolved configuration; empty where run.yaml is missing."""
    provenance: dict[str, Any] | None
    formula: dict[str, Any] | None
    status: Status
    unreadable: tuple[str, ...]
    """One sentence for each of the files above that is damaged."""

    @property
    def id(self) -> str:
        """The run's id, which is the name of its directory."""
        return self.directory.name

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.run.get("algorithm", "n/a"))

    @property
    def task(self) -> str:
        """The name of the task."""
        task = self.run.get("task", "n/a")
        return str(task.get("name", "n/a") if isinstance(task, dict) else task)

    @property
    def seed(self) -> int | None:
        """The training seed."""
        return self.run.get("seed")

    @cached_property
    def metrics(self) -> tuple[dict[str, Any], ...]:
        """One object an optimizer step; update 0 is the starting model."""
        return read_jsonl(self.directory / "metrics.jsonl").records

    @cached_property
    def timings(self) -> tuple[dict[str, Any], ...]:
        """Seconds and tokens by phase of each update of each attempt."""
        return read_jsonl(self.directory / "timings.jsonl").records

    @cached_property
    def baseline_quality(self) -> tuple[dict[str, Any], ...]:
        """One object a token whose true value and advantage were estimated; empty where the run did not ask for it."""
        return read_jsonl(self.directory / "baseline_quality.jsonl").records

    @cached_property
    def memory(self) -> dict[str, Any] | None:
        """Peak bytes by role and phase."""
        return _read_json(self.directory / "memory.json").value

    @cached_property
    def throughput(self) -> dict[str, Any] | None:
        """Seconds and tokens by phase, and the rates."""
        return _read_json(self.directory / "throughput.json").value

    @cached_property
    def alarms(self) -> list[dict[str, Any]] | None:
        """Which thresholds the metrics crossed, when and how often; None until the run ends."""
        value = _read_json(self.directory / "alarms.json").value
        return value if isinstance(value, list) else None

    @cached_property
    def health(self) -> tuple[Finding, ...]:
        """What the metrics say of the whole run so far; `health.json` is the same, of when the run last ended."""
        return health_of(self.metrics, self.run)

    @cached_property
    def overlap(self) -> dict[str, Any] | None:
        """How many test problems occur in the training data, or why none can."""
        value = _read_json(self.directory / "overlap.json").value
        return value if isinstance(value, dict) else None

    @cached_property
    def reward_model(self) -> dict[str, Any] | None:
        """The run's reward model: what it is, and of a trained one how well it orders held-out pairs."""
        value = _read_json(self.directory / "reward_model.json").value
        return value if isinstance(value, dict) else None

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Names of the evaluations that have estimates, readable or not, in order."""
        return tuple(self._evaluations)

    def manifest(self, name: str) -> dict[str, Any] | None:
        """What an evaluation ("start", "test", "test_<task>") was made of: task, split, samples, temperature, rates."""
        return _read_json(self.directory / "eval" / f"{name}.json").value

    def estimates(self, name: str) -> Estimates | None:
        """The estimates for each problem of an evaluation ("start", "test", "test_<task>")."""
        return self._evaluations[name].value if name in self._evaluations else None

    @cached_property
    def _evaluations(self) -> dict[str, _Read]:
        paths = sorted(self.directory.glob("eval/*.estimates.parquet"))
        return {path.name.removesuffix(".estimates.parquet"): _read_estimates(path) for path in paths}

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """One sentence for everything in the directory that is there and cannot be read."""
        logs = [read_jsonl(self.directory / name).problems for name in LOGS]
        documents = [self.directory / f"{name}.json" for name in DOCUMENTS]
        documents += sorted(self.directory.glob("eval/*.json"))
        reads = [*map(_read_json, documents), *self._evaluations.values()]
        found = [read.problem for read in reads if read.problem]
        return (*self.unreadable, *(line for log in logs for line in log), *found)


def read_run(directory: Path) -> RunRecord:
    """Read a run directory, however incomplete.

    Raises:
        ValueError: it is no run directory: neither run.yaml nor status.json is there.
    """
    if not ((directory / "run.yaml").exists() or (directory / "status.json").exists()):
        raise ValueError(f"{directory} is not a run directory: it has neither run.yaml nor status.json")
    run = _read_yaml(directory / "run.yaml")
    provenance, formula = (_read_json(directory / name) for name in ("provenance.json", "formula.json"))
    status = _read_json(directory / "status.json")
    return RunRecord(
        directory=directory,
        run=run.value if isinstance(run.value, dict) else {},
        provenance=provenance.value,
        formula=formula.value,
        status=read_status(directory),
        unreadable=tuple(read.problem for read in (run, provenance, formula, status) if read.problem),
    )


def read_sweep(directory: Path) -> list[RunRecord]:
    """Read every run of a sweep, ordered by task, algorithm, seed and id, whatever its state.

    Raises:
        ValueError: the directory is not there or holds no run.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a sweep directory: it does not exist")
    marks = ("run.yaml", "status.json")
    runs = [read_run(path) for path in directory.iterdir() if any((path / mark).exists() for mark in marks)]
    if not runs:
        raise ValueError(f"{directory} is not a sweep directory: no folder in it has a run.yaml or a status.json")
    return sorted(runs, key=lambda run: (run.task, run.algorithm, run.seed if run.seed is not None else -1, run.id))
