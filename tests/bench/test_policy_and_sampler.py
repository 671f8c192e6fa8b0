"""Scoring and sampling against plain forward passes of the same model: equal tokens, log-probabilities and values."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from bench.config import TinyModel
from bench.config_critic import SeparateCritic
from bench.critics import Critic, make_head
from bench.generate import sample
from bench.models import LanguageModel, base_of, create_tiny
from bench.policy import Sequences, token_logps, token_logps_and_entropy, token_values
from bench.seeding import stream_key, uniforms
from bench.token_head import logp_and_entropy

ALPHABET = "0123456789+="


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A random tiny model whose distributions are far from uniform."""
    made = create_tiny(TinyModel(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64), ALPHABET, seed=3)
    with torch.no_grad():
        for parameter in made.network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12)
    return made


def full_logits(model: LanguageModel, ids: list[int]) -> torch.Tensor:
    """One unpadded row through the model's own forward pass."""
    with torch.no_grad():
        return model.network(torch.tensor([ids])).logits[0]


PROMPTS = ["1+2=", "12+34=", "7+", "12+34="]


def encoded(model: LanguageModel) -> list[list[int]]:
    return [model.encode_prompt(prompt) for prompt in PROMPTS]


def keys(group: int, purpose: str = "test") -> list[list[int]]:
    return [[stream_key(0, purpose, p, m) for m in range(group)] for p in range(len(PROMPTS))]


def test_sampled_tokens_and_logps_equal_plain_forward_passes(model: LanguageModel) -> None:
    """Each token is where the cumulative distribution of an unpadded, uncached forward pass first exceeds the draw."""
    prompts = encoded(model)
    groups = sample(model, prompts, keys(8), max_tokens=10, temperature=0.7)
    ended = 0
    for prompt, own, own_keys in zip(prompts, groups, keys(8), strict=True):
        for completion, key in zip(own, own_keys, strict=True):
            ids, draws = list(completion.token_ids), uniforms([key], 0, 10)[0]
            logp = (full_logits(model, prompt + ids).double() / 0.7).log_softmax(-1)[len(prompt) - 1 : -1]
            cumulative = logp.exp().cumsum(-1)
            expected = [int((row <= draw).sum()) for row, draw in zip(cumulative, draws[: len(ids)], strict=True)]
            assert ids == expected
            picked = logp.gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()
            np.testing.assert_allclose(completion.logps, picked, atol=1e-5)
            assert completion.terminated == (ids[-1] in model.end_ids)
            assert not set(ids[:-1]) & set(model.end_ids)
            assert completion.terminated or len(ids) == 10
            ended += completion.terminated
    assert 0 < ended < 32, "the test should see both endings"


def test_a_sample_does_not_depend_on_its_batch(model: LanguageModel) -> None:
    prompts = encoded(model)
    together = sample(model, prompts, keys(4), max_tokens=10, temperature=1.0)
    alone = sample(model, prompts[2:3], [keys(4)[2][1:2]], max_tokens=10, temperature=1.0)
    assert alone[0][0].token_ids == together[2][1].token_ids


def test_members_of_a_group_differ(model: LanguageModel) -> None:
    """One seed shared by all samples would make the group a single sample."""
    group = sample(model, encoded(model)[:1], [keys(64)[0]], max_tokens=10, temperature=1.0)[0]
    assert len({completion.token_ids for completion in group}) > 10


def test_sampling_follows_the_distribution(model: LanguageModel) -> None:
    """First tokens of 4,000 samples against the model's probabilities: chi-square within five standard deviations."""
    prompt = encoded(model)[0]
    group = sample(model, [prompt], [[stream_key(1, "many", m) for m in range(4000)]], max_tokens=1, temperature=1.0)
    counts = np.bincount([c.token_ids[0] for c in group[0]], minlength=len(model.tokenizer))
    expected = 4000 * full_logits(model, prompt)[-1].double().softmax(-1).numpy()
    large = expected > 5
    chi_square = ((counts[large] - expected[large]) ** 2 / expected[large]).sum()
    assert chi_square < large.sum() + 5 * (2 * large.sum()) ** 0.5


def test_scored_logps_are_tempered_and_ignore_padding(model: LanguageModel) -> None:
    prompts = encoded(model)
    completions = [[5, 6, 1], [7], [8, 9, 3, 4, 1], [6, 6]]
    sequences = Sequences.of(prompts, completions, model.pad_id)
    logp, entropy = token_logps_and_entropy(model.network, sequences, 0.5)
    assert torch.equal(logp, token_logps(model.network, sequences, 0.5))
    for i, (prompt, ids) in enumerate(zip(prompts, completions, strict=True)):
        full = (full_logits(model, prompt + ids) / 0.5).log_softmax(-1)[len(prompt) - 1 : -1]
        picked = full.gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(logp[i, : len(ids)], picked, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[i, : len(ids)], -(full.exp() * full).sum(-1), atol=1e-5, rtol=0)


def test_obj_28_log_probability_of_logits_2_0_at_temperature_one_half() -> None:
    """softmax([4, 0])[0] = 1 / (1 + e^-4): -0.018150, where the untempered one is -0.126928."""

    class TwoLogits(torch.nn.Module):
        config = PreTrainedConfig()

        def forward(self, input_ids: torch.Tensor, logits_to_keep: int, use_cache: bool) -> object:
            logits = torch.tensor([2.0, 0.0]).expand(len(input_ids), logits_to_keep, 2)
            return type("Output", (), {"logits": logits})

    sequences = Sequences.of([[0]], [[0]], 0)
    head = torch.nn.Linear(1, 2, bias=False)
    head.load_state_dict({"weight": torch.tensor([[2.0], [0.0]])})
    chunked, _ = logp_and_entropy(torch.ones(1, 1), head, torch.tensor([0]), 0.5)
    assert chunked.item() == pytest.approx(-0.018150, abs=1e-6)
    assert token_logps(TwoLogits(), sequences, 0.5).item() == pytest.approx(-0.018150, abs=1e-6)
    assert token_logps(TwoLogits(), sequences, 1.0).item() == pytest.approx(-0.126928, abs=1e-6)


def test_rows_cut_padding_and_keep_logps(model: LanguageModel) -> None:
    sequences = Sequences.of(encoded(model), [[5, 6, 1], [7], [8, 9, 3, 4, 1], [6, 6]], model.pad_id)
    whole = token_logps(model.network, sequences, 1.0)
    some = sequences.rows([0, 2])
    assert some.prompt_ids.shape == (2, 4)
    part = token_logps(model.network, some, 1.0)
    torch.testing.assert_close(part[1, :5], whole[2, :5], atol=1e-5, rtol=0)
    only = sequences.rows([1])
    assert only.completion_ids.shape == (1, 1)


def test_obj_22_masks_come_from_lengths_when_pad_is_the_end_token(model: LanguageModel) -> None:
    """With pad = end, and that id inside a prompt, masks and log-probabilities are those of a distinct pad id."""
    end = model.end_ids[0]
    prompts, completions = [[4, end, 5], [6]], [[7, 8, end], [7, 8, 9, 3, 4, end]]
    same, distinct = (Sequences.of(prompts, completions, pad) for pad in (end, model.pad_id))
    assert same.mask.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    assert torch.equal(same.mask, distinct.mask)
    left, right = (token_logps(model.network, s, 1.0).masked_fill(~s.mask, 0) for s in (same, distinct))
    torch.testing.assert_close(left, right, atol=1e-6, rtol=0)
    full = full_logits(model, prompts[0] + completions[0]).log_softmax(-1)
    assert left[0, 2].item() == pytest.approx(full[4, end].item(), abs=1e-5)


def test_obj_27_dropout_is_off_everywhere(model: LanguageModel) -> None:
    """A network with dropout 0.5 scores a completion twice alike, and as the sampler did: the ratio starts at 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(model.tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, attention_dropout=0.5, eos_token_id=model.end_ids[0],
    )  # fmt: skip
    torch.manual_seed(0)
    noisy = LanguageModel(LlamaForCausalLM(config).eval(), model.tokenizer, "plain")
    prompts = encoded(model)
    groups = sample(noisy, prompts, keys(2), max_tokens=6, temperature=1.0)
    flat = [c for own in groups for c in own]
    sequences = Sequences.of([p for p in prompts for _ in range(2)], [c.token_ids for c in flat], noisy.pad_id)
    first, second = (token_logps(noisy.network, sequences, 1.0) for _ in range(2))
    assert torch.equal(first, second)
    for row, completion in zip(first, flat, strict=True):
        np.testing.assert_allclose(row[: len(completion.logps)].detach(), completion.logps, atol=1e-5)


def test_values_stand_before_their_token_and_start_at_zero(model: LanguageModel) -> None:
    """V_t belongs to the state before token t: the hidden state at the prompt's last position gives V_0."""
    trunk = base_of(create_tiny(TinyModel(hidden_size=32, num_heads=2), ALPHABET, seed=0).network)
    critic = Critic(make_head(0, SeparateCritic(lr=1.0), trunk), trunk)
    sequences = Sequences.of(encoded(model), [[5, 6, 1], [7], [8, 9, 3], [6, 6]], model.pad_id)
    assert torch.count_nonzero(token_values(critic, trunk, sequences)) == 0
    critic = Critic(make_head(0, SeparateCritic(lr=1.0, head_init="normal_reward"), trunk), trunk)
    with torch.no_grad():
        values = token_values(critic, trunk, sequences)
        prompt, ids = encoded(model)[2], [8, 9, 3]
        hidden = trunk(torch.tensor([prompt + ids])).last_hidden_state[0]
        expected = critic.head(hidden)[len(prompt) - 1 : -1, 0]
    torch.testing.assert_close(values[2, :3], expected, atol=1e-5, rtol=0)


def test_greedy_sampling_takes_the_most_likely_token_and_makes_all_samples_equal(model: LanguageModel) -> None:
    prompts = encoded(model)
    groups = sample(model, prompts, keys(3), max_tokens=6, temperature=0)
    for prompt, own in zip(prompts, groups, strict=True):
        assert len({completion.token_ids for completion in own}) == 1
        ids = list(own[0].token_ids)
        logits = full_logits(model, prompt + ids)[len(prompt) - 1 : -1]
        assert ids == logits.argmax(dim=-1).tolist()
        picked = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()
        np.testing.assert_allclose(own[0].logps, picked, atol=1e-5)


def test_nucleus_sampling_draws_from_the_smallest_set_that_holds_top_p() -> None:
    """Probabilities .5, .3, .15, .05: 0.5 keeps one token, 0.51 and 0.8 keep two, 0.81 three; equals keep the first."""
    from bench.draw import draw

    logits = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64).log().float().expand(2000, 4)
    draws = torch.linspace(0, 1 - 1e-9, 2000, dtype=torch.float64)
    for top_p, kept in ((0.499, {1}), (0.51, {1, 3}), (0.8 - 1e-6, {1, 3}), (0.81, {0, 1, 3}), (1.0, {0, 1, 2, 3})):
        token, logp = draw(logits, draws, top_p)
        assert set(token.tolist()) == kept, top_p
        np.testing.assert_allclose(logp, logits[0].log_softmax(-1)[token], rtol=1e-6)
        share = (token == 1).double().mean()
        assert share == pytest.approx(0.5 / sum([0.15, 0.5, 0.05, 0.3][i] for i in kept), abs=2e-3)
    token, _ = draw(torch.zeros(100, 4), torch.linspace(0, 0.999, 100, dtype=torch.float64), 0.249)
    assert set(token.tolist()) == {0}
