"""Who differs from whom: two estimands with their labels, one family for Holm, and the set that ties with the best."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from bench import store
from bench.statistics import SEEDS, SEEDS_AND_PROBLEMS, crossed_p_value, holm, interval_for, t_p_value
from reports import comparison
from reports.parts.arms import arms_of
from reports.parts.pairs import compare
from reports.parts.table import Table, to_csv, to_markdown

NUM_PROBLEMS = 40


def tables(sweep: Path) -> dict[str, Table]:
    blocks = comparison.render(store.read_sweep(sweep)).blocks
    return {block.name.split("_")[0]: block for block in blocks if isinstance(block, Table)}


def scores(seed: int, shift: float, spread: float = 0.01) -> list[float]:
    """Pass@1 by problem: those of every arm around the same hard and easy problems, with noise of the seed's own."""
    rng = np.random.default_rng([seed, round(1000 * shift)])
    base = np.linspace(0.2, 0.6, NUM_PROBLEMS)
    return (base + shift + rng.normal(0, spread, NUM_PROBLEMS)).round(6).tolist()


def test_two_estimands_stand_in_every_cell_and_holm_over_all_pairs(tmp_path: Path, bare_run) -> None:
    """Adjusted p values equal Holm over 3 pairs x 3 measures; bold is what survives it for the second estimand."""
    of_arm = {"a": 0.0, "b": 0.004, "c": 0.2}
    rows = {name: [scores(seed, shift) for seed in range(3)] for name, shift in of_arm.items()}
    for name, seeds in rows.items():
        for seed, row in enumerate(seeds):
            bare_run(tmp_path, name, seed, {"test": {1: row, 8: row}})
    arms = arms_of(store.read_sweep(tmp_path))
    measures = [("pass", 1), ("pass", 8), ("maj", 8)]
    differences = {pair: np.array(rows[pair[0]]) - np.array(rows[pair[1]]) for pair in ("ab", "ac", "bc")}
    for estimand in (SEEDS, SEEDS_AND_PROBLEMS):
        expected = {pair: interval_for(difference, estimand) for pair, difference in differences.items()}
        raw = [t_p_value(expected[p]) if estimand == SEEDS else crossed_p_value(d) for p, d in differences.items()]
        adjusted = holm([p for _ in measures for p in raw])
        found = compare(arms, measures)
        assert [one.intervals[estimand] for one in found[:3]] == list(expected.values())
        assert [one.adjusted[estimand] for one in found] == pytest.approx(adjusted)
    table = tables(tmp_path)["comparison"]
    assert "3 pairs x 3 measures = 9 comparisons" in table.caption
    assert "these problems, new training seeds" in table.caption
    assert "new training seeds, new problems" in table.caption
    assert [row[1].bold for row in table.rows] == [False, True, True]
    assert all(len(row[1].details) == 2 for row in table.rows)
    assert "Told apart: a and c (Pass@1, Pass@8, Maj@8); b and c" in table.caption
    assert "| **-0.2" in to_markdown(table)
    records = list(csv.DictReader(io.StringIO(to_csv(table.records))))
    assert {record["seeds"] for record in records} == {"3"}
    assert all(0 <= float(record[f"{of}_adjusted_p"]) <= 1 for record in records for of in ("seeds", "crossed"))


def test_the_best_and_its_ties_are_named(tmp_path: Path, bare_run) -> None:
    """Four arms whose intervals overlap tie with the best; the fifth is below it, with its adjusted p."""
    for name, shift in {"a": 0.15, "b": 0.151, "c": 0.152, "d": 0.153, "far": 0.0}.items():
        for seed in range(3):
            bare_run(tmp_path, name, seed, {"test": {1: scores(seed, shift, 0.03)}})
    table = tables(tmp_path)["best"]
    (row,) = table.rows
    shown = dict(zip(table.columns, map(str, row), strict=True))
    everyone = {shown["Best"], *shown["Tied with the best"].split(", ")}
    assert everyone == {"a", "b", "c", "d"}
    assert shown["Below it"].startswith("far (p ")
    assert "Holm" in table.caption
    assert {record["arm"]: record["tied"] for record in table.records}["far"] is False


def test_both_tables_of_a_page_agree_on_the_p_value(tmp_path: Path, bare_run) -> None:
    """With one measure both families hold all pairs; two seeds, where a t distribution at 95 % is furthest off."""
    for name, shift in {"a": 0.0, "b": 0.05, "c": 0.2}.items():
        for seed in range(2):
            bare_run(tmp_path, name, seed, {"test": {1: scores(seed, shift, 0.03)}})
    found = tables(tmp_path)
    adjusted = {(r["first"], r["second"]): r["crossed_adjusted_p"] for r in found["comparison"].records}
    assert "with 2 seeds" in found["comparison"].caption
    of_best = {r["arm"]: r["adjusted_p"] for r in found["best"].records}
    assert of_best == {"a": pytest.approx(adjusted["a", "c"]), "b": pytest.approx(adjusted["b", "c"])}


def test_seeds_that_agree_are_no_certainty(tmp_path: Path, bare_run) -> None:
    """Three seeds with one difference each, .1: no interval over seeds, no p value, never bold, and it says why."""
    for seed in range(3):
        base = np.round(np.random.default_rng(seed).random(NUM_PROBLEMS), 2) * 0.5
        wave = np.where(np.arange(NUM_PROBLEMS) % 2, 0.05, -0.05)
        bare_run(tmp_path, "a", seed, {"test": {1: (base + 0.2 + wave).round(6).tolist()}})
        bare_run(tmp_path, "b", seed, {"test": {1: (base + 0.1).round(6).tolist()}})
    table = tables(tmp_path)["comparison"]
    cell = table.rows[0][1]
    assert cell.details[0] == "n/a*"
    assert not cell.bold
    assert "all 3 values are equal, which does not make the mean certain: no interval" in table.caption
    assert np.isnan(table.records[0]["seeds_adjusted_p"])


def test_one_common_seed_is_two_checkpoints(tmp_path: Path, bare_run) -> None:
    """Differences .3, .1, .2 over three problems: mean .2, half width t(2) * .1 / sqrt(3); never bold."""
    bare_run(tmp_path, "a", 0, {"test": {1: [0.55, 0.6, 0.95]}})
    bare_run(tmp_path, "b", 0, {"test": {1: [0.25, 0.5, 0.75]}})
    (one,) = compare(arms_of(store.read_sweep(tmp_path)), [("pass", 1)])
    (interval,) = one.intervals.values()
    assert (interval.mean, interval.half_width) == pytest.approx((0.2, 4.302653 * 0.1 / np.sqrt(3)), rel=1e-5)
    found = tables(tmp_path)
    cell = found["comparison"].rows[0][1]
    assert cell.details[-1] == "checkpoint-level only"
    assert not cell.bold
    assert "checkpoint-level only" in found["comparison"].caption
    assert "compared as checkpoints only" in found["best"].caption


def test_equal_arms_and_arms_without_common_seeds(tmp_path: Path, bare_run) -> None:
    """The same scores are not told apart; without a common seed there is no difference, and it counts in the family."""
    for seed in (0, 1):
        for name in ("a", "b"):
            bare_run(tmp_path, name, seed, {"test": {1: scores(seed, 0.0)}})
    bare_run(tmp_path, "c", 9, {"test": {1: scores(9, 0.0)}})
    found = tables(tmp_path)
    assert "No pair is told apart at this size." in found["comparison"].caption
    assert "3 pairs x 1 measure = 3 comparisons" in found["comparison"].caption
    shown = {row[0].text: str(row[1]) for row in found["comparison"].rows}
    assert shown["a - b"].startswith("+0.000")
    assert shown["a - c"] == shown["b - c"] == "n/a"
    assert "no two problems differ" in found["comparison"].caption
    assert "not comparable: " in str(found["best"].rows[0][3])


def test_other_problems_are_not_compared(tmp_path: Path, bare_run) -> None:
    bare_run(tmp_path, "a", 0, {"test": {1: [0.5, 0.25, 0.5]}})
    bare_run(tmp_path, "b", 0, {"test": {1: [0.5, 0.25]}})
    assert str(tables(tmp_path)["comparison"].rows[0][1]) == "n/a"


def test_of_many_pairs_those_with_a_best_arm_are_shown(tmp_path: Path, bare_run) -> None:
    """Eight arms are 28 pairs: the page has the 7 with the best one, the CSV file all."""
    for index in range(8):
        bare_run(tmp_path, f"arm{index}", 0, {"test": {1: scores(0, 0.01 * index, 0.0)}})
    table = tables(tmp_path)["comparison"]
    assert len(table.rows) == 7
    assert all("arm7" in row[0].text for row in table.rows)
    assert len(table.records) == 28
    assert "Shown: the 7 of 28 pairs" in table.caption


def test_bold_needs_both_estimands(tmp_path: Path, bare_run) -> None:
    """Two seeds, .100 and .106 apart: with the problems that is significant, two seeds by themselves do not suffice."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.1, NUM_PROBLEMS)
    noise -= noise.mean()
    for seed, shift in ((0, 0.100), (1, 0.106)):
        base = rng.normal(0, 0.05, NUM_PROBLEMS)
        for name, row in {"a": 0.5 + base, "b": 0.5 + base - shift + noise, "c": 0.5 + base - 2 * shift}.items():
            bare_run(tmp_path, name, seed, {"test": {1: row.round(6).tolist()}})
    one = compare(arms_of(store.read_sweep(tmp_path)), [("pass", 1)])[0]
    assert (one.first, one.second) == ("a", "b")
    assert one.adjusted[SEEDS_AND_PROBLEMS] <= 0.05 < one.adjusted[SEEDS]
    assert not tables(tmp_path)["comparison"].rows[0][1].bold
