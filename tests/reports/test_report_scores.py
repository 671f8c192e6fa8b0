"""Scores, changes and intervals equal what is computed by hand; runs without a score are shown, never averaged."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from bench import store
from bench.evaluation import write_estimates
from bench.statistics import SEEDS_AND_PROBLEMS, interval_for, problems_interval, t_interval
from reports import overview, pass_maj
from reports.parts.arms import arms_of
from reports.parts.checks import warnings_of
from reports.parts.scores import bracket, cautions, gain, score, score_over_problems
from reports.parts.table import Table


def table(page, name: str) -> Table:
    return next(block for block in page.blocks if isinstance(block, Table) and block.name.startswith(name))


def row(of: Table, name: str) -> dict[str, str]:
    found = next(cells for cells in of.rows if cells[0].text == name)
    return dict(zip(of.columns, map(str, found), strict=True))


def test_the_interval_over_seeds_is_students(tmp_path: Path, make_run, set_scores):
    for seed, mean in enumerate([0.50, 0.52, 0.48, 0.55, 0.45]):
        run = make_run(tmp_path, "grpo", seed)
        set_scores(run, "test", {1: [mean - 0.1, mean, mean + 0.1]})
    (arm,) = arms_of(store.read_sweep(tmp_path))
    interval = score(arm, "pass", 1)
    assert interval is not None
    assert (interval.mean, interval.n) == (pytest.approx(0.5), 5)
    assert interval.half_width == pytest.approx(0.0473, abs=5e-5)
    shown = row(table(overview.render(arm.runs), "results"), "GRPO")
    assert (shown["Seeds"], shown["Pass@1"]) == ("5 of 5", "0.500 [0.453, 0.547] [0.252, 0.748]*")


def test_the_change_is_paired_by_problem_and_not_by_position(tmp_path: Path, make_run, set_scores):
    for seed, final in enumerate([[0.5, 0.5, 0.5], [0.75, 0.5, 0.25]]):
        run = make_run(tmp_path, "grpo", seed)
        set_scores(run, "start", {1: [0.25, 0.5, 0.0]})
        set_scores(run, "test", {1: final})
        # The same evaluation with its problems in another order.
        path = run / "eval" / "test.estimates.parquet"
        shuffled = pyarrow.parquet.read_table(path).take([2, 0, 1])
        pyarrow.parquet.write_table(shuffled, path)
    (arm,) = arms_of(store.read_sweep(tmp_path))
    # By problem, over seeds: .625 - .25, .5 - .5, .375 - 0. Standard deviation sqrt(3/64), t(2) = 4.3027.
    problems = gain(arm, "pass", 1)["problems"]
    assert problems.mean == pytest.approx(0.25)
    assert problems.half_width == pytest.approx(4.302653 * np.sqrt(3 / 64) / np.sqrt(3), rel=1e-5)
    changes = np.array([[0.25, 0.0, 0.5], [0.5, 0.0, 0.25]])
    assert gain(arm, "pass", 1)["crossed"] == interval_for(changes, SEEDS_AND_PROBLEMS)
    shown = row(table(overview.render(arm.runs), "change"), "GRPO")
    assert shown["Change in Pass@1"].startswith("+0.250 [-0.288, +0.788]* [")


def test_one_seed_gives_a_mean_and_no_interval_over_seeds(sweep: Path):
    page = overview.render(store.read_sweep(sweep))
    dpo = row(table(page, "results"), "DPO")
    assert dpo["Seeds"] == "1 of 1"
    assert " n/a (n=1) [" in dpo["Pass@1"]
    assert row(table(page, "change"), "DPO")["Change in Maj@16"].endswith(" n/a (n=1)")
    record = next(r for r in table(page, "change").records if r["arm"] == "DPO")
    assert "problems_low" in record
    assert "crossed_low" not in record


def test_runs_that_did_not_finish_are_counted_and_never_averaged(sweep: Path, tmp_path: Path, make_run):
    runs = store.read_sweep(sweep)
    shown = row(table(overview.render(runs), "results"), "PPO")
    (finished,) = [run for run in runs if run.algorithm == "ppo" and run.status.state == "finished"]
    estimates = finished.estimates("test")
    assert estimates is not None
    problems = problems_interval(estimates.pass_at(1))
    low, high = problems.low, problems.high
    assert shown["Seeds"] == "1 of 2 (1 diverged)"
    assert shown["Pass@1"] == f"{estimates.pass_at(1).mean():.3f} n/a (n=1) [{low:.3f}, {high:.3f}]"
    assert any(
        "PPO on chain_sum, seed 1: diverged, loss is not finite at update 24" in line for line in warnings_of(runs)
    )
    for seed, state in enumerate(("failed", "oom")):
        make_run(tmp_path, "grpo", seed, state=state)
    shown = row(table(overview.render(store.read_sweep(tmp_path)), "results"), "GRPO")
    assert (shown["Seeds"], shown["Pass@1"]) == ("0 of 2 (1 failed, 1 oom)", "failed/oom")


def test_too_few_samples_for_a_k_is_not_a_number(tmp_path: Path, make_run, set_scores):
    run = make_run(tmp_path, "grpo", 0)
    set_scores(run, "test", {1: [0.5, 0.25], 16: [0.9, float("nan")]})
    shown = row(table(overview.render(store.read_sweep(tmp_path)), "results"), "GRPO")
    assert shown["Pass@16"] == "n/a too few samples"
    assert shown["Pass@1"] == "0.375 n/a (n=1) [0.000, 1.000]*"


def test_a_problem_that_nobody_could_grade_costs_the_others_no_score(tmp_path: Path, make_run):
    run = make_run(tmp_path, "grpo", 0)
    found = store.read_run(run).estimates("test")
    assert found is not None
    before = row(table(overview.render(store.read_sweep(tmp_path)), "results"), "GRPO")["Pass@1"]
    lost = {name: getattr(found, name).copy() for name in ("n", "c", "passes", "majorities", "tied")}
    lost["n"][0] = lost["c"][0] = 0
    for name in ("passes", "majorities", "tied"):
        lost[name][0] = np.nan
    write_estimates(run / "eval/test.estimates.parquet", replace(found, **lost))
    shown = row(table(overview.render(store.read_sweep(tmp_path)), "results"), "GRPO")["Pass@1"]
    assert float(shown.split()[0]) == pytest.approx(found.pass_at(1)[1:].mean(), abs=6e-4)
    assert shown.split()[0] != before.split()[0]


def test_few_samples_are_a_warning_in_every_caption(tmp_path: Path, make_run, sweep: Path):
    make_run(tmp_path, "grpo", 0, samples=32)
    for render in (overview.render, pass_maj.render):
        few = [block.caption for block in render(store.read_sweep(tmp_path)).blocks if hasattr(block, "caption")]
        enough = [block.caption for block in render(store.read_sweep(sweep)).blocks if hasattr(block, "caption")]
        assert all("Caution: 32 samples are fewer than 4 x 16" in caption for caption in few)
        assert not any("fewer than 4 x" in caption for caption in enough)
        assert all("100 problems, 64 samples each; seeds evaluated: DAPO, Dr. GRPO, GRPO: 2 of 2" in c for c in enough)


def test_different_starting_models_are_not_mixed(tmp_path: Path, make_run, set_scores):
    set_scores(make_run(tmp_path, "dapo", 0), "start", {1: [0.1, 0.3]})
    set_scores(make_run(tmp_path, "grpo", 0), "start", {1: [0.2, 0.2]})
    runs = store.read_sweep(tmp_path)
    names = [cells[0].text for cells in table(overview.render(runs), "results").rows]
    assert names == ["Starting model 1 (DAPO)", "Starting model 2 (GRPO)", "DAPO", "GRPO"]
    warnings = warnings_of(runs)
    assert "On chain_sum the starting models differ, or they were evaluated differently." in warnings
    # Two problems against the hundred of the final models: no change can be given.
    assert row(table(overview.render(runs), "change"), "DAPO")["Change in Pass@1"] == "n/a"
    assert any("met different problems" in line for line in warnings)


def test_bit_equal_seeds_are_suspicious(tmp_path: Path, make_run, sweep: Path):
    first, second = make_run(tmp_path, "grpo", 0), make_run(tmp_path, "grpo", 1)
    shutil.copy(first / "metrics.jsonl", second / "metrics.jsonl")
    (warning,) = warnings_of(store.read_sweep(tmp_path))
    assert warning.startswith("On chain_sum the metrics of GRPO are bit-equal (seeds 0, 1): the seed had no effect")
    assert not any("bit-equal" in line for line in warnings_of(store.read_sweep(sweep)))


def test_runs_of_different_code_are_told_apart(tmp_path: Path, make_run):
    make_run(tmp_path, "dapo", 0)
    changed = make_run(tmp_path, "grpo", 0)
    store.write_json(changed / "provenance.json", {"git_commit": "0" * 40, "git_dirty": True})
    runs = store.read_sweep(tmp_path)
    warning = "The runs were made by different code: 0000000000; 0000000000 with uncommitted changes."
    assert warnings_of(runs) == [warning]
    assert "2 finished. Made by commit 0000000000;" in overview.render(runs).blocks[0].text


def test_damage_and_unequal_seeds_are_reported(tmp_path: Path, make_run):
    run = make_run(tmp_path, "dapo", 0)
    make_run(tmp_path, "grpo", 1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"update": 61, "lo')
    warnings = warnings_of(store.read_sweep(tmp_path))
    assert warnings == [
        "On chain_sum the means are over different seeds (DAPO: 0; GRPO: 1).",
        f"{run.name}/metrics.jsonl, line 62: not a JSON object, skipped.",
    ]


def test_an_interval_over_seeds_counts_seeds_and_one_over_problems_problems(tmp_path: Path, bare_run):
    """Three seeds of 500 problems: Student's t over three means; apart from it, the spread of the problems' means."""
    scores = np.random.default_rng(4).uniform(0, 1, (3, 500)).round(6)
    for seed, row_of_seed in enumerate(scores):
        bare_run(tmp_path, "grpo", seed, {"test": {1: row_of_seed.tolist()}})
    (arm,) = arms_of(store.read_sweep(tmp_path))
    over_seeds, over_problems = score(arm, "pass", 1), score_over_problems(arm, "pass", 1)
    assert over_seeds is not None
    assert over_problems is not None
    assert (over_seeds.n, over_problems.n) == (3, 500)
    assert over_seeds.half_width == pytest.approx(4.302653 * scores.mean(axis=1).std(ddof=1) / np.sqrt(3), rel=1e-6)
    assert over_problems == problems_interval(scores.mean(axis=0))
    shown = row(table(overview.render(arm.runs), "results"), "grpo")
    assert shown["Seeds"] == "3 of 3"
    low, high = over_problems.low, over_problems.high
    assert shown["Pass@1"].endswith(f" [{low:.3f}, {high:.3f}]")


def test_cautions_are_said_once_with_the_worst_number():
    """Two of one kind become one sentence; what covers as it should is not spoken of."""
    plain = t_interval([0.1, 0.2])
    texts = ("rests on about 12 problems", "rests on about 3 problems", "two seeds")
    marked = [replace(plain, caution=text) for text in texts]
    assert cautions([plain, None, *marked]) == "Caution (*): rests on as few as 3 problems; two seeds."
    assert cautions([plain]) == ""
    one = replace(plain, caution="rests on about 1 problem; two seeds")
    assert cautions([one, *marked]) == "Caution (*): rests on as few as 1 problem; two seeds."
    assert bracket(t_interval([0.1, 0.1])) == "n/a*"
    assert bracket(t_interval([0.1])) == "n/a"
    assert [bracket(one) for one in (plain, marked[0])] == ["[-0.485, 0.785]", "[-0.485, 0.785]*"]
