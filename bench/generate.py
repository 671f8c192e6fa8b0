"""Sampling: the Generator protocol and the built-in sampler for any causal language model of transformers.

The built-in sampler prefills each unique prompt once, repeats its keys and values for the group, drops finished rows,
and draws every token by inverting the cumulative distribution at a counter-based uniform number: a sample depends on
its own key, not on the batch it sat in. The common decoders go through `bench.decode`, all others through their own
forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from bench.decode import OwnDecoding
from bench.decoder_weights import DecoderWeights, decoder_weights, decodes_natively
from bench.draw import draw, greedy
from bench.models import LanguageModel
from bench.policy import attention_inputs, pad_left
from bench.seeding import uniforms

_ROW_BYTES = 2**30
_MOST_ROWS = 512
_CUDA_LOOKS_EVERY = 8
"""Steps between two looks at which rows have ended, where each look waits for the device."""
_DROPPED_SHARE = 1 / 16
"""Rows are dropped when this share has ended: dropping copies the keys and values of the others."""


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
    """The built-in sampler. Batches are cut at 512 rows or 1 GiB of probabilities, keys and values.

    Raises:
        ContextTooSmall: the longest prompt and `max_tokens` more do not fit the model's positions.
        NotFinite: there is nothing to draw from.
    """
    check_context(model, prompts, max_tokens)
    longest = max(map(len, prompts))
    rows = max(1, min(_MOST_ROWS, _ROW_BYTES // _bytes_per_row(model, longest + max_tokens)))
    group = len(keys[0])
    flat = [(p, key) for p, own in enumerate(keys) for key in own]
    finished: list[Completion] = []
    with torch.inference_mode():
        weights = decoder_weights(model.network) if decodes_natively(model.network) else None
        for start in range(0, len(flat), rows):
            part = flat[start : start + rows]
            rows_of = [p for p, _ in part]
            decoding = _decoding(model, weights, [prompts[p] for p in dict.fromkeys(rows_of)], rows_of, max_tokens)
            draws = torch.from_numpy(uniforms([key for _, key in part], 0, max_tokens)).to(model.network.device)
            finished += _sample_batch(model, decoding, draws, temperature, top_p)
    return [finished[i : i + group] for i in range(0, len(finished), group)]


def _bytes_per_row(model: LanguageModel, positions: int) -> int:
    """What one row takes: two float32 vectors over the vocabulary, and its keys and values."""
    config = model.network.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = 2 * config.num_hidden_layers * heads * head_size * positions
    return 8 * config.vocab_size + width * model.network.dtype.itemsize


class _Decoding(Protocol):
    """A batch of rows that goes one token further at a time."""

    def prefill(self) -> Tensor:
        """Float32 logits (rows, vocabulary) of what follows the prompts."""
        ...

    def step(self, token: Tensor) -> Tensor:
        """The same after one token more a row, int64 (rows,)."""
        ...

    def keep(self, order: Tensor) -> None:
        """Go on with some of the rows: row i is what row `order[i]` was."""
        ...


class _ForwardDecoding:
    """The general case: a loop around the network's own forward pass and cache."""

    def __init__(
        self, model: LanguageModel, prompt_ids: Tensor, lengths: Sequence[int], repeat: Tensor, max_tokens: int
    ) -> None:
        self.network, self.prompt_ids, self.repeat = model.network, prompt_ids, repeat
        self.column = prompt_ids.shape[1]
        self.inputs = attention_inputs(lengths, self.column, max_tokens, prompt_ids.device)
        self.cache = DynamicCache(config=model.network.config)

    def prefill(self) -> Tensor:
        logits = self._forward(self.prompt_ids, 0)
        self.keep(self.repeat)
        return logits[self.repeat]

    def step(self, token: Tensor) -> Tensor:
        self.column += 1
        return self._forward(token[:, None], self.column - 1)

    def keep(self, order: Tensor) -> None:
        self.cache.batch_select_indices(order)
        self.inputs = {name: tensor[order] for name, tensor in self.inputs.items()}

    def _forward(self, ids: Tensor, first: int) -> Tensor:
        """Logits of the last position, after feeding `ids` that stand at columns `first` onwards."""
        window: dict[str, Tensor] = {}
        if self.inputs:
            window["attention_mask"] = self.inputs["attention_mask"][:, : first + ids.shape[1]]
            window["position_ids"] = self.inputs["position_ids"][:, first : first + ids.shape[1]]
        output = self.network(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1, **window)
        return output.logits[:, -1].float()


def _decoding(
    model: LanguageModel,
    weights: DecoderWeights | None,
    unique: Sequence[Sequence[int]],
    rows_of: Sequence[int],
    max_tokens: int,
) -> _Decoding:
    """The decode path for rows whose prompts are named, in their order, by `rows_of`; the `unique` ones are given."""
    device = model.network.device
    place = {p: i for i, p in enumerate(dict.fromkeys(rows_of))}
    repeat = torch.tensor([place[p] for p in rows_of], device=device)
    prompt_ids, lengths = pad_left(unique, model.pad_id).to(device), [len(prompt) for prompt in unique]
    if weights is None:
        return _ForwardDecoding(model, prompt_ids, lengths, repeat, max_tokens)
    padding = prompt_ids.shape[1] - torch.tensor(lengths, device=device)
    return OwnDecoding(weights, prompt_ids, padding, repeat, max_tokens)


def _sample_batch(
    model: LanguageModel, decoding: _Decoding, draws: Tensor, temperature: float, top_p: float
) -> list[Completion]:
    """Completions of the rows whose uniform numbers are `draws` (rows, most tokens)."""
    num_rows, max_tokens = draws.shape
    device, ends = draws.device, torch.tensor(model.end_ids, device=draws.device)
    tokens = torch.full(draws.shape, model.pad_id, device=device)
    logps = torch.zeros(draws.shape, device=device)
    alive = torch.arange(num_rows, device=device)
    over = torch.zeros(num_rows, dtype=torch.bool, device=device)
    look_every = _CUDA_LOOKS_EVERY if device.type == "cuda" else 1
    logits = _finite(decoding.prefill())
    for t in range(max_tokens):
        if temperature not in (0, 1):
            logits = logits / temperature
        token, logp = greedy(logits) if temperature == 0 else draw(logits, draws[alive, t], top_p)
        tokens[alive, t], logps[alive, t] = token, logp
        if t + 1 == max_tokens:
            break
        over |= (token[:, None] == ends).any(dim=-1)
        if t % look_every == look_every - 1:
            order = _without(over)
            if not len(order):
                break
            if len(order) <= (1 - _DROPPED_SHARE) * len(alive):
                decoding.keep(order)
                alive, token, over = alive[order], token[order], over[order]
        logits = decoding.step(token)
    return _completions(tokens, logps, ends)


def _without(over: Tensor) -> Tensor:
    """The rows that go on, in an order that moves few: those from behind take the places of those that are over."""
    going = (~over).nonzero().flatten()
    order = torch.arange(len(going), device=over.device)
    free = over[: len(going)].nonzero().flatten()
    order[free] = going[len(going) - len(free) :]
    return order


def _finite(logits: Tensor) -> Tensor:
    """The logits, if something can be drawn from each row: a masked token may be -inf, none may be NaN."""
    if bool(logits.isnan().any()) or not bool(logits.isfinite().any(dim=-1).all()):
        raise NotFinite("the model's logits are not finite")
    return logits


def _completions(tokens: Tensor, logps: Tensor, ends: Tensor) -> list[Completion]:
    """What each row has up to its first end token: a row may have gone on after it, among others that had to."""
    ids, values = tokens.cpu().numpy(), logps.cpu().numpy().astype(np.float64)
    is_end = np.isin(ids, ends.cpu().numpy())
    terminated = is_end.any(axis=1)
    lengths = np.where(terminated, is_end.argmax(axis=1) + 1, ids.shape[1])
    if np.isnan(values[np.arange(ids.shape[1]) < lengths[:, None]]).any():
        raise NotFinite("the model's logits are not finite")
    return [
        Completion(tuple(own[:n]), end, tuple(logp[:n]))
        for own, logp, n, end in zip(ids.tolist(), values.tolist(), lengths.tolist(), terminated.tolist(), strict=True)
    ]
