"""The sampler's two decode paths against the networks' own forward passes, family by family."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from bench.decode import OwnDecoding
from bench.decoder_weights import decoder_weights, decodes_natively
from bench.generate import sample
from bench.models import LanguageModel, character_tokenizer
from bench.policy import pad_left

SMALL = {
    "vocab_size": 20, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}
OWN = {
    "llama": ("Llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "llama, tied, biases": (
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR},
    ),
    "qwen2": ("Qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None}),
}
GPT2 = {
    "vocab_size": 20, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": None,
    "eos_token_id": 1,
}  # fmt: skip
GENERAL = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", SMALL | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}),
    "sliding": ("MistralForCausalLM", SMALL | {"num_key_value_heads": 2, "sliding_window": 4}),
}
PROMPTS = [[4, 5, 6], [7, 8, 9, 10, 11, 12, 13], [3], [6, 6, 5, 4, 3]]


def random_network(kind: str, options: dict[str, Any]) -> PreTrainedModel:
    """A network whose distributions are far from uniform, and whose biases and norms are not those of the start."""
    torch.manual_seed(0)
    architecture = getattr(transformers, kind)
    network = architecture(architecture.config_class(**options)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(12) if parameter.dim() == 2 else parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def own_network(name: str) -> PreTrainedModel:
    family, options = OWN[name]
    return random_network(f"{family}ForCausalLM", SMALL | options)


def full_logits(network: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return network(torch.tensor([ids])).logits[0]


def started(network: PreTrainedModel, members: int, max_tokens: int) -> OwnDecoding:
    padding = torch.tensor([max(map(len, PROMPTS)) - len(prompt) for prompt in PROMPTS])
    return OwnDecoding(decoder_weights(network), pad_left(PROMPTS, 0), padding, members, max_tokens)


@torch.inference_mode()
def own_logits(network: PreTrainedModel, members: int = 3, steps: int = 13) -> float:
    """The largest difference from plain forward passes of each row alone, while rows are dropped on the way."""
    decoding = started(network, members, steps)
    rows = [list(prompt) for prompt in PROMPTS for _ in range(members)]
    worst, logits = 0.0, decoding.prefill()
    over = torch.zeros(len(rows), dtype=torch.bool)
    for t in range(steps):
        expected = torch.stack([full_logits(network, row)[-1].float() for row in rows])
        worst = max(worst, (logits - expected)[~over].abs().max().item())
        token = torch.randint(2, 20, (len(rows),), generator=torch.Generator().manual_seed(t))
        if t in (4, 9):  # first one row of each prompt, then all that are left of the second prompt
            over[slice(1, None, members) if t == 4 else slice(members - 1, 2 * members - 2)] = True
            order = decoding.drop(over)
            assert set((~over).nonzero().flatten().tolist()) <= set(order.tolist())
            rows, token, over = [rows[i] for i in order], token[order], over[order]
        rows = [[*row, int(new)] for row, new in zip(rows, token, strict=True)]
        logits = decoding.step(token)
    assert len(rows) == (len(PROMPTS) - 1) * (members - 1)
    return worst


@pytest.mark.parametrize("name", OWN)
def test_the_own_path_gives_the_forward_pass_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 1e-5, with prompts of unequal lengths; also with weights that are not stacked, and
    with prompts fed in two parts."""
    network = own_network(name)
    assert decodes_natively(network)
    assert full_logits(network, PROMPTS[1]).abs().max() > 2
    assert own_logits(network) < 1e-5
    monkeypatch.setattr("bench.decoder_weights._STACKED_BYTES", 0)
    monkeypatch.setattr("bench.decode._PREFILL_TOKENS", 14)
    assert own_logits(network, members=2, steps=12) < 1e-5


def test_the_own_path_in_bf16_is_as_near_as_the_forward_pass_in_bf16() -> None:
    network = own_network("qwen3")
    half = copy.deepcopy(network).bfloat16()
    assert decodes_natively(half)
    with torch.inference_mode():
        exact = torch.stack([full_logits(network, prompt)[-1] for prompt in PROMPTS])
        theirs = torch.stack([full_logits(half, prompt)[-1].float() for prompt in PROMPTS])
        decoding = started(half, 1, 4)
        ours = decoding.prefill()
        assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()
        after = decoding.step(torch.tensor([5, 5, 5, 5]))
        exact, theirs = (
            torch.stack([full_logits(one, [*prompt, 5])[-1].float() for prompt in PROMPTS]) for one in (network, half)
        )
    assert (after - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


@pytest.mark.parametrize("name", [*OWN, *GENERAL])
def test_sampled_log_probabilities_are_those_of_a_forward_pass(name: str) -> None:
    """Whichever path: unequal prompts, several ends, finished rows dropped, each row scored alone."""
    network = own_network(name) if name in OWN else random_network(*GENERAL[name])
    assert decodes_natively(network) == (name in OWN)
    assert network.generation_config is not None
    network.generation_config.eos_token_id = [1, 2, 3, 4]
    model = LanguageModel(network, character_tokenizer("0123456789+=abcde"), "plain")
    keys = [[100 * p + m for m in range(3)] for p in range(len(PROMPTS))]
    lengths = set()
    for prompt, group in zip(PROMPTS, sample(model, PROMPTS, keys, max_tokens=9, temperature=1.3), strict=True):
        for completion in group:
            ids = completion.token_ids
            scored = (full_logits(network, [*prompt, *ids]) / 1.3).log_softmax(-1)[len(prompt) - 1 : -1]
            expected = scored.gather(1, torch.tensor(ids)[:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=2e-5, rtol=0)
            assert completion.terminated == (ids[-1] in (1, 2, 3, 4))
            assert not set(ids[:-1]) & {1, 2, 3, 4}
            lengths.add(len(ids))
    assert len(lengths) > 2


class Adapted(nn.Linear):
    """A linear layer that is more than one."""


def adapt(network: PreTrainedModel) -> None:
    network.model.layers[1].mlp.down_proj.__class__ = Adapted


def hook(network: PreTrainedModel) -> None:
    network.model.layers[0].self_attn.register_forward_hook(lambda *_: None)


def patch(network: PreTrainedModel) -> None:
    network.model.norm.forward = lambda x: 2 * x


@pytest.mark.parametrize("change", [adapt, hook, patch, PreTrainedModel.train, PreTrainedModel.double])
def test_what_is_not_the_plain_architecture_goes_through_its_own_forward(
    change: Callable[[PreTrainedModel], object],
) -> None:
    network = own_network("llama")
    assert decodes_natively(network)
    change(network)
    assert not decodes_natively(network)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}},
    ],
)
def test_variants_go_through_their_own_forward(options: dict[str, Any]) -> None:
    assert not decodes_natively(random_network("LlamaForCausalLM", SMALL | options))


def test_sampling_is_the_same_while_training_with_checkpointing_and_autocast() -> None:
    """Gradient checkpointing hooks the embedding, autocast would change the products: neither reaches the sampler."""
    for network in (own_network("llama"), random_network(*GENERAL["gpt2"])):
        model = LanguageModel(network, character_tokenizer("0123456789+=abcde"), "plain")
        plain = sample(model, PROMPTS, [[1, 2]] * 4, max_tokens=5, temperature=1.0)
        native = decodes_natively(network)
        network.gradient_checkpointing_enable()
        assert decodes_natively(network) == native
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert sample(model, PROMPTS, [[1, 2]] * 4, max_tokens=5, temperature=1.0) == plain
