"""DPO and its relatives as TRL 1.16 computes them: the loss of a whole optimizer step on preference pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bench.conformance.trl_step import LossResult, Microbatches, Step, accumulate, example_mask
from bench.conformance.trl_stub import PROMPT, WORD, common_stub, trainer_module


@dataclass(frozen=True, kw_only=True)
class DpoSettings:
    """The arguments of TRL's DPOConfig that reach the objective; names and defaults are TRL's."""

    beta: float = 0.1
    loss_type: tuple[str, ...] = ("sigmoid",)
    loss_weights: tuple[float, ...] | None = None
    """One a loss; None is 1 for each."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Preference pairs of one optimizer step. Shapes (pairs, tokens), log-probabilities at temperature 1."""

    chosen_logp: Tensor
    rejected_logp: Tensor
    ref_chosen_logp: Tensor
    ref_rejected_logp: Tensor
    chosen_mask: Tensor
    """bool."""
    rejected_mask: Tensor
    """bool."""

    def as_step(self) -> Step:
        """One row a pair: the chosen completion's tokens, then the rejected one's."""
        return Step(
            logp=torch.cat([self.chosen_logp, self.rejected_logp], dim=1),
            old_logp=torch.cat([self.ref_chosen_logp, self.ref_rejected_logp], dim=1),
            mask=torch.cat([self.chosen_mask, self.rejected_mask], dim=1),
            advantage=torch.zeros(len(self.chosen_logp)),
            group_size=1,
        )


def split_sides(pairs: Step) -> Pairs:
    """The two sides of a step made by `Pairs.as_step`."""
    (chosen, rejected), (ref_chosen, ref_rejected) = pairs.logp.chunk(2, dim=1), pairs.old_logp.chunk(2, dim=1)
    chosen_mask, rejected_mask = pairs.mask.chunk(2, dim=1)
    return Pairs(
        chosen_logp=chosen,
        rejected_logp=rejected,
        ref_chosen_logp=ref_chosen,
        ref_rejected_logp=ref_rejected,
        chosen_mask=chosen_mask,
        rejected_mask=rejected_mask,
    )


def dpo_loss(pairs: Pairs, settings: DpoSettings, microbatches: Microbatches | None = None) -> LossResult:
    """Loss and gradient of one optimizer step; the gradient's columns are the chosen tokens, then the rejected ones.

    TRL returns the mean over a microbatch's pairs; the Trainer divides it by the number of microbatches.
    """
    parts = [range(len(pairs.chosen_logp))] if microbatches is None else microbatches
    trainer = trainer_module("dpo_trainer").DPOTrainer

    def part(rows: Step, index: Sequence[int]) -> Tensor:
        sides = split_sides(rows)
        return trainer._compute_loss(_stub(settings), _model(sides), _inputs(sides), False) / len(parts)

    return accumulate(part, pairs.as_step(), parts)


def _stub(settings: DpoSettings) -> SimpleNamespace:
    weights = settings.loss_weights or (1.0,) * len(settings.loss_type)
    return SimpleNamespace(
        **common_stub(),
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=list(settings.loss_type),
        loss_weights=list(weights),
        beta=settings.beta,
        label_smoothing=0.0,
        use_weighting=False,
        args=SimpleNamespace(),
        _total_train_tokens=0,
        _tp_size=1,
    )


def _inputs(sides: Pairs) -> dict[str, Tensor]:
    """TRL's rows are all chosen, then all rejected completions, each behind its prompt."""
    mask = torch.cat([sides.chosen_mask, sides.rejected_mask])
    behind_prompt = torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1).long()
    return {
        "input_ids": torch.where(behind_prompt.bool(), WORD, PROMPT),
        "attention_mask": torch.ones_like(behind_prompt),
        "completion_mask": behind_prompt,
        "ref_chosen_logps": (sides.ref_chosen_logp * sides.chosen_mask).sum(dim=1),
        "ref_rejected_logps": (sides.ref_rejected_logp * sides.rejected_mask).sum(dim=1),
    }


def _model(sides: Pairs) -> Any:
    """A model whose fused head gives these log-probabilities: zero outside the completion, as TRL's own head does."""
    logp = torch.cat([sides.chosen_logp * sides.chosen_mask, sides.rejected_logp * sides.rejected_mask])
    zeros = torch.zeros_like(logp)
    outputs = SimpleNamespace(log_probs=logp, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    return lambda **_: outputs


def example_pairs(seed: int = 0) -> Pairs:
    """Four pairs of unequal lengths, some of them ranked the wrong way round."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn((4, 7), generator=generator)

    chosen, rejected = -1.5 + noise(0.5), -1.5 + noise(0.5)
    return Pairs(
        chosen_logp=chosen,
        rejected_logp=rejected,
        ref_chosen_logp=chosen + noise(0.6),
        ref_rejected_logp=rejected + noise(0.6),
        chosen_mask=example_mask((3, 7, 1, 5)),
        rejected_mask=example_mask((6, 2, 7, 4)),
    )
