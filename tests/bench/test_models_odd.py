"""Models whose passes depend on more than a row's own tokens: held to where they do not, or refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    FalconH1Config,
    Lfm2Config,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
)
from typer.testing import CliRunner

from bench.cli import app
from bench.config import PretrainedModel, TinyModel
from bench.models import LanguageModel, ModelUnavailable, character_tokenizer, create_tiny, load_pretrained, save_folder
from bench.store import read_status

SMALL: dict[str, Any] = {
    "vocab_size": 15, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 10, "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
}  # fmt: skip


def model_of(config: PreTrainedConfig) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(AutoModelForCausalLM.from_config(config).eval(), character_tokenizer("0123456789+="), "plain")


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (Phi3Config(**SMALL, original_max_position_embeddings=10, rope_parameters=LONG), 10),
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), 64),
        (LlamaConfig(**SMALL), 64),
    ],
    ids=["longrope", "linear", "default"],
)
def test_a_rotary_embedding_that_changes_with_the_batch_bounds_the_context(
    config: PreTrainedConfig, context: int
) -> None:
    """Beyond its original length, a row scored beside a longer one has another probability than alone."""
    assert model_of(config).context == context


@pytest.mark.parametrize(
    "config",
    [
        Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]),
        FalconH1Config(**SMALL, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8),
    ],
    ids=["lfm2", "falcon_h1"],
)
def test_states_that_are_no_keys_and_values_are_refused_at_load(config: PreTrainedConfig, tmp_path: Path) -> None:
    save_folder(model_of(config), tmp_path)
    with pytest.raises(ModelUnavailable, match="keeps no keys and values to sample with, only attention does"):
        load_pretrained(PretrainedModel(kind="pretrained", path=str(tmp_path)))


def test_a_model_that_cannot_be_loaded_is_exit_status_2_before_training(tmp_path: Path) -> None:
    """Nothing of the configuration alone tells it; the run's record says why."""
    save_folder(create_tiny(TinyModel(), "0123456789+=", 0), tmp_path / "model")
    (tmp_path / "model/model.safetensors").write_bytes(b"cut")
    knobs = ["task=chain_sum", "rollout.prompts=2", "rollout.group_size=2", "rollout.max_completion_tokens=4"]
    knobs += ["optimizer.lr=1e-3", "budget.updates=1", "tracking.enabled=false", f"output.root={tmp_path}"]
    knobs += ["model.kind=pretrained", f"model.path={tmp_path}/model", f"output.cache={tmp_path}/cache"]
    result = CliRunner().invoke(app, ["run", *knobs])
    assert result.exit_code == 2, result.output
    (run,) = (path.parent for path in (tmp_path / "single").glob("*/status.json"))
    status = read_status(run)
    assert status.state == "failed"
    assert (status.error or "").startswith(f"model.path: {tmp_path}/model cannot be loaded: ")


def test_tokens_without_an_embedding_are_refused_at_load_but_for_padding(tmp_path: Path) -> None:
    """As after add_tokens without resize_token_embeddings; a padding token that is too many is never looked up."""
    model = create_tiny(TinyModel(), "0123456789+=", 0)
    save_folder(model, tmp_path)
    given = PretrainedModel(kind="pretrained", path=str(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path)
    loaded = load_pretrained(given)
    assert loaded.tokenizer.pad_token_id == len(model.tokenizer)
    assert loaded.pad_id == loaded.end_ids[0]
    tokenizer.add_tokens(["one more"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"reads \d+ token ids, and its tokenizer's go up to \d+"):
        load_pretrained(given)
