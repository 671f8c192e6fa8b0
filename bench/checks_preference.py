"""What is wrong with a run's source of pairs: rounds that do not fit, data that is no preference set, idle knobs."""

import json
from collections.abc import Iterator
from pathlib import Path

from algorithms.axes.preference import FixedPairs, GradedPairs, Preference
from bench.budget import completions_per_update, num_rollouts
from bench.checks_objective import dead_knob
from bench.config import PretrainedModel, Run, TinyModel, local_path
from bench.config_preference import local_set

_PATH = "objective.pairing"


def preference_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right."""
    pairing = run.objective.pairing if isinstance(run.objective, Preference) else None
    if isinstance(pairing, GradedPairs):
        yield from _rounds(run, pairing)
        yield from _options(run, pairing)
    elif isinstance(pairing, FixedPairs):
        yield from _budget(run, pairing)
        yield from _source(run, pairing)


def _rounds(run: Run, pairing: GradedPairs) -> Iterator[str]:
    if pairing.rounds == 1:
        if pairing.keep_optimizer:
            given = f"{_PATH}.keep_optimizer: true given"
            yield f"{given}, but there is one round, so it could not act; leave it out, or give {_PATH}.rounds"
        return
    rollout, there = run.rollout, num_rollouts(run)
    if there and there % pairing.rounds:
        fits = [str(rounds) for rounds in range(2, min(there, 4096) + 1) if there % rounds == 0]
        steps = rollout.updates_per_rollout * rollout.epochs
        yield (
            f"{_PATH}.rounds: {pairing.rounds} given, must divide the {there} rollouts of an online run of this budget "
            f"(budget.updates {run.budget.updates} / {steps} updates a rollout), because each round samples as many of "
            f"them; must be {', '.join(['1', *fits])}"
        )


def _options(run: Run, pairing: GradedPairs) -> Iterator[str]:
    if pairing.length_match and run.rollout.group_size == 2:
        yield (
            f"{_PATH}.length_match: true given, but of rollout.group_size = 2 completions a prompt has one rejected at "
            "most, so it could not act; leave it out"
        )
    if pairing.gold_solution and run.reward.source != "verifier":
        yield (
            f"{_PATH}.gold_solution: true given, which stands in where all samples are wrong, but "
            f"reward.source={run.reward.source} does not say which are right; leave it out"
        )


def _budget(run: Run, pairing: FixedPairs) -> Iterator[str]:
    """Knobs of a rollout: its completions an update say how many pairs an update has, and nothing is sampled."""
    rollout = run.rollout
    if completions_per_update(rollout) < 2:
        yield (
            f"rollout.group_size: {rollout.group_size} given with rollout.prompts {rollout.prompts} and "
            f"updates_per_rollout {rollout.updates_per_rollout}, which is 1 completion an update; a pair is 2, so "
            "their product must be at least twice updates_per_rollout"
        )
    why = f"the pairs of {pairing.path} are fixed and nothing is sampled for training"
    yield from dead_knob(rollout, "rollout", "epochs", why)
    if run.validation.every == 0 and run.warm_start is None:
        yield from dead_knob(rollout, "rollout", "temperature", f"{why}, and validation.every is 0")


def _source(run: Run, pairing: FixedPairs) -> Iterator[str]:
    """The set itself, where it is at hand: every row is read."""
    path = local_set(pairing)
    if path is None:
        return  # only the hub knows
    names = ("config", "revision") if path.is_dir() else ("split", "config", "revision")
    for knob in names:
        value, default = getattr(pairing, knob), getattr(FixedPairs(path=pairing.path), knob)
        if value != default and path.exists():
            what = "a folder" if path.is_dir() else "a file"
            yield f"{_PATH}.{knob}: {value} given, but {_PATH}.path is {what}, so it could not act; leave it out"
    from bench.preference_data import read_set

    try:
        data = read_set(pairing)
    except ValueError as error:
        yield f"{_PATH}.path: {error}"
        return
    if data.conversational and _lacks_template(run):
        from bench.preference_data import no_template

        whose = "the tiny model" if isinstance(run.model, TinyModel) else run.model.path
        yield no_template(whose)


def _lacks_template(run: Run) -> bool:
    """Whether the model is known to have no chat template, without loading it."""
    if isinstance(run.model, TinyModel):
        return True
    folder = local_path(run.model) if isinstance(run.model, PretrainedModel) else None
    if folder is None or run.model.gguf_file is not None or not folder.is_dir():
        return False
    config, files = _tokenizer_config(folder), list(folder.glob("*chat_template*"))
    return config is not None and "chat_template" not in config and not files


def _tokenizer_config(folder: Path) -> dict[str, object] | None:
    try:
        return json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # loading the tokenizer will say what is wrong with it
