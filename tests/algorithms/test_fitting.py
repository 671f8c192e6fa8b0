"""What follows from a composition: what the run must provide, and which components contradict each other."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from algorithms.axes.baseline import Accepted, GroupCentred
from algorithms.axes.bonus import EntropyBonus
from algorithms.axes.focus import TopEntropyTokens
from algorithms.axes.mismatch import TokenTruncate
from algorithms.axes.needs import Needs
from algorithms.axes.penalty import LossKL, NoPenalty, RewardKL, SequenceRewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.ratio import NoRatio
from algorithms.axes.reduction import TokenMean
from algorithms.axes.returns import GAE, Returns
from algorithms.axes.selection import DropUniformGroups, KeepAll
from algorithms.axes.shaping import MissingEos, NoShaping, SoftOverlong
from algorithms.axes.surrogate import Clip, Reinforce
from algorithms.axes.truncation import MaskTruncated
from algorithms.axes.value import NoCritic, ValueLoss

PLAIN: dict[str, Any] = {
    "shaping": NoShaping(),
    "selection": KeepAll(),
    "advantage": GroupCentred(),
    "surrogate": Clip(),
    "penalty": NoPenalty(),
    "reduction": TokenMean(),
    "value": NoCritic(),
}


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        ({}, Needs(critic=False, reference=False, groups=True)),
        ({"penalty": LossKL(coefficient=0.1)}, Needs(critic=False, reference=True, groups=True)),
        ({"advantage": GAE(), "value": ValueLoss()}, Needs(critic=True, reference=False, groups=False)),
        (
            {
                "advantage": GAE(),
                "value": ValueLoss(),
                "penalty": RewardKL(coefficient=0.1),
                "selection": DropUniformGroups(),
            },
            Needs(critic=True, reference=True, groups=True, old_logp=True),
        ),
        ({"mismatch": TokenTruncate()}, Needs(critic=False, reference=False, groups=True, old_logp=True)),
        (
            {"focus": TopEntropyTokens()},
            Needs(critic=False, reference=False, groups=True, old_logp=True, entropy=True),
        ),
        (
            {"bonus": EntropyBonus(coefficient=0.1)},
            Needs(critic=False, reference=False, groups=True, entropy_gradient=True),
        ),
        (
            {"advantage": GAE(truncation_bootstrap=True), "value": ValueLoss()},
            Needs(critic=True, reference=False, groups=False, next_value=True),
        ),
        (
            {"advantage": Accepted(), "ratio": NoRatio(), "surrogate": Reinforce()},
            Needs(critic=False, reference=False, groups=False, reward=False, one_update=True),
        ),
    ],
)
def test_needs_follow_from_the_components(change: dict[str, Any], needs: Needs) -> None:
    assert PolicyGradient(**PLAIN | change).needs == needs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"advantage": GAE(truncation_bootstrap=True), "value": ValueLoss(), "truncation": MaskTruncated()},
            "advantage.truncation_bootstrap counts on behind a cut and truncation.kind=mask_truncated trains on no",
        ),
        (
            {"shaping": MissingEos(penalty=1.0), "truncation": MaskTruncated(in_baseline=False)},
            "shaping.kind=missing_eos punishes completions that truncation.in_baseline=false leaves out altogether",
        ),
        (
            {"focus": TopEntropyTokens(), "advantage": GAE(), "value": ValueLoss()},
            "focus.count_dropped=false takes tokens out of the loss, and the critic would miss them too",
        ),
        ({"advantage": GAE()}, "this advantage reads a critic: give objective.value.kind=value_loss"),
        (
            {"value": ValueLoss()},
            "no component reads the critic: give objective.value.kind=no_critic or objective.advantage.kind=gae",
        ),
        (
            {"penalty": RewardKL(coefficient=0.1)},
            "penalty.kind=reward_kl charges single tokens and advantage.kind=group_centred is per completion: give "
            "objective.penalty.kind=loss_kl or objective.penalty.kind=sequence_reward_kl",
        ),
        (
            {"surrogate": Reinforce()},
            "surrogate.kind=reinforce reads no importance ratio, so ratio.kind=token_ratio could not act: give "
            "objective.ratio.kind=no_ratio, or objective.surrogate.kind=unclipped",
        ),
        ({"ratio": NoRatio()}, "surrogate.kind=clip reads an importance ratio: give objective.ratio.kind=token_ratio"),
        (
            {"ratio": NoRatio(), "surrogate": Reinforce(), "penalty": LossKL(coefficient=0.1, weight="ratio")},
            "penalty.weight=ratio needs an importance ratio: give objective.penalty.weight=none",
        ),
        (
            {"advantage": Accepted(), "shaping": SoftOverlong()},
            "advantage.kind=accepted reads the verifier's verdict, not the reward, so shaping.kind=soft_overlong could "
            "not act: give objective.shaping.kind=no_shaping",
        ),
        (
            {"advantage": Accepted(), "penalty": SequenceRewardKL(coefficient=0.1)},
            "so penalty.kind=sequence_reward_kl could not act: give objective.penalty.kind=loss_kl",
        ),
        (
            {"advantage": Returns(), "truncation": MaskTruncated(in_baseline=False)},
            "advantage.kind=returns has no baseline that truncated completions could leave: give "
            "objective.truncation.in_baseline=true",
        ),
        (
            {"advantage": GAE(truncation_bootstrap=True), "value": ValueLoss(), "shaping": MissingEos(penalty=1.0)},
            "advantage.truncation_bootstrap says that a cut is no end and shaping.kind=missing_eos punishes it as one",
        ),
    ],
)
def test_combinations_with_a_dead_component_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        PolicyGradient(**PLAIN | change)


def test_every_contradiction_is_named_at_once() -> None:
    change = {"ratio": NoRatio(), "penalty": RewardKL(coefficient=0.1), "value": ValueLoss()}
    with pytest.raises(ValidationError) as caught:
        PolicyGradient(**PLAIN | change)
    assert all(
        part in str(caught.value) for part in ("no component reads the critic", "reward_kl", "surrogate.kind=clip")
    )
