"""Each kind of critic on two processes is the same run as on one, also with sharded weights, stopped and resumed."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import store
from bench.config import Run
from bench.launch import launch
from bench.loading import change
from bench.train import execute

MakeRun = Callable[..., Run]
WORKER = Path(__file__).with_name("processes_worker.py")
SMALLER = {
    "kind": "tiny", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 16,
}  # fmt: skip
KINDS: Mapping[str, dict[str, Any]] = {
    "model": {"critic.kind": "model", "critic.model": SMALLER},
    "head": {"critic.kind": "head", "critic.warmup_updates": 1},
    "mlp": {"critic.kind": "mlp", "critic.hidden_sizes": [8], "critic.warmup_updates": 1},
}
SHARDED = {"parallel.strategy": "fsdp", "meter.every": 0, "checkpoint.every": 2}


def metrics(folder: Path) -> tuple[dict[str, Any], ...]:
    return store.read_jsonl(folder / "metrics.jsonl").records


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_us")
def test_every_kind_on_two_processes_equals_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Every metric of every update; microbatches of 5 leave an uneven last one."""
    common: dict[str, Any] = {
        "optimizer.microbatch_sequences": 5, "critic.head_init": "normal_reward", "validation.every": 0,
        "validation.problems": 100, "validation.samples": 4, "evaluation.problems": 1, "evaluation.samples": 2,
        # Small enough that the value clip never holds a token: whether it does is a yes or no that rounding can turn.
        "critic.lr": 1e-3,
    }  # fmt: skip
    runs = {kind: tiny_run("ppo", **common, **knobs) for kind, knobs in KINDS.items()}
    several: dict[str, Run] = {}
    for kind, run in runs.items():
        several[kind] = change(run, {"parallel.processes": 2})
        several[f"{kind}_sharded_stopped"] = change(run, {"parallel.processes": 2, **SHARDED})
        assert execute(run, tmp_path / "one" / kind).state == "finished"
    (tmp_path / "many.json").write_text(json.dumps({name: run.dump() for name, run in several.items()}))
    launch(several["head"], tmp_path, (sys.executable, str(WORKER), "many"))
    assert (tmp_path / "done").exists()
    for name in several:
        one, two = metrics(tmp_path / "one" / name.removesuffix("_sharded_stopped")), metrics(tmp_path / name)
        assert [record.keys() for record in one] == [record.keys() for record in two]
        apart = {
            f"{key} at {a['update']}": (a[key], b[key])
            for a, b in zip(one, two, strict=True)
            for key in a
            if a[key] != b[key]
            and (None in (a[key], b[key]) or not math.isclose(a[key], b[key], rel_tol=1e-5, abs_tol=1e-5))
        }
        assert apart == {}, name
        assert all(record["value/grad_norm"] > 1e-4 for record in one[1:])
