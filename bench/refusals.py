"""Refusals by name: what other suites allow and a comparison here cannot, and what to do instead."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

_CUTS = ("top_p", "top_k", "min_p", "repetition_penalty")
# Our kinds of penalty, and what other suites call the two places.
_IN_REWARD = ("reward_kl", "sequence_reward_kl", "kl_in_reward", "use_kl_in_reward")
_IN_LOSS = ("loss_kl", "kl_in_loss", "use_kl_loss")
_KINDS = ("reward_kl", "sequence_reward_kl", "loss_kl")


def sampling_refusal(section: str, knob: str) -> str | None:
    """Why a knob that changes what a rollout samples from is not there; None for any other knob."""
    if knob not in _CUTS or section not in ("", "rollout"):
        return None
    return (
        f"but training samples from the whole distribution: with {knob} the sampler's probabilities would not be the "
        "trainer's, which biases the importance ratio; leave it out (rollout.temperature is the one knob of sampling)"
    )


def without_double_kl(layer: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The layer, and no line; or the layer without its penalties, and the line that refuses two of them at once."""
    objective = layer.get("objective")
    if not isinstance(objective, Mapping):
        return layer, []
    parts = cast(Mapping[str, Any], objective)
    lines = double_kl(parts.items())
    if not lines:
        return layer, []
    kept = {key: value for key, value in parts.items() if key != "penalty" and not _kl_words(key, True)}
    return {**layer, "objective": kept}, lines


def double_kl(knobs: Iterable[tuple[str, Any]]) -> list[str]:
    """A line if knobs of one layer ask for KL in the reward and KL in the loss, however they are written."""
    words = dict.fromkeys(word for key, value in knobs for word in _kl_words(key, value))
    in_reward, in_loss = ([word for word in words if word in names] for names in (_IN_REWARD, _IN_LOSS))
    if not (in_reward and in_loss):
        return []
    kind = in_reward[0] if in_reward[0] in _KINDS else "reward_kl"
    return [
        f"objective.penalty: {in_reward[0]} and {in_loss[0]} given at once, which would charge one divergence twice, "
        f"in the reward and in the loss; keep one: objective.penalty.kind={kind} or objective.penalty.kind=loss_kl"
    ]


def _kl_words(key: str, value: object) -> list[str]:
    """Names of KL penalties in a knob's path and its value; none where it is switched off."""
    if value is None or value is False:
        return []
    inside: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inside = cast(Mapping[str, Any], value).items()
    elif isinstance(value, list):
        inside = [("", item) for item in cast(list[Any], value)]
    text = f"{key} {value}" if isinstance(value, str) else key
    own = [word for word in re.findall(r"[a-z_]+", text) if word in (*_IN_REWARD, *_IN_LOSS)]
    return [*own, *(word for name, item in inside for word in _kl_words(name, item))]
