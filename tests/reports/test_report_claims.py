"""Claims on Pass@K and Maj@K follow from their intervals, and null results are never read from silence."""

from pathlib import Path

import numpy as np
import pytest

from bench import store
from bench.statistics import problems_band
from reports import pass_maj
from reports.parts.arms import arms_of
from reports.parts.curve_table import change_band
from reports.parts.figure import Figure
from reports.parts.table import Table

NUM_PROBLEMS = 60
KS = (1, 4, 16)


def curve(levels: tuple[float, float, float], spread: float, seed: int) -> dict[int, list[float]]:
    """Pass@K of each problem around the given means, by K."""
    noise = np.random.default_rng(seed).normal(0, spread, NUM_PROBLEMS)
    noise -= noise.mean()
    return {k: (level + noise).round(6).tolist() for k, level in zip(KS, levels, strict=True)}


def scattered(levels: tuple[float, float, float], spread: float, seed: int) -> dict[int, list[float]]:
    """The same with noise of its own at each K."""
    return {k: curve(levels, spread, seed + 100 * k)[k] for k in KS}


def claims(tmp_path: Path, bare_run, finals: list[dict[int, list[float]]]) -> dict[str, str]:
    start = curve((0.3, 0.6, 0.8), 0.05, 99)
    for seed, final in enumerate(finals):
        bare_run(tmp_path, "grpo", seed, {"start": start, "test": final})
    blocks = pass_maj.render(store.read_sweep(tmp_path)).blocks
    table = next(block for block in blocks if isinstance(block, Table) and block.name.startswith("claims"))
    return {**dict(zip(table.columns, map(str, table.rows[0]), strict=True)), "caption": table.caption} | {
        key: str(value) for key, value in table.records[0].items()
    }


@pytest.mark.parametrize(
    ("last", "spread", "verdict", "words"),
    [
        (0.9, 0.06, "improved", "Pass@16 improved (+10.0 points"),
        (0.7, 0.06, "decreased", "Pass@16 decreased (-10.0 points"),
        (0.8, 0.05, "equivalent", "Pass@16 is equivalent within +-2 points"),
        (0.8, 0.30, "inconclusive", "Pass@16 is inconclusive: the minimum detectable effect here is"),
    ],
)
def test_each_verdict(tmp_path: Path, bare_run, last: float, spread: float, verdict: str, words: str) -> None:
    shown = claims(tmp_path, bare_run, [curve((0.5, 0.7, last), spread, seed) for seed in (0, 1, 2)])
    assert shown["pass_verdict"] == verdict
    assert words in shown["Claim"]
    assert "Maj@16 " in shown["Claim"]
    assert "new training seeds, new problems" in shown["Claim"]
    assert "margin of 2 points" in shown["caption"]


def test_one_seed_claims_nothing_of_other_seeds(tmp_path: Path, bare_run) -> None:
    shown = claims(tmp_path, bare_run, [curve((0.5, 0.7, 0.9), 0.06, 0)])
    assert "checkpoint-level only" in shown["Claim"]


def test_the_crossover_lies_between_the_k_where_the_sign_turns(tmp_path: Path, bare_run) -> None:
    """+.2 at 1, +.1 at 4, -.1 at 16: halfway between 4 and 16 on the log scale is 8; no resample fails to cross."""
    shown = claims(tmp_path, bare_run, [curve((0.5, 0.7, 0.7), 0.05, seed) for seed in (0, 1, 2)])
    assert float(shown["crossover_star"]) == pytest.approx(8.0, rel=1e-4)
    assert shown["Crossover K*"].startswith("8.0 [")
    assert shown["Crossover K*"].endswith("ahead below it")
    assert (shown["No crossing"], shown["Other way round"]) == ("0 %", "0 %")


def test_resamples_that_cross_the_other_way_are_counted(tmp_path: Path, bare_run) -> None:
    """The interval of K* leaves them out, so their share stands beside it and the caption says so."""
    shown = claims(tmp_path, bare_run, [scattered((0.33, 0.6, 0.77), 0.4, seed) for seed in (0, 1, 2)])
    share = float(shown["crossover_share_other_direction"])
    assert 0.02 < share < 0.6
    assert shown["Other way round"] == f"{100 * share:.0f} %"
    assert "among resamples that cross this way or not at all" in shown["caption"]


def test_a_change_that_nothing_varies_is_not_called_equivalent(tmp_path: Path, bare_run) -> None:
    """Solved before and after: no spread, no interval, and no claim that nothing changed."""
    solved = {k: [1.0] * NUM_PROBLEMS for k in KS}
    for seed in (0, 1, 2):
        bare_run(tmp_path, "grpo", seed, {"start": solved, "test": solved})
    blocks = pass_maj.render(store.read_sweep(tmp_path)).blocks
    table = next(block for block in blocks if isinstance(block, Table) and block.name.startswith("claims"))
    assert table.records[0]["pass_verdict"] == "inconclusive"
    assert "Pass@16 is inconclusive: no two problems differ" in str(table.rows[0][1])
    levels, changes = (block for block in blocks if isinstance(block, Figure))
    assert "at some K all 3 seeds are equal" in levels.caption
    assert "no two problems differ" in changes.caption
    for figure in (levels, changes):  # without bounds there is still a line to draw
        canvas = figure.draw()
        assert any(len(axes.lines) for axes in canvas.axes)
        canvas.savefig(tmp_path / "drawn.svg")


def test_no_crossing_is_said(tmp_path: Path, bare_run) -> None:
    shown = claims(tmp_path, bare_run, [curve((0.5, 0.7, 0.9), 0.05, seed) for seed in (0, 1)])
    assert (shown["Crossover K*"], shown["No crossing"]) == ("none K = 1 to 16", "100 %")
    assert shown["crossover_star"] == "nan"


def test_bands_are_simultaneous_and_labelled(tmp_path: Path, bare_run) -> None:
    """The band of the change is that of the statistics, wider than the interval at one K, and the caption says so."""
    start, final = curve((0.3, 0.6, 0.8), 0.05, 99), curve((0.5, 0.7, 0.9), 0.1, 3)
    bare_run(tmp_path, "grpo", 0, {"start": start, "test": final})
    (arm,) = arms_of(store.read_sweep(tmp_path))
    band = change_band(arm, "pass", KS)
    expected = problems_band(np.stack([np.array(final[k]) - np.array(start[k]) for k in KS], axis=1))
    assert band is not None
    np.testing.assert_array_equal(band.low, expected.low)
    blocks = pass_maj.render(arm.runs).blocks
    record = next(r for b in blocks if isinstance(b, Table) and b.name.startswith("curves") for r in b.records[::-1])
    assert record["band_low"] < record["change_low"] < record["change_high"] < record["band_high"]
    captions = [block.caption for block in blocks if isinstance(block, Figure)]
    assert len(captions) == 2
    assert all("simultaneous over all K" in caption for caption in captions)


def test_identical_samples_have_no_curve(tmp_path: Path, bare_run, set_manifest) -> None:
    """Greedy decoding with several samples: only Pass@1 is shown, which the others would repeat."""
    run = bare_run(tmp_path, "grpo", 0, {name: {1: [0.0, 1.0], 8: [0.0, 1.0]} for name in ("start", "test")})
    for name in ("start", "test"):
        set_manifest(run, name, identical=True, temperature=0.0)
    blocks = pass_maj.render(store.read_sweep(tmp_path)).blocks
    assert not [block for block in blocks if isinstance(block, Figure)]
    (table,) = [block for block in blocks if isinstance(block, Table)]
    assert "Pass@1 " in str(table.rows[0][1])
    assert "Pass@8" not in str(table.rows) + table.caption
