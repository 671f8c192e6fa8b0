"""The same measurement after training: at each checkpoint of a run, of the rollout that training went on with."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from bench import checkpoint, store
from bench.baseline_quality.measure import FILE, Quality
from bench.casting import make_cast, make_learner
from bench.config import Run
from bench.dialect import ConfigError
from bench.engines import EngineFailed, engine_of
from bench.generate import ContextTooSmall, NotFinite
from bench.instruments import Instruments
from bench.learn_online import OnlineLearner
from bench.learner import microbatches
from bench.loading import load_run
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import ModelUnavailable
from bench.policy import reads_packed
from bench.prepare import PreparationFailed, starting_model
from bench.progress import progress
from bench.reward_model import judge_of
from bench.rewards import RewardMistake
from bench.rollout import Sampler, sequences_of


def measure_saved(directory: Path, knobs: Sequence[str] = ()) -> dict[int, int]:
    """Measure a run at its whole checkpoints, into its `baseline_quality.jsonl`; what that says of them is replaced.

    Args:
        directory: of the run.
        knobs: `key=value` below `baseline_quality`, over those of the run.

    Returns:
        Lines by update.

    Raises:
        ConfigError: the run, its checkpoints or the knobs are not fit for it.
    """
    if not (directory / "run.yaml").is_file():
        raise ConfigError([f"{directory}: no run.yaml in it, so it is no run"])
    strangers = [knob for knob in knobs if not knob.startswith("baseline_quality")]
    if strangers:
        raise ConfigError([f"{knob}: only knobs of baseline_quality can differ from the run's" for knob in strangers])
    run = load_run(directory / "run.yaml", knobs)
    if run.baseline_quality is None:
        run = load_run(directory / "run.yaml", ["baseline_quality={}"])
    folders = checkpoint.complete(directory / "checkpoints")
    if not folders:
        raise ConfigError(
            [f"{directory}: no whole checkpoint in it, and only those have the critic; train with checkpoint.every"]
        )
    try:
        lines = _lines(run, directory, folders)
    except (ModelUnavailable, PreparationFailed, ContextTooSmall, NotFinite, EngineFailed, RewardMistake) as error:
        raise ConfigError([str(error)]) from None
    updates = {line["update"] for line in lines}
    kept = [line for line in store.read_jsonl(directory / FILE).records if line["update"] not in updates]
    ordered = sorted([*kept, *lines], key=lambda line: line["update"])
    store.write_text(directory / FILE, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in ordered))
    return {update: sum(line["update"] == update for line in lines) for update in sorted(updates)}


def _lines(run: Run, directory: Path, folders: Sequence[Path]) -> list[dict[str, Any]]:
    torch.set_num_threads(run.threads)
    instruments = Instruments(PhaseClock(), MemoryMeter(run.device))
    start = starting_model(run)
    judge = judge_of(run, start)
    cast = make_cast(run, start.model)
    found: list[dict[str, Any]] = []
    with ExitStack() as opened:
        generate = opened.enter_context(engine_of(run, None, instruments.clock))
        sampler = Sampler(run, run.task, generate, instruments, judge=judge)
        learner = make_learner(run, cast, sampler, instruments, directory)
        assert isinstance(learner, OnlineLearner), "the configuration refuses other objectives"
        assert learner.quality is not None, "the run asks for it"
        advance = opened.enter_context(progress("baseline quality", len(folders)))
        for folder in folders:
            checkpoint.restore(folder, cast)
            found += _at(learner, learner.quality)
            advance(1, f"update {cast.progress.update}")
    return found


def _at(learner: OnlineLearner, quality: Quality) -> list[dict[str, Any]]:
    """The lines of the rollout that the learner would train on next."""
    cast, objective = learner.cast, learner.objective
    collected = learner.sampler.collect(
        cast.policy, learner.stream, cast.progress.generation_round, objective.selection, cast.carried
    )
    sequences = sequences_of(collected.groups, cast.policy.pad_id).to(learner.device)
    packed = reads_packed(cast.policy.network)
    parts = microbatches(range(len(sequences)), sequences, learner.run.optimizer, packed=packed)
    rollout = learner.scorer.rollout(collected.groups, sequences, parts)
    return quality.lines(collected.groups, rollout, objective.credit(rollout), collected.carried)
