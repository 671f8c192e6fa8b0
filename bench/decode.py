"""The decode path of our own: a common decoder's forward pass over preallocated keys and values, without its overhead.

It computes what the network's own forward does, over the same parameters, to float rounding.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.decoder_weights import DecoderWeights, LayerWeights, Linear

_PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, that go through the network at once."""
_FEWEST_COLUMNS, _FEWEST_PRODUCTS = 16, 400
"""Softmax over fewer columns than a vector register holds is computed one by one, and products of fewer multiplications
without BLAS; both are slower than doing more with what is masked (measured on CPU with AVX-512)."""


class OwnDecoding:
    """Keys and values of a batch of rows, and how it goes one token further.

    Rows may be dropped; they then stand in another order, which the caller gives.
    """

    def __init__(
        self, weights: DecoderWeights, prompt_ids: Tensor, padding: Tensor, repeat: Tensor, max_tokens: int
    ) -> None:
        """Room for all rows. Nothing is computed yet.

        Args: prompt_ids, the unique prompts, padded on the left to one width; padding, its size in each; repeat, the
        prompt of each row, ascending.
        """
        self.weights, self.prompt_ids, self.padding, self.repeat = weights, prompt_ids, padding, repeat
        self.column, self.num_rows = prompt_ids.shape[1], len(repeat)
        heads, size = weights.num_kv_heads, weights.head_size
        products = weights.num_heads // heads * size
        self.fewest = max(_FEWEST_COLUMNS, -(-_FEWEST_PRODUCTS // products))
        like = weights.embedding
        capacity = max(self.column + max_tokens, self.fewest)
        # Zeros: columns that are masked must still be finite.
        self.cache = like.new_zeros(len(weights.layers), 2, self.num_rows, heads, capacity, size)
        columns = torch.arange(capacity, device=like.device)
        self.cos, self.sin = (table[0] for table in weights.rotary(like, columns[None]))
        self.positions = self.column - padding[repeat]
        is_padded = bool((padding > 0).any())
        masked = (columns >= self.column) | (columns < (padding[repeat][:, None] if is_padded else 0))
        # One mask for all where no row is padded; else one for each row and head.
        bias = like.new_zeros(masked.shape).masked_fill_(masked, -torch.inf)
        self.bias = bias[:, None].repeat(1, heads, 1) if is_padded else bias.view(1, 1, -1)

    def prefill(self) -> Tensor:
        """Feed the prompts, each once; float32 logits (rows, vocabulary) of what follows them."""
        at_once = max(1, _PREFILL_TOKENS // self.column)
        logits = [self._prefill(start, start + at_once) for start in range(0, len(self.prompt_ids), at_once)]
        return torch.cat(logits)[self.repeat]

    def _prefill(self, start: int, stop: int) -> Tensor:
        weights, ids, padding = self.weights, self.prompt_ids[start:stop], self.padding[start:stop]
        rows = ((self.repeat >= start) & (self.repeat < stop)).nonzero().flatten()
        first, last, local = int(rows[0]), int(rows[-1]) + 1, self.repeat[rows] - start
        columns = torch.arange(self.column, device=ids.device)
        positions = (columns - padding[:, None]).clamp_(min=0).flatten()
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        # What is padding sees itself, so that no row of the mask is empty.
        seen = (columns[:, None] >= columns) & (columns >= padding[:, None, None])
        seen = (seen | (columns[:, None] == columns))[:, None]
        x = F.embedding(ids.flatten(), weights.embedding)
        grouped = weights.num_heads != weights.num_kv_heads
        for layer, kept in zip(weights.layers, self.cache, strict=True):
            q, k, v = (part.unflatten(0, ids.shape).transpose(1, 2) for part in _qkv(weights, layer, x, cos, sin))
            for new, old in zip((k, v), kept, strict=True):
                old[first:last, :, : self.column] = new[local]
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=weights.scaling, enable_gqa=grouped
            )
            x = _after_attention(weights, layer, x, attended.transpose(1, 2).flatten(0, 1).flatten(1))
        return self._logits(x.unflatten(0, ids.shape)[:, -1])

    def step(self, token: Tensor) -> Tensor:
        """Feed one token a row: int64 (rows,); float32 logits (rows, vocabulary) of what follows."""
        weights, rows, column = self.weights, self.num_rows, self.column
        heads, size = weights.num_kv_heads, weights.head_size
        self.bias[..., column] = 0
        width = max(column + 1, self.fewest)
        bias = self.bias[:rows, :, :width]
        cos, sin = self.cos[self.positions][:, None], self.sin[self.positions][:, None]
        x = F.embedding(token, weights.embedding)
        for layer, kept in zip(weights.layers, self.cache, strict=True):
            q, k, v = _qkv(weights, layer, x, cos, sin)
            kept[0, :rows, :, column], kept[1, :rows, :, column] = k, v
            # Queries that share a head of keys are rows of one product.
            q = q.reshape(rows, heads, -1, size)
            attended = _attention(q, kept[0, :rows, :, :width], kept[1, :rows, :, :width], bias, weights.scaling)
            x = _after_attention(weights, layer, x, attended.reshape(rows, -1))
        self.column += 1
        self.positions = self.positions + 1
        return self._logits(x)

    def keep(self, order: Tensor) -> None:
        """Go on with some of the rows: row i is what row `order[i]` was. Only rows that change their place are moved,
        so `order` should leave most where they are."""
        self.num_rows = len(order)
        moved = (order != torch.arange(len(order), device=order.device)).nonzero().flatten()
        self.cache[:, :, moved] = self.cache[:, :, order[moved]]
        self.positions = self.positions[order]
        if len(self.bias) > 1:
            self.bias[moved] = self.bias[order[moved]]

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(_norm(x, self.weights.norm, self.weights.epsilon), *self.weights.head).float()


def _qkv(weights: DecoderWeights, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Rotated queries and keys, and values, of each token: (tokens, heads, head size)."""
    size, num_q, num_kv = weights.head_size, weights.num_heads, weights.num_kv_heads
    projected = _project(_norm(x, layer.attention_norm, weights.epsilon), layer.qkv).unflatten(-1, (-1, size))
    turned, v = projected.split([num_q + num_kv, num_kv], dim=1)
    if layer.head_norms is not None:
        q_norm, k_norm = layer.head_norms
        q, k = turned.split([num_q, num_kv], dim=1)
        turned = torch.cat([_norm(q, q_norm, weights.epsilon), _norm(k, k_norm, weights.epsilon)], dim=1)
    rotated, half = turned * cos, size // 2
    rotated[..., :half].addcmul_(turned[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(turned[..., :half], sin[..., half:])
    return [*rotated.split([num_q, num_kv], dim=1), v]


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float) -> Tensor:
    """Attention of (rows, heads, queries, size) over (rows, heads, columns, size); bias (rows or 1, heads or 1,
    columns)."""
    if q.dtype != torch.float32:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, :, None], scale=scaling)
    # With so few queries a head, batched products are twice as fast on CPU as the fused kernel.
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.baddbmm(bias.flatten(0, 1)[:, None], q, k.transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(dim=-1), v)


def _after_attention(weights: DecoderWeights, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of the layer; `x` is overwritten."""
    x = _add(x, attended, layer.output)
    gate, up = _project(_norm(x, layer.mlp_norm, weights.epsilon), layer.gate_up).chunk(2, dim=-1)
    return _add(x, F.silu(gate).mul_(up), layer.down)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)


def _project(x: Tensor, parts: tuple[Linear, ...]) -> Tensor:
    if len(parts) == 1:
        return F.linear(x, *parts[0])
    return torch.cat([F.linear(x, *part) for part in parts], dim=-1)


def _add(x: Tensor, y: Tensor, linear: Linear) -> Tensor:
    """x + linear(y), in x's place."""
    weight, bias = linear
    x.addmm_(y, weight.t())
    return x if bias is None else x.add_(bias)
