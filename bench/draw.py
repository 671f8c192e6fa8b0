"""Drawing tokens: the inverse of the cumulative distribution at a given uniform number, exact for any vocabulary."""

import math

import torch
from torch import Tensor

_BLOCK_FROM = 4096
"""Vocabularies from this size on are searched in two levels: float64 sums over all of one take most of the time."""


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token ids (the first of equals), and their log-probabilities."""
    logp, token = logits.log_softmax(dim=-1).max(dim=-1)
    return token, logp


def draw(logits: Tensor, uniform: Tensor, top_p: float = 1.0) -> tuple[Tensor, Tensor]:
    """Token ids where the cumulative distribution first exceeds `uniform`, and their log-probabilities.

    A row's token depends on its own logits and number alone, and one of probability 0 is never drawn.

    Args: logits, float32 (rows, vocabulary); uniform, float64 (rows,) in [0, 1); `top_p` below 1 draws from the
    smallest set of most likely tokens that holds this much, and leaves the log-probabilities those of the whole.

    Returns: int64 (rows,) and float32 (rows,). Sums of probabilities are float64; NaN logits give some token and NaN.
    """
    probability = logits.softmax(dim=-1)
    token, total = _inverse(probability, uniform)
    if top_p < 1:
        token, _ = _inverse(_nucleus(probability, top_p), uniform)
    # Against the sum of what softmax gave, which may be off by some float32 roundings from 1.
    picked = probability.gather(-1, token[:, None]).squeeze(-1)
    return token, (picked / total).log().float()


def _inverse(weight: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Index where the cumulative `weight` first exceeds `uniform` times its sum, and that sum in float64."""
    vocabulary = weight.shape[-1]
    if vocabulary < _BLOCK_FROM:
        cumulative = weight.cumsum(dim=-1, dtype=torch.float64)
        return _first_above(cumulative, uniform * cumulative[:, -1]), cumulative[:, -1]
    # About as many blocks as there are tokens in one, so that both searches are short.
    size = math.isqrt(vocabulary - 1) + 1
    whole = vocabulary // size * size
    sums = weight[:, :whole].unflatten(-1, (-1, size)).sum(dim=-1)
    if whole < vocabulary:
        sums = torch.cat([sums, weight[:, whole:].sum(dim=-1, keepdim=True)], dim=-1)
    blocks = sums.cumsum(dim=-1, dtype=torch.float64)
    threshold = uniform * blocks[:, -1]
    block = _first_above(blocks, threshold)
    before = blocks.gather(-1, block[:, None]) - sums.gather(-1, block[:, None])
    index = (block[:, None] * size + torch.arange(size, device=weight.device)).clamp_(max=vocabulary - 1)
    inside = weight.gather(-1, index)
    if whole < vocabulary:
        inside.masked_fill_(torch.arange(size, device=weight.device) + block[:, None] * size >= vocabulary, 0.0)
    token = block * size + _first_above(inside.cumsum(dim=-1, dtype=torch.float64), threshold - before.squeeze(-1))
    return token, blocks[:, -1]


def _first_above(cumulative: Tensor, threshold: Tensor) -> Tensor:
    """Index of the first sum above `threshold` (rows,); where rounding put that at or past the end, of the last sum
    that rose, so that what has no weight is never taken."""
    end = cumulative[:, -1]
    below_end = torch.minimum(threshold, end * (1 - 2.0**-52))
    found = torch.searchsorted(cumulative, below_end[:, None], right=True).squeeze(-1)
    return found.clamp(max=cumulative.shape[-1] - 1)


def _nucleus(probability: Tensor, top_p: float) -> Tensor:
    """The probabilities with 0 for every token outside the smallest set of most likely ones that holds `top_p`."""
    ordered, index = probability.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    return torch.zeros_like(probability).scatter(-1, index, ordered.where(before < top_p, 0.0))
