"""Which critic is asked for: configuration, another model that reads the policy's tokens, and trunks of every kind."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from bench.config import PretrainedModel, Run, TinyModel
from bench.config_critic import HeadCritic, SeparateCritic
from bench.critics import Critic, make_critic, make_head
from bench.doctor_model import model_checks
from bench.loading import ConfigError, build_run, change, nested
from bench.models import (
    LanguageModel,
    ModelUnavailable,
    base_of,
    character_tokenizer,
    create_tiny,
    load_trunk,
    save_folder,
)
from bench.policy import Sequences, token_scores, token_values, values_after
from bench.train import execute

MakeRun = Callable[..., Run]
ALPHABET = "0123456789+="
TINY = TinyModel(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=16)
PLAIN: Mapping[str, Any] = {
    "algorithm": "ppo",
    "task": {"name": "chain_sum", "num_terms": 2, "num_digits": 1},
    "model": TINY.model_dump(),
    "reward": {"format": 1.0},
    "rollout": {"prompts": 2, "group_size": 2, "max_completion_tokens": 6},
    "optimizer": {"lr": 1e-3},
    "critic": {"lr": 1e-2},
    "budget": {"updates": 1},
    "evaluation": {"problems": 1, "samples": 1, "ks": [1], "start": False},
    "tracking": {"enabled": False},
}


def run_of(**knobs: Any) -> Run:
    return build_run(PLAIN, nested(knobs))


def mistakes(**knobs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        run_of(**knobs)
    return caught.value.lines


@pytest.fixture
def other(tmp_path: Path) -> Callable[..., str]:
    """`other("abc", max_positions=8)`: a folder with a tiny model over an alphabet."""

    def save(alphabet: str, **knobs: Any) -> str:
        folder = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        save_folder(create_tiny(TinyModel(**{**TINY.model_dump(), "hidden_size": 32, **knobs}), alphabet, 7), folder)
        return str(folder)

    return save


def embedding(trunk: PreTrainedModel) -> torch.Tensor:
    return next(trunk.get_input_embeddings().parameters())


def as_model(path: str, **knobs: Any) -> dict[str, Any]:
    return {"critic.kind": "model", "critic.model": {"kind": "pretrained", "path": path, **knobs}}


def test_a_critic_without_a_kind_is_a_separate_one() -> None:
    assert run_of().critic == SeparateCritic(lr=1e-2)
    assert run_of(**{"critic.kind": "head"}).critic == HeadCritic(lr=1e-2, stop_gradient=False, coefficient=0.1)
    assert run_of(**{"critic": "separate", "critic.lr": 0.5}).critic == SeparateCritic(lr=0.5)
    run = run_of(**{"critic.kind": "mlp", "critic.hidden_sizes": [3]})
    assert build_run(run.dump()) == run
    ids = {run_of(**{"critic.kind": kind}).id for kind in ("separate", "head", "mlp")}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        (
            {"critic.kind": "head", "critic.stop_gradient": True, "critic.coefficient": 0.5},
            "critic.coefficient: 0.5 given, but critic.stop_gradient keeps the value loss out of the trunk, so it "
            "could not act; leave it out",
        ),
        (
            {"critic.hidden_sizes": [4]},
            "critic.hidden_sizes: [4] given, which is a knob of mlp, but critic.kind is separate; leave it out, or "
            "give critic.kind=mlp",
        ),
        (
            {"critic.kind": "mlp", "critic.hidden_sizes": []},
            "critic.hidden_sizes: [] given, must be a list, each a whole number, at least 1",
        ),
        (
            {"critic.kind": "heads"},
            'critic.kind: "heads" given, must be separate, model, head or mlp; did you mean head?',
        ),
        ({"critic.kind": "model"}, "critic.model: missing, must be tiny or pretrained"),
        (
            {"critic.head_init": "ones"},
            'critic.head_init: "ones" given, must be zero, normal_reward or initializer_range',
        ),
        (
            {"critic.kind": "model", "critic.model": {"kind": "tiny", "max_positions": 9}},
            "critic.model: it has 9 positions, but a prompt and its completion take 10 tokens; lower "
            "rollout.max_completion_tokens, or give a critic with a longer context",
        ),
    ],
)  # fmt: skip
def test_what_a_kind_cannot_have_is_refused(knobs: dict[str, Any], line: str) -> None:
    assert mistakes(**knobs) == [line]


def test_another_vocabulary_is_named_before_anything_is_loaded(other: Callable[..., str]) -> None:
    """Of the same size, with two characters exchanged: sizes could not tell."""
    run = run_of()
    exchanged = run.alphabet[1] + run.alphabet[0] + run.alphabet[2:]
    (line,) = mistakes(**as_model(other(exchanged)))
    assert "whose tokenizer is not the policy's: 2 of" in line
    assert f"'{run.alphabet[0]}' (3, there 4)" in line


def test_another_vocabulary_is_named_after_loading_too(other: Callable[..., str]) -> None:
    run = run_of(**as_model(other(run_of().alphabet)))
    stranger = create_tiny(TINY, "xyz" + run.alphabet, 0)
    with pytest.raises(ModelUnavailable, match="tokenizer is not the policy's"):
        make_critic(run, stranger)


def test_a_larger_vocabulary_with_the_policys_tokens_is_read(other: Callable[..., str]) -> None:
    run = run_of(**as_model(other(run_of().alphabet + "xyz")))
    critic = make_critic(run, create_tiny(TINY, run.alphabet, 0))
    assert critic.trunk is not None
    assert embedding(critic.trunk).shape == (3 + len(run.alphabet) + 3, 32)


def test_ids_that_no_token_has_get_rows_of_zeros(other: Callable[..., str]) -> None:
    """A policy whose vocabulary is padded to more rows than the critic's."""
    path = other(run_of().alphabet)
    run = run_of(**as_model(path))
    config = LlamaConfig(**{**create_tiny(TINY, run.alphabet, 0).network.config.to_dict(), "vocab_size": 64})
    policy = LanguageModel(AutoModelForCausalLM.from_config(config).eval(), character_tokenizer(run.alphabet), "plain")
    trunk = make_critic(run, policy).trunk
    assert trunk is not None
    weight, tokens = embedding(trunk), 3 + len(run.alphabet)
    assert weight.shape == (64, 32)
    assert torch.count_nonzero(weight[tokens:]) == 0
    saved, _ = load_trunk(PretrainedModel(kind="pretrained", path=path), "critic.model")
    assert torch.equal(weight[:tokens], embedding(saved))


def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    (line,) = mistakes(**as_model(str(tmp_path / "nowhere")))
    assert line.startswith(f'critic.model.path: "{tmp_path}/nowhere" given, but there is no such folder here')
    (line,) = mistakes(**as_model(str(tmp_path)))
    assert "there is no config.json in it" in line


def test_a_prompt_format_could_not_act(other: Callable[..., str]) -> None:
    (line,) = mistakes(**as_model(other(run_of().alphabet), prompt_format="plain"))
    assert line.startswith("critic.model.prompt_format: plain given, but a critic reads the policy's tokens")


def test_a_short_context_is_named(other: Callable[..., str]) -> None:
    (line,) = mistakes(**as_model(other(run_of().alphabet, max_positions=9)))
    assert line.startswith("critic.model: it has 9 positions, but a prompt and its completion take 10 tokens")


def test_a_local_model_counts_by_its_content(other: Callable[..., str]) -> None:
    """Two folders with the same weights are one run, other weights another."""
    alphabet = run_of().alphabet
    first, second, third = (run_of(**as_model(other(alphabet, **knobs))) for knobs in ({}, {}, {"num_layers": 2}))
    assert first.id == second.id != third.id


def test_a_model_that_reads_ahead_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=15, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    character_tokenizer(ALPHABET).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"critic\.model\.path: .* is not causal"):
        load_trunk(PretrainedModel(kind="pretrained", path=str(tmp_path)), "critic.model")


def test_a_run_whose_critic_cannot_be_had_ends_with_a_sentence(other: Callable[..., str], tmp_path: Path) -> None:
    """A folder that passes for a model until it is loaded."""
    path = Path(other(run_of().alphabet))
    (path / "model.safetensors").write_bytes(b"no weights")
    run = change(run_of(**as_model(str(path))), {"output.root": str(tmp_path), "output.cache": str(tmp_path / "cache")})
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert status.error is not None
    assert status.error.startswith(f"critic.model.path: {path} cannot be loaded: ")
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_a_reward_models_folder_can_be_a_critic(tmp_path: Path) -> None:
    """Whatever head it was saved with stays behind."""
    from transformers import LlamaForSequenceClassification

    policy = create_tiny(TINY, run_of().alphabet, 0)
    config = LlamaConfig(**{**policy.network.config.to_dict(), "num_labels": 1, "tie_word_embeddings": False})
    model = LlamaForSequenceClassification(config)
    model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    trunk = make_critic(run_of(**as_model(str(tmp_path))), policy).trunk
    assert trunk is not None
    for name, weight in model.model.state_dict().items():
        assert torch.equal(trunk.state_dict()[name], weight)


ODD: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.4,
}  # fmt: skip


@pytest.mark.parametrize(
    "config", [LlamaConfig(**ODD), MistralConfig(**ODD, num_key_value_heads=2, sliding_window=8)], ids=["packed", "not"]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_one_pass_gives_what_two_would(config: PreTrainedConfig, autocast: bool) -> None:
    """Values and log-probabilities of one pass, on packed rows and on rectangles; float32 under autocast too."""
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).float().eval()
    head = make_head(0, HeadCritic(lr=1.0, head_init="normal_reward"), base_of(network))
    critic = Critic(head, into_trunk=0.5)
    sequences = Sequences.of([[5, 6, 7], [5, 6, 7], [8]], [[4, 4, 2], [9], [9, 2, 3, 3]], 0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logp, entropy, value = token_scores(network, sequences, 1.0, critic=critic)
        apart = token_scores(network, sequences, 1.0)
        alone = token_values(critic, base_of(network), sequences)
        after = values_after(critic, base_of(network), sequences)
    assert value is not None
    assert apart[2] is None
    assert torch.equal(logp, apart[0])
    assert torch.equal(entropy, apart[1])
    assert value.dtype == after.dtype == torch.float32
    torch.testing.assert_close(value, alone, atol=1e-6, rtol=0)
    assert torch.count_nonzero(value[~sequences.mask]) == 0
    for into_trunk in (0.5, 0.0):
        critic.into_trunk = into_trunk
        network.zero_grad()
        token_values(critic, base_of(network), sequences).sum().backward()
        assert any(p.grad is not None for p in network.parameters()) == (into_trunk > 0)


def test_the_doctor_loads_the_critic_and_says_what_is_wrong(other: Callable[..., str]) -> None:
    path = Path(other(run_of().alphabet))
    head, named = run_of(**{"critic.kind": "head"}), run_of(**as_model(str(path)))
    found = {check.name: check for check in model_checks(head, [])}["critic"]
    assert (found.state, found.lines) == ("ok", ("head: 16 parameters of its own, its last layer starts as zero",))
    (path / "model.safetensors").write_bytes(b"no weights")
    found = {check.name: check for check in model_checks(named, [])}["critic"]
    assert found.state == "fail"
    assert found.lines[0].startswith(f"critic.model.path: {path} cannot be loaded: ")
