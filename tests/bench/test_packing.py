"""Packed passes against the same model's plain passes, one sequence at a time: numbers, gradients and values."""

import random
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from bench import packing
from bench.config_critic import SeparateCritic
from bench.critics import Critic, make_head
from bench.models import base_of
from bench.packing import PACKED_MODELS, packs
from bench.policy import (
    Sequences,
    completion_logits,
    computed_positions,
    reads_packed,
    token_logps,
    token_logps_and_entropy,
    token_values,
    values_after,
)

SMALL: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.4,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
CONFIGS = [
    LlamaConfig(**GROUPED, tie_word_embeddings=True),
    LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
    MistralConfig(**GROUPED, sliding_window=None),
    Olmo2Config(**GROUPED),
    Phi3Config(**GROUPED),
    Qwen2Config(**GROUPED),
    Qwen3Config(**GROUPED, head_dim=4),
    SmolLM3Config(**GROUPED),
    GPTNeoXConfig(**SMALL),
    GPT2Config(vocab_size=29, n_embd=16, n_layer=2, n_head=4, n_positions=32, pad_token_id=0, initializer_range=0.4),
]  # fmt: skip


def made(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config).float().eval()


def ragged(seed: int, groups: int = 4) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of unequal length with unequally many completions, some of one token."""
    draw = random.Random(seed)
    prompts, completions = [], []
    for _ in range(groups):
        prompt = [draw.randrange(3, 29) for _ in range(draw.randrange(1, 7))]
        for _ in range(draw.randrange(1, 4)):
            prompts.append(prompt)
            completions.append([draw.randrange(3, 29) for _ in range(draw.choice([1, 1, 3, 6]))])
    return prompts, completions


def alone(network: PreTrainedModel, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
    """Log-probabilities of the distributions at each completion token, from a plain pass over one sequence."""
    logits = network(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1)


@pytest.mark.parametrize("few_scores", [0, 2**21], ids=["fused", "by products"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_each_family_scores_packed_what_it_scores_alone(
    config: PreTrainedConfig, few_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBJ-50: values and gradients, for rotary and for absolute positions, by either kind of attention."""
    monkeypatch.setattr(packing, "_FEW_SCORES", few_scores)
    network = made(config)
    assert reads_packed(network)
    prompts, completions = ragged(seed=0)
    sequences = Sequences.of(prompts, completions, 0)
    logp, entropy = token_logps_and_entropy(network, sequences, 0.7, entropy_gradient=True)
    weight = torch.randn(logp.shape, generator=torch.Generator().manual_seed(1))
    ((logp + entropy.cos()) * weight).sum().backward()
    packed = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    total = torch.zeros(())
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        full = alone(network, prompt, completion, 0.7)
        own = full.gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)
        width = len(completion)
        torch.testing.assert_close(logp[i, :width], own, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[i, :width], -(full.exp() * full).sum(-1), atol=1e-5, rtol=0)
        assert torch.count_nonzero(logp[i, width:]) == 0
        total = total + ((own + (-(full.exp() * full).sum(-1)).cos()) * weight[i, :width]).sum()
    total.backward()
    for got, parameter in zip(packed, network.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad, atol=2e-5, rtol=1e-4)


def test_every_family_that_packs_is_tested() -> None:
    assert {config.model_type for config in CONFIGS} == PACKED_MODELS


def test_prompts_are_computed_once_and_last_tokens_and_padding_never() -> None:
    network = made(CONFIGS[0])
    sequences = Sequences.of([[5, 6, 7]] * 3 + [[8]], [[4, 4, 2], [9], [9, 2], [4, 4, 4, 2]], 0)
    assert computed_positions(network, sequences) == 3 + 1 + (2 + 0 + 1 + 3)
    assert sequences.layout.ids.tolist() == [[5, 6, 7, 8, 4, 4, 9, 4, 4, 4]]
    assert sequences.layout.positions.tolist() == [[0, 1, 2, 0, 3, 4, 3, 1, 2, 3]]


def test_completions_of_one_token_alone_need_nothing_but_their_prompt() -> None:
    network = made(CONFIGS[0])
    sequences = Sequences.of([[5, 6]] * 2, [[4], [2]], 0)
    full = alone(network, [5, 6], [4], 1.0)[0]
    torch.testing.assert_close(token_logps(network, sequences, 1.0)[:, 0], full[[4, 2]], atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_values_before_and_after_each_token(seed: int) -> None:
    trunk = base_of(made(CONFIGS[0]))
    critic = Critic(make_head(seed, SeparateCritic(lr=1.0, head_init="initializer_range"), trunk), trunk)
    prompts, completions = ragged(seed)
    sequences = Sequences.of(prompts, completions, 0)
    values, after = token_values(critic, trunk, sequences), values_after(critic, trunk, sequences)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        states = trunk(torch.tensor([prompt + completion])).last_hidden_state[0]
        own = critic.head(states).squeeze(-1)[len(prompt) - 1 :]
        torch.testing.assert_close(values[i, : len(completion)], own[:-1], atol=1e-5, rtol=0)
        torch.testing.assert_close(after[i], own[-1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**GROUPED, sliding_window=8),
        Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=8, max_window_layers=1),
        LlamaConfig(**GROUPED, model_type="unheard_of"),
    ],
    ids=["sliding", "partly sliding", "unknown"],
)
def test_a_model_whose_attention_is_more_than_causal_is_scored_in_rectangles(config: PreTrainedConfig) -> None:
    if config.model_type == "unheard_of":
        network = made(LlamaConfig(**GROUPED))
        network.config.model_type = "unheard_of"
    else:
        network = made(config)
    assert not packs(network)
    prompts, completions = ragged(seed=2)
    logp = token_logps(network, Sequences.of(prompts, completions, 0), 1.0)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        own = alone(network, prompt, completion, 1.0).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)
        torch.testing.assert_close(logp[i, : len(completion)], own, atol=1e-5, rtol=0)


def test_a_head_that_is_more_than_a_linear_layer_is_left_to_the_model() -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    network = made(CONFIGS[0])
    head = Doubled(16, 29, bias=False)
    network.set_output_embeddings(head)
    assert not reads_packed(network)
    sequences = Sequences.of([[5, 6]], [[4, 2]], 0)
    full = completion_logits(network, sequences).log_softmax(-1)
    torch.testing.assert_close(token_logps(network, sequences, 1.0)[0], full[0, [0, 1], [4, 2]], atol=1e-6, rtol=0)


def test_the_attention_of_the_model_is_its_own_again_after_a_pass() -> None:
    network = made(CONFIGS[0])
    before = network.config._attn_implementation
    token_logps(network, Sequences.of([[5, 6]], [[4, 2]], 0), 1.0)
    assert network.config._attn_implementation == before
