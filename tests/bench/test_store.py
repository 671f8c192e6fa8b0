"""A run directory keeps whole records through kills, full disks and damage, and says what it could not read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import store
from bench.evaluation import Outcome, estimates, outcome_matrix, write_estimates

# The file size limit stands in for a full disk: the kernel refuses the bytes past it, after taking those before it.
LIMITED = """
import resource, sys
from pathlib import Path
from bench import store
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
path = Path(sys.argv[1])
try:
    {call}
except OSError as error:
    print(error.strerror)
else:
    print("written")
"""


def under_a_limit(call: str, path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", LIMITED.format(call=call), str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_failed_write_leaves_the_old_file_and_names_the_path(tmp_path: Path):
    path = tmp_path / "status.json"
    store.write_text(path, "old")
    message = under_a_limit("store.write_text(path, 'x' * 1000)", path)
    assert message == f"cannot write {path}: File too large"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_does_not_fit_leaves_no_part_behind(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    store.append_jsonl(path, {"update": 1, "text": "x" * 40})
    before = path.read_bytes()
    message = under_a_limit("store.append_jsonl(path, {'update': 2, 'text': 'y' * 80})", path)
    assert message == f"cannot append to {path}: File too large"
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [lambda path: store.write_json(path, {}), lambda path: store.append_jsonl(path, {})])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, write):
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(OSError, match=r"cannot (write|append to) .*runs/x/file: "):
        write(tmp_path / "runs" / "x" / "file")


def test_an_exception_while_writing_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "table.bin"
    store.write_bytes(path, b"old")

    def stop_half_way() -> None:
        with store.replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        stop_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_after_a_torn_one_is_not_lost(tmp_path: Path):
    path = tmp_path / "timings.jsonl"
    path.write_bytes(b'{"update": 1}\n{"update": 2, "sec')
    store.append_jsonl(path, {"update": 3})
    lines = store.read_jsonl(path)
    assert [record["update"] for record in lines.records] == [1, 3]
    assert lines.problems == (f"{path}, line 2: not a JSON object, skipped",)


def test_a_number_that_is_not_finite_is_written_as_null(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    store.append_jsonl(path, {"update": 1, "loss": float("nan"), "nested": [float("inf"), 1.5]})
    assert json.loads(path.read_text()) == {"update": 1, "loss": None, "nested": [None, 1.5]}


def test_the_status_survives_a_round_trip_and_refuses_unknown_states(tmp_path: Path):
    assert store.read_status(tmp_path) == store.Status("pending")
    store.set_status(tmp_path, "diverged", attempt=2, error="loss is nan at update 7")
    status = store.read_status(tmp_path)
    assert status == store.Status("diverged", 2, "loss is nan at update 7")
    assert status.terminal
    store.set_status(tmp_path, "interrupted", attempt=2)
    assert not store.read_status(tmp_path).terminal
    with pytest.raises(ValueError, match="'done' is not one of pending, running"):
        store.set_status(tmp_path, "done", attempt=1)  # type: ignore[arg-type]
    (tmp_path / "status.json").write_text("{")
    assert store.read_status(tmp_path).state == "interrupted"


def test_a_complete_run_reads_back_as_written(tmp_path: Path):
    run = tmp_path / "abc"
    task = {"name": "chain_sum", "terms": 3}
    store.write_yaml(run / "run.yaml", {"algorithm": "grpo", "task": task, "seed": 4, "lr": 1e-6})
    store.set_status(run, "finished", attempt=1)
    store.append_jsonl(run / "metrics.jsonl", {"update": 1, "loss": 0.5})
    store.write_json(run / "eval" / "test.json", {"num_problems": 2, "samples": 4})
    outcomes = [Outcome(f"p/{i}", j, i == 0, "7", True, False, False, 5, "exact") for i in range(2) for j in range(4)]
    estimated = estimates(outcome_matrix(outcomes), [1, 4])
    write_estimates(run / "eval" / "test.estimates.parquet", estimated)
    record = store.read_run(run)
    assert (record.id, record.algorithm, record.task, record.seed) == ("abc", "grpo", "chain_sum", 4)
    assert record.run["lr"] == 1e-6
    assert record.metrics == ({"update": 1, "loss": 0.5},)
    assert record.manifest("test") == {"num_problems": 2, "samples": 4}
    read = record.estimates("test")
    assert read is not None
    assert (read.problem_id, read.ks, read.c.tolist()) == (("p/0", "p/1"), (1, 4), [4, 0])
    assert (record.memory, record.throughput, record.estimates("start"), record.formula) == (None, None, None, None)
    assert record.problems == ()


def test_damage_is_reported_and_not_fatal(tmp_path: Path):
    run = tmp_path / "sweep" / "abc"
    store.set_status(run, "running", attempt=1)
    (run / "run.yaml").write_text("a: [")
    (run / "formula.json").write_text("{")
    (run / "metrics.jsonl").write_bytes(b'{"update": 1}\n\xff\xfe\n[1]\n{"update": 2}\n')
    (run / "memory.json").write_text("nothing")
    (run / "eval").mkdir()
    (run / "eval" / "test.estimates.parquet").write_bytes(b"PAR1")
    (record,) = store.read_sweep(tmp_path / "sweep")
    assert (record.run, record.algorithm, record.seed) == ({}, "n/a", None)
    assert [line["update"] for line in record.metrics] == [1, 2]
    assert record.memory is None
    assert record.estimates("test") is None
    assert [problem.split(":")[0].removeprefix(f"{run}/") for problem in record.problems] == [
        "run.yaml",
        "formula.json",
        "metrics.jsonl, line 2",
        "metrics.jsonl, line 3",
        "memory.json",
        "eval/test.estimates.parquet",
    ]


def test_a_sweep_is_ordered_and_skips_what_is_no_run(tmp_path: Path):
    for name, algorithm, seed in [("a", "ppo", 0), ("b", "grpo", 1), ("c", "grpo", 0)]:
        store.write_yaml(tmp_path / name / "run.yaml", {"algorithm": algorithm, "task": "t", "seed": seed})
    (tmp_path / "report").mkdir()
    assert [run.id for run in store.read_sweep(tmp_path)] == ["c", "b", "a"]
    with pytest.raises(ValueError, match=r"neither run\.yaml nor status\.json"):
        store.read_run(tmp_path / "report")
    with pytest.raises(ValueError, match=r"no folder in it has a run\.yaml"):
        store.read_sweep(tmp_path / "report")
    with pytest.raises(ValueError, match="does not exist"):
        store.read_sweep(tmp_path / "absent")
