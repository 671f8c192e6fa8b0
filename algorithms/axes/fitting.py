"""Fitting: which components of a policy-gradient objective contradict each other, and what to give instead."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms.axes.knobs import kind_of
from algorithms.axes.returns import GAE, LengthAdaptiveGAE
from algorithms.axes.shaping import MissingEos, NoShaping
from algorithms.axes.truncation import MaskTruncated
from algorithms.axes.value import NoCritic

if TYPE_CHECKING:
    from algorithms.axes.policy_gradient import PolicyGradient


def mistakes(objective: "PolicyGradient") -> list[str]:
    """One sentence for each combination in which a component could not act, or would act twice."""
    parts = (_critic, _penalty, _ratio, _verdict, _truncation, _focus)
    return [line for part in parts for line in part(objective)]


def _critic(objective: "PolicyGradient") -> Iterator[str]:
    has_critic = not isinstance(objective.value, NoCritic)
    if objective.advantage.needs_critic and not has_critic:
        yield "this advantage reads a critic: give objective.value.kind=value_loss"
    if has_critic and not objective.advantage.needs_critic:
        yield "no component reads the critic: give objective.value.kind=no_critic or objective.advantage.kind=gae"


def _penalty(objective: "PolicyGradient") -> Iterator[str]:
    penalty, advantage = objective.penalty, objective.advantage
    per_token = penalty.in_reward and not penalty.per_completion
    if per_token and not advantage.takes_token_reward and advantage.reads_reward:
        yield (
            f"penalty.kind={kind_of(penalty)} charges single tokens and advantage.kind={kind_of(advantage)} is per "
            "completion: give objective.penalty.kind=loss_kl or objective.penalty.kind=sequence_reward_kl"
        )
    if penalty.weight != "none" and not objective.ratio.is_ratio:
        yield f"penalty.weight={penalty.weight} needs an importance ratio: give objective.penalty.weight=none"


def _ratio(objective: "PolicyGradient") -> Iterator[str]:
    ratio, surrogate = objective.ratio, objective.surrogate
    if surrogate.needs_ratio and not ratio.is_ratio:
        yield f"surrogate.kind={kind_of(surrogate)} reads an importance ratio: give objective.ratio.kind=token_ratio"
    if ratio.is_ratio and not surrogate.needs_ratio:
        yield (
            f"surrogate.kind={kind_of(surrogate)} reads no importance ratio, so ratio.kind={kind_of(ratio)} could not "
            "act: give objective.ratio.kind=no_ratio, or objective.surrogate.kind=unclipped"
        )


def _verdict(objective: "PolicyGradient") -> Iterator[str]:
    if objective.advantage.reads_reward:
        return
    name = f"advantage.kind={kind_of(objective.advantage)} reads the verifier's verdict, not the reward"
    if not isinstance(objective.shaping, NoShaping):
        yield (
            f"{name}, so shaping.kind={kind_of(objective.shaping)} could not act: give "
            "objective.shaping.kind=no_shaping"
        )
    if objective.penalty.in_reward:
        yield f"{name}, so penalty.kind={kind_of(objective.penalty)} could not act: give objective.penalty.kind=loss_kl"


def _truncation(objective: "PolicyGradient") -> Iterator[str]:
    advantage = objective.advantage
    if not objective.truncation.in_baseline and not advantage.has_baseline:
        yield (
            f"advantage.kind={kind_of(advantage)} has no baseline that truncated completions could leave: give "
            "objective.truncation.in_baseline=true"
        )
    bootstraps = isinstance(advantage, GAE | LengthAdaptiveGAE) and advantage.truncation_bootstrap
    masks = isinstance(objective.truncation, MaskTruncated)
    if bootstraps and masks:
        yield (
            "advantage.truncation_bootstrap counts on behind a cut and truncation.kind=mask_truncated trains on no "
            "completion that was cut: give one of them"
        )
    if masks and not objective.truncation.in_baseline and isinstance(objective.shaping, MissingEos):
        yield (
            "shaping.kind=missing_eos punishes completions that truncation.in_baseline=false leaves out altogether: "
            "give one of them"
        )
    if bootstraps and isinstance(objective.shaping, MissingEos):
        yield (
            "advantage.truncation_bootstrap says that a cut is no end and shaping.kind=missing_eos punishes it as one: "
            "give one of them"
        )


def _focus(objective: "PolicyGradient") -> Iterator[str]:
    if not objective.focus.count_dropped and objective.advantage.needs_critic:
        yield (
            "focus.count_dropped=false takes tokens out of the loss, and the critic would miss them too: give "
            "objective.focus.count_dropped=true"
        )
