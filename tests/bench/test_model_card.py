"""The model card: all that trained the model stands in it, no data that did not, and no place on this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import store
from bench.adapter_files import save_adapter
from bench.adapters import adapted
from bench.config import Run, TinyModel
from bench.config_adapter import Lora
from bench.dialect import Plain, parse_yaml
from bench.evaluation import Outcome, estimates, outcome_matrix, write_estimates
from bench.loading import build_run, nested
from bench.model_card import card, front_matter
from bench.models import create_tiny, save_folder

MakeRun = Callable[..., Run]
FINAL = {"update": 4, "weights_sha256": "0" * 64}
BASE = TinyModel(hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64, max_positions=16)


def card_of(run: Run, folder: Path) -> str:
    store.write_yaml(folder / "run/run.yaml", run.dump())
    return card(run, store.read_run(folder / "run"), FINAL)


def table(text: str, heading: str) -> dict[str, str]:
    """The rows of the section's table, first column to second."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {row[0]: row[1].strip("`") for row in rows[2:]}


def repeated(text: str) -> dict[str, Plain]:
    value = parse_yaml(text.partition("```yaml\n")[2].partition("```")[0], "card")
    assert isinstance(value, dict)
    return value


def test_what_trained_a_policy_with_a_critic_an_adapter_and_a_reward_model_is_told(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    model = {"kind": "trained", "problems": 8, "samples": 4, "updates": 3, "lr": 1e-3, "weight": 0.5}
    knobs = {"reward.model": model, "reward.noise.false_positive": 0.125, "adapter.rank": 4, "critic.kind": "head"}
    run = tiny_run("ppo", **knobs, **{"reward.sparsity": 0.75})
    text = card_of(run, tmp_path)
    formula, settings = table(text, "Objective"), table(text, "Training")
    assert formula == {**run.formula(), "reward": run.reward.formula()}
    assert "linear in the policy's states" in formula["value"]
    assert "reward model" in formula["reward"]
    assert settings["adapter"].startswith("LoRA of rank 4, alpha 32, on all linear layers of the decoder")
    assert settings["critic"].startswith("head: ")
    assert "8 problems x 4 samples, 3 updates at 0.001" in settings["reward model"]
    assert settings["verdicts flipped"].startswith("0.125 of the wrong, 0 of the correct")
    assert settings["share with a label"] == "0.75"
    assert settings["rollout"] == "8 prompts x 8 completions"
    assert repeated(text) == {k: v for k, v in run.dump().items() if k not in ("output", "tracking")}


def test_a_card_of_fixed_pairs_names_these_and_nothing_that_was_not_trained_on(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}]
    path = tmp_path / "deep/pairs.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, rows)))
    layer = {
        "algorithm": "dpo", "task": "gsm8k", "budget.updates": 2, "optimizer.lr": 1e-3, "rollout.prompts": 2,
        "rollout.group_size": 4, "rollout.max_completion_tokens": 4, "objective.pairing.kind": "fixed_pairs",
        "model.max_positions": 4096,
    }  # fmt: skip
    local = build_run(nested({**layer, "objective.pairing.path": str(path)}), {})
    assert "datasets" not in front_matter(local)
    text = card_of(local, tmp_path)
    assert str(tmp_path) not in text
    assert "chosen against rejected of pairs.jsonl (train)" in table(text, "Objective")["pairing"]
    assert not {"reward", "rollout"} & {*table(text, "Objective"), *table(text, "Training")}
    assert not {"rollout", "sampling temperature", "updates per rollout"} & set(table(text, "Training"))
    assert table(text, "Training")["task and data"].endswith("; for evaluation alone")
    assert "give yours" in text
    hub = build_run(nested({**layer, "objective.pairing.path": "some/preferences"}), {})
    assert front_matter(hub)["datasets"] == ["some/preferences"]
    assert yaml.safe_load(card_of(hub, tmp_path).split("---\n")[1])["datasets"] == ["some/preferences"]
    sampled = build_run(nested({k: v for k, v in layer.items() if "pairing" not in k}), {})
    assert front_matter(sampled)["datasets"] == ["openai/gsm8k"]


@pytest.mark.parametrize("given", ["{}", "../{}/."])
def test_models_adapters_and_data_of_this_machine_stand_without_their_place(
    given: str, tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    alphabet = tiny_run("ppo").alphabet
    model = create_tiny(BASE, alphabet, 0)
    save_folder(model, tmp_path / "own_model")
    save_adapter(adapted(create_tiny(BASE, alphabet, 0).network, Lora(rank=4), 0, "policy"), tmp_path / "own_lora")

    def at(name: str) -> str:
        return str(tmp_path / name) if given == "{}" else given.format(name)

    place: dict[str, Any] = {
        "model": {"kind": "pretrained", "path": at("own_model")}, "warm_start": None,
        "adapter": {"path": at("own_lora")},
        "critic": {"kind": "model", "lr": 1e-3, "model": {"kind": "pretrained", "path": at("own_model")}},
    }  # fmt: skip
    run = build_run({**tiny_run("ppo").dump(), **place}, {})
    text = card_of(run, tmp_path)
    assert str(tmp_path) not in text
    assert "../" not in text
    written: Any = repeated(text)
    assert (written["model"]["path"], written["adapter"]["path"]) == ("own_model", "own_lora")
    assert written["critic"]["model"]["path"] == "own_model"
    assert "another model (own_model)" in table(text, "Objective")["value"]


def test_the_bounds_of_an_accuracy_stay_between_0_and_1(tiny_run: MakeRun, tmp_path: Path) -> None:
    """One right sample of 16 on one problem of 40: the symmetric interval reaches below 0."""
    rows = [
        Outcome(str(p), i, p == 0 and i == 0, "1", True, False, False, 3, "end") for p in range(40) for i in range(16)
    ]
    evaluations = tmp_path / "run/eval"
    evaluations.mkdir(parents=True)
    write_estimates(evaluations / "test.estimates.parquet", estimates(outcome_matrix(rows), [1, 4]))
    store.write_json(evaluations / "test.json", {"samples": 16, "temperature": 1.0})
    text = card_of(tiny_run("grpo"), tmp_path)
    assert "| 0.002 | 0.000 to 0.005 |" in text


def test_a_problem_beyond_the_grader_costs_no_number(tiny_run: MakeRun, tmp_path: Path) -> None:
    told = [(p, i, None if p == 2 else i == 0) for p in range(3) for i in range(2)]
    rows = [Outcome(str(p), i, right, "1", True, False, False, 3, "end") for p, i, right in told]
    evaluations = tmp_path / "run/eval"
    evaluations.mkdir(parents=True)
    write_estimates(evaluations / "test.estimates.parquet", estimates(outcome_matrix(rows), [1, 2]))
    store.write_json(evaluations / "test.json", {"samples": 2, "temperature": 1.0})
    text = card_of(tiny_run("grpo"), tmp_path)
    assert "| 0.500 |" in text
    assert "Pass@2 1.000" in text
