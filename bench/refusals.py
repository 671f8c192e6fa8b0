"""Refusals by name: what other suites allow or call otherwise, and what to do instead."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

_CUTS = (
    "top_p", "top_k", "min_p", "top_a", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "no_repeat_ngram_size",
)  # fmt: skip
# Our kinds of penalty, and what other suites call the two places.
_IN_REWARD = ("reward_kl", "sequence_reward_kl", "kl_in_reward", "use_kl_in_reward")
_IN_LOSS = ("loss_kl", "kl_in_loss", "use_kl_loss")
_KINDS = ("reward_kl", "sequence_reward_kl", "loss_kl")
_BOUNDS = ("objective.surrogate.low and objective.surrogate.high",)
_COEFFICIENT = ("objective.penalty.coefficient",)
# The field's names for our knobs: alternatives, of which those count that the run's objective has.
ALIASES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("epsilon", "clip", "clip_range", "cliprange", "clip_ratio", "clip_eps"), _BOUNDS),
    **dict.fromkeys(("epsilon_low", "clip_ratio_low", "cliprange_low"), ("objective.surrogate.low",)),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high", "cliprange_high"), ("objective.surrogate.high",)),
    "beta": (*_COEFFICIENT, "objective.loss_function.beta"),
    **dict.fromkeys(("kl_coef", "kl_coeff", "init_kl_coef", "kl_loss_coef", "kl_beta"), _COEFFICIENT),
    "kl_estimator": ("objective.penalty.estimator",),
    **dict.fromkeys(("num_generations", "n_samples_per_prompt"), ("rollout.group_size",)),
    **dict.fromkeys(
        ("max_completion_length", "max_new_tokens", "max_response_length"), ("rollout.max_completion_tokens",)
    ),
    "learning_rate": ("optimizer.lr",),
    **dict.fromkeys(("reward_model_path", "reward_model_name_or_path", "reward_pretrain"), ("reward.model.path",)),
    **dict.fromkeys(("num_iterations", "ppo_epochs", "num_ppo_epochs"), ("rollout.epochs",)),
    "num_mini_batches": ("rollout.updates_per_rollout",),
    "scale_rewards": ("objective.advantage",),
    "loss_type": ("algorithm", "objective.reduction", "objective.loss_function"),
    **dict.fromkeys(
        ("per_device_train_batch_size", "micro_batch_size", "ppo_micro_batch_size"),
        ("optimizer.microbatch_sequences",),
    ),
    **dict.fromkeys(("max_token_len_per_gpu", "ppo_max_token_len_per_gpu"), ("optimizer.microbatch_tokens",)),
}
# And those that have no counterpart here, with the reason.
NOT_NEEDED: Mapping[str, str] = {
    "gradient_accumulation_steps": (
        "none is needed: every step accumulates over microbatches of optimizer.microbatch_tokens tokens, which "
        "changes memory and speed and not the gradient; leave it out"
    )
}


def plain_word(name: str) -> str:
    """A name as our knobs are written."""
    return name.lower().replace("-", "_")


def sampling_refusal(section: str, knob: str, value: object = None) -> str | None:
    """Why a knob that changes what a rollout samples from is not there, alone or in a section that is not there either;
    None for any other knob."""
    found = [word for word, _ in words_of(knob, value) if word in _CUTS]
    if not found or section not in ("", "rollout"):
        return None
    return (
        f"but training samples from the whole distribution: with {found[0]} the sampler's probabilities would not be "
        "the trainer's, which biases the importance ratio; leave it out (rollout.temperature is the one knob of "
        "sampling)"
    )


def words_of(name: str, value: object) -> list[tuple[str, object]]:
    """A name with its value, and those inside it, however deep."""
    inside = cast(Mapping[str, Any], value).items() if isinstance(value, Mapping) else ()
    return [(plain_word(name), value), *(word for key, item in inside for word in words_of(key, item))]


def penalty_kind(word: str, value: object) -> str | None:
    """The kind of KL penalty that a word of others asks for; empty where it does not say which, None without KL."""
    if word in ALIASES or not {"kl", *_IN_LOSS, *_IN_REWARD}.intersection((word, *word.split("_"))):
        return None
    if value is False:
        return "no_penalty"
    if word in _IN_LOSS:
        return "loss_kl"
    return (word if word in _KINDS else "reward_kl") if word in _IN_REWARD else ""


def no_critic(algorithm: object) -> str:
    """The line about a critic that the objective would not train."""
    return f"critic: given, but {algorithm} has no critic, so it could not act; leave it out"


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
