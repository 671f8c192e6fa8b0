"""Sampling: the Generator protocol and the built-in sampler for any causal language model of transformers.

The built-in sampler prefills each unique prompt once, repeats its keys and values for the group, drops finished rows,
and draws every token by inverting the cumulative distribution at a counter-based uniform number: a sample depends on
its own key, not on the batch it sat in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from bench.models import LanguageModel
from bench.policy import attention_inputs, pad_left
from bench.seeding import uniforms

_ROW_BYTES = 2**29
_MOST_ROWS = 512


class NotFinite(RuntimeError):
    """The model's logits are not numbers, so nothing can be drawn from them."""


class ContextTooSmall(ValueError):
    """Prompt and completion do not fit the model; one line with the numbers."""


@dataclass(frozen=True)
class Completion:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    """Up to and including the end token, if it came."""
    terminated: bool
    logps: tuple[float, ...]
    """The sampler's own log-probability of each token."""


@runtime_checkable
class Generator(Protocol):
    """What an engine must offer; `keys[i]` seeds completion i of the flattened (prompt, member) order."""

    def __call__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
    ) -> list[list[Completion]]:
        """Completions for each prompt, one for each of its keys; all prompts have the same number of keys.

        Temperature 0 takes the most likely token. `top_p` below 1 draws from the smallest set of most likely tokens
        that holds this much probability; the log-probabilities stay those of the whole distribution.
        """
        ...


def check_context(model: LanguageModel, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Raises ContextTooSmall unless the longest prompt and `max_tokens` more fit the model's positions."""
    longest = max(map(len, prompts))
    if model.context is not None and longest + max_tokens > model.context:
        room = model.context - longest
        advice = f"must be at most {room}" if room > 0 else "a shorter prompt or a longer context is needed"
        raise ContextTooSmall(
            f"rollout.max_completion_tokens: {max_tokens} given, but the model has {model.context} positions and a "
            f"prompt takes {longest}; {advice}"
        )


def sample(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float,
    top_p: float = 1.0,
) -> list[list[Completion]]:
    """The built-in sampler. Batches are cut at 512 rows or 512 MiB of probabilities, keys and values.

    Raises:
        ContextTooSmall: the longest prompt and `max_tokens` more do not fit the model's positions.
    """
    check_context(model, prompts, max_tokens)
    longest = max(map(len, prompts))
    rows = max(1, min(_MOST_ROWS, _ROW_BYTES // _bytes_per_row(model, longest + max_tokens)))
    group = len(keys[0])
    flat = [(p, key) for p, own in enumerate(keys) for key in own]
    finished: list[Completion] = []
    for start in range(0, len(flat), rows):
        part = flat[start : start + rows]
        finished += _sample_batch(model, prompts, part, max_tokens, temperature, top_p)
    return [finished[i : i + group] for i in range(0, len(finished), group)]


def _bytes_per_row(model: LanguageModel, positions: int) -> int:
    """What one row takes: two float32 and two float64 vectors over the vocabulary, and its keys and values."""
    config = model.network.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 24 * config.vocab_size + 2 * 4 * config.num_hidden_layers * heads * head_size * positions


@torch.inference_mode()
def _sample_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    wanted: Sequence[tuple[int, int]],
    max_tokens: int,
    temperature: float,
    top_p: float,
) -> list[Completion]:
    device = model.network.device
    unique = sorted({p for p, _ in wanted})
    repeat = torch.tensor([unique.index(p) for p, _ in wanted], device=device)
    prompt_ids = pad_left([prompts[p] for p in unique], model.pad_id).to(device)
    lengths = [len(prompts[p]) for p in unique]
    width = prompt_ids.shape[1]
    inputs = attention_inputs(lengths, width, max_tokens, device)
    cache = DynamicCache(config=model.network.config)

    def step(ids: Tensor, first: int) -> Tensor:
        """Logits of the last position, after feeding `ids` that stand at columns `first` onwards."""
        window: dict[str, Tensor] = {}
        if inputs:
            window["attention_mask"] = inputs["attention_mask"][:, : first + ids.shape[1]]
            window["position_ids"] = inputs["position_ids"][:, first : first + ids.shape[1]]
        output = model.network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **window)
        return output.logits[:, -1].float() / (temperature or 1.0)

    logits = _finite(step(prompt_ids, 0))[repeat]
    cache.batch_select_indices(repeat)
    inputs = {name: tensor[repeat] for name, tensor in inputs.items()}
    draws = torch.from_numpy(uniforms([key for _, key in wanted], 0, max_tokens)).to(device)
    tokens = torch.full((len(wanted), max_tokens), model.pad_id, device=device)
    logps = torch.zeros((len(wanted), max_tokens), device=device)
    ends = torch.tensor(model.end_ids, device=device)
    length = torch.full((len(wanted),), max_tokens, device=device)
    terminated = torch.zeros(len(wanted), dtype=torch.bool, device=device)
    alive = torch.arange(len(wanted), device=device)
    for t in range(max_tokens):
        token, logp = _greedy(logits) if temperature == 0 else _draw(logits, draws[alive, t], top_p)
        tokens[alive, t], logps[alive, t] = token, logp
        ended = torch.isin(token, ends)
        length[alive[ended]], terminated[alive[ended]] = t + 1, True
        if bool(ended.any()):
            going = (~ended).nonzero().flatten()
            alive, token = alive[going], token[going]
            cache.batch_select_indices(going)
            inputs = {name: tensor[going] for name, tensor in inputs.items()}
        if t + 1 == max_tokens or not len(alive):
            break
        logits = step(token[:, None], width + t)
    return _completions(tokens, logps, length, terminated)


def _finite(logits: Tensor) -> Tensor:
    """The logits, if something can be drawn from each row: a masked token may be -inf, none may be NaN."""
    if bool(logits.isnan().any()) or not bool(logits.isfinite().any(dim=-1).all()):
        raise NotFinite("the model's logits are not finite")
    return logits


def _greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token ids (the first of equals), and their log-probabilities."""
    logp, token = logits.log_softmax(dim=-1).max(dim=-1)
    return token, logp


def _draw(logits: Tensor, uniform: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Token ids where the cumulative distribution (float64) first exceeds `uniform`, and their log-probabilities."""
    logp = logits.log_softmax(dim=-1)
    probability = logp.double().exp()
    if top_p < 1:
        probability = _nucleus(probability, top_p)
    cumulative = probability.cumsum(dim=-1)
    threshold = uniform * cumulative[:, -1]
    token = torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(-1)
    token = token.clamp(max=logits.shape[-1] - 1)
    return token, logp.gather(-1, token[:, None]).squeeze(-1)


def _nucleus(probability: Tensor, top_p: float) -> Tensor:
    """The probabilities with 0 for every token outside the smallest set of most likely ones that holds `top_p`."""
    ordered, index = probability.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(probability).scatter(-1, index, ordered.where(before < top_p, 0.0))


def _completions(tokens: Tensor, logps: Tensor, length: Tensor, terminated: Tensor) -> list[Completion]:
    ids, values = tokens.cpu().numpy(), logps.cpu().numpy().astype(np.float64)
    sizes, ended = length.tolist(), terminated.tolist()
    return [
        Completion(tuple(ids[i, :n].tolist()), end, tuple(values[i, :n].tolist()))
        for i, (n, end) in enumerate(zip(sizes, ended, strict=True))
    ]
