"""Runs on two processes: equal to one process, whole after a kill, and ending with the reason of the first to fail."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import store
from bench.config import Run
from bench.launch import launch
from bench.loading import build_run, change
from bench.train import execute

MakeRun = Callable[..., Run]
WORKER = Path(__file__).with_name("processes_worker.py")
ROOT = WORKER.parents[2]
FSDP = {"parallel.strategy": "fsdp", "meter.every": 0}
RUNS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"optimizer.microbatch_sequences": 5}),
    "grpo_one_group": ("grpo", {"rollout.prompts": 1, "rollout.updates_per_rollout": 1}),
    "dapo": ("dapo", {"rollout.updates_per_rollout": 1, "optimizer.microbatch_sequences": 7}),
    "dpo": ("dpo", {"optimizer.microbatch_sequences": 6}),
    "rft": ("rft", {"optimizer.microbatch_sequences": 5}),
    "ppo_fsdp_stopped": ("ppo", {"optimizer.microbatch_sequences": 5, "checkpoint.every": 2, **FSDP}),
    "dpo_fsdp": ("dpo", {"optimizer.microbatch_sequences": 6, **FSDP}),
    "grpo_fsdp": ("grpo", {"rollout.prompts": 1, "rollout.updates_per_rollout": 1, **FSDP}),
}
"""Eight completions a prompt: microbatches of 5, 6 and 7 leave a shorter last one, one group leaves a rank without."""


@pytest.fixture
def on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find this checkout."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def apart(one: Path, two: Path) -> dict[str, tuple[float, float]]:
    """The metrics of two runs that differ by more than 1e-5, or for lack of a number."""
    first, second = metrics(one), metrics(two)
    assert [record.keys() for record in first] == [record.keys() for record in second]
    return {
        f"{name} at {a['update']}": (a[name], b[name])
        for a, b in zip(first, second, strict=True)
        for name in a
        if (a[name] is None) != (b[name] is None)
        or (a[name] is not None and not math.isclose(a[name], b[name], rel_tol=1e-5, abs_tol=1e-5))
    }


@pytest.mark.slow
@pytest.mark.usefixtures("on_two")
def test_dst_03_dst_05_two_processes_equal_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Every family, with unequal lengths, an uneven last microbatch, a rank without a group or without a microbatch,
    and sharded weights (stopped and resumed as well): loss, gradient norm and every other metric of every update."""
    runs = {name: tiny_run(algorithm, **knobs_) for name, (algorithm, knobs_) in plain().items()}
    several = {name: change(run, {"parallel.processes": 2, **sharding(name)}) for name, run in runs.items()}
    (tmp_path / "two").mkdir()
    (tmp_path / "two/many.json").write_text(json.dumps({name: run.dump() for name, run in several.items()}))
    for name, run in runs.items():
        assert execute(run, tmp_path / "one" / name).state == "finished"
    launch(several["ppo"], tmp_path / "two", (sys.executable, str(WORKER), "many"))
    assert (tmp_path / "two/done").exists()
    for name in runs:
        one, two = tmp_path / "one" / name, tmp_path / "two" / name
        assert apart(one, two) == {}, name
        assert (one / "eval/test.estimates.parquet").read_bytes() == (two / "eval/test.estimates.parquet").read_bytes()
        tokens = [
            json.loads((folder / "throughput.json").read_text())["phases"]["rollout"]["tokens"] for folder in (one, two)
        ]
        assert tokens[0] == tokens[1]


def plain() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        name: (algorithm, {k: v for k, v in knobs.items() if k != "parallel.strategy"})
        for name, (algorithm, knobs) in RUNS.items()
    }


def sharding(name: str) -> dict[str, Any]:
    return {"parallel.strategy": "fsdp"} if "fsdp" in name else {}
