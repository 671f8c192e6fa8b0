"""What was spent, on counters written by hand."""

from pathlib import Path

from bench import store
from reports import budget
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
