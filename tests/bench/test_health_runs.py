"""Health of real runs: stored series of the quickstart, and runs that finish, fail, diverge and resume."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from bench import checkpoint, store
from bench.account import account
from bench.config import Run
from bench.health import Finding, health_of
from bench.train import execute

MakeRun = Callable[..., Run]
VALIDATED = {"validation": {"problems": 100, "samples": 4}, "rollout": {"group_size": 16}}


@pytest.fixture(scope="module")
def stored(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Metrics of two runs of `make quickstart`, PPO with seed 0 and DPO with seed 1, to five digits."""
    return json.loads((root / "tests/bench/golden/health_series.json").read_text(encoding="utf-8"))


def answers(lines: list[dict[str, Any]]) -> dict[str, Finding]:
    return {found.name: found for found in health_of(lines, VALIDATED)}


def test_a_run_with_a_critic_that_explains_nothing(stored: dict[str, list[dict[str, Any]]]) -> None:
    """Thirty rollouts: the last quarter is the last eight, the quarter before the seven rollouts before these."""
    lines = stored["ppo"]
    found = answers(lines)
    assert {name: one.answer for name, one in found.items() if one.answer != "not measured"} == {
        **{"reward": "yes", "all_right": "no", "all_wrong": "no", "tied": "no", "entropy": "no", "kl": "no"},
        **{"longer_wrong": "no", "longer_right": "no", "critic": "no"},
    }
    assert [name for name, one in found.items() if one.look] == ["critic"]
    explained = [line["value/explained_variance"] for line in lines if "value/explained_variance" in line]
    assert len(explained) == 30
    assert found["critic"].value == pytest.approx(fmean(explained[-8:]), abs=1e-3), "its returns vary alike throughout"
    entropy = [line["entropy"] for line in lines if "entropy" in line]
    assert found["entropy"].value == pytest.approx(fmean(entropy[45:]) / entropy[0])
    assert found["reward"].value == pytest.approx(lines[-1]["validation/pass@1"] - lines[0]["validation/pass@1"])
    assert found["verdict"].numbers == "the reward is the verdict"


def test_a_run_on_pairs_that_hardly_moved(stored: dict[str, list[dict[str, Any]]]) -> None:
    found = answers(stored["dpo"])
    assert {name: one.answer for name, one in found.items() if one.answer != "not measured"} == {
        "reward": "no",
        "pairs": "yes",
        "chosen": "no",
    }
    assert found["kl"].numbers == "not of this objective"


@pytest.mark.slow
def test_a_finished_run_leaves_its_health_and_its_account_ends_with_what_comes_next(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    run = tiny_run("ppo", **{"budget.updates": 16, "validation.every": 8, "validation.samples": 4})
    directory = tmp_path / "run"
    assert execute(run, directory).state == "finished"
    record = store.read_run(directory)
    written = json.loads((directory / "health.json").read_text())
    assert written["through_update"] == 16
    assert written["findings"] == json.loads(json.dumps([asdict(found) for found in record.health]))
    by_name = {found.name: found for found in record.health}
    assert by_name["reward"].metric == "validation/pass@1"
    assert {by_name[name].answer for name in ("critic", "entropy", "kl", "all_wrong")} <= {"yes", "no"}
    lines = account(record)
    assert lines[-3:] == [
        f"{directory}: finished",
        f"next: bench report {tmp_path}",
        f"      bench evaluate {directory} --samples 64",
    ]


@pytest.mark.slow
def test_a_resumed_run_has_the_health_of_one_that_was_not_stopped(
    tiny_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    """The stopped one writes its health too, of the updates that it has."""
    run = tiny_run("grpo", **{"budget.updates": 16, "checkpoint.every": 8})
    assert execute(run, tmp_path / "straight").state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    early = json.loads((tmp_path / "stopped/health.json").read_text())
    assert early["through_update"] == 8
    assert {found["answer"] for found in early["findings"][5:6]} == {"no"}
    assert execute(run, tmp_path / "stopped").state == "finished"
    assert (tmp_path / "stopped/health.json").read_bytes() == (tmp_path / "straight/health.json").read_bytes()


@pytest.mark.slow
def test_a_run_that_ends_badly_leaves_its_health(tiny_run: MakeRun, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    assert execute(tiny_run("grpo", **{"reward.correct": 1e-9}), directory).state == "failed"
    written = json.loads((directory / "health.json").read_text())
    assert written["look"] == []
    assert {found["answer"] for found in written["findings"]} == {"cannot be told", "not measured"}
    assert len(written["findings"]) == len(store.read_run(directory).health)
