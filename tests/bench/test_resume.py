"""A run that was stopped goes on to the end that it would have had, and does nothing twice that it has done."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import metadata_load
from safetensors import SafetensorError
from typer.testing import CliRunner

from bench import checkpoint, checkpoint_folder, kept, resume, store, train
from bench.account import account
from bench.cli import app
from bench.config import Run
from bench.loading import build_run, nested
from bench.models import create_tiny, save_folder
from bench.moved import changed_share, sample_of
from bench.rollout import Sampler
from bench.statistics import accuracy_interval
from bench.train import execute

MakeRun = Callable[..., Run]
SMALL: dict[str, Any] = {"rollout.prompts": 4, "rollout.group_size": 4, "optimizer.microbatch_sequences": 8}
CHOOSE = {**SMALL, "validation.select": "validation", "validation.every": 1, "optimizer.schedule": "linear"}
SAME = ("metrics.jsonl", "final.json", "alarms.json", "eval/test.json", "eval/test.parquet", "eval/test.jsonl.zst")


def same(one: Path, two: Path) -> None:
    for name in SAME:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def no_step(*_: Any) -> Iterator[Any]:
    raise AssertionError("a step was taken")


def check_card(directory: Path) -> None:
    """The front matter is what the hub reads, without what is not known; the results are those of the evaluation."""
    card = directory / "checkpoints/final/README.md"
    matter, text = metadata_load(card), card.read_text()
    assert matter is not None
    assert matter["library_name"] == "transformers"
    assert {"rl-objective-bench", "dr_grpo", "chain_sum"} <= set(matter["tags"])
    assert not {"license", "base_model", "datasets"} & set(matter)
    estimates = store.read_run(directory).estimates("test")
    assert estimates is not None
    interval = accuracy_interval(estimates.pass_at(1))
    assert f"| test | {interval.mean:.3f} | {interval.low:.3f} to {interval.high:.3f} |" in text
    assert f"Run `{directory.name}`" in text
    assert json.loads((directory / "final.json").read_text())["weights_sha256"] in text


def test_swp_09_a_run_trained_to_its_end_takes_no_further_step(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopping: Callable[[Any, str, int], None]
) -> None:
    """Stopped in its evaluation, it evaluates; finished, it returns at once; beyond its budget, it finishes."""
    run = tiny_run("dr_grpo", **{"rollout.prompts": 4, "rollout.group_size": 4, "budget.updates": 2, "meter.every": 0})
    directory = tmp_path / "run"
    stopping(train, "write_card", 1)
    assert execute(run, directory).state == "interrupted"
    before = {name: (directory / name).read_bytes() for name in SAME}
    monkeypatch.setattr("bench.learn_online.OnlineLearner.advance", no_step)
    halves = [directory / place / ".half.1.tmp" for place in ("", "eval", "checkpoints/final")]
    for half in halves:
        half.write_text("what a kill leaves of a file that is being written")
    status = execute(run, directory)
    assert (status.state, status.attempt) == ("finished", 2), status.error
    assert {name: (directory / name).read_bytes() for name in SAME} == before
    assert not any(half.exists() for half in halves)
    times = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert execute(run, directory) == status
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == times
    check_card(directory)
    (directory / "status.json").unlink()
    final = directory / "checkpoints/final"
    beyond = checkpoint_folder.marker_of(final)
    assert isinstance(beyond, dict)
    beyond["progress"]["update"] = 7
    record = {name: beyond[name] for name in ("run", "packages", "progress")}
    shutil.copytree(final, directory / "policy")
    with checkpoint_folder.whole_folder(
        directory / "checkpoints/step_000007", {**record, "extra": beyond["extra"]}
    ) as at:
        (directory / "policy").rename(at / "policy")
        checkpoint.save_file({}, at / "optimizer.safetensors")
    shutil.rmtree(final)
    assert execute(run, directory).state == "finished"
    assert json.loads((directory / "final.json").read_text())["update"] == 7


def test_a_run_is_not_said_to_have_ended_before_all_is_written(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two files of the end would leave a finished run without the later one, which no start mends."""
    written: list[str] = []
    original = store.write_text
    monkeypatch.setattr(store, "write_text", lambda path, text: (written.append(path.name), original(path, text)))
    train._end(tiny_run("grpo"), tmp_path, 1, "finished")
    assert written[-1] == "status.json"
    assert "alarms.json" in written


@pytest.mark.slow
def test_the_best_model_is_that_of_the_checkpoint_that_is_gone_on_from(
    tiny_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    """Stopped after a better validation and before the next checkpoint: the older best is still there, and the end is
    the undisturbed one's."""
    knobs = {**CHOOSE, "rollout.updates_per_rollout": 1, "checkpoint.every": 2, "budget.updates": 6}
    run = tiny_run("grpo", **knobs)
    assert execute(run, tmp_path / "straight").state == "finished"
    bests = sorted(path.name for path in (tmp_path / "straight/checkpoints").glob("best_*"))
    assert len(bests) == 1
    lines = store.read_jsonl(tmp_path / "straight/metrics.jsonl").records
    scores = [line["validation/pass@1"] for line in lines]
    improved = [i for i in range(1, len(scores)) if scores[i] > max(scores[:i])]
    assert any(i % 2 for i in improved), f"no best between two checkpoints: {scores}"
    count = 1 + sum(1 for i in improved if i <= next(j for j in improved if j % 2))
    stopping(resume, "save_best", count)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    held = sorted(path.name for path in (tmp_path / "stopped/checkpoints").glob("best_*"))
    newest = checkpoint_folder.complete(tmp_path / "stopped/checkpoints")
    assert not newest or set(checkpoint_folder.needs(newest[-1])) < set(held), "the older one went too early"
    assert execute(run, tmp_path / "stopped").state == "finished"
    same(tmp_path / "straight", tmp_path / "stopped")
    assert sorted(path.name for path in (tmp_path / "stopped/checkpoints").glob("best_*")) == bests


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "dapo"])
def test_swp_11_no_rollout_is_sampled_twice_and_no_prompt_is_left_out(
    algorithm: str,
    tiny_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopping: Callable[[Any, str, int], None],
) -> None:
    """The rounds and prompts of both attempts together are those of an undisturbed run."""
    asked: list[tuple[int, tuple[str, ...]]] = []
    original = Sampler.groups

    def noted(self: Sampler, model: Any, problems: Any, index: int) -> Any:
        asked.append((index, tuple(problem.id for problem in problems)))
        return original(self, model, problems, index)

    monkeypatch.setattr(Sampler, "groups", noted)
    run = tiny_run(algorithm, **{"checkpoint.every": 2, "budget.updates": 6})
    assert execute(run, tmp_path / "straight").state == "finished"
    straight, asked[:] = list(asked), []
    assert len(straight) >= 3
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    first = len(asked)
    assert execute(run, tmp_path / "stopped").state == "finished"
    assert asked == straight
    assert (first < len(asked)) == (algorithm in ("grpo", "dapo")), "offline, all is sampled before the first update"
    same(tmp_path / "straight", tmp_path / "stopped")


@pytest.mark.slow
def test_pairs_that_were_made_before_the_first_checkpoint_are_not_made_again(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopping: Callable[[Any, str, int], None]
) -> None:
    run = tiny_run("dpo", **{"checkpoint.every": 2})
    assert execute(run, tmp_path / "straight").state == "finished"
    stopping(kept, "write", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    monkeypatch.setattr("bench.learn_pairs.PairLearner._made", no_step)
    assert execute(run, tmp_path / "stopped").state == "finished"
    same(tmp_path / "straight", tmp_path / "stopped")


@pytest.mark.slow
def test_swp_14_a_moved_run_goes_on_where_it_lies_now(
    tiny_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    run = tiny_run("grpo", **{"checkpoint.every": 2, "output.root": str(tmp_path / "old")})
    place = tmp_path / "old/single" / run.id
    stopping(checkpoint, "save", 1)
    assert execute(run, place).state == "interrupted"
    (tmp_path / "old").rename(tmp_path / "new")
    moved = tmp_path / "new/single" / run.id
    result = CliRunner().invoke(app, ["run", str(moved / "run.yaml")])
    assert result.exit_code == 0, result.output
    assert store.read_status(moved).attempt == 2
    assert not (tmp_path / "old").exists()
    assert execute(run, tmp_path / "straight").state == "finished"
    same(tmp_path / "straight", moved)


@pytest.mark.slow
def test_a_foreign_checkpoint_is_exit_status_2_and_the_run_stays_as_it_was(tiny_run: MakeRun, tmp_path: Path) -> None:
    run, other = tiny_run("grpo", **{"checkpoint.every": 2}), tiny_run("grpo", **{"checkpoint.every": 2, "seed": 1})
    root = Path(run.output.root) / run.output.sweep
    assert execute(other, root / other.id).state == "finished"
    shutil.copytree(root / other.id / "checkpoints", root / run.id / "checkpoints")
    store.write_yaml(tmp_path / "run.yaml", run.dump())
    result = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    assert f"is of run {other.id}, another configuration than that of {run.id}" in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (root / run.id / "status.json").exists()


@pytest.mark.slow
def test_a_disk_without_room_for_the_checkpoints_is_told_before_training(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("grpo", **{"checkpoint.every": 1})
    free = checkpoint_folder.SLACK_BYTES + 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - free, free))
    store.write_yaml(tmp_path / "run.yaml", run.dump())
    result = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    assert "what the run keeps (2 checkpoints) needs" in result.output
    directory = Path(run.output.root) / run.output.sweep / run.id
    assert store.read_status(directory) == store.Status("pending")
    monkeypatch.undo()
    assert execute(run, directory).attempt == 1


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device")]
)
def test_a_run_whose_end_cannot_be_written_either_says_why_it_failed(
    error: Exception, tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up in the middle of a checkpoint, and the status has no room either; later it goes on."""
    run = tiny_run("grpo", **{"checkpoint.every": 2})
    directory, write = tmp_path / "run", store.set_status

    def full(*arguments: Any, **knobs: Any) -> None:
        raise error

    def refused(place: Path, state: store.State, **knobs: Any) -> None:
        if state == "failed":
            raise OSError(28, "No space left on device")
        write(place, state, **knobs)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", full)
        patched.setattr(store, "set_status", refused)
        status = execute(run, directory)
    assert (status.state, status.exit_status) == ("failed", 1)
    assert "No space left on device" in (status.error or "")
    assert store.read_status(directory).state == "running"
    lines = account(store.read_run(directory), status)
    assert any("failed, " in line and "No space left on device" in line for line in lines)
    assert execute(run, directory).state == "finished"


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_where_it_can_go_on(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("grpo", **{"checkpoint.every": 2, "budget.updates": 6})
    assert execute(run, tmp_path / "straight").state == "finished"
    original, frees = checkpoint_folder.free_bytes, []

    def filling(directory: Path) -> int:
        frees.append(1)
        return original(directory) if len(frees) < 4 else 1000  # twice before training, once for the first checkpoint

    monkeypatch.setattr(checkpoint_folder, "free_bytes", filling)
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert "the checkpoint of update 4 needs" in (status.error or "")
    assert "1,000 free" in (status.error or "")
    monkeypatch.setattr(checkpoint_folder, "free_bytes", original)
    assert execute(run, tmp_path / "run").state == "finished"
    same(tmp_path / "straight", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_us")
def test_ctrl_c_and_sigterm_end_a_run_with_130_and_it_goes_on(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo", **{"checkpoint.every": 2, "budget.updates": 200, "rollout.group_size": 4})
    store.write_yaml(tmp_path / "run.yaml", run.dump())
    directory = Path(run.output.root) / run.output.sweep / run.id
    for number, (asked, first) in enumerate([(signal.SIGINT, 2), (signal.SIGTERM, 0)], start=1):
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.cli", "run", str(tmp_path / "run.yaml")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        end = time.monotonic() + 60
        had = len(checkpoint_folder.steps(directory / "checkpoints"))
        assert had or first
        seen = (directory / "metrics.jsonl").stat().st_size if had else 0
        while time.monotonic() < end and process.poll() is None:
            path = directory / "metrics.jsonl"
            if path.exists() and path.stat().st_size > seen + 3000:
                break
            time.sleep(0.02)
        process.send_signal(asked)
        assert process.wait(30) == 130
        status = store.read_status(directory)
        assert (status.state, status.attempt) == ("interrupted", number)
        assert checkpoint_folder.complete(directory / "checkpoints")


def test_obj_51_the_share_of_changed_parameters(tiny_run: MakeRun) -> None:
    """Of weights in bfloat16 a step of 1e-6 changes next to none, of those in float32 nearly all."""
    run = tiny_run("grpo")
    network = create_tiny(run.model, run.task.alphabet, 0).network  # type: ignore[arg-type]
    shares: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.nn.Module.to(network, dtype)
        before = sample_of(network)
        assert changed_share(network, before) == 0
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.sub_(1e-6)
        shares[dtype] = changed_share(network, before)
    assert shares[torch.float32] > 0.9
    assert shares[torch.bfloat16] < 0.05


@pytest.mark.slow
def test_obj_51_a_bfloat16_model_moves_and_a_run_that_moves_nothing_is_an_error(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    few = {"validation.every": 0, "validation.problems": 100, "validation.samples": 4, "budget.updates": 20}
    few |= {"rollout.updates_per_rollout": 1, "rollout.prompts": 4, "evaluation.start": False}
    still = execute(tiny_run("grpo", **few, **{"optimizer.lr": 1e-30}), tmp_path / "still")
    assert still.state == "failed"
    assert "optimizer.lr: 1e-30 given, and after 20 updates 0 % of the parameters have another value" in str(
        still.error
    )
    warm = tiny_run("grpo")
    from bench.prepare import starting_model

    model = starting_model(warm).model
    torch.nn.Module.to(model.network, torch.bfloat16)
    save_folder(model, tmp_path / "model")
    saved = json.loads((tmp_path / "model/config.json").read_text())
    assert saved["dtype"] == "bfloat16"
    model_knobs = {"model": {"kind": "pretrained", "path": str(tmp_path / "model")}, "warm_start": None}
    dump = {**warm.dump(), **model_knobs}
    run = build_run(dump, nested({**few, "optimizer.lr": 1e-6}))
    status = execute(run, tmp_path / "run")
    assert status.state == "finished", status.error
    assert json.loads((tmp_path / "run/final.json").read_text())["changed_share"] > 0.9


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_us")
def test_each_algorithm_killed_at_four_random_moments_ends_as_if_undisturbed(root: Path, tmp_path: Path) -> None:
    """SIGKILL, spread over time and over operations on files; exit status 1 at any difference."""
    command = [
        sys.executable,
        str(root / "benchmarks/kill_resume.py"),
        "--kills",
        "20",
        "--out",
        str(tmp_path / "runs"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split("|")[1:6] for line in result.stdout.splitlines()[2:]]
    kills = {row[0].strip(): [int(cell) for cell in row[1:4]] for row in rows}
    for algorithm in ("ppo", "grpo", "dr_grpo", "dapo", "dpo"):
        made, exact, wrong = kills[algorithm]
        assert made >= 4
        assert (exact, wrong) == (made, 0)
