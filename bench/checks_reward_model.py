"""What is wrong with a run's reward model, as far as its files and the knobs tell without loading it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.checks_evaluation import at_hand
from bench.checks_models import positions_of
from bench.checks_objective import dead_knob
from bench.config import PretrainedModel, Run, local_path
from bench.config_reward_model import PretrainedReward, TrainedReward
from bench.vocabulary import other_tokens, vocabulary_of

_LABELS_OF_TRANSFORMERS = 2
"""Outputs of a sequence classifier whose configuration does not say."""


def reward_model_mistakes(run: Run, longest_prompt: int | None) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right.

    Args:
        longest_prompt: in the policy's tokens; None where only loading the policy tells.
    """
    reward, model = run.reward, run.reward.model
    if not run.objective.needs.samples:
        return  # no reward is read, and the check on rewards has said so
    if model is None:
        if reward.source == "model":
            yield (
                "reward.model: missing, but reward.source=model has no other reward; give a sequence classifier, such "
                "as reward.model.kind=pretrained reward.model.path=FOLDER, or reward.model.kind=trained"
            )
        return
    if reward.source not in ("verifier", "model"):
        yield (
            f"reward.model: given, but reward.source={reward.source} does not use it; give reward.source=model, to "
            "which functions and form are added, or reward.source=verifier"
        )
        return
    if reward.source == "verifier" and not run.objective.needs.reward:
        yield (
            f"reward.model: given, but {run.algorithm} reads the verdict, not the reward, so it could not act; give "
            "reward.source=model, which makes the better ones of a group the verdict"
        )
        return
    if not model.weight:
        yield "reward.model.weight: 0 given, so the reward model could not act; leave reward.model out"
    if reward.source == "model" and not run.objective.needs.reward and run.rollout.group_size == 1:
        yield (
            "rollout.group_size: 1 given, but with reward.source=model a completion is right where it is better than "
            "its group's mean, so at least 2 are needed"
        )
    if isinstance(model, TrainedReward):
        yield from _trained(run, model)
    else:
        yield from _pretrained(run, model, longest_prompt)


def scale_mistakes(run: Run, why: str) -> Iterator[str]:
    """Knobs that only shift or scale the score of a reward model that is the whole reward, where neither can act.

    Args:
        why: what the objective does that no factor changes.
    """
    model = run.reward.model
    assert model is not None, "the caller has looked"
    if abs(model.weight) not in (0, 1):
        yield (
            f"reward.model.weight: {model.weight:g} given, but {why}, so its size could not act; give "
            f"{1 if model.weight > 0 else -1}"
        )
    if isinstance(model, TrainedReward) and model.clip is None:
        yield from dead_knob(model, "reward.model", "standardise", f"{why} and nothing is clipped")


def _trained(run: Run, model: TrainedReward) -> Iterator[str]:
    training = round(model.problems * (1 - model.held_out))
    if not 0 < training < model.problems:
        side = "training" if training <= 0 else "the held-out accuracy"
        yield (
            f"reward.model.held_out: {model.held_out:g} given, which leaves none of reward.model.problems = "
            f"{model.problems} for {side}"
        )
    if not at_hand(run.task):
        return
    from bench.problems import num_problems

    try:
        there = num_problems(run.task, "train")
    except ValueError:
        return  # said already, by the check on the data's size
    if there is not None and model.problems > there:
        yield (
            f"reward.model.problems: {model.problems} given, but the train split has {there} problems; must be at most "
            f"{there}"
        )


def _pretrained(run: Run, model: PretrainedReward, longest_prompt: int | None) -> Iterator[str]:
    folder = local_path(PretrainedModel(path=model.path))
    if folder is None:
        return  # a name on the hub, of which only loading tells
    given = f'reward.model.path: "{model.path}" given, but'
    if folder.is_file():
        yield f'reward.model.path: "{model.path}" given, which is a file; must be a folder'
        return
    if not folder.is_dir():
        yield f"{given} there is no such folder here (looked in {Path.cwd()})"
        return
    if model.revision is not None:
        yield (
            f'reward.model.revision: "{model.revision}" given, but reward.model.path is a folder, so it could not act; '
            "leave it out"
        )
    config = _json(folder / "config.json")
    if config is None:
        yield f"{given} there is no readable config.json in it, so it holds no model"
        return
    mistake = outputs_mistake(_num_labels(config), config.get("architectures"))
    if mistake is not None:
        yield f"reward.model.path: {model.path} {mistake}"
        return
    positions, budget = positions_of(PretrainedModel(path=model.path)), run.rollout.max_completion_tokens
    if isinstance(positions, int) and model.tokens == "policy" and positions < (longest_prompt or 1) + budget:
        yield (
            f"reward.model.path: {model.path} has {positions} positions, but a prompt takes {longest_prompt or 1} and "
            f"a completion up to {budget} tokens; lower rollout.max_completion_tokens, or give one with more"
        )
    yield from _tokenizer(run, model, folder)


def outputs_mistake(num_labels: int, architectures: Sequence[str] | None) -> str | None:
    """Why a model with so many outputs, of these classes, is no reward model; None where it may be one."""
    classes = [name for name in architectures or [] if "SequenceClassification" not in name]
    if classes and len(classes) == len(architectures or []):
        return (
            f"is a {classes[0]}, which has no score head, so its scores would be random; give a sequence classifier, "
            "or reward.model.kind=trained, which makes one of the starting policy"
        )
    if num_labels != 1:
        return f"has {num_labels} outputs (num_labels), and a reward model has 1"
    return None


def _num_labels(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, Mapping) else config.get("num_labels", _LABELS_OF_TRANSFORMERS)


def _tokenizer(run: Run, model: PretrainedReward, folder: Path) -> Iterator[str]:
    """A line if the policy's tokens are other tokens to the reward model, where both vocabularies lie here."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        yield (
            f"reward.model.path: {model.path} has no tokenizer in it (no tokenizer.json), so nothing tells whether it "
            "reads the policy's tokens; save its tokenizer there"
        )
        return
    # Tokens that were added to a vocabulary may stand in other files too, so those of the policy wait for the loading.
    policy = vocabulary_of(run.model, run.alphabet, added=False)
    own = vocabulary_of(PretrainedModel(path=str(folder)), "", added=True)
    if model.tokens == "policy" and own is not None and policy is not None:
        mistake = vocabulary_mistake(policy, own)
        if mistake is not None:
            yield vocabulary_line(model.path, mistake)


def _json(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def vocabulary_line(path: str, mistake: str) -> str:
    """The refusal of a reward model that cannot read the policy's tokens."""
    return (
        f"reward.model.tokens: policy given, but {path} has another tokenizer than the policy: {mistake}; give "
        "reward.model.tokens=own, which writes prompt and completion anew with its own"
    )


def vocabulary_mistake(policy: Mapping[str, int], other: Mapping[str, int]) -> str | None:
    """The first token of the policy that is another, or none, to the reward model, in words; None without any."""
    wrong = min(((index, token) for token, index in other_tokens(policy, other)), default=None)
    if wrong is None:
        return None
    index, token = wrong
    there = f"is {other[token]}" if token in other else "does not occur"
    return f"the token {token!r} is {index} for the policy and {there} in the reward model"
