"""The cases on which TRL and our compositions must agree: losses, levels, penalties, caps, corrections, scalings."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from bench.conformance.trl_compare import Settings
from bench.conformance.trl_dpo import DpoSettings
from bench.conformance.trl_grpo import GrpoSettings
from bench.conformance.trl_mapping import ADVANTAGES, CORRECTIONS, REDUCTIONS
from bench.conformance.trl_rloo import RlooSettings

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
EVERYTHING = ("advantages", "trained", "value", "gradient", "entropy_gradient")
BUDGET = 9


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison."""

    name: str
    settings: Settings
    inputs: str = "plain"
    """See `trl_compare.example_inputs`."""
    num_microbatches: int = 1
    compares: tuple[str, ...] = EVERYTHING
    """Which quantities must agree; the others deviate on purpose, see `trl_deviations`."""


def cases() -> list[Case]:
    """All of them."""
    return [*_losses(), *_bounds(), *_corrections(), *_advantages(), *_parts(), *_entropy(), *_rloo(), *_dpo()]


def _upper(loss_type: str) -> float | None:
    # An absolute cap in cispo, where TRL's default would hold every weight at 0.2.
    return 2.0 if loss_type == "cispo" else None


def _losses() -> Iterator[Case]:
    penalties = {"no_kl": (0.0, True), "kl": (0.04, False), "kl_corrected": (0.04, True)}
    for loss_type, level, penalty in product(REDUCTIONS, ("token", "sequence"), penalties):
        beta, corrected = penalties[penalty]
        # 4 is above the clip's upper bound, 1.1 below it; the losses without a clip do not read it.
        for delta in (None, 4.0, 1.1) if loss_type in CLIPPED else (None,):
            settings = GrpoSettings(
                loss_type=loss_type,
                importance_sampling_level=level,
                beta=beta,
                use_bias_correction_kl=corrected,
                delta=delta,
                epsilon_high=_upper(loss_type),
                max_completion_length=BUDGET,
            )
            yield Case(name=f"{loss_type}-{level}-{penalty}-delta_{delta}", settings=settings)


def _bounds() -> Iterator[Case]:
    yield Case(name="dapo-clip_higher", settings=GrpoSettings(epsilon=0.2, epsilon_high=0.28))
    gspo = GrpoSettings(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4)
    yield Case(name="gspo-bounds", settings=gspo)
    sapo = GrpoSettings(loss_type="sapo", sapo_temperature_pos=2.0, sapo_temperature_neg=3.0)
    yield Case(name="sapo-temperatures", settings=sapo)


def _corrections() -> Iterator[Case]:
    for loss_type, mode, low in product(REDUCTIONS, CORRECTIONS, (None, 0.8)):
        for level in ("token", "sequence"):
            settings = GrpoSettings(
                loss_type=loss_type,
                importance_sampling_level=level,
                beta=0.04,
                epsilon_high=_upper(loss_type),
                max_completion_length=BUDGET,
                vllm_importance_sampling_mode=mode,
                vllm_importance_sampling_clip_max=1.5,
                vllm_importance_sampling_clip_min=low,
            )
            yield Case(name=f"{loss_type}-{level}-{mode}-low_{low}", settings=settings)


def _advantages() -> Iterator[Case]:
    for scale, masked, loss_type in product(ADVANTAGES, (False, True), REDUCTIONS):
        settings = GrpoSettings(
            loss_type=loss_type,
            scale_rewards=scale,
            mask_truncated_completions=masked,
            epsilon_high=_upper(loss_type),
            max_completion_length=BUDGET,
        )
        truncated = "mask_truncated" if masked else "keep_truncated"
        yield Case(name=f"{loss_type}-{scale}-{truncated}", settings=settings)
    for scale in ADVANTAGES:
        settings = GrpoSettings(scale_rewards=scale)
        yield Case(name=f"{scale}-unscorable", settings=settings, inputs="unscorable", compares=("advantages",))
    both = GrpoSettings(
        loss_type="grpo",
        mask_truncated_completions=True,
        vllm_importance_sampling_mode="sequence_truncate",
        vllm_importance_sampling_clip_max=1.5,
    )
    yield Case(name="grpo-mask_truncated-sequence_truncate", settings=both)


def _parts() -> Iterator[Case]:
    for loss_type, parts in product(REDUCTIONS, (2, 6)):
        settings = GrpoSettings(
            loss_type=loss_type, beta=0.04, epsilon_high=_upper(loss_type), max_completion_length=BUDGET
        )
        yield Case(name=f"{loss_type}-{parts}_microbatches", settings=settings, num_microbatches=parts)


def _entropy() -> Iterator[Case]:
    for loss_type in REDUCTIONS:
        high = _upper(loss_type)
        bonus = GrpoSettings(loss_type=loss_type, entropy_coef=0.01, epsilon_high=high, max_completion_length=BUDGET)
        yield Case(name=f"{loss_type}-entropy_bonus", settings=bonus)
        # Half of 26 tokens: at other shares TRL's interpolated quantile may keep one token more.
        focus = GrpoSettings(
            loss_type=loss_type, top_entropy_quantile=0.5, beta=0.04, epsilon_high=high, max_completion_length=BUDGET
        )
        yield Case(name=f"{loss_type}-top_entropy", settings=focus)


def _rloo() -> Iterator[Case]:
    for inputs, beta, bounds in product(("near", "unscorable"), (0.0, 0.05), (None, (-0.2, 1.0))):
        compares = EVERYTHING if inputs == "near" else ("advantages",)
        settings = RlooSettings(beta=beta, reward_clip_range=bounds)
        name = f"rloo-{inputs}-beta_{beta}-clip_{bounds is not None}"
        yield Case(name=name, settings=settings, inputs=inputs, compares=compares)
    yield Case(name="rloo-3_microbatches", settings=RlooSettings(), inputs="near", num_microbatches=3)
    masked = RlooSettings(beta=0.0, mask_truncated_completions=True)
    yield Case(
        name="rloo-mask_truncated", settings=masked, inputs="near", compares=("advantages", "trained", "gradient")
    )


def _dpo() -> Iterator[Case]:
    losses = {
        "sigmoid": DpoSettings(),
        "sigmoid_norm": DpoSettings(loss_type=("sigmoid_norm",), beta=5.0),
        "ipo": DpoSettings(loss_type=("ipo",), beta=0.5),
        "sigmoid+sft": DpoSettings(loss_type=("sigmoid", "sft")),
        "sigmoid+sft_0.3": DpoSettings(loss_type=("sigmoid", "sft"), loss_weights=(1.0, 0.3)),
        "ipo+sft": DpoSettings(loss_type=("ipo", "sft"), beta=0.5),
    }
    for name, settings in losses.items():
        yield Case(name=f"dpo-{name}", settings=settings)
        if "sft" not in settings.loss_type:
            yield Case(name=f"dpo-{name}-2_microbatches", settings=settings, num_microbatches=2)
