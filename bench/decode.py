"""The decode path of our own: a common decoder's forward pass over preallocated keys and values, without its overhead.

It computes what the network's own forward does, over the same parameters, to float rounding.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.decoder_weights import DecoderWeights, LayerWeights, Linear

_PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, that go through the network at once."""
_FEWEST_PRODUCTS = 400
"""Batched products of fewer multiplications bypass BLAS on CPU, and cost more than enough columns that are masked."""

DROP_BELOW = 15 / 16
"""Rows are let go when no more than this share stays: keys and values of those that stay are copied."""


class OwnDecoding:
    """Prompts with the same number of completions each, and their keys and values: how they go one token further.

    A row is one completion, in the order (prompt, member). A prompt's keys and values are kept once for all of them.
    """

    def __init__(
        self, weights: DecoderWeights, prompt_ids: Tensor, padding: Tensor, members: int, max_tokens: int
    ) -> None:
        """Room for all rows. Nothing is computed yet.

        Args: prompt_ids, padded on the left to one width; padding, its size in each.
        """
        num_prompts, width = prompt_ids.shape
        self.weights, self.prompt_ids, self.padding = weights, prompt_ids, padding
        self.num_prompts, self.members, self.column = num_prompts, members, 0
        heads, size, like = weights.num_kv_heads, weights.head_size, weights.embedding
        self.fewest = -(-_FEWEST_PRODUCTS // (weights.num_heads // heads * size))
        room, num_layers = max(max_tokens, self.fewest), len(weights.layers)
        kept = {"dtype": weights.products, "device": like.device}
        self.prompt_cache = torch.empty(num_layers, 2, num_prompts * heads, width, size, **kept)
        # Zeros, not whatever stood there: what is masked must still be finite.
        self.cache = torch.zeros(num_layers, 2, num_prompts * heads * members, room, size, **kept)
        columns = torch.arange(width + room, device=like.device)
        self.cos, self.sin = (table[0] for table in weights.rotary(like, columns[None]))
        self.positions = (width - padding).repeat_interleave(members)
        masked = (columns[:width] < padding[:, None]).repeat_interleave(heads, dim=0)[:, None]
        self.prompt_bias = torch.zeros(masked.shape, **kept).masked_fill_(masked, -torch.inf)
        self.bias = torch.full((1, 1, room), -torch.inf, **kept)

    def prefill(self) -> Tensor:
        """Feed the prompts, each once; float32 logits (rows, vocabulary) of what follows them."""
        at_once = max(1, _PREFILL_TOKENS // self.prompt_ids.shape[1])
        logits = [self._prefill(start, start + at_once) for start in range(0, self.num_prompts, at_once)]
        return torch.cat(logits).repeat_interleave(self.members, dim=0)

    def _prefill(self, start: int, stop: int) -> Tensor:
        weights, ids, padding = self.weights, self.prompt_ids[start:stop], self.padding[start:stop]
        columns = torch.arange(ids.shape[1], device=ids.device)
        positions = (columns - padding[:, None]).clamp_(min=0).flatten()
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        # What is padding sees itself, so that no row of the mask is empty.
        seen = (columns[:, None] >= columns) & (columns >= padding[:, None, None])
        seen = (seen | (columns[:, None] == columns))[:, None]
        x = F.embedding(ids.flatten(), weights.embedding)
        grouped = weights.num_heads != weights.num_kv_heads
        for layer, kept in zip(weights.layers, self.prompt_cache, strict=True):
            q, k, v = [part.unflatten(0, ids.shape).transpose(1, 2) for part in _qkv(weights, layer, x, cos, sin)]
            for new, old in zip((k, v), kept.unflatten(1, (self.num_prompts, -1)), strict=True):
                old[start:stop] = new
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=weights.scaling, enable_gqa=grouped
            )
            x = _after_attention(weights, layer, x, attended.transpose(1, 2).flatten(0, 1).flatten(1))
        return self._logits(x.unflatten(0, ids.shape)[:, -1])

    def step(self, token: Tensor) -> Tensor:
        """Feed one token a row: int64 (rows,); float32 logits (rows, vocabulary) of what follows."""
        weights = self.weights
        self.bias[..., self.column] = 0
        cos, sin = self.cos[self.positions][:, None], self.sin[self.positions][:, None]
        x = F.embedding(token, weights.embedding)
        for layer, prompt, kept in zip(weights.layers, self.prompt_cache, self.cache, strict=True):
            q, k, v = _qkv(weights, layer, x, cos, sin)
            attended = self._attend(q, k, v, prompt, kept)
            x = _after_attention(weights, layer, x, attended)
        self.column += 1
        self.positions = self.positions + 1
        return self._logits(x)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, prompt: Tensor, kept: Tensor) -> Tensor:
        """Attention of one query a row over its prompt, for all members in one product, and over its own tokens.

        Args: q, k, v (rows, heads, size); prompt and kept, one layer's keys and values, to which k and v are added.
        """
        weights, width = self.weights, max(self.column + 1, self.fewest)
        by_head = (self.num_prompts, self.members, weights.num_kv_heads, -1, weights.head_size)
        q, k, v = (part.reshape(by_head).transpose(1, 2) for part in (q, k, v))
        q, shape = q.contiguous(), q.shape
        for new, old in zip((k, v), kept, strict=True):
            old[:, self.column].view(new.shape).copy_(new)
        to_prompt = q.view(-1, shape[2] * shape[3], shape[4])
        to_own = q.view(-1, *shape[3:])
        early = torch.baddbmm(self.prompt_bias, to_prompt, prompt[0].transpose(1, 2), alpha=weights.scaling)
        late = torch.baddbmm(self.bias[..., :width], to_own, kept[0, :, :width].transpose(1, 2), alpha=weights.scaling)
        scores = torch.cat([early.view(*to_own.shape[:2], -1), late], dim=-1)
        shares = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        early, late = shares.split([prompt.shape[2], width], dim=-1)
        attended = torch.bmm(early.reshape(*to_prompt.shape[:2], -1), prompt[1]).view(to_own.shape)
        attended = attended.baddbmm_(late, kept[1, :, :width])
        return attended.view(shape).transpose(1, 2).reshape(self.num_prompts * self.members, -1)

    def drop(self, over: Tensor) -> Tensor:
        """Let go of rows that are over, as far as prompts keep the same number of members.

        Returns the rows that stay, those that were `over` among them: row i is now what row `order[i]` was.
        """
        over = over.view(self.num_prompts, self.members)
        going = (~over).sum(dim=1)
        prompts, members = going.nonzero().flatten(), int(going.max())
        if len(prompts) * members > DROP_BELOW * over.numel():
            return torch.arange(over.numel(), device=over.device)
        chosen = over[prompts].to(torch.int8).argsort(dim=1, stable=True)[:, :members]
        heads = torch.arange(self.weights.num_kv_heads, device=over.device)
        of_prompt = prompts[:, None] * len(heads) + heads
        self.cache = self.cache.index_select(2, (of_prompt[..., None] * self.members + chosen[:, None]).flatten())
        if len(prompts) < self.num_prompts:
            self.prompt_cache = self.prompt_cache.index_select(2, of_prompt.flatten())
            self.prompt_bias = self.prompt_bias[of_prompt.flatten()]
        order = (prompts[:, None] * self.members + chosen).flatten()
        self.num_prompts, self.members, self.positions = len(prompts), members, self.positions[order]
        return order

    def _logits(self, x: Tensor) -> Tensor:
        return _project(_norm(x, self.weights.norm, self.weights.epsilon), (self.weights.head,)).float()


def _qkv(
    weights: DecoderWeights, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and values, of each token: (tokens, heads, head size)."""
    size, num_q, num_kv = weights.head_size, weights.num_heads, weights.num_kv_heads
    projected = _project(_norm(x, layer.attention_norm, weights.epsilon), layer.qkv).unflatten(-1, (-1, size))
    turned, v = projected.split([num_q + num_kv, num_kv], dim=1)
    turned = turned.to(cos.dtype)
    if layer.head_norms is not None:
        q_norm, k_norm = layer.head_norms
        q, k = turned.split([num_q, num_kv], dim=1)
        turned = torch.cat([_norm(q, q_norm, weights.epsilon), _norm(k, k_norm, weights.epsilon)], dim=1)
    rotated, half = turned * cos, size // 2
    rotated[..., :half].addcmul_(turned[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(turned[..., :half], sin[..., half:])
    q, k = rotated.to(weights.products).split([num_q, num_kv], dim=1)
    return q, k, v


def _after_attention(weights: DecoderWeights, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of the layer; `x` is overwritten."""
    x = _add(x, attended, layer.output)
    gate, up = _project(_norm(x, layer.mlp_norm, weights.epsilon), layer.gate_up).chunk(2, dim=-1)
    return _add(x, F.silu(gate).mul_(up), layer.down)


def _norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """x over its root mean square, times the weight where there is one."""
    if x.dtype != torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, epsilon)
    # A sum of squares in one pass: half the time of rms_norm, which is made of four on a CPU.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    y = x * length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return y if weight is None else y.mul_(weight)


def _project(x: Tensor, parts: tuple[Linear, ...]) -> Tensor:
    x = x.to(parts[0][0].dtype)
    if len(parts) == 1:
        return F.linear(x, *parts[0])
    return torch.cat([F.linear(x, *part) for part in parts], dim=-1)


def _add(x: Tensor, y: Tensor, linear: Linear) -> Tensor:
    """x + linear(y), in x's place."""
    weight, bias = linear
    if x.dtype != weight.dtype:
        return x.add_(F.linear(y, weight, bias))
    x.addmm_(y, weight.t())
    return x if bias is None else x.add_(bias)
