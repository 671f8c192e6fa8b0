"""The vocabulary head without its logits: log-probability and entropy of given tokens, a chunk of tokens at a time.

One definition for all objectives. Logits exist for one chunk only, in the forward pass and again in the backward pass,
where they are computed anew: what is kept between the two is one number a token.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

CHUNK_LOGITS = 2**24
"""Logits alive at once: 64 MiB in float32, hundreds of tokens at the vocabularies in use."""


def logp_and_entropy(
    states: Tensor, head: nn.Linear, targets: Tensor, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, softmax(head(states) / temperature).

    Logits are float32 whatever the precision of the product; under autocast the product is bfloat16.

    Args:
        states: (tokens, hidden size), what the head reads.
        head: the vocabulary's linear layer.
        targets: int64 (tokens,).
        temperature: above 0.
        entropy_gradient: whether the entropy carries a gradient too.

    Returns:
        Two of float32 (tokens,), in nats.
    """
    arguments = (states, head.weight, head.bias, targets, temperature, entropy_gradient)
    logp, entropy = _Head.apply(*arguments)  # pyright: ignore[reportGeneralTypeIssues]
    return logp, entropy


def picked(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets and the normaliser, from logits (..., vocabulary): the full form."""
    normaliser = logits.logsumexp(dim=-1)
    return logits.gather(-1, targets[..., None]).squeeze(-1) - normaliser, normaliser


def entropy_of(logits: Tensor, normaliser: Tensor) -> Tensor:
    """Exact entropy of softmax(logits), in nats; a token of probability 0 adds 0, and has the gradient 0."""
    logp = logits - normaliser[..., None]
    return -torch.where(logp == -torch.inf, 0.0, logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(dim=-1)


def _product_type(weight: Tensor) -> torch.dtype:
    """The precision of the head's products: autocast's where it is on."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK_LOGITS // vocabulary)
    return (slice(start, start + size) for start in range(0, tokens, size))


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = nn.functional.linear(states, weight, bias).float()
    return logits if temperature == 1 else logits.div_(temperature)


class _Head(torch.autograd.Function):
    """`logp_and_entropy` by chunks, its gradient by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.precision = _product_type(weight)
        ctx.temperature = temperature
        own, matrix = states.to(ctx.precision), weight.to(ctx.precision)
        offset = None if bias is None else bias.to(ctx.precision)
        logp, normaliser, entropy = (states.new_empty(len(states), dtype=torch.float32) for _ in range(3))
        with torch.autocast(weight.device.type, enabled=False):
            for part in _chunks(len(states), len(weight)):
                logits = _logits(own[part], matrix, offset, temperature)
                logp[part], normaliser[part] = picked(logits, targets[part])
                entropy[part] = entropy_of(logits, normaliser[part])
        ctx.save_for_backward(states, weight, bias, targets, normaliser, entropy if entropy_gradient else None)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        towards_logp, towards_entropy = gradients
        own, matrix = states.to(ctx.precision), weight.to(ctx.precision)
        offset = None if bias is None else bias.to(ctx.precision)
        grad_states = torch.empty_like(own)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        with torch.autocast(weight.device.type, enabled=False):
            for part in _chunks(len(states), len(weight)):
                logp = _logits(own[part], matrix, offset, ctx.temperature).sub_(normaliser[part, None])
                probability = logp.exp()
                # d logp(target) / d logit = [it is the target] - probability.
                pull = probability * -towards_logp[part, None]
                pull.scatter_add_(1, targets[part, None], towards_logp[part, None])
                if entropy is not None:
                    # d entropy / d logit = -probability (log-probability + entropy), 0 where the probability is.
                    slope = probability.mul_(logp.clamp_(min=-1e30).add_(entropy[part, None]))
                    pull -= slope.mul_(towards_entropy[part, None])
                pull = pull.div_(ctx.temperature).to(ctx.precision)
                torch.mm(pull, matrix, out=grad_states[part])
                if grad_weight is not None:
                    grad_weight += pull.T @ own[part]
                if grad_bias is not None:
                    grad_bias += pull.sum(dim=0)
        return grad_states.to(states.dtype), grad_weight, grad_bias, None, None, None
