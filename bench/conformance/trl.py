"""TRL's own losses behind the adapter: its defaults and the recipes of its documentation, each with what it claims.

TRL's code runs unchanged, called without a trainer (`trl_grpo`, `trl_rloo`, `trl_dpo`). Gradients of processes are
averaged here, and the token count that TRL gathers over processes is divided by their number, as it does.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bench.conformance.adapter import Implementation, resolve_claims
from bench.conformance.step import PairStep, Step
from bench.conformance.trl_dpo import DpoSettings, Pairs, dpo_loss
from bench.conformance.trl_grpo import GrpoSettings, grpo_advantages, grpo_loss
from bench.conformance.trl_rloo import RlooSettings, rloo_advantages, rloo_loss
from bench.conformance.trl_step import Graded, LossResult
from bench.conformance.trl_step import Step as TrlStep
from bench.conformance.trl_stub import trainer_module

Settings = GrpoSettings | RlooSettings | DpoSettings


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One column: arguments of TRL's trainer, what they are said to be, and how many steps share a rollout."""

    name: str
    settings: Settings
    claims: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By axis of the claimed preset, what the recipe has instead."""
    claimed: str | None = None
    """How the claim is put, where it is not the preset's name."""
    notes: Mapping[str, str]
    """By check, why TRL deviates or differs there."""
    out_of_reach: Mapping[str, str]
    """By check, why what it tries cannot happen in TRL's own trainer with these arguments."""
    comparison: bool = False
    """Whether TRL makes no such claim: its defaults or an option beside something else."""
    steps_per_rollout: int = 1
    """Optimizer steps on one rollout; the others of them have three times as many tokens as the one that is checked."""


FLOAT32 = "computes in float32, where the rounding of the mean leaves a whole group an advantage of one sign"
INFINITE = "takes an infinite reward for a number; that it counts as missing is our convention"
KEEPS_UNSCORED = (
    "gives unscored completions advantage 0 and keeps their tokens in the denominator, which they leave in ours"
)
_GROUP: Mapping[str, str] = {
    "flat groups": FLOAT32,
    "infinite rewards": INFINITE,
    "unscored completions": KEEPS_UNSCORED,
}
_SCALED = (
    "the recipe for Dr. GRPO in the paper index of TRL's documentation, read at commit f2cd577 (1.10.0.dev0; the wheel "
    "of 1.16 has no documentation), leaves scale_rewards at the default: advantages are divided by the deviation. TRL "
    "1.16's own help text for scale_rewards (grpo_config.py) says that the Dr. GRPO paper recommends none"
)
_DEFAULTS = "the defaults are a token mean without a KL term, not the paper's mean of means with one; no claim of TRL's"
_KL = "use_bias_correction_kl = True weighs the KL term by the ratio: the reverse divergence, not the paper's"
_REPEATED = (
    "divides each step of a rollout by the rollout's mean number of tokens a step; the factor is that of steps of 36 "
    "and 108 tokens, and smaller where a rollout's completions are shuffled over its steps, as TRL does"
)
_BNPO = "takes the token mean of each microbatch, as TRL's help text says, not that of the step"
_CAP = (
    "reads epsilon_high = 0.2, the default, as an absolute cap on the ratio, so that nearly every weight is 0.2; TRL's "
    "help text for epsilon_high recommends 5.0 with cispo"
)
_PAIRS: Mapping[str, str] = {
    "uneven microbatches": "takes the mean of each microbatch, and of those the mean; an epoch's last may be smaller"
}
_SFT = "the sft term is a mean over the chosen tokens of each microbatch; the paper has a mean over pairs of means"

PADS = "its pads are tokens like others, with finite log-probabilities"
EVEN = "its RepeatSampler drops an incomplete chunk, so that microbatches are of one size"
NO_MASK = "mask_truncated_completions is off, and nothing else takes a completion out of the loss"
HEAD = "its head gives log-probability 0 to padding, before anything reads it"
OUT_OF_REACH = (PADS, EVEN, NO_MASK, HEAD)
_MASKING: Mapping[str, str] = {"NaN in padding": PADS, "uneven microbatches": EVEN}
_ONLINE: Mapping[str, str] = {**_MASKING, **dict.fromkeys(("masked completions", "masked microbatch"), NO_MASK)}
_OF_PAIRS: Mapping[str, str] = dict.fromkeys(("values in padding", "NaN in padding"), HEAD)
_FILTERED = {"truncation": {"kind": "mask_truncated", "in_baseline": True}}
# The preset halves the penalty because its rewards are 0 and 1, not -1 and 1.
_DAPO = {**_FILTERED, "shaping": {"factor": 1.0}}
_DAPO_CLAIM = "dapo with the paper's penalty and its overlong filtering"
_DAPO_SETTINGS = GrpoSettings(epsilon_high=0.28, mask_truncated_completions=True)

RECIPES = (
    Recipe(
        name="grpo", claims="grpo", notes=_GROUP, out_of_reach=_ONLINE,
        settings=GrpoSettings(loss_type="grpo", beta=0.04, use_bias_correction_kl=False),
    ),
    Recipe(
        name="grpo, truncated ones masked", claims="grpo",
        changes={**_FILTERED, "reduction": {"count_masked": True}},
        claimed="grpo with overlong filtering and count_masked, TRL's reading: who is masked still counts",
        notes=_GROUP, out_of_reach=_MASKING,
        settings=GrpoSettings(
            loss_type="grpo", beta=0.04, use_bias_correction_kl=False, mask_truncated_completions=True
        ),
    ),
    Recipe(
        name="grpo, KL as by default", claims="grpo", settings=GrpoSettings(loss_type="grpo", beta=0.04),
        notes={**_GROUP, **dict.fromkeys(("golden value", "golden gradient", "KL gradient"), _KL)},
        out_of_reach=_ONLINE,
    ),
    Recipe(
        name="GRPOConfig() as grpo, for comparison", claims="grpo", settings=GrpoSettings(), comparison=True,
        notes={**_GROUP, **dict.fromkeys(("golden value", "golden gradient", "KL gradient"), _DEFAULTS)},
        out_of_reach=_ONLINE,
    ),
    Recipe(
        name="GRPOConfig() as grpo_trl", claims="grpo_trl", settings=GrpoSettings(), notes=_GROUP,
        out_of_reach=_ONLINE,
    ),
    Recipe(
        name="dr_grpo, docs' recipe", claims="dr_grpo", settings=GrpoSettings(loss_type="dr_grpo"),
        notes={**_GROUP, "golden advantages": _SCALED, "missing rewards": _SCALED}, out_of_reach=_ONLINE,
    ),
    Recipe(
        name="dr_grpo, scale_rewards=none", claims="dr_grpo", notes=_GROUP, out_of_reach=_ONLINE,
        settings=GrpoSettings(loss_type="dr_grpo", scale_rewards="none"),
    ),
    Recipe(
        name="dapo", claims="dapo", changes=_DAPO, claimed=_DAPO_CLAIM, settings=_DAPO_SETTINGS, notes=_GROUP,
        out_of_reach=_MASKING,
    ),
    Recipe(
        name="dapo, 2 steps a rollout", claims="dapo", changes=_DAPO, claimed=_DAPO_CLAIM, settings=_DAPO_SETTINGS,
        steps_per_rollout=2, out_of_reach=_MASKING,
        notes={
            **_GROUP,
            **dict.fromkeys(("golden value", "golden gradient", "masked completions", "clip corners"), _REPEATED),
        },
    ),
    Recipe(
        name="bnpo", claims="grpo_trl", changes={"reduction": {"kind": "microbatch_token_mean"}},
        claimed="grpo_trl with the token mean of each microbatch",
        settings=GrpoSettings(loss_type="bnpo"), notes=_GROUP, out_of_reach=_ONLINE,
    ),
    Recipe(
        name="bnpo as grpo_trl, for comparison", claims="grpo_trl", settings=GrpoSettings(loss_type="bnpo"),
        notes={**_GROUP, **dict.fromkeys(("accumulation", "two ranks"), _BNPO)}, out_of_reach=_ONLINE, comparison=True,
    ),
    Recipe(
        name="cispo, default cap", claims="cispo", settings=GrpoSettings(loss_type="cispo"), out_of_reach=_ONLINE,
        notes={
            **_GROUP,
            **dict.fromkeys(("golden value", "golden gradient", "clip corners", "on-policy identity"), _CAP),
        },
    ),
    Recipe(
        name="cispo, epsilon_high=5", claims="cispo", notes=_GROUP, out_of_reach=_ONLINE,
        settings=GrpoSettings(loss_type="cispo", epsilon_high=5.0),
    ),
    Recipe(
        name="gspo", claims="gspo", notes=_GROUP, out_of_reach=_ONLINE,
        settings=GrpoSettings(
            loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4
        ),
    ),
    Recipe(
        name="sapo", claims="sapo", settings=GrpoSettings(loss_type="sapo"), notes=_GROUP, out_of_reach=_ONLINE,
    ),
    Recipe(
        name="luspo", claims="luspo", notes=_GROUP, out_of_reach=_ONLINE,
        settings=GrpoSettings(
            loss_type="luspo", importance_sampling_level="sequence", epsilon=2e-3, epsilon_high=2.5e-3
        ),
    ),
    Recipe(name="rloo", claims="rloo", settings=RlooSettings(beta=0.03), notes=_GROUP, out_of_reach=_ONLINE),
    Recipe(name="dpo", claims="dpo", settings=DpoSettings(), notes=_PAIRS, out_of_reach=_OF_PAIRS),
    Recipe(
        name="dpo, ipo", claims="ipo", settings=DpoSettings(loss_type=("ipo",)), notes=_PAIRS, out_of_reach=_OF_PAIRS,
    ),
    Recipe(
        name="dpo, sigmoid_norm", claims="dpo_norm", settings=DpoSettings(beta=5.0, loss_type=("sigmoid_norm",)),
        notes=_PAIRS, out_of_reach=_OF_PAIRS,
    ),
    Recipe(
        name="dpo, sigmoid + sft", claims="dpo_nll", settings=DpoSettings(loss_type=("sigmoid", "sft")),
        notes=dict.fromkeys(
            ("golden value", "golden gradient", "accumulation", "uneven microbatches", "two ranks"), _SFT
        ),
        out_of_reach=_OF_PAIRS,
    ),
)  # fmt: skip


def implementations() -> list[Implementation]:
    """TRL's recipes as implementations.

    Raises:
        ImportError: the pinned version of TRL is not installed.
    """
    trainer_module("grpo_trainer")
    return [_implementation(recipe) for recipe in RECIPES]


class _Known(torch.autograd.Function):
    """A number that depends on some tensor with a gradient that is known already."""

    @staticmethod
    def forward(ctx: Any, logp: Tensor, value: float, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(gradient)
        return logp.new_tensor(value)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return outer[0] * ctx.saved_tensors[0], None, None


def _implementation(recipe: Recipe) -> Implementation:
    claims = _claims(recipe)
    settings, loss = recipe.settings, _loss_of(recipe)
    own = Implementation(
        name=recipe.name,
        claims=claims,
        claimed=recipe.claimed or recipe.claims,
        loss=loss,
        notes=recipe.notes,
        out_of_reach=recipe.out_of_reach,
        comparison=recipe.comparison,
    )
    if isinstance(settings, DpoSettings):
        return own
    online = settings
    score = rloo_advantages if isinstance(online, RlooSettings) else grpo_advantages

    def advantages(reward: Tensor, group: Tensor) -> Tensor:
        return score(_graded(reward, group), online).advantages  # pyright: ignore[reportArgumentType]

    def trained(reward: Tensor, group: Tensor, terminated: Tensor) -> Tensor:
        return score(_graded(reward, group, terminated), online).mask[:, 0]  # pyright: ignore[reportArgumentType]

    overlong = _overlong if "shaping" in recipe.changes else None
    return replace(own, advantages=advantages, trained=trained, overlong=overlong)


def _claims(recipe: Recipe) -> dict[str, Any]:
    """The claimed preset with the recipe's changes: other knobs of an axis, or another kind without the preset's."""
    claims, _ = resolve_claims(recipe.claims)
    for axis, change in recipe.changes.items():
        claims[axis] = dict(change) if "kind" in change else {**claims[axis], **change}
    return resolve_claims({axis: knobs for axis, knobs in claims.items() if axis != "kind"})[0]


def _loss_of(recipe: Recipe) -> Callable[[Any], Tensor]:
    settings = recipe.settings
    if isinstance(settings, DpoSettings):
        return lambda step: _pair_loss(settings, step)
    return lambda step: _loss(settings, step, recipe.steps_per_rollout)


def _loss(settings: GrpoSettings | RlooSettings, step: Step, steps_per_rollout: int) -> Tensor:
    whole = TrlStep(
        logp=step.logp.detach(),
        old_logp=step.old_logp,
        ref_logp=step.ref_logp,
        advantage=step.advantage[:, 0],
        mask=step.mask,
        group_size=int((step.group == step.group[0]).sum()),
    )
    tokens = int(step.mask.sum())
    if steps_per_rollout > 1:
        tokens += 3 * tokens * (steps_per_rollout - 1)

    def of_rank(rows: TrlStep, parts: list[list[int]]) -> LossResult:
        if isinstance(settings, RlooSettings):
            return rloo_loss(rows, settings, parts)
        budget = {"max_completion_length": step.completion_budget}
        own = GrpoSettings(**{**vars(settings), **budget})
        share = tokens / len(step.ranks)
        assert share == int(share), "the step's tokens are shared out evenly between processes"
        per_rollout = len(parts) * steps_per_rollout
        return grpo_loss(rows, own, parts, num_items_in_batch=int(share), steps_per_generation=per_rollout)

    return _average(step.ranks, step.logp, lambda rows, parts: of_rank(whole.rows(rows), parts))


def _average(
    ranks: tuple[tuple[tuple[int, ...], ...], ...],
    logp: Tensor,
    of_rank: Callable[[list[int], list[list[int]]], LossResult],
) -> Tensor:
    """The mean over processes of what each makes of its rows, which it sees numbered from 0."""
    value, gradient = 0.0, torch.zeros_like(logp)
    for rank in ranks:
        rows = [row for microbatch in rank for row in microbatch]
        place = {row: number for number, row in enumerate(rows)}
        found = of_rank(rows, [[place[row] for row in microbatch] for microbatch in rank])
        value += found.value / len(ranks)
        gradient[rows] += found.gradient.to(logp.dtype) / len(ranks)
    known = _Known.apply(logp, value, gradient)
    assert isinstance(known, Tensor)
    return known


def _pair_loss(settings: DpoSettings, step: PairStep) -> Tensor:
    def of_rank(rows: list[int], parts: list[list[int]]) -> LossResult:
        own = step.rows(rows)
        chosen, rejected = own.chosen_mask, own.rejected_mask
        pairs = Pairs(  # TRL's head gives 0 outside the completion, whatever stands there
            chosen_logp=torch.where(chosen, own.chosen_logp.detach(), 0.0),
            rejected_logp=torch.where(rejected, own.rejected_logp.detach(), 0.0),
            ref_chosen_logp=torch.where(chosen, own.ref_chosen_logp, 0.0),
            ref_rejected_logp=torch.where(rejected, own.ref_rejected_logp, 0.0),
            chosen_mask=chosen,
            rejected_mask=rejected,
        )
        return dpo_loss(pairs, settings, parts)

    return _average(step.ranks, torch.cat([step.chosen_logp, step.rejected_logp], dim=1), of_rank)


def _graded(reward: Tensor, group: Tensor, terminated: Tensor | None = None) -> Graded:
    """Completions of one token that the reference finds as likely as the policy."""
    zeros = torch.zeros((len(reward), 1))
    return Graded(
        rewards=reward.float()[:, None],
        group_size=int((group == group[0]).sum()),
        mask=torch.ones_like(zeros, dtype=torch.bool),
        terminated=torch.ones(len(reward), dtype=torch.bool) if terminated is None else terminated,
        old_logp=zeros,
        ref_logp=zeros,
    )


def _overlong(length: int, budget: int, buffer: int) -> float:
    return importlib.import_module("trl.rewards").get_soft_overlong_punishment(budget, buffer)([[0] * length])[0]
