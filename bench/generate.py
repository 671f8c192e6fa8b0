"""Sampling: the Generator protocol and the built-in sampler for any causal language model of transformers.

The built-in sampler prefills each prompt once for its whole group, drops finished rows,
and draws every token by inverting the cumulative distribution at a counter-based uniform number: a sample depends on
its own key, not on the batch it sat in. The common decoders go through `bench.decode`, all others through their own
forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from bench.decode import DROP_BELOW, OwnDecoding
from bench.decoder_weights import DecoderWeights, decoder_weights, decodes_natively
from bench.draw import draw, greedy
from bench.models import LanguageModel
from bench.policy import attention_inputs, pad_left
from bench.seeding import uniforms

_BATCH_BYTES = 2**30
_MOST_ROWS = 512
_CUDA_LOOKS_EVERY = 8
"""Steps between two looks at which rows have ended, where each look waits for the device."""


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

    Tokens depend on their keys alone; log-probabilities are those of the whole distribution, in float32.

    Raises:
        ContextTooSmall: the longest prompt and `max_tokens` more do not fit the model's positions.
        NotFinite: there is nothing to draw from.
    """
    check_context(model, prompts, max_tokens)
    finished: list[list[Completion]] = [[] for _ in prompts]
    # In the weights' own precision, whatever stands around this call.
    with torch.inference_mode(), torch.autocast(model.network.device.type, enabled=False):
        weights = decoder_weights(model.network) if decodes_natively(model.network) else None
        num_prompts, members = _batch_shape(model, prompts, len(keys[0]), max_tokens, weights is not None)
        for p, m in product(range(0, len(prompts), num_prompts), range(0, len(keys[0]), members)):
            ids = prompts[p : p + num_prompts]
            own_keys = [own[m : m + members] for own in keys[p : p + num_prompts]]
            decoding = _decoding(model, weights, ids, len(own_keys[0]), max_tokens)
            draws = torch.from_numpy(uniforms([key for own in own_keys for key in own], 0, max_tokens))
            done = iter(_sample_batch(model, decoding, draws.to(model.network.device), temperature, top_p))
            for i, own in enumerate(own_keys):
                finished[p + i] += islice(done, len(own))
    return finished


def _batch_shape(
    model: LanguageModel, prompts: Sequence[Sequence[int]], group: int, max_tokens: int, prompt_once: bool
) -> tuple[int, int]:
    """How many prompts and how many members of each are sampled at once.

    A row takes two float32 vectors over the vocabulary and its keys and values, those of its prompt among them unless
    they are kept once for all members.
    """
    config = model.network.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    positions = max_tokens + max(map(len, prompts)) // (group if prompt_once else 1)
    kept = 2 * config.num_hidden_layers * heads * head_size * positions * model.network.dtype.itemsize
    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES // (8 * config.vocab_size + kept)))
    return max(1, rows // group), min(group, rows)


class _Decoding(Protocol):
    """A batch of rows that goes one token further at a time."""

    def prefill(self) -> Tensor:
        """Float32 logits (rows, vocabulary) of what follows the prompts."""
        ...

    def step(self, token: Tensor) -> Tensor:
        """The same after one token more a row, int64 (rows,)."""
        ...

    def drop(self, over: Tensor) -> Tensor:
        """Go on with fewer rows, if that pays; at least with those that are not over, of which there are some.

        Returns which: row i is what row `order[i]` was.
        """
        ...


class _ForwardDecoding:
    """The general case: a loop around the network's own forward pass and cache."""

    def __init__(
        self, model: LanguageModel, prompt_ids: Tensor, lengths: Sequence[int], members: int, max_tokens: int
    ) -> None:
        self.network, self.prompt_ids, self.members = model.network, prompt_ids, members
        self.column = prompt_ids.shape[1]
        self.inputs = attention_inputs(lengths, self.column, max_tokens, prompt_ids.device)
        self.cache = DynamicCache(config=model.network.config)

    def prefill(self) -> Tensor:
        logits = self._forward(self.prompt_ids, 0)
        rows = torch.arange(len(logits), device=logits.device).repeat_interleave(self.members)
        self._keep(rows)
        return logits[rows]

    def step(self, token: Tensor) -> Tensor:
        self.column += 1
        return self._forward(token[:, None], self.column - 1)

    def drop(self, over: Tensor) -> Tensor:
        order = (~over).nonzero().flatten()
        if len(order) > DROP_BELOW * len(over):
            return torch.arange(len(over), device=over.device)
        self._keep(order)
        return order

    def _keep(self, order: Tensor) -> None:
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
    prompts: Sequence[Sequence[int]],
    members: int,
    max_tokens: int,
) -> _Decoding:
    """The decode path for some prompts with the same number of completions each."""
    prompt_ids, lengths = pad_left(prompts, model.pad_id).to(model.network.device), [len(ids) for ids in prompts]
    if weights is None:
        return _ForwardDecoding(model, prompt_ids, lengths, members, max_tokens)
    padding = prompt_ids.shape[1] - torch.tensor(lengths, device=prompt_ids.device)
    return OwnDecoding(weights, prompt_ids, padding, members, max_tokens)


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
            logits.div_(temperature)
        token, logp = greedy(logits) if temperature == 0 else draw(logits, draws[alive, t], top_p)
        tokens[alive, t], logps[alive, t] = token, logp
        if t + 1 == max_tokens:
            break
        over |= (token[:, None] == ends).any(dim=-1)
        if t % look_every == look_every - 1:
            if bool(over.all()):
                break
            if bool(over.any()):
                order = decoding.drop(over)
                alive, token, over = alive[order], token[order], over[order]
        logits = decoding.step(token)
    return _completions(tokens, logps, ends)


def _finite(logits: Tensor) -> Tensor:
    """The logits, if something can be drawn from each row: a masked token may be -inf, none may be NaN."""
    if bool(logits.isnan().any()) or not bool(logits.isfinite().any(dim=-1).all()):
        raise NotFinite("the model's logits are not finite")
    return logits


def _completions(tokens: Tensor, logps: Tensor, ends: Tensor) -> list[Completion]:
    """What each row has up to its first end token: a row may have gone on after it, among others that had to."""
    ids, values = tokens.cpu().numpy(), logps.cpu().numpy().astype(np.float64)
    is_end = np.isin(ids, ends.cpu().numpy())
    first = is_end.argmax(axis=1)
    terminated = is_end[np.arange(len(ids)), first]
    lengths = np.where(terminated, first + 1, ids.shape[1])
    if np.isnan(values[np.arange(ids.shape[1]) < lengths[:, None]]).any():
        raise NotFinite("the model's logits are not finite")
    return [
        Completion(tuple(own[:n]), end, tuple(logp[:n]))
        for own, logp, n, end in zip(ids.tolist(), values.tolist(), lengths.tolist(), terminated.tolist(), strict=True)
    ]
