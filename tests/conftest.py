"""What every test shares: shape checks on public functions, one thread, and the path of the public data."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

install_import_hook(["algorithms.axes", "bench.evaluation"], "beartype.beartype")

ROOT = Path(__file__).resolve().parents[1]
FAST = {"ppo", "grpo", "dpo", "rft"}
"""Algorithms of which whole runs are made in the default suite: one of each kind; the others are slow."""

LONG = ("test_real_runs.py", "test_mutations.py")
"""Files that take minutes each: they begin first, so that no core waits for another at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`each_algorithm` and `each_online` run a test once for each preset, for each policy-gradient preset."""
    from algorithms.axes.policy_gradient import PolicyGradient
    from bench.catalog import load_preset, names

    for fixture in {"each_algorithm", "each_online"} & set(metafunc.fixturenames):
        chosen = [
            name
            for name in names("algorithms")
            if fixture == "each_algorithm" or isinstance(load_preset(name).objective, PolicyGradient)
        ]
        marks = {True: (), False: pytest.mark.slow}
        metafunc.parametrize(fixture, [pytest.param(name, marks=marks[name in FAST]) for name in chosen])


@pytest.fixture(scope="session")
def own_knobs() -> Callable[[str], dict[str, Any]]:
    """Dotted knobs that an algorithm asks of a tiny run beyond those that all share."""

    def knobs(algorithm: str) -> dict[str, Any]:
        objective = importlib.import_module(f"algorithms.{algorithm}").objective
        own: dict[str, Any] = {"critic.lr": 1e-2} if objective.needs.critic else {}
        if objective.needs.one_update:
            own["rollout.updates_per_rollout"] = 1
        if getattr(getattr(objective, "advantage", None), "kind", "") == "pass_at_k":
            own["objective.advantage.k"] = 2
        return own

    return knobs


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with `data/` and `cases/`: BENCH_SHARED, or `shared` beside the checkout. Skips where there is none."""
    folder = Path(os.environ.get("BENCH_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no public data: {folder}/data is not there (set BENCH_SHARED)")
    return folder


@pytest.fixture(scope="session")
def shared_rows(shared_dir: Path) -> Callable[[str], list[dict[str, Any]]]:
    """`shared_rows("data/gsm8k_test.jsonl")`: the objects of a file of that folder. Skips where it is not there."""

    def read(name: str) -> list[dict[str, Any]]:
        path = shared_dir / name
        if not path.is_file():
            pytest.skip(f"{path} is not there")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]

    return read
