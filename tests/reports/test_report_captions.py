"""Captions say what the numbers cannot: which seeds they speak for, what a critic was good for, how votes ended."""

from pathlib import Path

import pytest

from bench import store
from reports import comparison, evaluations, overview, pass_maj
from reports.parts.arms import arms_of
from reports.parts.critic import critic_note
from reports.parts.table import Table

SAME = "new training seeds from the same starting weights"


def captions(sweep: Path) -> list[str]:
    """Every caption that speaks of new training seeds."""
    read = store.read_sweep(sweep)
    blocks = [block for module in (overview, pass_maj, comparison) for block in module.render(read).blocks]
    return [block.caption for block in blocks if "new training seeds" in getattr(block, "caption", "")]


@pytest.mark.slow
def test_seeds_of_one_starting_model_are_said_to_be(tmp_path: Path, make_run) -> None:
    paths = [make_run(tmp_path, algorithm, seed) for algorithm in ("dapo", "grpo") for seed in (0, 1)]
    assert len(captions(tmp_path)) == 6
    assert not any(SAME in caption for caption in captions(tmp_path))  # the starting weights are not known
    for path in paths:
        store.write_json(path / "provenance.json", {"start_weights_sha256": "a" * 64})
    assert all(caption.count("new training seeds") == caption.count(SAME) for caption in captions(tmp_path))
    store.write_json(paths[0] / "provenance.json", {"start_weights_sha256": "b" * 64})
    assert len(captions(tmp_path)) == 6
    assert not any(SAME in caption for caption in captions(tmp_path))


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (0.5, "PPO 0.50."),
        (0.004, "PPO 0.00 (the advantage is in effect a batch-mean baseline)."),
        (-0.8, "PPO -0.80 (worse than a constant: the critic adds noise to the advantage)."),
    ],
)
def test_a_critic_is_judged_by_the_last_quarter_of_training(tmp_path: Path, make_run, late: float, said: str) -> None:
    """The number of the run's health; before that and without a step of the policy nothing counts."""
    make_run(tmp_path, "grpo", 0)
    run = make_run(tmp_path, "ppo", 0)
    (run / "metrics.jsonl").unlink()
    for update, value in enumerate([None, *[-9.0] * 6, late, late, None], start=1):
        record = {"update": update, "value/explained_variance": value, "returns/std": 0.5, "grad_norm": 1.0}
        store.append_jsonl(run / "metrics.jsonl", record)
    store.append_jsonl(run / "metrics.jsonl", {"update": 11, "value/explained_variance": 99.0})
    read = store.read_sweep(tmp_path)
    (results,) = [block for block in overview.render(read).blocks if getattr(block, "name", "").startswith("results")]
    assert isinstance(results, Table)
    assert f"Critic's explained variance over the last quarter of training: {said}" in results.caption
    assert critic_note([arm for arm in arms_of(read) if arm.algorithm == "grpo"]) == ""


def test_the_tie_rate_is_that_of_the_largest_k(tmp_path: Path, make_run) -> None:
    run = make_run(tmp_path, "grpo", 0)
    manifest = store.read_run(run).manifest("test") or {}
    store.write_json(run / "eval" / "test.json", manifest | {"tie_rate": {"2": 0.4, "16": 0.03, "8": 0.07}})
    start = {key: value for key, value in manifest.items() if key != "tie_rate"}
    store.write_json(run / "eval" / "start.json", start)
    table = evaluations.render(store.read_sweep(tmp_path)).blocks[1]
    assert isinstance(table, Table)
    column = table.columns.index("Tied at largest K")
    assert {row[0].text: row[column].text for row in table.rows} == {"Starting model": "n/a", "GRPO": "3.0 %"}
    assert [record["tied_rate"] for record in table.records] == [None, 0.03]
