"""Only runs that differ in nothing but the seed are averaged, and arms are named by what sets them apart."""

from pathlib import Path
from typing import Any

from bench import store
from reports import formulas, settings
from reports.parts.arms import arms_of
from reports.parts.figure import DASHES, styles
from reports.parts.table import Cell, Table, cells, number, to_csv, to_text
from reports.readme import fill


def write(sweep: Path, name: str, **config: Any) -> None:
    store.write_yaml(sweep / name / "run.yaml", config)
    store.set_status(sweep / name, "finished", attempt=1)


def test_seeds_and_output_make_replicates_and_nothing_else_does(tmp_path: Path):
    objective = {"reduction": {"kind": "token_mean"}, "surrogate": {"kind": "clip", "high": 0.28}}
    other = objective | {"reduction": {"kind": "sequence_mean"}}
    write(tmp_path, "a", algorithm="dapo", objective=objective, task={"name": "t"}, seed=1, output={"sweep": "x"})
    write(tmp_path, "b", algorithm="dapo", objective=objective, task={"name": "t"}, seed=0, output={"sweep": "y"})
    write(tmp_path, "c", algorithm="dapo", objective=other, task={"name": "t"}, seed=0)
    write(tmp_path, "d", algorithm="ppo", objective=objective, task={"name": "t"}, seed=0, optimizer={"lr": 1e-5})
    arms = arms_of(store.read_sweep(tmp_path))
    assert [(arm.label, [run.id for run in arm.runs]) for arm in arms] == [
        ("dapo (reduction=sequence_mean)", ["c"]),
        ("dapo (reduction=token_mean)", ["b", "a"]),
        ("ppo", ["d"]),
    ]
    looks = styles(arms)
    first, second = looks["dapo (reduction=sequence_mean)"], looks["dapo (reduction=token_mean)"]
    assert first.color != looks["ppo"].color
    assert first.dash != second.dash
    assert second.dash in DASHES


def test_the_knobs_that_a_kind_brings_with_it_are_not_spelled_out(tmp_path: Path):
    """One choice was made, and the other engine's knobs are compared among runs with that engine alone."""
    plain = {"engine": {"kind": "builtin"}, "objective": {"mismatch": {"kind": "no_correction"}}}
    knobs = {"kind": "vllm", "kv_cache_gib": 1.0, "max_sequences": 256, "max_mismatch": 0.1}
    apart = {"engine": knobs, "objective": {"mismatch": {"kind": "token_truncate", "high": 2.0}}}
    write(tmp_path, "a", algorithm="grpo", task={"name": "t"}, seed=0, **plain)
    write(tmp_path, "b", algorithm="grpo", task={"name": "t"}, seed=0, **apart)
    labels = [arm.label for arm in arms_of(store.read_sweep(tmp_path))]
    assert labels == [
        "grpo (engine=builtin, mismatch=no_correction)",
        "grpo (engine=vllm, mismatch=token_truncate)",
    ]
    larger = apart | {"engine": {**knobs, "kv_cache_gib": 2.0}}
    write(tmp_path, "c", algorithm="grpo", task={"name": "t"}, seed=0, **larger)
    said = [line for arm in arms_of(store.read_sweep(tmp_path)) for line in (arm.label, *arm.unsaid)]
    assert sum("kv_cache_gib=2.0" in line for line in said) == 1


def test_the_usual_setting_is_not_spelled_out(tmp_path: Path):
    for index, (rate, clip) in enumerate([(1, 0.2), (1, 0.28), (2, 0.2), (1, 0.2)]):
        knobs = {"optimizer": {"lr": rate}, "objective": {"surrogate": {"high": clip}}}
        write(tmp_path, f"r{index}", algorithm="grpo", task={"name": "t", "terms": 3}, seed=index, **knobs)
    write(tmp_path, "harder", algorithm="grpo", task={"name": "t", "terms": 4}, seed=0)
    arms = arms_of(store.read_sweep(tmp_path))
    assert [(arm.task, arm.label, len(arm.runs)) for arm in arms] == [
        ("t (terms=3)", "grpo", 2),
        ("t (terms=3)", "grpo (optimizer.lr=2)", 1),
        ("t (terms=3)", "grpo (surrogate.high=0.28)", 1),
        ("t (terms=4)", "grpo", 1),
    ]


def test_settings_that_differ_come_first(tmp_path: Path):
    write(tmp_path, "a", algorithm="grpo", task="t", seed=0, budget={"updates": 60}, optimizer={"lr": 1}, critic=None)
    write(tmp_path, "b", algorithm="ppo", task="t", seed=0, budget={"updates": 60}, optimizer={"lr": 2})
    (table,) = settings.render(store.read_sweep(tmp_path)).blocks
    assert isinstance(table, Table)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["optimizer.lr", "1 (grpo); 2 (ppo)"],
        ["budget.updates", "60"],
    ]
    assert table.caption.startswith("1 of 2 settings differ")


def test_formulas_stand_with_their_sources(sweep: Path):
    tables = {
        block.name: block for block in formulas.render(store.read_sweep(sweep)).blocks if isinstance(block, Table)
    }
    assert list(tables) == ["formula_dapo", "formula_dpo", "formula_dr_grpo", "formula_grpo", "formula_ppo"]
    dapo = {row[0].text: row for row in tables["formula_dapo"].rows}
    assert dapo["surrogate"][2] == Cell("Eq. 8", ("high: section 4.1: 0.28",))
    assert tables["formula_dapo"].caption.startswith("DAPO: clip-higher")


def test_a_readme_is_filled_between_its_markers_and_stays_itself(sweep: Path):
    runs = store.read_sweep(sweep)
    text = "# Title\n<!-- generated:results -->\nold\n<!-- /generated -->\nmiddle\n"
    text += "<!-- generated:objectives -->\n<!-- /generated -->\nend\n"
    filled = fill(text, runs)
    assert fill(filled, runs) == filled
    assert filled.startswith("# Title\n<!-- generated:results -->\n| Algorithm | Seeds | Pass@1 |")
    assert "old" not in filled
    assert filled.endswith("<!-- /generated -->\nend\n")
    assert "| DAPO | soft overlong (buffer 0.2) | clip (low 0.2, high 0.28) |" in filled
    assert "The same in all: selection: drop uniform groups, advantage: group standardised," in filled
    assert "| DPO | logistic (beta 0.1) | best against worst |" in filled


def test_numbers_that_are_not_known_are_not_shown_as_numbers():
    assert [number(value) for value in (None, float("nan"), 0.0)] == ["n/a", "n/a", "0.000"]
    assert (number(-0.0004, sign=True), number(-0.0004)) == ("+0.000", "0.000")
    assert number(1234.5, 1, sign=True) == "+1,234.5"
    assert to_csv([{"a": 1}, {"b": float("nan"), "a": None}]) == "a,b\n1,\n,\n"
    table = Table("t", "", ("Name", "x"), (cells("long name", "1"), cells("b", Cell("12", ("[3]",)))), ())
    assert to_text(table) == "Name            x\n-----------------\nlong name       1\nb          12 [3]"
