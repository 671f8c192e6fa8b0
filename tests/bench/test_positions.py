"""Padding moves no position: models with absolute positions score and sample a row as they would alone."""

import pytest
import torch

from bench.generate import sample
from bench.models import LanguageModel, character_tokenizer
from bench.policy import Sequences, reads_packed, token_logps


@pytest.mark.parametrize("model_type", ["gpt2", "unheard_of"])
def test_obj_50_padding_moves_no_position_where_positions_are_absolute(model_type: str) -> None:
    """GPT-2 with prompts of 3, 7 and 1 tokens: each row alone, in the batch, and as it was sampled, within 1e-5. A
    batch of a family that the suite does not know is padded on the left, any other is packed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1)
    model = LanguageModel(GPT2LMHeadModel(config).eval(), character_tokenizer("0123456789+="), "plain")
    model.network.config.model_type = model_type
    assert reads_packed(model.network) == (model_type == "gpt2")
    with torch.no_grad():
        model.network.get_input_embeddings().weight.mul_(20)
    prompts = [[4, 5, 6], [7, 8, 9, 10, 11, 12, 13], [3]]
    groups = sample(model, prompts, [[0], [1], [2]], max_tokens=6, temperature=1.0)
    ids = [completion.token_ids for (completion,) in groups]
    batch = token_logps(model.network, Sequences.of(prompts, ids, 1), 1.0)
    for row, prompt, own, (completion,) in zip(batch, prompts, ids, groups, strict=True):
        alone = token_logps(model.network, Sequences.of([prompt], [own], 1), 1.0)[0]
        torch.testing.assert_close(row[: len(own)], alone, atol=1e-5, rtol=0)
        torch.testing.assert_close(alone.detach(), torch.tensor(completion.logps).float(), atol=1e-5, rtol=0)
