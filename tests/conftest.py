"""What every test shares: shape checks on public functions, one thread, and the path of the public data."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

install_import_hook(["algorithms.axes", "bench.evaluation"], "beartype.beartype")

ROOT = Path(__file__).resolve().parents[1]


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
