"""GRPO as TRL 1.16 computes it: the loss of a whole optimizer step, and advantages from rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

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
class GrpoSettings:
    """The arguments of TRL's GRPOConfig that reach the objective; names and defaults are TRL's but where noted."""

    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    scale_rewards: str = "group"
    multi_objective_aggregation: str = "sum_then_normalize"
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    mask_truncated_completions: bool = False
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    max_completion_length: int = 512
    vllm_importance_sampling_mode: str | None = None
    """None, unlike in TRL, is no correction: `use_vllm` off."""
    vllm_importance_sampling_clip_max: float | None = 3.0
    vllm_importance_sampling_clip_min: float | None = None

    @property
    def upper(self) -> float:
        """`epsilon_high` as TRL resolves it."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def corrects_mismatch(self) -> bool:
        return self.vllm_importance_sampling_mode is not None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What TRL makes of a graded rollout."""

    advantages: Tensor
    """(rows,)."""
    mask: Tensor
    """(rows, tokens) bool: without the completions that the loss leaves out."""
    importance_sampling_ratio: Tensor | None
    """(rows, tokens): the weight against the sampler's mismatch; None without correction."""
    num_items_in_batch: int
    """Tokens of the rollout that take part in the loss."""
    metrics: Mapping[str, float]
    """What TRL logs, such as `frac_reward_zero_std`."""


def grpo_loss(
    step: Step,
    settings: GrpoSettings,
    microbatches: Microbatches | None = None,
    *,
    num_items_in_batch: int | None = None,
    steps_per_generation: int | None = None,
) -> LossResult:
    """Loss and gradient of one optimizer step, as TRL's backward passes add up.

    TRL scales its loss for gradient accumulation inside `_compute_loss`, so the Trainer divides by nothing more.

    Args:
        step: the rows of the step; `weight` is read where the settings correct a mismatch.
        microbatches: rows of each backward pass; one pass over everything by default.
        num_items_in_batch: tokens of the whole rollout; those of this step by default.
        steps_per_generation: microbatches of the whole rollout; those of this step by default.
    """
    parts = [range(len(step.mask))] if microbatches is None else microbatches
    per_rollout = steps_per_generation or len(parts)
    items = torch.tensor(int(step.mask.sum()) if num_items_in_batch is None else num_items_in_batch)
    trainer = trainer_module("grpo_trainer").GRPOTrainer

    def part(rows: Step, index: Sequence[int]) -> Tensor:
        stub = _loss_stub(trainer, rows, settings, len(parts), per_rollout)
        inputs: dict[str, Any] = {
            **token_ids(rows.mask),
            "advantages": rows.advantage,
            "num_items_in_batch": items,
            "old_per_token_logps": rows.old_logp,
            "ref_per_token_logps": rows.ref_logp,
            "importance_sampling_ratio": rows.weight,
        }
        return trainer._compute_loss(stub, None, inputs)

    return accumulate(part, step, parts)


def _loss_stub(
    trainer: Any, rows: Step, settings: GrpoSettings, num_microbatches: int, steps_per_generation: int
) -> SimpleNamespace:
    entropy = torch.zeros_like(rows.old_logp) if rows.entropy is None else rows.entropy
    stub = SimpleNamespace(
        **common_stub(),
        loss_type=settings.loss_type,
        importance_sampling_level=settings.importance_sampling_level,
        beta=settings.beta,
        epsilon_low=settings.epsilon,
        epsilon_high=settings.upper,
        top_entropy_quantile=settings.top_entropy_quantile,
        max_completion_length=settings.max_completion_length,
        use_vllm=settings.corrects_mismatch,
        vllm_importance_sampling_correction=settings.corrects_mismatch,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=num_microbatches,
        _entropy_bonus_enabled=settings.entropy_coef != 0,
        entropy_coef=settings.entropy_coef,
        use_adaptive_entropy=False,
        args=SimpleNamespace(
            delta=settings.delta,
            use_bias_correction_kl=settings.use_bias_correction_kl,
            sapo_temperature_pos=settings.sapo_temperature_pos,
            sapo_temperature_neg=settings.sapo_temperature_neg,
            steps_per_generation=steps_per_generation,
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (rows.logp, entropy, None),
    )
    stub.get_high_entropy_mask = partial(trainer.get_high_entropy_mask, stub)
    return stub


def grpo_advantages(graded: Graded, settings: GrpoSettings, reward_weights: Tensor | None = None) -> Scored:
    """Advantages, mask and mismatch weights of a rollout, by TRL's own code.

    Args:
        graded: rewards of each reward function, and the completions' tokens.
        settings: which scaling, which correction, and whether truncated completions are masked.
        reward_weights: (functions,); all 1 by default.
    """
    module = trainer_module("grpo_trainer")
    stub = SimpleNamespace(
        **scoring_stub(graded, reward_weights, settings.beta, settings.mask_truncated_completions),
        environment_factories=None,
        environments=None,
        tools=None,
        _is_vlm=False,
        num_iterations=1,
        scale_rewards=settings.scale_rewards,
        multi_objective_aggregation=settings.multi_objective_aggregation,
        use_vllm=settings.corrects_mismatch,
        vllm_importance_sampling_correction=settings.corrects_mismatch,
        vllm_importance_sampling_mode=settings.vllm_importance_sampling_mode,
        vllm_importance_sampling_clip_max=settings.vllm_importance_sampling_clip_max,
        vllm_importance_sampling_clip_min=settings.vllm_importance_sampling_clip_min,
        args=SimpleNamespace(
            per_device_train_batch_size=len(graded.mask),
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
        ),
        _generate=lambda prompts: _generated(graded),
    )
    with one_process(module):
        output = module.GRPOTrainer._generate_and_score_completions(stub, [{"prompt": ""}] * len(graded.mask))
    ratio = output.get("importance_sampling_ratio")
    return Scored(
        advantages=output["advantages"],
        mask=output["completion_mask"].bool(),
        importance_sampling_ratio=None if ratio is None else ratio.expand(graded.mask.shape),
        num_items_in_batch=int(output["num_items_in_batch"]),
        metrics=metrics_of(stub),
    )


def _generated(graded: Graded) -> tuple[Any, ...]:
    """What TRL's generation hands back: ids of prompts and completions, texts, and the engine's log-probabilities."""
    ids = completions(graded)
    sampled = None
    if graded.sampler_logp is not None:
        rows = zip(graded.sampler_logp.tolist(), ids, strict=True)
        sampled = [logps[: len(row)] for logps, row in rows]
    return [[PROMPT]] * len(ids), ids, None, [""] * len(ids), sampled, {}, None, None
