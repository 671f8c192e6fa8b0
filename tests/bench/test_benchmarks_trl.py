"""The comparison with TRL measures what it says: the floor's arithmetic, refusals, and the agreement of both sides."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest


def compare(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does."""
    command = [sys.executable, str(root / "benchmarks/trl.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)


@pytest.fixture(scope="module")
def tables(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("trl_table", root / "benchmarks/trl_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_floor_counts_a_prompt_once_and_no_padding(tables: ModuleType) -> None:
    """0.86M parameters, 16 prompts of 9 tokens, 256 completions of 10.5, 200 GFLOP/s: 8 x 0.86M x 2832 / 200G."""
    assert tables.floor_seconds(860_000, 256 * 10.5 + 16 * 9, 200e9) == pytest.approx(0.0974208)


def test_ratio_pairs_the_turns_that_ran_next_to_each_other(tables: ModuleType) -> None:
    """The machine became twice as slow for both sides: the ratio stays."""
    found = tables.ratios([1.0, 2.0, 1.0], [3.0, 6.0, 3.0])
    assert tables.median_and_quartiles(found) == (3.0, 3.0, 3.0)


def test_update_alone_leaves_sampling_and_grading_out_on_both_sides(tables: ModuleType) -> None:
    ours = {"seconds": 1.0, "own_phases": {"rollout": 0.3, "reward": 0.1, "policy_update": 0.5}}
    theirs = {
        "seconds": 1.0,
        "phases": {"rollout": 0.3, "reward": 0.1, "inputs": 0.45, "step": 0.85, "optimizer": 0.1},
    }
    assert tables.seconds([[ours], [theirs]], update_only=True) == pytest.approx([0.6, 0.6])
    phases = tables.phases_of(theirs)
    assert phases["policy_update"] == pytest.approx(0.5)
    assert sum(phases.values()) == pytest.approx(1.0)


def test_ppo_without_its_environment_is_refused(root: Path) -> None:
    found = compare(root, "--algorithm", "ppo")
    assert found.returncode == 2
    assert found.stderr.startswith("--algorithm ppo and --ppo-python go together")


@pytest.mark.slow
@pytest.mark.reference
def test_both_sides_agree_on_losses_and_gradients(root: Path, tmp_path: Path) -> None:
    """A mean over all tokens, whose loss of a first update is not zero; a small untrained model."""
    try:
        version("trl")
    except PackageNotFoundError:
        pytest.skip("needs TRL: make reference")
    out = tmp_path / "numbers.json"
    sizes = ["--repeats", "1", "--updates", "2", "--warmup", "2", "--threads", "1"]
    where = ["--cache", str(tmp_path / "cache"), "--json", str(out)]
    kind = ["--model", "random", "--algorithm", "token_mean", "--skip-continuous-batching"]
    found = compare(root, *kind, *sizes, *where)
    assert found.returncode == 0, found.stderr
    measured = json.loads(out.read_text())
    update, whole = measured["update_only"], measured["end_to_end"]
    losses = [[step["losses"]["loss"] for step in update["warm"][side]] for side in ("ours", "trl")]
    assert abs(losses[0][0]) > 1e-4
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert update["gradient"]["cosine"] >= 1 - 1e-6
    assert update["gradient"]["relative_difference"] < 1e-4
    assert update["gradient"]["parameters_shared"] == update["gradient"]["parameters_ours"] > 0
    assert whole["ratio"] > 0
    lines = found.stdout.splitlines()
    assert f"ratio: {whole['ratio']:.2f}" in lines
    assert any(line.startswith("share of the floor: ") for line in lines)
