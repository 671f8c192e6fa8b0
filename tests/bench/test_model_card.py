"""The model card says what trained the model, and of no data that it never saw."""

from pathlib import Path
from typing import Any

import yaml

from bench import store
from bench.config import Run
from bench.loading import build_run, nested
from bench.model_card import card
from bench.train import _write_known

FINAL = {"update": 2, "weights_sha256": "0" * 64}


def card_of(folder: Path, **knobs: Any) -> tuple[Run, dict[str, Any], str]:
    """The run, the card's front matter, and its text above the configuration."""
    small = {"rollout.prompts": 2, "rollout.group_size": 4, "rollout.max_completion_tokens": 4, "budget.updates": 2}
    run = build_run({"task": "chain_sum", "optimizer": {"lr": 1e-3}}, nested({**small, **knobs}))
    _write_known(run, folder)
    text = card(run, store.read_run(folder), FINAL)
    _, matter, rest = text.split("---\n", 2)
    return run, yaml.safe_load(matter), rest.partition("## Repeat")[0]


def test_reward_adapter_and_critic_are_named(tmp_path: Path) -> None:
    knobs = {"adapter.kind": "lora", "adapter.rank": 4, "critic.lr": 1e-2, "critic.kind": "head"}
    knobs |= {"reward.model.kind": "trained", "reward.model.problems": 8, "reward.model.samples": 4}
    knobs |= {"reward.model.updates": 2, "reward.model.lr": 1e-3, "reward.noise.false_positive": 0.2}
    run, matter, text = card_of(tmp_path, algorithm="ppo", **knobs)
    assert "| adapter | LoRA, rank 4; merged into these weights, alone in `adapter/` |" in text
    assert "| critic | head, learning rate 0.01 |" in text
    assert f"| reward | {run.reward.formula()} |" in text
    assert "reward model (trained" in text
    assert "V: linear in the policy's states" in text
    assert "| rollout | 2 prompts x 4 completions |" in text
    assert "datasets" not in matter


def test_pairs_of_a_data_set_are_what_it_was_trained_on(tmp_path: Path) -> None:
    pairs = tmp_path / "mine.jsonl"
    pairs.write_text('{"prompt": "1+2=", "chosen": "3", "rejected": "4"}\n')
    knobs = {"objective.pairing.kind": "fixed_pairs", "evaluation.problems": 2}
    _, matter, text = card_of(tmp_path / "a", algorithm="dpo", **knobs, **{"objective.pairing.path": str(pairs)})
    assert "| trained on | preference pairs of mine.jsonl |" in text
    assert "| evaluated on | chain_sum, version" in text
    assert "datasets" not in matter
    assert str(pairs) not in text
    assert "| rollout |" not in text
    assert "sampling temperature" not in text
    _, matter, _ = card_of(tmp_path / "b", algorithm="dpo", **knobs, **{"objective.pairing.path": "trl-lib/pairs"})
    assert matter["datasets"] == ["trl-lib/pairs"]


def test_a_place_on_this_machine_is_not_told(tmp_path: Path) -> None:
    pairs = tmp_path / "mine.jsonl"
    pairs.write_text('{"prompt": "1+2=", "chosen": "3", "rejected": "4"}\n')
    knobs = {"objective.pairing.kind": "fixed_pairs", "objective.pairing.path": str(pairs)}
    run = build_run(
        {"task": "chain_sum", "optimizer": {"lr": 1e-3}, "algorithm": "dpo"},
        nested({"rollout.prompts": 2, "rollout.group_size": 4, "rollout.max_completion_tokens": 4, **knobs}),
        {"budget": {"updates": 2}},
    )
    _write_known(run, tmp_path / "run")
    text = card(run, store.read_run(tmp_path / "run"), FINAL)
    assert str(tmp_path) not in text
    repeated = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert repeated["objective"]["pairing"]["path"] == "mine.jsonl"
