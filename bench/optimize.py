"""Optimizer steps: schedule, gradient clipping, sums of microbatch metrics, and the check that ends a diverged run."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from algorithms.axes.batch import LossParts
from algorithms.axes.masked import Summed
from bench import processes, sharding
from bench.config import Optimizer


class Diverged(RuntimeError):
    """A loss or gradient is not finite."""


def adamw(parameters: Iterable[nn.Parameter], lr: float, config: Optimizer) -> torch.optim.AdamW:
    """AdamW with the run's constants; one fused pass over the parameters."""
    return torch.optim.AdamW(
        parameters,
        lr=lr,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def schedule_factor(config: Optimizer, update: int, updates: int) -> float:
    """Multiplier of the learning rate for step `update` of `updates`, the first being 1."""
    assert 1 <= update <= updates, f"update {update} of {updates}"
    if update <= config.warmup_updates:
        return update / config.warmup_updates
    if config.schedule == "constant":
        return 1.0
    left = (updates - update + 1) / (updates - config.warmup_updates)
    return left if config.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2


def take_step(optimizer: torch.optim.Optimizer, lr: float, max_grad_norm: float) -> float:
    """Sum the gradients of all processes, clip, step and clear them; returns the 2-norm before clipping.

    Raises:
        Diverged: the norm is not finite.
        ProcessesDisagree: it is not the same everywhere, so that the steps would not be either.
    """
    processes.sum_gradients([p for group in optimizer.param_groups for p in group["params"]])
    norm = float(sharding.whole(clip(optimizer, max_grad_norm)))
    processes.agree("the gradient norm", norm)
    if not math.isfinite(norm):
        raise Diverged(f"gradient norm is {norm}")
    step(optimizer, lr)
    return norm


def clip(optimizer: torch.optim.Optimizer, max_grad_norm: float) -> torch.Tensor:
    """Scale the gradients down to `max_grad_norm`; returns their 2-norm before, a scalar that is not read here."""
    return nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_grad_norm)


def step(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One step at this learning rate; the gradients are gone after it."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def step_report(optimizer: torch.optim.Optimizer, norm: float, max_grad_norm: float) -> dict[str, float]:
    """What the step just taken was: gradient norm, whether it was clipped, learning rate, size of the change."""
    return {
        "grad_norm": norm,
        "grad_clip_frac": float(norm > max_grad_norm),
        "lr": optimizer.param_groups[0]["lr"],
        "relative_update_norm": relative_update_norm(optimizer),
    }


@torch.no_grad()
def relative_update_norm(optimizer: torch.optim.Optimizer) -> float:
    """2-norm of AdamW's last change of all parameters over the 2-norm of the parameters it left; NaN of another kind.

    The change is taken from the optimizer's moments, one tensor at a time: a copy of the old parameters would raise the
    peak of the memory that is measured. Equal to the difference of the parameters up to rounding.
    """
    if not isinstance(optimizer, torch.optim.AdamW):
        return math.nan
    changes: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        (beta1, beta2), parameters = group["betas"], group["params"]
        # All parameters of a run step together, so one of them tells the number of steps.
        step = float(next(optimizer.state[p]["step"] for p in parameters))
        root, kept = (1 - beta2**step) ** 0.5, 1 - group["lr"] * group["weight_decay"]
        for parameter in parameters:
            exp_avg, exp_avg_sq = (sharding.part(optimizer.state[parameter][f"exp_avg{name}"]) for name in ("", "_sq"))
            change = exp_avg / exp_avg_sq.sqrt().add_(root * group["eps"])
            factor = group["lr"] * root / (1 - beta1**step)
            if kept < 1:
                # old = (new + moved) / kept, and the whole change is old - new.
                change.add_(sharding.part(parameter), alpha=(1 - kept) / factor)
            changes.append(torch.linalg.vector_norm(change) * (factor / kept))
            norms.append(torch.linalg.vector_norm(sharding.part(parameter)))
    sharded = any(sharding.is_sharded(p) for group in optimizer.param_groups for p in group["params"])
    change, norm = (torch.stack(parts).norm() for parts in (changes, norms))
    if sharded:
        change, norm = processes.total(torch.stack([change, norm]).square()).sqrt()
    return float(change / norm)


class StepMetrics:
    """Sums the microbatches of one optimizer step: losses add, means add as their sums, maxima stay maxima."""

    def __init__(self) -> None:
        self.loss: torch.Tensor | None = None
        self.means: dict[str, Summed] = {}
        self.maxima: dict[str, torch.Tensor] = {}

    def add(self, parts: LossParts) -> None:
        loss = parts.loss.detach()
        self.loss = loss if self.loss is None else self.loss + loss
        for name, mean in parts.means.items():
            self.add_mean(name, mean)
        for name, value in parts.maxima.items():
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value

    def add_mean(self, name: str, mean: Summed) -> None:
        if name not in self.means:
            self.means[name] = mean
            return
        before = self.means[name]
        assert type(before) is type(mean), f"{name} is a {type(mean).__name__} in one microbatch only"
        self.means[name] = before.plus(mean)  # pyright: ignore[reportArgumentType]

    def over_processes(self) -> "StepMetrics":
        """The sums of all processes, on each of them; a rank that had no microbatch adds nothing."""
        if processes.count() == 1:
            return self
        merged = StepMetrics()
        for loss, means, maxima in processes.gather(_on_cpu(self.loss, self.means, self.maxima)):
            if loss is not None:
                merged.add(LossParts(loss=loss, means=means, maxima=maxima))
        return merged

    def values(self) -> dict[str, float]:
        """Plain numbers by name, without the loss."""
        means = {name: mean.value() for name, mean in self.means.items()}
        return means | {name: float(value) for name, value in self.maxima.items()}

    def checked_loss(self) -> float:
        """The step's loss. Raises Diverged if it is not finite."""
        assert self.loss is not None, "a step has at least one microbatch"
        loss = float(self.loss)
        if not math.isfinite(loss):
            raise Diverged(f"loss is {loss}")
        return loss


def _on_cpu(loss: torch.Tensor | None, means: dict[str, Summed], maxima: dict[str, torch.Tensor]) -> Any:
    """A rank's sums as it sends them to the others."""
    sums = {
        name: replace(
            mean, **{key: value.cpu() for key, value in vars(mean).items() if isinstance(value, torch.Tensor)}
        )
        for name, mean in means.items()
    }
    return None if loss is None else loss.cpu(), sums, {name: value.cpu() for name, value in maxima.items()}
