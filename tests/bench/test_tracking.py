"""The MLflow mirror against a real SQLite store: made once, everything sent once, and never in the way of a run."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from bench import store
from bench.tracking import MLFLOW_STATUS, TrackingError, mirror, mirror_report, prepare_store, ui_command

PREPARE_AND_MIRROR = """
import sys
from pathlib import Path
from bench.tracking import mirror, prepare_store
experiment_id = prepare_store(sys.argv[1], sys.argv[2])
assert all(mirror(Path(run_dir), sys.argv[1], experiment_id) for run_dir in sys.argv[3:])
from mlflow.telemetry.utils import is_telemetry_disabled
print(experiment_id, is_telemetry_disabled())
"""
# Without what makes MLflow believe that it is under test, where it sends no telemetry anyway.
HIDDEN = ("PYTEST_CURRENT_TEST", "CI", "MLFLOW_DISABLE_TELEMETRY")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in HIDDEN}


def start(*arguments):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    return subprocess.Popen([sys.executable, "-c", PREPARE_AND_MIRROR, *arguments], **pipes)


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """A store that another process and this one asked for at once, and the ids that each was given."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('tracking')}/new/mlflow.db"
    other = start(uri, "raced")
    mine = prepare_store(uri, "raced")
    output, errors = other.communicate(timeout=120)
    assert (other.returncode, errors) == (0, "")
    experiment_id, telemetry_disabled = output.split()
    return uri, [mine, experiment_id], telemetry_disabled


@pytest.fixture(scope="module")
def uri(raced):
    return raced[0]


@pytest.fixture
def experiment_id(uri, request):
    return prepare_store(uri, request.node.name)


@pytest.fixture
def client(uri):
    from mlflow import MlflowClient

    return MlflowClient(uri)


def make_run(folder, *, updates=3, state="running", run=None, **metrics):
    """A run directory; `metrics` maps a name to its values at updates 1, 2, ..."""
    config = {"algorithm": "grpo", "task": {"name": "chain_sum", "terms": 3}, "seed": 7}
    store.write_yaml(folder / "run.yaml", config | (run or {}))
    store.write_json(folder / "provenance.json", {"started_at": "2026-01-02T03:04:05+00:00", "git_commit": "abc"})
    add_updates(folder, range(1, updates + 1), **metrics)
    store.set_status(folder, state, attempt=1)
    return folder


def add_updates(folder, updates, *, attempt=1, **metrics):
    for update in updates:
        values = {name: values[update - 1] for name, values in metrics.items()}
        store.append_jsonl(folder / "metrics.jsonl", {"update": update, "loss": update / 4} | values)
        store.append_jsonl(
            folder / "timings.jsonl", {"attempt": attempt, "update": update, "seconds": {"rollout": 2.0}}
        )


def remembered(folder):
    return json.loads((folder / "mlflow.json").read_text())


def history(client, folder, name):
    points = client.get_metric_history(remembered(folder)["run_id"], name)
    return sorted((point.step, point.value) for point in points)


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_new_store(raced):  # TRK-01, with two
    uri, [mine, others], _ = raced
    assert mine == others
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("SELECT count(*) FROM experiments WHERE name = 'raced'").fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_telemetry_is_off(raced):
    assert raced[2] == "True"


@pytest.mark.slow
def test_eight_processes_share_one_new_store_and_lose_nothing(tmp_path):  # TRK-01, 02 and 24
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = [make_run(tmp_path / f"sweep{i % 2}" / f"run{i // 2}", updates=200) for i in range(8)]
    processes = [start(uri, run.parent.name, str(run)) for run in runs]
    ends = [(process.communicate()[1], process.returncode) for process in processes]
    assert ends == [("", 0)] * 8
    experiment_ids = {name: prepare_store(uri, name) for name in ("sweep0", "sweep1")}
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    for name, experiment_id in experiment_ids.items():
        found = client.search_runs([experiment_id])
        assert sorted(run.data.tags["run_id"] for run in found) == ["run0", "run1", "run2", "run3"]
        assert {run.data.tags["sweep"] for run in found} == {name}
    assert sum(len(history(client, run, "loss")) for run in runs) == 1600


def test_a_run_is_mirrored_whole(tmp_path, uri, experiment_id, client):
    folder = make_run(tmp_path / "sweep" / "1a2b3c", updates=3, state="finished", run={"optimizer": {"lr": 1e-6}})
    store.write_json(folder / "eval" / "test.json", {"samples": 4})
    (folder / "eval" / "test.jsonl.zst").write_bytes(b"completions stay in the run directory")
    assert mirror(folder, uri, experiment_id)
    run = client.get_run(remembered(folder)["run_id"])
    assert run.data.params == {
        "algorithm": "grpo",
        "task.name": "chain_sum",
        "task.terms": "3",
        "seed": "7",
        "optimizer.lr": "1e-06",
    }
    expected = {"sweep": "sweep", "algorithm": "grpo", "task": "chain_sum", "seed": "7", "git_commit": "abc"}
    expected |= {"run_id": "1a2b3c", "state": "finished", "attempt": "1", "kind": "run"}
    assert expected.items() <= run.data.tags.items()
    assert (run.info.status, run.info.run_name) == ("FINISHED", "grpo chain_sum seed 7")
    assert history(client, folder, "loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    # Two seconds an update, counted from the start that provenance.json states.
    times = [point.timestamp - run.info.start_time for point in client.get_metric_history(run.info.run_id, "loss")]
    assert (run.info.start_time, sorted(times)) == (1767323045000, [2000, 4000, 6000])
    artifacts = Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / run.info.artifact_uri.split(":/")[1]
    sent = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()}
    assert sent == {"run.yaml", "provenance.json", "eval/test.json"}
    assert (artifacts / "run.yaml").read_bytes() == (folder / "run.yaml").read_bytes()


def test_names_and_values_that_mlflow_does_not_take(tmp_path, uri, experiment_id, client):  # TRK-08, 21
    values = {"validation/pass@1": [0.5, 0.5, 0.75], "kl/ref_k3": [0.1, float("nan"), float("-inf")]}
    folder = make_run(tmp_path / "run", **values, groups=[3, True, "many"])
    assert mirror(folder, uri, experiment_id)
    assert history(client, folder, "validation/pass_at_1") == [(1, 0.5), (2, 0.5), (3, 0.75)]
    assert history(client, folder, "kl/ref_k3") == [(1, 0.1)]
    assert history(client, folder, "groups") == [(1, 3.0)]
    tags = client.get_run(remembered(folder)["run_id"]).data.tags
    assert tags["metrics_not_sent"] == "kl/ref_k3@2=None groups@2=True kl/ref_k3@3=None groups@3=many"


def test_later_calls_send_the_rest_and_nothing_twice(tmp_path, uri, experiment_id, client):
    folder = make_run(tmp_path / "run", updates=2)
    assert mirror(folder, uri, experiment_id)
    run_id = remembered(folder)["run_id"]
    add_updates(folder, [3, 4])
    store.write_json(folder / "memory.json", {"device": "cpu"})
    assert mirror(folder, uri, experiment_id)
    assert mirror(folder, uri, experiment_id)
    assert remembered(folder)["run_id"] == run_id
    assert history(client, folder, "loss") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert set(remembered(folder)["artifacts"]) == {"run.yaml", "provenance.json", "memory.json"}


def test_a_resumed_run_continues_its_mlflow_run(tmp_path, uri, experiment_id, client):  # TRK-18
    folder = make_run(tmp_path / "run", updates=5, state="interrupted")
    assert mirror(folder, uri, experiment_id)
    run_id = remembered(folder)["run_id"]
    assert client.get_run(run_id).info.status == "KILLED"
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(line for line in lines if json.loads(line)["update"] <= 3))
    store.set_status(folder, "running", attempt=2)
    add_updates(folder, [4, 5, 6], attempt=2)
    assert mirror(folder, uri, experiment_id)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["attempt"]) == ("RUNNING", "2")
    assert [step for step, _ in history(client, folder, "loss")] == [1, 2, 3, 4, 5, 6]


def test_the_answers_on_a_runs_health_are_tags(tmp_path, uri, experiment_id, client):
    folder = make_run(tmp_path / "run", updates=1)
    for update in range(2, 18):
        store.append_jsonl(folder / "metrics.jsonl", {"update": update, "entropy": 1.0 if update < 9 else 0.01})
    assert mirror(folder, uri, experiment_id)
    found = client.search_runs([experiment_id], "tags.`health.entropy` LIKE 'yes%' AND tags.run_id = 'run'")
    tags = {name: text for run in found for name, text in run.data.tags.items() if name.startswith("health.")}
    assert tags["health.entropy"] == "yes: 0.01 x first, min 0.25"
    assert tags["health.kl"] == "not measured: no reference"
    assert tags["health.look"] == "entropy"
    assert set(tags) == {"health.look", *(f"health.{one.name}" for one in store.read_run(folder).health)}


def test_a_kill_before_the_memory_is_written_doubles_nothing(tmp_path, uri, experiment_id, client):
    folder = make_run(tmp_path / "run", updates=3)
    assert mirror(folder, uri, experiment_id)
    store.write_json(folder / "mlflow.json", remembered(folder) | {"through_update": 1, "params": False})
    assert mirror(folder, uri, experiment_id)
    assert history(client, folder, "loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_every_state_has_its_status(tmp_path, uri, experiment_id, client):
    folder = make_run(tmp_path / "run", updates=1)
    seen = {}
    for state in MLFLOW_STATUS:
        store.set_status(folder, state, attempt=1, error="loss is nan" if state == "diverged" else None)
        assert mirror(folder, uri, experiment_id)
        run = client.get_run(remembered(folder)["run_id"])
        seen[state] = run.info.status
        assert (run.data.tags["state"], run.data.tags["error"]) == (state, "loss is nan" if state == "diverged" else "")
        assert (run.info.end_time is not None) == (run.info.status not in ("RUNNING", "SCHEDULED"))
    assert seen == {
        "pending": "SCHEDULED",
        "running": "RUNNING",
        "finished": "FINISHED",
        "failed": "FAILED",
        "diverged": "FAILED",
        "oom": "FAILED",
        "interrupted": "KILLED",
    }


def test_many_and_long_parameters(tmp_path, uri, experiment_id, client):
    many = {
        "knobs": {f"knob_{number}": number for number in range(250)},
        "words": "w" * 7000,
        "ks": [1, 2],
        "none": None,
    }
    folder = make_run(tmp_path / "run", run=many)
    assert mirror(folder, uri, experiment_id)
    params = client.get_run(remembered(folder)["run_id"]).data.params
    assert sum(name.startswith("knobs.") for name in params) == 250
    assert params["words"] == "w" * 5997 + "..."
    assert (params["ks"], params["none"]) == ("[1, 2]", "null")


def test_more_metrics_than_one_request_takes(tmp_path, uri, experiment_id, client):
    names = {f"metric_{number}": list(range(60)) for number in range(39)}
    folder = make_run(tmp_path / "run", updates=60, **names)
    assert mirror(folder, uri, experiment_id)
    assert all(history(client, folder, name) == [(step, step - 1.0) for step in range(1, 61)] for name in names)


def test_a_tracker_that_is_away_is_caught_up_with(tmp_path, uri, experiment_id, client, capsys):  # TRK-09
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{closed.getsockname()[1]}"
    folder = make_run(tmp_path / "run", updates=2)
    begin = time.perf_counter()
    assert not mirror(folder, away, experiment_id)
    assert time.perf_counter() - begin < 30
    begin = time.perf_counter()
    assert not mirror(folder, away, experiment_id)  # within the pause it does not even try
    assert time.perf_counter() - begin < 1
    assert remembered(folder)["failures"] == 1
    assert not mirror(folder, away, experiment_id, retry_seconds=0)
    assert remembered(folder)["failures"] == 2
    said = capsys.readouterr().err
    assert said.startswith("MLflow: ")
    assert said.count("\n") == 1
    assert "refused" in said
    assert mirror(folder, uri, experiment_id, retry_seconds=0)
    assert history(client, folder, "loss") == [(1, 0.25), (2, 0.5)]
    assert (remembered(folder)["failures"], remembered(folder)["failed_at"]) == (2, None)


def test_an_ended_run_tries_within_the_pause(tmp_path, uri, experiment_id):
    folder = make_run(tmp_path / "run")
    assert not mirror(folder, f"sqlite:///{tmp_path}/none/mlflow.db", experiment_id)
    assert not mirror(folder, uri, experiment_id)
    store.set_status(folder, "finished", attempt=1)
    assert mirror(folder, uri, experiment_id)


def test_a_missing_or_damaged_database_is_refused_at_once(tmp_path, capsys):
    folder, missing, damaged = make_run(tmp_path / "run"), tmp_path / "missing.db", tmp_path / "damaged.db"
    damaged.write_text("this is no database")
    begin = time.perf_counter()
    assert not mirror(folder, f"sqlite:///{missing}", "1")
    assert "unable to open database file" in capsys.readouterr().err
    assert not missing.exists()  # a second, empty store would hide the real one
    assert not mirror(folder, f"sqlite:///{damaged}", "1", retry_seconds=0)
    with pytest.raises(TrackingError, match=r"MLflow cannot use sqlite:.*damaged\.db: DatabaseError: file is not a"):
        prepare_store(f"sqlite:///{damaged}", "sweep")
    assert time.perf_counter() - begin < 10


def test_a_store_that_lost_the_run_gets_all_of_it_again(tmp_path, uri, experiment_id, client):
    folder = make_run(tmp_path / "run", updates=2)
    assert mirror(folder, uri, experiment_id)
    first = remembered(folder)["run_id"]
    client.delete_run(first)
    add_updates(folder, [3])
    assert mirror(folder, uri, experiment_id)
    assert remembered(folder)["run_id"] != first
    assert history(client, folder, "loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert client.get_run(remembered(folder)["run_id"]).data.params["algorithm"] == "grpo"


def test_an_experiment_is_found_again_and_restored(uri, experiment_id, client, request):
    assert prepare_store(uri, request.node.name) == experiment_id
    client.delete_experiment(experiment_id)
    assert prepare_store(uri, request.node.name) == experiment_id
    assert client.get_experiment(experiment_id).lifecycle_stage == "active"


def test_a_report_is_one_run_of_its_own(tmp_path, uri, experiment_id, client):
    (tmp_path / "report" / "figures").mkdir(parents=True)
    (tmp_path / "report" / "report.md").write_text("# Results")
    (tmp_path / "report" / "figures" / "pass.svg").write_text("<svg/>")
    assert mirror(make_run(tmp_path / "run"), uri, experiment_id)
    assert mirror_report(tmp_path / "report", uri, experiment_id)
    (tmp_path / "report" / "report.md").write_text("# Results, again")
    assert mirror_report(tmp_path / "report", uri, experiment_id)
    [report] = client.search_runs([experiment_id], "tags.kind = 'report'")
    artifacts = Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / report.info.artifact_uri.split(":/")[1]
    assert (artifacts / "report.md").read_text() == "# Results, again"
    assert (artifacts / "figures" / "pass.svg").exists()
    assert len(client.search_runs([experiment_id])) == 2


@pytest.mark.parametrize("folder", ["./mlruns", "file:///data/mlruns"])
def test_a_folder_as_store_is_refused_with_the_way_out(folder):  # TRK-14
    with pytest.raises(TrackingError, match=r"use sqlite:///runs/mlflow\.db .*mlflow migrate-filestore --source"):
        prepare_store(folder, "sweep")


def test_a_password_is_not_shown():
    with pytest.raises(TrackingError) as caught:
        prepare_store("postgresql+nodriver://me:secret@host/db", "sweep")
    assert "secret" not in str(caught.value)
    assert "postgresql+nodriver://***@host/db" in str(caught.value)


@pytest.mark.services
def test_a_moved_store_opens_in_the_ui_with_its_artifacts(tmp_path):  # TRK-15
    old = tmp_path / "runs"
    experiment_id = prepare_store(f"sqlite:///{old}/mlflow.db", "sweep")
    mirror(make_run(old / "sweep" / "run"), f"sqlite:///{old}/mlflow.db", experiment_id)
    moved = old.rename(tmp_path / "moved")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ui_command(f"sqlite:///{moved}/mlflow.db").split()
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:], "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        run_id = remembered(moved / "sweep" / "run")["run_id"]
        address = f"http://127.0.0.1:{port}/get-artifact?path=run.yaml&run_uuid={run_id}"
        for _ in range(240):
            try:
                with urllib.request.urlopen(address) as response:
                    assert response.read() == (moved / "sweep" / "run" / "run.yaml").read_bytes()
                break
            except OSError:
                time.sleep(0.5)
        else:
            pytest.fail("the UI did not answer in two minutes")
    finally:
        os.killpg(server.pid, 15)
        server.wait()
