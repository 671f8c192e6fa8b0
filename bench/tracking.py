"""MLflow as a mirror: a run directory is the truth, and this file copies it into MLflow when MLflow can be reached.

All that is sent is read from the run directory: parameters from `run.yaml`, metrics from `metrics.jsonl`, the state
from `status.json`. What has been sent is remembered in the run's `mlflow.json`, so that a later call, in the same
process or another, sends the rest and nothing twice. No failure of MLflow reaches a run: it is named on stderr when it
begins, counted in `mlflow.json`, and made up for by the next call that gets through.

With SQLite, which has no server, the artifacts lie in `mlartifacts` beside the database and MLflow knows them by the
relative address `mlflow-artifacts:/`. Both can be moved together, and `mlflow ui`, started in their folder, finds
everything. A tracking server keeps its artifacts where it likes.
"""

import json
import logging
import math
import os
import re
import shutil
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from filelock import FileLock

from bench import store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import RunInfo

ARTIFACTS = (
    *("run.yaml", "formula.json", "provenance.json", "memory.json", "throughput.json", "alarms.json", "health.json"),
    *("pairs.json", "reward_model.json", "eval/*.json", "eval/*.parquet"),
)
MLFLOW_STATUS = {
    "pending": "SCHEDULED",
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "diverged": "FAILED",
    "oom": "FAILED",
    "interrupted": "KILLED",
}
# What one request and one value may hold. Tags may be longer on the newest servers, 5000 is what all take.
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 5000
# Read by MLflow when it is imported; what the user has set stays. Telemetry would need a network. Failures are named
# by `mirror`, so MLflow's log, tracebacks of its own retries, is silent. A server that is away may hold up a run for
# seconds; by default MLflow would retry each request for four minutes.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class TrackingError(RuntimeError):
    """The tracker cannot be used as it was asked to be; the message is one line for the user."""


# The store


def prepare_store(uri: str, experiment_name: str) -> str:
    """Make sure that the store and the experiment are there, and return the experiment's id.

    A SQLite database is made exactly once, however many processes ask at the same time. It appears whole or not at
    all: a kill in the middle of MLflow's sixty migrations would leave one that can neither be used nor finished.

    Args:
        uri: `sqlite:///path/to/mlflow.db` or the address of a tracking server.
        experiment_name: created if it is not there, restored if it was deleted.

    Raises:
        TrackingError: the store cannot be made, reached or used.
    """
    mistake = uri_mistake(uri)
    if mistake is not None:
        raise TrackingError(mistake)
    database = _database(uri)
    try:
        if database is None:
            return _experiment(_connect(uri), experiment_name, None)
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{database}.lock"):
            if not database.exists():
                _create_database(database)
            location = f"mlflow-artifacts:/{re.sub(r'[^A-Za-z0-9_.-]', '_', experiment_name)}"
            return _experiment(_connect(uri), experiment_name, location)
    except Exception as error:
        raise TrackingError(f"tracking.uri: MLflow cannot use {_without_password(uri)}: {_one_line(error)}") from error


def uri_mistake(uri: str) -> str | None:
    """What is wrong with a tracking address, before anything is reached; None if nothing is."""
    if urlparse(uri).scheme and not uri.startswith("file:"):
        return None
    return (
        f"tracking.uri: {uri!r} is a folder, and MLflow keeps runs in a database now: use sqlite:///runs/mlflow.db"
        f" (runs move with: mlflow migrate-filestore --source {uri} --target sqlite:///runs/mlflow.db)"
    )


def ui_command(uri: str) -> str:
    """The command that opens the MLflow UI on a store, or the address of the server that is one already."""
    database = _database(uri)
    if database is None:
        return uri
    return f"mlflow ui --backend-store-uri {uri} --artifacts-destination {_artifact_root(database)}"


def _database(uri: str) -> Path | None:
    """The file of a SQLite store, None for every other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _artifact_root(database: Path) -> Path:
    return database.parent / "mlartifacts"


def _create_database(database: Path) -> None:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    with _quiet():
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    # Every migration is forced to the disk by itself, which takes most of the time, and this file does not need it:
    # it is forced to the disk as a whole before it gets its name.
    def without_forcing(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", without_forcing)
    try:
        with store.replacing(database) as temporary:
            SqlAlchemyStore(f"sqlite:///{temporary}", "mlflow-artifacts:/").engine.dispose()
    finally:
        event.remove(Engine, "connect", without_forcing)


def _experiment(client: "MlflowClient", name: str, location: str | None) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return client.create_experiment(name, artifact_location=location)
    if found.lifecycle_stage != "active":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


@contextmanager
def _quiet() -> Iterator[None]:
    """Where MLflow is imported: with the environment above, and without the warnings its parts have for each other."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for chatty in ("alembic", "urllib3.connectionpool"):  # each migration, and each retry of a request
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _connect(uri: str) -> "MlflowClient":
    database = _database(uri)
    if database is not None:
        # MLflow would make a missing database by itself, without a lock, and retry a damaged one for minutes.
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=rw", uri=True, timeout=20)) as connection:
            connection.execute("SELECT version_num FROM alembic_version").fetchone()
    with _quiet():
        from mlflow import MlflowClient

        return MlflowClient(uri)


def _without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", uri)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


# The mirror


@dataclass
class _Sent:
    """What `mlflow.json` remembers: the MLflow run, what it has, and how often it could not be reached."""

    run_id: str | None = None
    started_ms: int = 0
    """The start of the run, from which the times of its metrics follow."""
    through_update: int = -1
    """Metrics up to here are sent; a resumed run writes some of them again, equal, and they are not sent again."""
    params: bool = False
    not_sent: list[str] = field(default_factory=list)
    """`name@update=value` of what is no finite number: MLflow would store NaN as 0 and infinity as 1.8e308."""
    artifacts: dict[str, list[int]] = field(default_factory=dict)
    """Size and modification time of each file as it was sent."""
    failures: int = 0
    failed_at: float | None = None
    """When the latest attempt failed, in seconds of the wall clock; None if it did not."""
    last_failure: str | None = None


def mirror(run_dir: Path, uri: str, experiment_id: str, *, retry_seconds: float = 60.0) -> bool:
    """Send what MLflow does not have yet: when a run starts, now and then, and once more when it has ended.

    Args:
        run_dir: a run directory. Its MLflow run is created on the first call and is the same ever after.
        uri: the store, which `prepare_store` has made.
        experiment_id: what `prepare_store` returned.
        retry_seconds: after a failure, calls return at once for this long while the run is running.

    Returns:
        Whether MLflow now has everything. Nothing that MLflow does is raised.
    """
    path = run_dir / "mlflow.json"
    sent = _Sent(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else _Sent()
    record = store.read_run(run_dir)
    paused = sent.failed_at is not None and time.time() - sent.failed_at < retry_seconds
    if paused and record.status.state == "running":
        return False
    try:
        _send(_connect(uri), record, sent, uri, experiment_id)
    except Exception as error:
        if sent.failed_at is None:
            print(f"MLflow: {_one_line(error)}. The run goes on; its files have everything.", file=sys.stderr)
        sent.failures, sent.failed_at, sent.last_failure = sent.failures + 1, time.time(), _one_line(error)
    else:
        sent.failed_at = None
    store.write_json(path, asdict(sent))
    return sent.failed_at is None


def _send(client: "MlflowClient", record: store.RunRecord, sent: _Sent, uri: str, experiment_id: str) -> None:
    from mlflow.entities import Param, RunTag

    run = _open_run(client, record, sent, experiment_id)
    if not sent.params:
        params = [Param(_name(name), _shortened(value, PARAM_CHARACTERS)) for name, value in _flat(record.run)]
        for start in range(0, len(params), PARAMS_PER_BATCH):
            client.log_batch(run.run_id, params=params[start : start + PARAMS_PER_BATCH])
        sent.params = bool(params)
    _send_metrics(client, run.run_id, record, sent)
    for file in sorted(file for pattern in ARTIFACTS for file in record.directory.glob(pattern)):
        name, status = file.relative_to(record.directory), file.stat()
        if sent.artifacts.get(str(name)) != [status.st_size, status.st_mtime_ns]:
            _put(client, run, uri, file, name.parent)
            sent.artifacts[str(name)] = [status.st_size, status.st_mtime_ns]
    tags = _tags(record) | {"metrics_not_sent": " ".join(sent.not_sent)}
    client.log_batch(run.run_id, tags=[RunTag(name, _shortened(tags[name], TAG_CHARACTERS)) for name in tags])
    status = MLFLOW_STATUS[record.status.state]
    if status in ("SCHEDULED", "RUNNING"):
        client.update_run(run.run_id, status)
    else:
        ended = (record.directory / "status.json").stat().st_mtime
        client.set_terminated(run.run_id, status, end_time=int(ended * 1000))


def _open_run(client: "MlflowClient", record: store.RunRecord, sent: _Sent, experiment_id: str) -> "RunInfo":
    """The run's MLflow run; a new one, with nothing sent yet, if there was none or this store does not have it."""
    from mlflow.exceptions import MlflowException

    if sent.run_id is not None:
        try:
            info = client.get_run(sent.run_id).info
            if info.experiment_id == experiment_id and info.lifecycle_stage == "active":
                return info
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    started = (record.provenance or {}).get("started_at")
    started_ms = int((datetime.fromisoformat(started).timestamp() if started else time.time()) * 1000)
    name = f"{record.algorithm} {record.task} seed {record.seed}"
    info = client.create_run(experiment_id, start_time=started_ms, run_name=name).info
    sent.run_id, sent.started_ms = info.run_id, started_ms
    sent.through_update, sent.params, sent.not_sent, sent.artifacts = -1, False, [], {}
    return info


def _send_metrics(client: "MlflowClient", run_id: str, record: store.RunRecord, sent: _Sent) -> None:
    from mlflow.entities import Metric

    # A point in MLflow is its name, step, value and time. With a time that follows from the files, what is sent twice
    # (a kill after the request and before `mlflow.json`) is the same point and is stored once.
    times, elapsed = {}, 0.0
    for timing in record.timings:
        if timing["update"] not in times:
            elapsed += sum(timing["seconds"].values())
            times[timing["update"]] = sent.started_ms + round(1000 * elapsed)
    lines = [line for line in record.metrics if line["update"] > sent.through_update]
    num_lines = METRICS_PER_BATCH // max((len(line) for line in lines), default=1)
    for start in range(0, len(lines), num_lines):
        chunk = lines[start : start + num_lines]
        points = [(line["update"], name, line[name]) for line in chunk for name in line if name != "update"]
        client.log_batch(
            run_id,
            metrics=[
                Metric(_name(name), value, times.get(update, sent.started_ms), update)
                for update, name, value in points
                if _is_finite_number(value)
            ],
        )
        sent.not_sent += [f"{name}@{update}={value}" for update, name, value in points if not _is_finite_number(value)]
        sent.through_update = chunk[-1]["update"]


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _put(client: "MlflowClient", run: "RunInfo", uri: str, file: Path, folder: Path) -> None:
    database, address = _database(uri), urlparse(str(run.artifact_uri))
    if database is None or address.scheme != "mlflow-artifacts":
        client.log_artifact(run.run_id, str(file), None if folder == Path() else folder.as_posix())
        return
    # MLflow's client sends to such an address through a server only; the server that is started later reads it here.
    target = _artifact_root(database) / address.path.lstrip("/") / folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def _tags(record: store.RunRecord) -> dict[str, str]:
    provenance = record.provenance or {}
    tags = {"kind": "run", "run_id": record.id, "sweep": record.directory.resolve().parent.name}
    tags |= {"algorithm": record.algorithm, "task": record.task, "seed": str(record.seed)}
    tags |= {"git_commit": str(provenance.get("git_commit")), "git_dirty": str(provenance.get("git_dirty"))}
    # The answer and its numbers: a column to read, and LIKE 'yes%' finds the runs.
    tags |= {f"health.{found.name}": f"{found.answer}: {found.numbers}" for found in record.health}
    tags |= {"health.look": ", ".join(found.name for found in record.health if found.look)}
    return tags | {
        "state": record.status.state,
        "attempt": str(record.status.attempt),
        "error": record.status.error or "",
    }


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values in YAML's words; lists stay whole."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _name(name: str) -> str:
    """A name that MLflow takes: it has letters, digits and `_-./ ` only, so `pass@1` becomes `pass_at_1`."""
    return re.sub(r"[^\w\-./ ]", "_", name.replace("@", "_at_"))


def _shortened(text: str, num_characters: int) -> str:
    return text if len(text) <= num_characters else f"{text[: num_characters - 3]}..."


def mirror_report(folder: Path, uri: str, experiment_id: str) -> bool:
    """Put a sweep's report into MLflow as the artifacts of one run of its own, tagged `kind: report`, made once.

    Returns:
        Whether it is there. What MLflow raises is named on stderr and goes no further.
    """
    try:
        client = _connect(uri)
        found = client.search_runs([experiment_id], "tags.kind = 'report'", max_results=1)
        run = found[0] if found else client.create_run(experiment_id, run_name="report", tags={"kind": "report"})
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            _put(client, run.info, uri, file, file.parent.relative_to(folder))
        client.set_terminated(run.info.run_id, "FINISHED")
    except Exception as error:
        print(f"MLflow: {_one_line(error)}. The report is in {folder}.", file=sys.stderr)
        return False
    return True
