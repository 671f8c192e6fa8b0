"""RLOO as TRL 1.16 computes it: the loss of a whole optimizer step, and advantages from rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from bench.conformance.trl_grpo import Scored
from bench.conformance.trl_step import Graded, LossResult, Microbatches, Step, accumulate
from bench.conformance.trl_stub import (
    PROMPT,
    common_stub,
    completions,
    metrics_of,
    one_process,
    scoring_stub,
    token_ids,
    trainer_module,
)


@dataclass(frozen=True, kw_only=True)
class RlooSettings:
    """The arguments of TRL's RLOOConfig that reach the objective; names and defaults are TRL's."""

    beta: float = 0.05
    epsilon: float = 0.2
    epsilon_high: float | None = None
    reward_clip_range: tuple[float, float] | None = None
    normalize_advantages: bool = False
    mask_truncated_completions: bool = False

    @property
    def upper(self) -> float:
        """`epsilon_high` as TRL resolves it."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


def rloo_loss(step: Step, settings: RlooSettings, microbatches: Microbatches | None = None) -> LossResult:
    """Loss and gradient of one optimizer step.

    TRL returns the mean over a microbatch's completions; the Trainer divides it by the number of microbatches.
    """
    parts = [range(len(step.mask))] if microbatches is None else microbatches
    trainer = trainer_module("rloo_trainer").RLOOTrainer

    def part(rows: Step, index: Sequence[int]) -> Tensor:
        stub = SimpleNamespace(
            **common_stub(),
            epsilon_low=settings.epsilon,
            epsilon_high=settings.upper,
            _get_per_token_logps_and_entropies=lambda *_, **__: (rows.logp, torch.zeros_like(rows.logp), None),
        )
        old_logps = (rows.old_logp * rows.mask).sum(dim=1)
        inputs = {**token_ids(rows.mask), "old_logps": old_logps, "advantages": rows.advantage}
        return trainer._compute_loss(stub, None, inputs) / len(parts)

    return accumulate(part, step, parts)


def rloo_advantages(graded: Graded, settings: RlooSettings, reward_weights: Tensor | None = None) -> Scored:
    """Advantages and mask of a rollout, the KL charge in the reward included, by TRL's own code."""
    module = trainer_module("rloo_trainer")
    stub = SimpleNamespace(
        **scoring_stub(graded, reward_weights, settings.beta, settings.mask_truncated_completions),
        reward_clip_range=settings.reward_clip_range,
        normalize_advantages=settings.normalize_advantages,
        args=SimpleNamespace(per_device_train_batch_size=len(graded.mask), gradient_checkpointing_kwargs=None),
        _generate=lambda prompts: ([[PROMPT]] * len(prompts), completions(graded), [""] * len(prompts)),
    )
    with one_process(module):
        output = module.RLOOTrainer._generate_and_score_completions(stub, [{"prompt": ""}] * len(graded.mask))
    mask = output["completion_mask"].bool()
    return Scored(
        advantages=output["advantages"],
        mask=mask,
        importance_sampling_ratio=None,
        num_items_in_batch=int(mask.sum()),
        metrics=metrics_of(stub),
    )
