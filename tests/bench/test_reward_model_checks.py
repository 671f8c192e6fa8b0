"""Reward models that cannot be or could not act: one line each, before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.loading import ConfigError, build_run, nested
from bench.models import character_tokenizer
from tasks.chain_sum import ChainSum

MINIMAL: dict[str, Any] = {
    "task": "chain_sum",
    "rollout": {"prompts": 8, "group_size": 4, "max_completion_tokens": 20},
    "optimizer": {"lr": 1e-4, "microbatch_sequences": 16},
    "budget": {"updates": 8},
}
TRAINED = {"kind": "trained", "problems": 64, "samples": 8, "updates": 20, "lr": 1e-3}
CONFIG = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}


def lines_of(algorithm: str, reward: dict[str, Any], **other: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        build_run(MINIMAL, nested({"algorithm": algorithm, "reward": reward, **other}))
    return error.value.lines


def folder_with(path: Path, alphabet: str = ChainSum().alphabet, **config: Any) -> str:
    path.mkdir(exist_ok=True)
    character_tokenizer(alphabet).save_pretrained(path)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return str(path)


def pretrained(path: str, **knobs: Any) -> dict[str, Any]:
    return {"model": {"kind": "pretrained", "path": path, **knobs}}


def test_a_source_without_its_model_and_a_model_without_its_source() -> None:
    (line,) = lines_of("grpo", {"source": "model"})
    assert line.startswith("reward.model: missing, but reward.source=model has no other reward; give")
    for source, more in (("random", {}), ("format_only", {"format": 1.0})):
        (line,) = lines_of("grpo", {"source": source, "model": TRAINED, **more})
        assert line.startswith(f"reward.model: given, but reward.source={source} does not use it")
    (line,) = lines_of("rft", {"model": TRAINED})
    assert line.startswith("reward.model: given, but rft reads the verdict, not the reward")
    (line,) = lines_of("sft", {"model": TRAINED})
    assert line == (
        "reward.model: given, but sft reads worked solutions, and no completion is graded, so it could not act; leave "
        "it out"
    )


@pytest.mark.parametrize(
    ("algorithm", "knobs", "line"),
    [
        ("grpo", {"weight": 0.0}, "reward.model.weight: 0 given, so the reward model could not act"),
        ("dpo", {"weight": 2.0}, "reward.model.weight: 2 given, but dpo makes pairs by which rewards are above their"),
        ("dpo", {"standardise": False}, "reward.model.standardise: False given, but dpo makes pairs by which rewards"),
        ("rft", {"weight": -3.0}, "reward.model.weight: -3 given, but rft reads which rewards are above their group's"),
        ("grpo", {"held_out": 0.001}, "reward.model.held_out: 0.001 given, which leaves none of reward.model.problems"),
        ("grpo", {"samples": 1}, "reward.model.samples: 1 given, must be a whole number, at least 2"),
        ("grpo", {"path": "x"}, 'reward.model.path: "x" given, which is a knob of pretrained'),
        ("grpo", {"kind": "learned"}, 'reward.model.kind: "learned" given, must be pretrained or trained'),
    ],
)
def test_a_knob_that_could_not_act_is_refused(algorithm: str, knobs: dict[str, Any], line: str) -> None:
    found = lines_of(algorithm, {"source": "model", "model": {**TRAINED, **knobs}})
    assert any(one.startswith(line) for one in found), found


def test_what_acts_is_taken() -> None:
    for algorithm, reward in (
        ("dpo", {"source": "model", "model": {**TRAINED, "standardise": False, "clip": 3.0, "weight": -1.0}}),
        ("dpo", {"model": {**TRAINED, "weight": 2.0}}),
        ("dapo", {"source": "model", "model": TRAINED, "format": 0.5}),
        ("online_rft", {"source": "model", "model": TRAINED}),
    ):
        assert build_run(MINIMAL, nested({"algorithm": algorithm, "reward": reward})).reward.model is not None
    (line,) = lines_of("rft", {"source": "model", "model": TRAINED}, **{"rollout.group_size": 1})
    assert line.startswith("rollout.group_size: 1 given, but with reward.source=model a completion is right where")


def test_a_folder_that_holds_no_fitting_reward_model_is_named(tmp_path: Path) -> None:
    (line,) = lines_of("grpo", pretrained("./nowhere"))
    assert line.startswith('reward.model.path: "./nowhere" given, but there is no such folder here')
    path = folder_with(tmp_path / "causal", architectures=["LlamaForCausalLM"])
    (line,) = lines_of("grpo", pretrained(path))
    assert "is a LlamaForCausalLM, which has no score head, so its scores would be random" in line
    path = folder_with(tmp_path / "three", id2label={"0": "a", "1": "b", "2": "c"})
    assert lines_of("grpo", pretrained(path)) == [
        f"reward.model.path: {path} has 3 outputs (num_labels), and a reward model has 1"
    ]
    path = folder_with(tmp_path / "unsaid", id2label=None)
    assert "has 2 outputs" in lines_of("grpo", pretrained(path))[0]
    path = folder_with(tmp_path / "short", max_position_embeddings=24)
    (line,) = lines_of("grpo", pretrained(path))
    assert line.startswith(f"reward.model.path: {path} has 24 positions, but a prompt takes ")
    path = folder_with(tmp_path / "gpt2", max_position_embeddings=None, n_positions=23)
    (line,) = lines_of("grpo", pretrained(path))
    assert line.startswith(f"reward.model.path: {path} has 23 positions, but a prompt takes ")
    path = folder_with(tmp_path / "revised")
    (line,) = lines_of("grpo", pretrained(path, revision="main"))
    assert line.startswith('reward.model.revision: "main" given, but reward.model.path is a folder')
    (Path(path) / "tokenizer.json").unlink()
    (Path(path) / "tokenizer_config.json").unlink()
    assert "has no tokenizer in it" in lines_of("grpo", pretrained(path))[0]


def test_other_tokens_are_refused_unless_it_writes_the_text_anew(tmp_path: Path) -> None:
    path = folder_with(tmp_path / "other", alphabet="abc0123456789+=")
    (line,) = lines_of("grpo", pretrained(path))
    assert line.startswith(f"reward.model.tokens: policy given, but {path} has another tokenizer than the policy: ")
    assert line.endswith("give reward.model.tokens=own, which writes prompt and completion anew with its own")
    assert build_run(MINIMAL, nested({"reward": pretrained(path, tokens="own")})).id


def test_the_identity_of_a_run_is_the_content_of_its_reward_model(tmp_path: Path) -> None:
    def run_id(path: str, **knobs: Any) -> str:
        return build_run(MINIMAL, nested({"reward": pretrained(path, **knobs)})).id

    first, moved = folder_with(tmp_path / "a"), folder_with(tmp_path / "b")
    assert run_id(first) == run_id(moved) != run_id(first, weight=0.5)
    (Path(moved) / "model.safetensors").write_bytes(b"other weights")
    assert run_id(first) != run_id(moved)
    trained = [
        build_run(MINIMAL, nested({"reward": {"model": {**TRAINED, **knobs}}})).id for knobs in ({}, {"seed": 1})
    ]
    assert trained[0] != trained[1]
