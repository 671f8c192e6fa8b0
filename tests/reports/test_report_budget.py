"""What was spent and who differs from whom, on scores and counters written by hand."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench import store
from bench.statistics import crossed_difference
from reports import budget, comparison
from reports.parts.arms import arms_of
from reports.parts.table import Table


def test_the_budget_is_the_last_value_of_each_counter(tmp_path: Path, make_run) -> None:
    """Completions over group size are prompts; validation's seconds are nobody's budget."""
    run = make_run(tmp_path, "grpo", 0)
    for name in ("metrics.jsonl", "timings.jsonl"):
        (run / name).unlink()
    store.append_jsonl(run / "metrics.jsonl", {"update": 0, "validation/pass@1": 0.5})
    counters = {"tokens/generated": 700, "completions/generated": 64, "tokens/trained": 650}
    store.append_jsonl(run / "metrics.jsonl", {"update": 1, **counters})
    store.append_jsonl(run / "metrics.jsonl", {"update": 2, "tokens/trained": 1300})
    store.append_jsonl(run / "timings.jsonl", {"update": 1, "seconds": {"rollout": 1.5, "validation": 9.0}})
    store.write_yaml(run / "run.yaml", {**store.read_run(run).run, "rollout": {"group_size": 16}})
    assert budget.spent(store.read_run(run)) == {
        "updates": 2,
        "prompts": 4,
        "completions": 64,
        "generated_tokens": 700,
        "trained_tokens": 1300,
        "training_seconds": 1.5,
    }


def test_seeds_that_differ_show_their_range(tmp_path: Path, make_run) -> None:
    """Mean 800 between 700 and 900; both made 60 updates; without a group size prompts are not known."""
    for seed, tokens in ((0, 700), (1, 900)):
        run = make_run(tmp_path, "grpo", seed)
        store.append_jsonl(run / "metrics.jsonl", {"update": 60, "tokens/generated": tokens})
    (table,) = [block for block in budget.render(store.read_sweep(tmp_path)).blocks if isinstance(block, Table)]
    shown = dict(zip(table.columns, map(str, table.rows[0]), strict=True))
    assert (shown["Updates"], shown["Tokens generated"], shown["Prompts sampled"]) == ("60", "800 700 to 900", "n/a")
    assert "Equal updates are not equal samples" in table.caption


def test_pairs_are_compared_by_seed_and_problem(tmp_path: Path, make_run, set_scores) -> None:
    """GRPO beats DAPO by .1 on every problem and seed: the interval is that point, and the pair is told apart."""
    for seed in (0, 1):
        for algorithm, shift in (("grpo", 0.1), ("dapo", 0.0)):
            run = make_run(tmp_path, algorithm, seed)
            set_scores(run, "test", {1: list(np.array([0.25, 0.5, 0.75]) + shift)})
    arms = {arm.algorithm: arm for arm in arms_of(store.read_sweep(tmp_path))}
    found = comparison.difference(arms["grpo"], arms["dapo"], "pass", 1)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    (table,) = [block for block in comparison.render(store.read_sweep(tmp_path)).blocks if isinstance(block, Table)]
    assert "Intervals that exclude 0: DAPO and GRPO (Pass@1)" in table.caption
    assert "no correction for several comparisons" in table.caption
    assert "about 90 %" in table.caption
    assert "checkpoint-level only" not in str(table.rows) + table.caption


def test_a_difference_is_the_crossed_one_of_the_statistics(tmp_path: Path, make_run) -> None:
    """And a pair whose interval holds 0 is not told apart."""
    for seed in (0, 1, 2):
        for algorithm in ("grpo", "dapo"):
            make_run(tmp_path, algorithm, seed)
    dapo, grpo = arms_of(store.read_sweep(tmp_path))
    ones, others = ([run.estimates("test") for run in arm.finished] for arm in (dapo, grpo))
    ids, stacked = ones[0].problem_id, [np.array([one.maj_at(16) for one in side]) for side in (ones, others)]
    expected = crossed_difference(ids, stacked[0], ids, stacked[1]).interval
    assert comparison.difference(dapo, grpo, "maj", 16) == expected
    for run in store.read_sweep(tmp_path):
        for suffix in ("estimates.parquet", "json"):
            shutil.copy(run.directory / "eval" / f"start.{suffix}", run.directory / "eval" / f"test.{suffix}")
    (table,) = [block for block in comparison.render(store.read_sweep(tmp_path)).blocks if isinstance(block, Table)]
    assert "No pair is told apart at this size." in table.caption
    assert "Pairs: 1, intervals: 3" in table.caption


def test_one_common_seed_is_two_checkpoints(tmp_path: Path, make_run, set_scores) -> None:
    """Differences .3, .1, .2 over three problems: mean .2, half width t(2) * .1 / sqrt(3)."""
    for algorithm, scores in (("grpo", [0.55, 0.6, 0.95]), ("dapo", [0.25, 0.5, 0.75])):
        set_scores(make_run(tmp_path, algorithm, 0), "test", {1: scores})
    first, second = (arm for arm in arms_of(store.read_sweep(tmp_path)))
    found = comparison.difference(second, first, "pass", 1)
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.half_width == pytest.approx(4.302653 * 0.1 / np.sqrt(3), rel=1e-5)
    (table,) = [block for block in comparison.render(store.read_sweep(tmp_path)).blocks if isinstance(block, Table)]
    assert table.rows[0][1].details[1] == "checkpoint-level only"
    assert "about 90 %" not in table.caption


def test_both_tables_are_in_the_report(built: Path) -> None:
    for name in ("budget", "comparison"):
        (path,) = (built / "tables").glob(f"{name}_*.csv")
        with path.open() as file:
            assert list(csv.DictReader(file))
