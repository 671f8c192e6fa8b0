"""Learning curves, memory and throughput show what was recorded, and n/a where nothing was."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench import store
from reports import learning_curves, memory, throughput
from reports.parts.arms import arms_of
from reports.parts.curves import Curve, average, curve, smooth, window
from reports.parts.table import Table


def rows(page, name: str) -> dict[str, dict[str, str]]:
    of = next(block for block in page.blocks if isinstance(block, Table) and block.name.startswith(name))
    return {cells[0].text: dict(zip(of.columns, map(str, cells), strict=True)) for cells in of.rows}


def test_a_running_mean_is_centred_and_shifts_nothing():
    line = np.arange(7.0)
    np.testing.assert_allclose(smooth(line, 5), line)
    np.testing.assert_allclose(smooth(np.array([0.0, 0.0, 3.0, 0.0, 0.0]), 3), [0, 1, 1, 1, 0])
    assert [window("entropy", n) for n in (10, 60, 1000)] == [1, 5, 83]
    assert window("validation/pass@1", 1000) == 1


def test_curves_are_averaged_where_all_of_them_are():
    paired = average(
        [Curve(np.array([0.0, 4.0, 8.0]), np.zeros(3)), Curve(np.array([0.0, 6.0, 12.0]), np.full(3, 2.0))]
    )
    np.testing.assert_allclose([paired.x, paired.y], [[0, 5, 8], [1, 1, 1]])
    long, short = np.array([0.0, 5.0, 10.0]), np.array([2.0, 8.0])
    mean = average([Curve(long, long), Curve(short, short + 2)])
    assert (mean.x[0], mean.x[-1]) == (2.0, 8.0)
    np.testing.assert_allclose(mean.y, mean.x + 1)
    point = average([Curve(np.array([3.0]), np.array([0.2])), Curve(np.array([5.0]), np.array([0.4]))])
    np.testing.assert_allclose([point.x, point.y], [[4.0], [0.3]])


def test_tokens_are_counted_up_to_the_update_that_recorded_the_metric(tmp_path: Path):
    path = tmp_path / "run"
    store.set_status(path, "finished", attempt=1)
    for record in (
        {"update": 0, "validation/pass@1": 0.1},
        {"update": 1, "tokens/generated": 1000, "entropy": 2.0},
        {"update": 2, "entropy": 1.0},
        {"update": 3, "tokens/generated": 3000, "entropy": None, "validation/pass@1": 0.3},
    ):
        store.append_jsonl(path / "metrics.jsonl", record)
    run = store.read_run(path)
    np.testing.assert_allclose(curve(run, "entropy", "updates").x, [1, 2])
    by_tokens = curve(run, "validation/pass@1", "tokens")
    np.testing.assert_allclose([by_tokens.x, by_tokens.y], [[0, 3], [0.1, 0.3]])


def test_an_algorithm_that_generates_before_training_is_one_point(tmp_path: Path):
    path = tmp_path / "run"
    store.set_status(path, "finished", attempt=1)
    for update, score in ((0, 0.1), (1, 0.2), (2, 0.3)):
        tokens = {"tokens/generated": 5000} if update else {}
        store.append_jsonl(path / "metrics.jsonl", {"update": update, "validation/pass@1": score, **tokens})
    run = store.read_run(path)
    point = curve(run, "validation/pass@1", "tokens")
    assert (point.x.tolist(), point.y.tolist()) == ([5.0], [0.3])
    assert curve(run, "validation/pass@1", "updates").x.tolist() == [0, 1, 2]


def test_seconds_leave_validation_out_and_count_lost_work(tmp_path: Path):
    """Pairs before the first update, an attempt that lost update 2, and a second start."""
    path = tmp_path / "run"
    store.set_status(path, "finished", attempt=2)
    for update in (0, 1, 2):
        store.append_jsonl(path / "metrics.jsonl", {"update": update, "validation/pass@1": update / 10})
    for update, seconds in ((0, 4.0), (1, 1.0), (2, 2.0), (0, 0.5), (2, 3.0)):
        record = {"update": update, "seconds": {"policy_update": seconds, "validation": 100.0}}
        store.append_jsonl(path / "timings.jsonl", record)
    one = curve(store.read_run(path), "validation/pass@1", "seconds")
    np.testing.assert_allclose([one.x, one.y], [[4.0, 5.0, 10.5], [0.0, 0.1, 0.2]])
    (path / "timings.jsonl").unlink()
    run = store.read_run(path)
    assert len(curve(run, "validation/pass@1", "seconds").x) == 0
    captions = [block.caption for block in learning_curves.render([run]).blocks]
    assert ["Runs without timings are not drawn: n/a." in caption for caption in captions] == [False, False, True]


def test_what_an_algorithm_does_not_record_is_named(sweep: Path):
    captions = [block.caption for block in learning_curves.render(store.read_sweep(sweep)).blocks]
    assert all("DPO (all but Validation Pass@1)" in caption for caption in captions)
    assert all("A cross: a run broke off there." in caption for caption in captions)
    assert "A single point: DPO, generated before training." in captions[1]
    assert ["it ends with the first of them" in caption for caption in captions] == [False, True, True]


def test_memory_that_is_not_known_is_not_zero(tmp_path: Path, make_run, sweep: Path):
    page = memory.render(store.read_sweep(sweep))
    peak, phases = rows(page, "memory_peak"), rows(page, "memory_phases")
    assert (peak["PPO"]["Critic"], peak["GRPO"]["Critic"], peak["PPO"]["Peak"]) == ("9.00", "n/a", "55.0")
    assert (phases["DPO"]["Rollout"], phases["GRPO"]["GPU allocated"], phases["GRPO"]["GPU reserved"]) == ("n/a",) * 3
    assert float(phases["GRPO"]["Process RSS"]) >= 612
    # One of two runs has no record: the other one speaks for the arm, and the caption says so.
    assert peak["DAPO"]["Peak"] == "43.0"
    assert "DAPO: 1 of 2" in page.blocks[0].caption
    (make_run(tmp_path, "grpo", 0) / "memory.json").unlink()
    alone = make_run(tmp_path, "ppo", 0) / "memory.json"
    store.write_json(alone, {**json.loads(alone.read_text()), "peak": None, "phases": {}})
    page = memory.render(store.read_sweep(tmp_path))
    assert set(rows(page, "memory_peak")["GRPO"].values()) == {"GRPO", "n/a"}
    assert rows(page, "memory_phases")["PPO"]["Process RSS"] != "n/a"


def test_seconds_by_phase_are_those_of_a_counted_update(tmp_path: Path, make_run):
    for seed, seconds in ((0, 30.0), (1, 50.0)):
        run = make_run(tmp_path, "grpo", seed)
        phases = {"rollout": {"seconds": seconds, "tokens": 100, "tokens_per_second": 1.0}}
        phases |= {"reward": {"seconds": 5.0, "tokens": None, "tokens_per_second": None}} if seed else {}
        record = json.loads((run / "throughput.json").read_text()) | {"phases": phases, "updates_counted": 10}
        store.write_json(run / "throughput.json", record | {"generated_tokens_per_second": 1000.0 * (seed + 1)})
    (arm,) = arms_of(store.read_sweep(tmp_path))
    assert throughput.seconds_per_update(arm) == pytest.approx({"rollout": 4.0, "reward": 0.25})
    page = throughput.render(arm.runs)
    assert rows(page, "throughput_rates")["GRPO"]["Generated tokens/s"] == "1,500 1,000 to 2,000"
    assert rows(page, "throughput_rates")["GRPO"]["Updates counted"] == "10"


def test_all_seconds_hold_start_up_metered_updates_and_lost_attempts(tmp_path: Path):
    path = tmp_path / "run"
    store.set_status(path, "diverged", attempt=2)
    for attempt, update, metered, seconds in [(1, 0, False, 2.0), (1, 1, True, 3.0), (2, 1, False, 4.0)]:
        record = {
            "attempt": attempt,
            "update": update,
            "metered": metered,
            "seconds": {"rollout": seconds, "pairs": 1.0},
        }
        store.append_jsonl(path / "timings.jsonl", record)
    page = throughput.render([store.read_run(path)])
    shown = rows(page, "throughput_seconds")["n/a"]
    assert (shown["Algorithm"], shown["All"], shown["Rollout"], shown["Pairs"]) == (
        "n/a diverged",
        "12.00",
        "9.00",
        "3.00",
    )
