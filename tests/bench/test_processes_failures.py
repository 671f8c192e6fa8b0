"""What befalls one of a run's processes ends all of them soon, with a reason that names it; and who may start them."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch

from bench import store
from bench.config import Run
from bench.launch import launch
from bench.loading import change

MakeRun = Callable[..., Run]
WORKER = Path(__file__).with_name("processes_worker.py")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("children_find_us")]


@pytest.fixture
def short(tiny_run: MakeRun) -> Run:
    """A run on two processes whose evaluations are small."""
    small = {"evaluation.start": False, "evaluation.problems": 2, "validation.problems": 2}
    return tiny_run("dr_grpo", **{"parallel.processes": 2, "checkpoint.every": 2, "meter.every": 0, **small})


def folder_of(run: Run) -> Path:
    return Path(run.output.root) / run.output.sweep / run.id


def start(run: Run, does: str) -> Path:
    launch(run, folder_of(run), (sys.executable, str(WORKER), does))
    return folder_of(run)


def weights(folder: Path) -> str:
    return json.loads((folder / "final.json").read_text())["weights_sha256"]


def test_dst_02_a_killed_process_ends_the_run_which_resumes_to_the_same_weights(
    short: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The status names the signal and the host's memory; the next attempt goes on from the checkpoint, and ends where
    an undisturbed run ends, bit for bit."""
    monkeypatch.setenv("ACCIDENT_AT", "3")
    status = store.read_status(folder := start(short, "killed"))
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.error is not None
    assert status.error.startswith("process 1 of 2 was killed by signal 9 (often out of memory); host memory then: ")
    assert capfd.readouterr().err.rstrip().endswith(status.error)
    assert store.read_status(start(short, "nothing")) == store.Status("finished", 2)
    undisturbed = start(change(short, {"output.sweep": "undisturbed"}), "nothing")
    assert undisturbed.name == folder.name
    assert weights(undisturbed) == weights(folder)
    assert (undisturbed / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert [line["attempt"] for line in store.read_jsonl(folder / "timings.jsonl").records if line["update"] == 3] == [
        2
    ]


def test_an_exception_on_one_rank_ends_all_with_its_traceback_last(
    short: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCIDENT_AT", "1")
    folder = start(short, "raises")
    assert time.time() - (folder / "status.json").stat().st_mtime < 30
    assert store.read_status(folder) == store.Status("failed", 1, "ZeroDivisionError: the accident of rank 1")
    printed = capfd.readouterr().err.rstrip().splitlines()
    assert printed[-1] == "ZeroDivisionError: the accident of rank 1"
    assert sum(line.startswith("Traceback") for line in printed) == 1


def test_ctrl_c_reaches_all_processes_and_the_run_can_be_resumed(short: Run) -> None:
    """Sent to the whole group of processes, as a terminal does."""
    long = change(short, {"budget.updates": 400})
    folder = folder_of(long)
    store.write_yaml(folder / "run.yaml", long.dump())
    command = [sys.executable, "-m", "bench.cli", "run", str(folder / "run.yaml")]
    # Tests that run in the background inherit that Ctrl-C is ignored; a terminal's programs do not.
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"start_new_session": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, preexec_fn=listening, **options) as process:
        while len(store.read_jsonl(folder / "metrics.jsonl").records) < 4:
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=30)[0].decode()
    assert process.returncode == 130
    assert "Traceback" not in output
    status = store.read_status(folder)
    assert (status.state, status.attempt) == ("interrupted", 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_trk_17_accelerate_launch_makes_one_tracked_run_with_each_metric_once(short: Run, tmp_path: Path) -> None:
    """Plain `accelerate launch` sets the number of processes by itself, and is refused where the knob says another."""
    run = change(short, {"parallel.processes": 1, "tracking.enabled": True, "budget.updates": 2})
    file = tmp_path / "run.yaml"
    store.write_yaml(file, run.dump())
    accelerate = [str(Path(sys.executable).with_name("accelerate")), "launch", "--num_processes", "2"]
    ours = ["-m", "bench.cli", "run", str(file)]
    if not torch.cuda.is_available():
        lonely = subprocess.run([*accelerate, *ours], capture_output=True, text=True)
        assert "accelerate launch was asked for several processes and started one" in lonely.stderr
    done = subprocess.run([*accelerate, "--multi_gpu", *ours], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert store.read_status(folder_of(change(run, {"parallel.processes": 2}))).state == "finished"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
        steps = [step for (step,) in database.execute("select step from metrics where key = 'loss'")]
    assert sorted(steps) == [1, 2]
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
    command = [sys.executable, *ours, "parallel.processes=3"]
    refused = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert refused.returncode == 2
    assert refused.stderr.startswith("parallel.processes: 3 given, but this process was started as one of WORLD_SIZE=2")
