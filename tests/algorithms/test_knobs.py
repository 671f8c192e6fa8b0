"""Components: frozen, keyword-only, and strict about what they are given."""

import dataclasses
import json
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from algorithms import grpo
from algorithms.axes.advantage import Advantage
from algorithms.axes.baseline import GroupCentred, GroupStandardised, PassAtK
from algorithms.axes.bonus import Bonus, EntropyBonus
from algorithms.axes.focus import Focus, TopEntropyTokens
from algorithms.axes.imitation import AcceptedSamples, GoldSolutions
from algorithms.axes.knobs import kind_of, knobs_of, snake_case
from algorithms.axes.mismatch import Mismatch, TokenMask, TokenTruncate
from algorithms.axes.objective import Objective
from algorithms.axes.penalty import LossKL, NoPenalty, Penalty, RewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import (
    ChosenLikelihood,
    FixedPairs,
    GradedPairs,
    Ipo,
    NoLikelihood,
    Sigmoid,
    SigmoidNorm,
)
from algorithms.axes.ratio import Ratio, SequenceRatio
from algorithms.axes.reduction import Reduction
from algorithms.axes.returns import GAE, LengthAdaptiveGAE, Returns
from algorithms.axes.selection import DropUniformGroups, KeepAll, Selection
from algorithms.axes.shaping import NoShaping, Rescale, Shaping, SoftOverlong
from algorithms.axes.surrogate import Cispo, Clip, DualClip, Surrogate
from algorithms.axes.truncation import MaskTruncated, Truncation
from algorithms.axes.value import NoCritic, Value, ValueLoss

ONLINE = (
    Advantage,
    Bonus,
    Focus,
    Mismatch,
    Penalty,
    Ratio,
    Reduction,
    Selection,
    Shaping,
    Surrogate,
    Truncation,
    Value,
)
LOSSES = [Sigmoid, SigmoidNorm, Ipo, NoLikelihood, ChosenLikelihood]
OFFLINE = [*LOSSES, GradedPairs, FixedPairs, GoldSolutions, AcceptedSamples]
COMPONENTS = [cls for union in ONLINE for cls in get_args(union)] + OFFLINE + list(get_args(Objective))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("GAE", "gae"),
        ("LossKL", "loss_kl"),
        ("RewardKL", "reward_kl"),
        ("KLPenalty", "kl_penalty"),
        ("GroupTokenMean", "group_token_mean"),
        ("Clip", "clip"),
    ],
)
def test_kind_is_the_snake_case_of_the_class(name: str, kind: str) -> None:
    assert snake_case(name) == kind


def test_kinds_tell_all_components_apart() -> None:
    kinds = [cls.__dataclass_fields__["kind"].default for cls in COMPONENTS]
    assert len(set(kinds)) == len(kinds)
    assert kinds == [snake_case(cls.__name__) for cls in COMPONENTS]


def test_knobs_of_a_component_are_its_own_and_nothing_derived() -> None:
    """Not `kind`, and not the facts about a class that the family reads (`needs_critic`, `max_rounds` of `KeepAll`)."""
    assert knobs_of(GroupStandardised(ddof=0, epsilon=0.5)) == {"ddof": 0, "epsilon": 0.5}
    assert knobs_of(KeepAll()) == {}
    assert knobs_of(PassAtK(k=3)) == {"k": 3}
    assert kind_of(GAE()) == "gae"


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (Clip, {"lo": 0.2}),
        (Clip, {"low": "0.2"}),
        (Clip, {"low": True}),
        (Clip, {"low": None}),
        (Clip, {"low": 0.0}),
        (Clip, {"low": 1.5}),
        (Clip, {"high": float("inf")}),
        (Clip, {"high": float("nan")}),
        (Clip, {"kind": "cispo"}),
        (GroupStandardised, {"ddof": 2}),
        (GroupStandardised, {"ddof": True}),
        (GroupStandardised, {"ddof": 1.0}),
        (GroupStandardised, {"epsilon": -1e-4}),
        (GroupCentred, {"epsilon": 1e-4}),
        (GAE, {"lam": 1.01}),
        (GAE, {"whiten": 1}),
        (GAE, {"needs_critic": False}),
        (LossKL, {}),
        (LossKL, {"coefficient": 0.0}),
        (LossKL, {"coefficient": 0.1, "estimator": "k4"}),
        (RewardKL, {"coefficient": -0.1}),
        (NoPenalty, {"coefficient": 0.1}),
        (SoftOverlong, {"buffer": 0.0}),
        (SoftOverlong, {"factor": 0.0}),
        (NoShaping, {"buffer": 0.2}),
        (DropUniformGroups, {"max_rounds": 0}),
        (DropUniformGroups, {"on_exhausted": "loop"}),
        (KeepAll, {"max_rounds": 2}),
        (ValueLoss, {"clip": 0.0}),
        (NoCritic, {"clip": 0.2}),
        (Sigmoid, {"beta": 0.0}),
        (GradedPairs, {"max_pairs_per_prompt": 0}),
        (GradedPairs, {"require_termination": "no"}),
        (DualClip, {"cap": 1.0}),
        (Cispo, {}),
        (Cispo, {"high": 0.0}),
        (SequenceRatio, {"low": 0.2}),
        (Rescale, {"scale": 0.0}),
        (TokenTruncate, {"high": 0.5}),
        (TokenMask, {"low": 1.5}),
        (TopEntropyTokens, {"share": 1.0}),
        (EntropyBonus, {"coefficient": 0.0}),
        (MaskTruncated, {"in_baseline": 1}),
        (Returns, {"baseline": "median"}),
        (LengthAdaptiveGAE, {"lam": 0.95}),
        (LengthAdaptiveGAE, {"alpha": 0.0}),
        (PassAtK, {"k": 0}),
        (LossKL, {"coefficient": 0.1, "weight": "rho"}),
        (Ipo, {"beta": 0.0}),
        (ChosenLikelihood, {"coefficient": 1.0, "normalise": "batch"}),
        (AcceptedSamples, {"max_per_prompt": 0}),
    ],
)
def test_what_cannot_be_meant_is_refused(cls: type, given: dict[str, Any]) -> None:
    """Unknown knobs, other types (no coercion), values out of range, another component's kind."""
    with pytest.raises(ValidationError) as caught:
        cls(**given)
    assert caught.value.errors()[0]["loc"]


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "rescale does nothing"), ({"low": 1.0, "high": 1.0}, "low is 1, must be below high = 1")],
)
def test_a_rescaling_that_does_nothing_or_holds_nothing_is_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Rescale(**given)


def test_components_are_keyword_only_and_frozen() -> None:
    with pytest.raises(ValidationError, match="positional"):
        Clip(0.1)  # type: ignore[misc]
    clip = Clip(low=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        clip.low = 0.3  # type: ignore[misc]
    assert clip == Clip(low=0.1, high=0.2) != Clip(low=0.3)


def test_a_whole_number_may_stand_for_a_float() -> None:
    assert Clip(high=1).high == 1.0


def test_null_turns_value_clipping_off() -> None:
    assert ValueLoss(clip=None).clip is None


def test_a_preset_survives_the_way_through_plain_data(preset: Any) -> None:
    adapter: TypeAdapter[Objective] = TypeAdapter(Objective)
    plain = json.loads(adapter.dump_json(preset.objective))
    assert adapter.validate_json(json.dumps(plain)) == preset.objective


def test_when_the_kind_changes_the_old_components_knobs_are_errors() -> None:
    adapter = TypeAdapter(PolicyGradient)
    plain = json.loads(adapter.dump_json(grpo.objective))
    plain["penalty"]["kind"] = "no_penalty"
    with pytest.raises(ValidationError) as caught:
        adapter.validate_json(json.dumps(plain))
    assert {error["loc"][-1] for error in caught.value.errors()} == {"coefficient", "estimator", "weight"}


@pytest.mark.parametrize("cls", COMPONENTS, ids=lambda cls: cls.__name__)
def test_every_knob_is_documented(cls: Any) -> None:
    """The string under a field is what `bench show` prints."""
    assert cls.__doc__
    fields = {name: field.description for name, field in cls.__pydantic_fields__.items() if name != "kind"}
    assert [name for name, description in fields.items() if not description] == []
