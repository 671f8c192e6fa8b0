"""Shared stages: made once, found by content, and honest when they fail."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import checkpoint
from bench.config import Run
from bench.evaluations import prepare
from bench.models import load_folder
from bench.prepare import MARKER, PreparationFailed, cached, start_content, starting_model
from bench.train import execute

MakeRun = Callable[..., Run]


def test_one_of_many_makes_and_the_others_wait(tmp_path: Path) -> None:
    """Eight threads ask for one content at once: one makes it, all get the same whole folder."""
    made: list[int] = []
    barrier = threading.Barrier(8)

    def make(folder: Path) -> dict[str, Any]:
        made.append(1)
        (folder / "weights").write_text("w")
        return {"updates": 3}

    def ask() -> None:
        barrier.wait()
        folders.append(cached(tmp_path, "kind", {"a": 1}, make))

    folders: list[Path] = []
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert len(set(folders)) == 1
    marker = json.loads((folders[0] / MARKER).read_text())
    assert marker == {"content": {"a": 1}, "updates": 3, "sizes": {"weights": 1}}


def test_a_stage_that_failed_half_way_is_made_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("x")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cached(tmp_path, "kind", {"a": 1}, fail)
    folder = cached(tmp_path, "kind", {"a": 1}, lambda folder: {})
    assert not (folder / "half").exists()


def test_runs_that_differ_only_in_objective_seed_or_rate_share_the_start(tiny_run: MakeRun) -> None:
    runs = [tiny_run("grpo"), tiny_run("dapo", seed=5), tiny_run("dpo", **{"optimizer.lr": 1e-5, "budget.updates": 8})]
    assert len({json.dumps(start_content(run), sort_keys=True) for run in runs}) == 1
    other = tiny_run("grpo", **{"warm_start.seed": 1})
    assert start_content(other) != start_content(runs[0])


def test_the_warm_start_reaches_its_accuracy_and_is_the_same_each_time(tiny_run: MakeRun, tmp_path: Path) -> None:
    first = starting_model(tiny_run("grpo"))
    assert first.about["checks"][-1]["pass@1"] >= 0.2
    assert all(check["pass@1"] < 0.2 for check in first.about["checks"][:-1])
    elsewhere = tiny_run("grpo", **{"output.cache": str(tmp_path / "other")})
    again = starting_model(elsewhere)
    assert checkpoint.weights_digest(again.model.network) == checkpoint.weights_digest(first.model.network)
    folder = next((tmp_path / "other/warm_start").glob("*/model"))
    reloaded = load_folder(folder, "plain")
    assert checkpoint.weights_digest(reloaded.network) == checkpoint.weights_digest(first.model.network)
    assert reloaded.encode_completion("7") == first.model.encode_completion("7")


def test_a_warm_start_that_does_not_get_there_says_what_to_change(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run(
        "grpo", **{"warm_start.max_updates": 2, "warm_start.stop_at_pass_at_1": 0.9, "output.cache": str(tmp_path)}
    )
    with pytest.raises(PreparationFailed, match=r"stop_at_pass_at_1: 0.9 was not reached in 2 updates \(best 0\.\d+\)"):
        starting_model(run)
    assert execute(run, tmp_path / "run").state == "failed"


def test_prepare_makes_start_evaluation_and_tracker_once(tiny_run: MakeRun, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    runs = [tiny_run(algorithm, **{"output.cache": str(cache)}) for algorithm in ("grpo", "dapo", "dpo")]
    prepare(runs)
    made = sorted(cache.glob(f"*/*/{MARKER}"))
    assert [path.parent.parent.name for path in made] == ["start_evaluation", "warm_start"]
    times = [path.stat().st_mtime_ns for path in made]
    prepare(runs)
    assert [path.stat().st_mtime_ns for path in made] == times
