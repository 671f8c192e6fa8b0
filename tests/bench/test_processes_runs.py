"""Runs on two processes are the same runs: every metric of every update, samples and evaluations, for every family."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import checkpoint, store
from bench.config import Run
from bench.launch import launch
from bench.loading import change
from bench.models import load_folder
from bench.train import execute

MakeRun = Callable[..., Run]
WORKER = Path(__file__).with_name("processes_worker.py")
KNOBS: Mapping[str, dict[str, Any]] = {
    "ppo": {"optimizer.microbatch_sequences": 5},
    "grpo": {"rollout.prompts": 1, "rollout.updates_per_rollout": 1},
    "dapo": {"rollout.updates_per_rollout": 1, "optimizer.microbatch_sequences": 7},
    "dpo": {"optimizer.microbatch_sequences": 6},
    "rft": {"optimizer.microbatch_sequences": 5},
}
"""Eight completions a prompt: microbatches of 5, 6 and 7 leave a shorter last one, one prompt leaves a rank without."""
ON_TWO: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{algorithm: (algorithm, {}) for algorithm in KNOBS},
    "ppo_fsdp_stopped": ("ppo", {"parallel.strategy": "fsdp", "meter.every": 0, "checkpoint.every": 2}),
    "grpo_fsdp": ("grpo", {"parallel.strategy": "fsdp", "meter.every": 0}),
    "dpo_fsdp": ("dpo", {"parallel.strategy": "fsdp", "meter.every": 0}),
}


def metrics(folder: Path) -> tuple[dict[str, Any], ...]:
    return store.read_jsonl(folder / "metrics.jsonl").records


def apart(one: Path, two: Path) -> dict[str, tuple[float, float]]:
    """The metrics of two runs that differ by more than 1e-5, or because one of them is no number."""
    first, second = metrics(one), metrics(two)
    assert [record.keys() for record in first] == [record.keys() for record in second]
    return {
        f"{name} at {a['update']}": (a[name], b[name])
        for a, b in zip(first, second, strict=True)
        for name in a
        if a[name] != b[name]
        and (None in (a[name], b[name]) or not math.isclose(a[name], b[name], rel_tol=1e-5, abs_tol=1e-5))
    }


def tokens(folder: Path) -> list[dict[str, int]]:
    """What each update sampled and trained on; how much padding was passed is the only thing that may differ."""
    lines = store.read_jsonl(folder / "timings.jsonl").records
    return [{name: count for name, count in line["tokens"].items() if name != "padded"} for line in lines]


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_us")
def test_dst_03_dst_05_two_processes_equal_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Every family, with unequal lengths, an uneven last microbatch, a rank without a group or without a microbatch,
    and sharded weights (stopped and resumed as well): loss, gradient norm and every other metric of every update."""
    runs = {algorithm: tiny_run(algorithm, **knobs) for algorithm, knobs in KNOBS.items()}
    several = {
        name: change(runs[algorithm], {"parallel.processes": 2, **knobs}) for name, (algorithm, knobs) in ON_TWO.items()
    }
    (tmp_path / "many.json").write_text(json.dumps({name: run.dump() for name, run in several.items()}))
    for algorithm, run in runs.items():
        assert execute(run, tmp_path / "one" / algorithm).state == "finished"
    launch(several["ppo"], tmp_path, (sys.executable, str(WORKER), "many"))
    assert (tmp_path / "done").exists()
    for name, (algorithm, _) in ON_TWO.items():
        one, two = tmp_path / "one" / algorithm, tmp_path / name
        assert all(record["grad_norm"] > 1e-4 for record in metrics(one)[1:])
        assert apart(one, two) == {}, name
        assert name.endswith("stopped") or tokens(one) == tokens(two)
        assert (one / "eval/test.estimates.parquet").read_bytes() == (two / "eval/test.estimates.parquet").read_bytes()
        digest = json.loads((two / "final.json").read_text())["weights_sha256"]
        networks = [load_folder(folder / "checkpoints/final", "plain").network for folder in (one, two)]
        assert checkpoint.weights_digest(networks[1]) == digest
        for first, second in zip(*(network.parameters() for network in networks), strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=1e-5)
