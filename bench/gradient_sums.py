"""Sums over prompts: an objective's whole gradient, the spread of its prompts' gradients, and how two gradients agree.

At any time there is one gradient an objective, and the gradient of the one prompt that is being added.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.contributions import Contributions
from bench.optimize import StepMetrics


@dataclass(frozen=True)
class Gradient:
    """An objective's gradient on the whole rollout, and what is left of its prompts' own gradients."""

    parts: list[Tensor]
    """One tensor a parameter."""
    squares: float
    """Sum over prompts of the squared 2-norm of the prompt's contribution."""
    num_prompts: int
    loss: float
    metrics: Mapping[str, float]

    @property
    def norm(self) -> float:
        return math.sqrt(inner_product(self.parts, self.parts))

    @property
    def signal_to_noise(self) -> float:
        """Norm of the mean contribution / sqrt(trace of the contributions' covariance (ddof 1) / number of prompts).

        Contributions that are noise around 0 give about 1, not 0. NaN below two prompts and for a gradient of 0.
        """
        n, square = self.num_prompts, self.norm**2
        if n < 2 or square == 0:
            return math.nan
        trace = max(self.squares - square / n, 0.0) / (n - 1)
        return math.sqrt(square / n / trace) if trace else math.inf


def gradient_of(contributions: Contributions, parameters: Sequence[nn.Parameter]) -> Gradient:
    """Sum the prompts' gradients, and their squared norms; `parameters` hold the one prompt's in between."""
    total = [torch.zeros_like(parameter) for parameter in parameters]
    squares, metrics = 0.0, StepMetrics()
    for own in contributions:
        for share in own:
            parts = share()
            parts.loss.backward()
            metrics.add(parts)
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squares += inner_product(grads, grads)
        for held, parameter in zip(total, parameters, strict=True):
            if parameter.grad is not None:
                held += parameter.grad
                parameter.grad = None
    return Gradient(total, squares, len(contributions), metrics.checked_loss(), metrics.values())


def inner_product(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Sum over all parameters of the products, in float64, one parameter at a time."""
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(first, second, strict=True))


def cosines(gradients: Mapping[str, Gradient]) -> dict[str, dict[str, float]]:
    """Cosine similarity of every two gradients; NaN where one of them is 0."""
    norms = {name: gradient.norm for name, gradient in gradients.items()}

    def cosine(a: str, b: str) -> float:
        length = norms[a] * norms[b]
        return inner_product(gradients[a].parts, gradients[b].parts) / length if length else math.nan

    return {a: {b: cosine(a, b) for b in gradients} for a in gradients}
