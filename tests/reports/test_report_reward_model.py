"""Score beside verdict, on metrics written by hand: a reward that is gamed shows, and a run without one has no page."""

from pathlib import Path

from bench import store
from reports import reward_model
from reports.parts.figure import Figure, save
from reports.parts.table import Table

ABOUT = {
    "kind": "trained", "weights_sha256": "0" * 64, "accuracy": 0.8, "interval": {"low": 0.7, "high": 0.9},
    "training_accuracy": 0.9, "caution": "the variation rests on about 6 problems",
    "held_out": {"pairs": 120, "prompts": 12, "of": 16},
}  # fmt: skip


def test_score_and_verdict_stand_side_by_side(tmp_path: Path, make_run) -> None:
    """Eight updates: the score rises from 0 to 2, the share correct falls from .5 to .1, pairs from .8 to .4."""
    run = make_run(tmp_path, "ppo", 0)
    make_run(tmp_path, "grpo", 0)
    store.write_json(run / "reward_model.json", ABOUT)
    (run / "metrics.jsonl").unlink()
    for update in range(1, 9):
        late = update > 4
        record = {"reward_model/mean": 2.0 * late, "reward/accuracy": 0.1 if late else 0.5}
        record["reward_model/pair_accuracy"] = 0.4 if late else 0.8
        store.append_jsonl(run / "metrics.jsonl", {"update": update, **record})
    page = reward_model.render(store.read_sweep(tmp_path))
    figure, table = page.blocks
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    assert "gamed would show as a score that goes on rising while the share of correct" in figure.caption
    assert [str(cell) for cell in table.rows[0]] == [
        "PPO", "trained", "0.800 [0.700, 0.900]", "120", "0.000 to 2.000", "0.500 to 0.100", "0.800 to 0.400",
    ]  # fmt: skip
    assert figure.name != table.name, "numbers in captions go by name"
    assert table.caption.endswith("The variation rests on about 6 problems.")
    assert len(table.rows) == 1, "an arm without a reward model has no row"
    assert table.records[0]["reward_model/mean_last"] == 2.0
    assert save(figure)["svg"].startswith(b"<?xml")


def test_a_sweep_without_a_reward_model_has_no_such_page(tmp_path: Path, make_run) -> None:
    make_run(tmp_path, "grpo", 0)
    assert not reward_model.render(store.read_sweep(tmp_path)).blocks


def test_a_pretrained_model_and_a_young_run_have_a_table_without_numbers(tmp_path: Path, make_run) -> None:
    run = make_run(tmp_path, "grpo", 0)
    (run / "metrics.jsonl").unlink()
    store.write_json(run / "reward_model.json", {"kind": "pretrained", "path": "somebody/rm", "weights_sha256": "1"})
    (table,) = reward_model.render(store.read_sweep(tmp_path)).blocks
    assert isinstance(table, Table)
    assert [str(cell) for cell in table.rows[0]][1:] == ["pretrained", *["n/a"] * 2, *["n/a to n/a"] * 3]
