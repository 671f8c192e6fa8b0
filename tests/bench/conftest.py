"""A run small enough to train in a test, from one warm-started model that the whole session shares."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.config import Run
from bench.loading import build_run, nested

TINY: Mapping[str, Any] = {
    "task": {"name": "chain_sum", "num_terms": 2, "num_digits": 1},
    "model": {
        "kind": "tiny", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64,
        "max_positions": 16,
    },
    "warm_start": {
        "max_updates": 600, "batch_size": 64, "lr": 0.01, "stop_at_pass_at_1": 0.2, "check_every": 10,
        "check_problems": 8, "check_samples": 32, "threads": 1,
    },
    "rollout": {"prompts": 8, "group_size": 8, "updates_per_rollout": 2, "max_completion_tokens": 4},
    "optimizer": {"lr": 1e-3, "microbatch_sequences": 16},
    "budget": {"updates": 4},
    "validation": {"every": 2, "problems": 8, "samples": 2},
    "evaluation": {"problems": 9, "samples": 8, "ks": [1, 2]},
    "meter": {"every": 2},
    "tracking": {"enabled": False},
}  # fmt: skip

COUNTED = ("trained", "generated")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's warm start lies."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny_run(shared_cache: Path, tmp_path: Path, own_knobs: Callable[[str], dict[str, Any]]) -> Callable[..., Run]:
    """`tiny_run("dapo", **{"optimizer.lr": 1e-4})`: the tiny run with an algorithm and dotted knobs."""

    def make(algorithm: str, **knobs: Any) -> Run:
        output = {"output": {"root": str(tmp_path), "cache": str(shared_cache)}}
        return build_run({"algorithm": algorithm, **TINY, **output}, nested({**own_knobs(algorithm), **knobs}))

    return make


@pytest.fixture(scope="session")
def counted_alike() -> Callable[[Path], bool]:
    """Whether the clock of a run counted the tokens that its metrics tell, trained on and sampled (THR-03)."""

    def alike(folder: Path) -> bool:
        metrics, timings = (
            [json.loads(line) for line in (folder / name).read_text().splitlines()]
            for name in ("metrics.jsonl", "timings.jsonl")
        )
        told = {name: [line[f"tokens/{name}"] for line in metrics if f"tokens/{name}" in line][-1] for name in COUNTED}
        return told == {name: sum(line["tokens"][name] for line in timings) for name in COUNTED}

    return alike


@pytest.fixture
def children_find_us(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Processes that a test starts import this checkout, wherever they are started."""
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], None]:
    """`stopping(module, "save", 2)`: the process is asked to stop after the second call of that function."""

    def arm(module: Any, name: str, calls: int) -> None:
        original, made = getattr(module, name), []

        def stop(*arguments: Any, **knobs: Any) -> Any:
            result = original(*arguments, **knobs)
            made.append(1)
            if len(made) == calls:
                monkeypatch.setattr(module, name, original)
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(module, name, stop)

    return arm
