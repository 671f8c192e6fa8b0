"""From TRL's arguments to the composition of axes that is the same objective: the one place that knows both."""

from algorithms.axes.advantage import Advantage, BatchScaled, GroupCentred, GroupStandardised, LeaveOneOut
from algorithms.axes.bonus import EntropyBonus, NoBonus
from algorithms.axes.focus import AllTokens, TopEntropyTokens
from algorithms.axes.mismatch import (
    Mismatch,
    NoCorrection,
    SequenceMask,
    SequenceTruncate,
    TokenMask,
    TokenTruncate,
)
from algorithms.axes.penalty import LossKL, NoPenalty, Penalty, SequenceRewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import (
    ChosenLikelihood,
    GradedPairs,
    Ipo,
    NoLikelihood,
    Preference,
    Sigmoid,
    SigmoidNorm,
)
from algorithms.axes.ratio import SequenceProductRatio, SequenceRatio, TokenRatio
from algorithms.axes.reduction import (
    ConstantLength,
    MicrobatchTokenMean,
    Reduction,
    SequenceMean,
    SequenceSum,
    TokenMean,
)
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping, Rescale
from algorithms.axes.surrogate import Cispo, Clip, DualClip, Sapo, Surrogate
from algorithms.axes.truncation import KeepTruncated, MaskTruncated
from algorithms.axes.value import NoCritic
from bench.conformance.trl_dpo import DpoSettings
from bench.conformance.trl_grpo import GrpoSettings
from bench.conformance.trl_rloo import RlooSettings

# TRL divides by all rows of a microbatch, also by those that `mask_truncated_completions` has emptied.
REDUCTIONS: dict[str, Reduction] = {
    "grpo": SequenceMean(count_masked=True),
    "sapo": SequenceMean(count_masked=True),
    "bnpo": MicrobatchTokenMean(),
    "dr_grpo": ConstantLength(count_masked=True),
    "dapo": TokenMean(),
    "cispo": TokenMean(),
    "luspo": SequenceSum(count_masked=True),
}
ADVANTAGES: dict[str, Advantage] = {
    "group": GroupStandardised(ddof=1, epsilon=1e-4),
    "batch": BatchScaled(ddof=1, epsilon=1e-4),
    "none": GroupCentred(),
}
CORRECTIONS = {
    "token_truncate": TokenTruncate,
    "token_mask": TokenMask,
    "sequence_truncate": SequenceTruncate,
    "sequence_mask": SequenceMask,
}


def objective_for(settings: GrpoSettings | RlooSettings | DpoSettings) -> PolicyGradient | Preference:
    """The composition that is the same objective as TRL's trainer with these arguments.

    Raises:
        ValueError: there is none; the message says which argument stands in the way.
    """
    if isinstance(settings, DpoSettings):
        return dpo_objective(settings)
    return rloo_objective(settings) if isinstance(settings, RlooSettings) else grpo_objective(settings)


def grpo_objective(settings: GrpoSettings) -> PolicyGradient:
    """The composition that TRL's GRPOTrainer optimises.

    Raises:
        ValueError: no composition is the same objective; the message says which argument stands in the way.
    """
    if settings.multi_objective_aggregation != "sum_then_normalize":
        raise ValueError("multi_objective_aggregation: only sum_then_normalize has a counterpart")
    if settings.top_entropy_quantile < 1 and settings.entropy_coef:
        raise ValueError("top_entropy_quantile with entropy_coef: TRL's bonus is over the kept tokens, ours over all")
    for name, value, table in (
        ("loss_type", settings.loss_type, REDUCTIONS),
        ("scale_rewards", settings.scale_rewards, ADVANTAGES),
    ):
        if value not in table:
            raise ValueError(f"{name}={value!r} has no counterpart; those with one are {', '.join(table)}")
    share = settings.top_entropy_quantile
    return PolicyGradient(
        shaping=NoShaping(),
        selection=KeepAll(),
        truncation=MaskTruncated(in_baseline=True) if settings.mask_truncated_completions else KeepTruncated(),
        advantage=ADVANTAGES[settings.scale_rewards],
        ratio=TokenRatio() if settings.importance_sampling_level == "token" else SequenceRatio(),
        surrogate=_surrogate(settings),
        focus=AllTokens() if share == 1 else TopEntropyTokens(share=share, count_dropped=True),
        mismatch=_mismatch(settings),
        penalty=_penalty(settings),
        reduction=REDUCTIONS[settings.loss_type],
        bonus=EntropyBonus(coefficient=settings.entropy_coef) if settings.entropy_coef else NoBonus(),
        value=NoCritic(),
    )


def _surrogate(settings: GrpoSettings) -> Surrogate:
    low, high, delta = settings.epsilon, settings.upper, settings.delta
    if settings.loss_type == "sapo":
        return Sapo(
            temperature_positive=settings.sapo_temperature_pos, temperature_negative=settings.sapo_temperature_neg
        )
    if settings.loss_type == "cispo":
        if high <= 1:
            raise ValueError(
                f"epsilon_high={high:g}: TRL's cap on the ratio is absolute, so on-policy every weight is {high:g}; "
                "ours is 1 + high and cannot be 1 or less"
            )
        return Cispo(low=None, high=high - 1)
    if delta is None:
        return Clip(low=low, high=high)
    if delta <= 1:
        raise ValueError(f"delta={delta:g} is a cap on the ratio below the on-policy ratio 1: it has no counterpart")
    # TRL caps the unclipped branch only. Above 1 + epsilon_high that is the dual clip. Below, the two bounds change
    # places: positive advantages stop at delta, negative ones, which read the clipped branch, at 1 + epsilon_high.
    return DualClip(low=low, high=min(high, delta - 1), cap=max(1 + high, delta))


def _mismatch(settings: GrpoSettings) -> Mismatch:
    mode, high = settings.vllm_importance_sampling_mode, settings.vllm_importance_sampling_clip_max
    if mode is None:
        return NoCorrection()
    if high is None:
        raise ValueError("vllm_importance_sampling_clip_max=None: our corrections have an upper bound")
    return CORRECTIONS[mode](high=high, low=settings.vllm_importance_sampling_clip_min)


def _penalty(settings: GrpoSettings) -> Penalty:
    if not settings.beta:
        return NoPenalty()
    weight = "ratio" if settings.use_bias_correction_kl else "none"
    return LossKL(coefficient=settings.beta, estimator="k3", weight=weight)


def rloo_objective(settings: RlooSettings) -> PolicyGradient:
    """The composition that TRL's RLOOTrainer optimises.

    Raises:
        ValueError: no composition is the same objective; the message says which argument stands in the way.
    """
    if settings.normalize_advantages:
        raise ValueError("normalize_advantages=True: whitening leave-one-out advantages per completion: no counterpart")
    bounds = settings.reward_clip_range
    return PolicyGradient(
        shaping=NoShaping() if bounds is None else Rescale(scale=1.0, low=bounds[0], high=bounds[1]),
        selection=KeepAll(),
        truncation=MaskTruncated(in_baseline=True) if settings.mask_truncated_completions else KeepTruncated(),
        advantage=LeaveOneOut(),
        ratio=SequenceProductRatio(),
        surrogate=Clip(low=settings.epsilon, high=settings.upper),
        penalty=SequenceRewardKL(coefficient=settings.beta) if settings.beta else NoPenalty(),
        # One ratio a completion: the mean over its tokens is that completion's loss.
        reduction=SequenceMean(count_masked=True),
        value=NoCritic(),
    )


def dpo_objective(settings: DpoSettings) -> Preference:
    """The composition that TRL's DPOTrainer optimises; its pairing is not TRL's affair.

    Raises:
        ValueError: no composition is the same objective; the message says which argument stands in the way.
    """
    losses = {"sigmoid": Sigmoid, "sigmoid_norm": SigmoidNorm, "ipo": Ipo}
    weights = settings.loss_weights or (1.0,) * len(settings.loss_type)
    main, *others = settings.loss_type
    if main not in losses or others not in ([], ["sft"]) or weights[0] != 1:
        raise ValueError(
            f"loss_type={settings.loss_type!r} with weights {weights!r}: those with a counterpart are "
            f"{', '.join(losses)} at weight 1, each alone or with sft behind it"
        )
    return Preference(
        loss_function=losses[main](beta=settings.beta),
        likelihood=ChosenLikelihood(coefficient=weights[1], normalise="token") if others else NoLikelihood(),
        pairing=GradedPairs(),
    )
