"""Training: one run from its configuration to its files, read top to bottom."""

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from bench import checkpoint, health, processes, resume, store
from bench.adapted_weights import adapted_layers
from bench.adapters import adapter_record
from bench.alarms import Watch, alarms_of, as_records
from bench.casting import critic_record, make_cast, make_learner, own_memory
from bench.catalog import load_preset
from bench.checkpoint_folder import NoRoom
from bench.config import Run
from bench.config_preference import fixed_pairs
from bench.decoder_weights import decodes_natively
from bench.dialect import ConfigError
from bench.engines import LOG, EngineFailed, EngineMismatch, check_installed, engine_of, engine_record, probe
from bench.evaluation.driver import Plan, evaluate, pass_at_1
from bench.evaluations import copy_evaluation, evaluate_final, prepare, start_evaluations, write_overlap
from bench.generate import ContextTooSmall, Generator, NotFinite
from bench.instruments import Instruments
from bench.kept import RoundLost
from bench.learner import Learner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock, device_clock, throughput
from bench.model_card import write_card
from bench.models import LanguageModel, ModelUnavailable
from bench.moved import Unmoved, changed_share, sample_of, unmoved_sentence
from bench.optimize import Diverged
from bench.origin import refuse_unusable
from bench.policy import reads_packed
from bench.preference_tokens import PairsUnavailable, fetched
from bench.prepare import PreparationFailed, Start, starting_model
from bench.progress import progress
from bench.provenance import optimizer_readback, provenance
from bench.reward_model import judge_of
from bench.rewards import RewardMistake
from bench.rollout import NothingToLearn, Sampler
from bench.sharding import unsharded
from bench.stopping import Interrupted, stoppable
from bench.tracking import TrackingError, mirror, prepare_store

Result = TypeVar("Result")


SECONDS_BETWEEN_MIRRORS = 30.0
MIRROR_SHARE = 20
"""A mirror may take one part in this of a run."""
ENDED_BY_A_SENTENCE = (
    *(NothingToLearn, PreparationFailed, ModelUnavailable, ContextTooSmall, EngineFailed, EngineMismatch),
    # The last one says of a full disk what the system said.
    *(RewardMistake, NoRoom, Unmoved, PairsUnavailable, RoundLost, SafetensorError),
)
"""Failures whose message says what to change; a traceback would add nothing."""


@dataclass
class Live:
    """What the loop remembers: the alarms raised, and when the tracker was last told."""

    watch: Watch = field(default_factory=Watch)
    tracked_at: float = field(default_factory=time.monotonic)
    pause: float = SECONDS_BETWEEN_MIRRORS
    """Seconds until the tracker is told again: a mirror reads the whole run, so a long run is mirrored more seldom."""


@dataclass(frozen=True)
class Job:
    """A run in progress and where it writes."""

    run: Run
    directory: Path
    attempt: int
    start: Start
    learner: Learner
    instruments: Instruments
    generate: Generator
    """The run's engine; samples for training, validation and evaluation alike."""
    start_weights: str
    """Digest of the weights that the run starts from."""
    start_sample: Mapping[str, torch.Tensor]
    """Some of those weights, to tell how many have changed."""
    saved: resume.Place
    """Where the run stands, on the disk."""
    live: Live = field(default_factory=Live)

    @property
    def policy(self) -> LanguageModel:
        return self.learner.cast.policy


def execute(run: Run, directory: Path) -> store.Status:
    """Train, evaluate and write everything; returns how it ended. A run that has ended is left as it is.

    Failures of the run (diverged, out of memory, nothing to learn) are states with a sentence, not exceptions. Where
    several processes share the run, each of them calls this; the main one writes.

    Raises:
        ConfigError: the run cannot begin as asked, such as for a checkpoint of another one; it stays as it was.
    """
    status = store.read_status(directory)
    if status.terminal and status.state != "failed":
        return status
    if processes.is_main():
        refuse_unusable(run, directory)
    attempt = status.attempt + 1
    if processes.is_main():
        store.set_status(directory, "running", attempt=attempt)
    job: Job | None = None
    try:
        with stoppable():
            if run.parallel.processes > 1:
                # Before they join, because the others wait for its locks, as long as it takes, and not for each other.
                prepare([run])
            with processes.joined(run.parallel.processes, run.device), ExitStack() as opened:
                job = set_up(run, directory, attempt, opened)
                known = train(job)
                finish(job, known)
        return _end(run, directory, attempt, "finished")
    except (Diverged, NotFinite) as error:
        return _end(run, directory, attempt, "diverged", f"{error} at update {_update_of(job) + 1}")
    except ConfigError as error:
        if run.parallel.processes > 1:  # the others have joined, and would wait
            return _end(run, directory, attempt, "failed", "; ".join(error.lines))
        store.set_status(directory, status.state, attempt=status.attempt, error=status.error)
        raise
    except ENDED_BY_A_SENTENCE as error:
        ended = _end(run, directory, attempt, "failed", str(error))
        return replace(ended, refused=job is None and isinstance(error, ModelUnavailable))
    except (Interrupted, KeyboardInterrupt):
        return _end(run, directory, attempt, "interrupted", f"stopped after update {_update_of(job)}")
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return _end(run, directory, attempt, "failed", f"{error.strerror or error}{where}")
    except Exception as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return _end(run, directory, attempt, "oom", f"out of memory at update {_update_of(job) + 1}: {error}")
        if run.parallel.processes > 1 and processes.is_lost_peer(error):
            return _end(run, directory, attempt, "failed", f"another process of the run ended: {error}")
        traceback.print_exc()
        return _end(run, directory, attempt, "failed", f"{type(error).__name__}: {error}")


def set_up(run: Run, directory: Path, attempt: int, opened: ExitStack | None = None) -> Job:
    """Write what is known before training and load the models that the objective needs.

    An engine with a process or memory of its own ends with `opened`; the suite's own needs none.
    """
    opened = opened or ExitStack()
    check_installed(run)
    source = fixed_pairs(run.objective)
    if source is not None:
        fetched(source)  # a hub that cannot be reached is told before a model is loaded and evaluated
    torch.set_num_threads(run.threads)
    if processes.is_main():
        _write_known(run, directory)
    start = starting_model(run)
    instruments = Instruments(PhaseClock(device_clock(run.device)), MemoryMeter(run.device))
    generate = opened.enter_context(engine_of(run, directory / LOG, instruments.clock))
    evaluations = start_evaluations(run, start, generate) if run.evaluation.start else []
    if processes.is_main():
        write_overlap(run, directory / "overlap.json")
        for name, folder in evaluations:
            copy_evaluation(name, folder, directory / "eval")
    torch.set_num_threads(run.threads)
    judge = judge_of(run, start, directory, instruments)
    start_digest = checkpoint.weights_digest(start.model.network)
    processes.agree("the starting model", start_digest)
    cast = make_cast(run, start.model)
    probe(run, generate, cast.policy)
    own_memory(cast, instruments.memory)
    sampler = Sampler(run, run.task, generate, instruments, directory / "reward_failures.jsonl", judge)
    learner = make_learner(run, cast, sampler, instruments, directory)
    place = resume.Place(run, directory, learner, instruments)
    if processes.is_main():
        resume.require_room(place)
    optimizers = {"policy": optimizer_readback(cast.optimizer)}
    if cast.critic_optimizer is not None:
        optimizers["critic"] = optimizer_readback(cast.critic_optimizer)
    about = {
        "critic": critic_record(run, cast),
        "engine": engine_record(run),
        "paths": _paths(cast.policy.network),
        "start": dict(start.about),
        "reward_model": None if judge is None else dict(judge.about),
        "start_weights_sha256": start_digest,
        "adapter": adapter_record(cast.policy.network),
    }
    if processes.is_main():
        written = provenance(run.dump(), threads=torch.get_num_threads())
        store.write_json(directory / "provenance.json", {**written, "optimizers": optimizers, **about})
    sample = sample_of(cast.policy.network)
    return Job(run, directory, attempt, start, learner, instruments, generate, start_digest, sample, place)


def _paths(network: PreTrainedModel) -> dict[str, str]:
    """Which way the model's passes are computed, by its architecture: what its speed and its last bits depend on."""
    natively, merged = decodes_natively(network), ", over merged copies of adapted weights"
    merged = merged if adapted_layers(network) else ""
    return {
        "scoring": "packed rows" if reads_packed(network) else "padded rectangles, whole logits",
        "built-in sampler": "the model's forward pass" if not natively else f"decode path of its own{merged}",
    }


def _write_known(run: Run, directory: Path) -> None:
    """The files that the configuration alone decides."""
    preset = load_preset(run.algorithm)
    store.write_yaml(directory / "run.yaml", run.dump())
    formula: dict[str, Any] = {"algorithm": run.algorithm, "title": preset.title, "formula": run.formula()}
    formula |= {"sources": preset.sources, "objective": run.dump()["objective"]}
    formula["reward"] = run.reward.formula() if run.objective.needs.samples else None
    store.write_json(directory / "formula.json", formula)


def train(job: Job) -> dict[str, Any] | None:
    """All updates of the budget that are left: learn, record, validate, save.

    Returns:
        What an earlier attempt knew of the final model, if it had trained to the end.
    """
    run, learner, counters = job.run, job.learner, job.learner.cast.progress
    newest = resume.newest(job.saved)
    if newest is not None and resume.is_final(newest):
        return resume.take_up(job.saved, newest)
    learner.prepare()
    _record_time(job, update=0, metered=False)
    if newest is not None:
        resume.take_up(job.saved, newest)
    for record in store.read_jsonl(job.directory / "metrics.jsonl").records:
        job.live.watch.see(record)
    label = f"{run.algorithm} seed {run.seed}"
    with progress(label, run.budget.updates) if processes.is_main() else nullcontext(lambda *_: None) as advance:
        advance(counters.update, "")
        if counters.update == 0:
            _validate(job, {"update": 0})
        while counters.update < run.budget.updates:
            metered = _is_metered(run, counters.update, learner.updates_per_advance)
            job.instruments.memory.metering = metered
            for record in learner.advance():
                _record_time(job, update=record["update"], metered=metered)
                job.instruments.memory.metering = False
                _validate(job, record)
                job.instruments.memory.metering = metered
                advance(1, _remark(record))
            job.instruments.memory.metering = False
            resume.save(job.saved)
    if checkpoint.weights_digest(job.policy.network) == job.start_weights:
        raise Unmoved(unmoved_sentence(counters.update, run.optimizer.lr))
    return None


def _is_metered(run: Run, update: int, step: int) -> bool:
    """Whether one of the next `step` updates is a multiple of `meter.every`."""
    every = run.meter.every
    return every > 0 and (update + step) // every > update // every


def _remark(record: dict[str, Any]) -> str:
    shown = {name: record[name] for name in ("reward/mean", "validation/pass@1", "dpo/accuracy") if name in record}
    return "  ".join(f"{name} {value:.3f}" for name, value in shown.items())


def _record_time(job: Job, *, update: int, metered: bool) -> None:
    record = job.instruments.clock.take(attempt=job.attempt, update=update, metered=metered)
    # Padding is counted where it is passed; all other counts are the run's on every process.
    record["tokens"]["padded"] = processes.total_count(record["tokens"]["padded"])
    if processes.is_main():
        store.append_jsonl(job.directory / "timings.jsonl", record)


def _validate(job: Job, record: dict[str, Any]) -> None:
    """Write the update's metrics, held-out accuracy at its cadence; keep the best weights if they may be chosen."""
    config, update = job.run.validation, record["update"]
    if config.every and update % config.every == 0:
        plan = Plan(
            split="validation",
            problems=config.problems,
            samples=config.samples,
            temperature=job.run.rollout.temperature,
            max_completion_tokens=job.run.rollout.max_completion_tokens,
            seed=job.run.seed,
            purpose="validation",
            prompt=job.run.prompt,
        )
        with job.instruments.phase("validation"):
            score = _together(job, lambda generate: pass_at_1(evaluate(job.policy, job.run.task, plan, generate)))
        record = {**record, "validation/pass@1": score}
        if config.select == "validation" and score > job.saved.best.score:
            resume.save_best(job.saved, update, score)
    if not processes.is_main():
        return
    if len(record) > 1:
        store.append_jsonl(job.directory / "metrics.jsonl", record)
        for alarm in job.live.watch.see(record):
            print(f"{job.run.algorithm} seed {job.run.seed}: {alarm.sentence}", file=sys.stderr)
    now = time.monotonic()
    if now - job.live.tracked_at > job.live.pause:
        track(job.run, job.directory)
        job.live.tracked_at = time.monotonic()
        job.live.pause = max(SECONDS_BETWEEN_MIRRORS, MIRROR_SHARE * (job.live.tracked_at - now))


def _together(job: Job, work: Callable[[Generator], Result]) -> Result:
    """Work of the main process alone that samples from the policy with the help of the others."""
    with unsharded(job.policy.network):
        return processes.with_help(job.generate, job.policy, work)


def finish(job: Job, known: dict[str, Any] | None) -> None:
    """The final model by the run's rule, its one evaluation on the test split, its card, and the sums of the meters.

    Args:
        known: of a final model that is there already, what its marker says.
    """
    run, policy = job.run, job.policy
    chosen = job.learner.cast.progress.update if known is None else known["chosen"]
    # No validation could be scored: there is none to choose by, so the last weights are the final model.
    if known is None and run.validation.select == "validation" and job.saved.best.known:
        checkpoint.load_weights(policy, job.saved.checkpoints / job.saved.best.name)
        chosen = job.saved.best.update
    digest = checkpoint.weights_digest(policy.network)
    processes.agree("the final model", digest)
    if known is None:
        resume.save_final(job.saved, chosen, digest)
    name, folder = f"{run.algorithm} seed {run.seed} update {chosen}", job.directory / "eval"
    final = {
        "update": chosen,
        "weights_sha256": digest,
        "changed_share": changed_share(policy.network, job.start_sample),
    }
    if processes.is_main():
        store.write_json(job.directory / "final.json", final)
    _together(job, lambda generate: evaluate_final(run, policy, digest, folder, name, generate))
    if not processes.is_main():
        return
    store.write_json(job.directory / "memory.json", job.instruments.memory.report())
    timings = store.read_jsonl(job.directory / "timings.jsonl").records
    store.write_json(job.directory / "throughput.json", throughput(timings))
    write_card(run, job.directory, final)


def _end(run: Run, directory: Path, attempt: int, state: store.State, error: str | None = None) -> store.Status:
    """Record how the run ended, whatever else is missing, and mirror it.

    The status comes last: a run that says it has ended is not gone on from, so nothing may be missing then. Of several
    processes the first to end badly says why: what the others meet follows from it.
    """
    if state == "finished" and not processes.is_main():
        return store.Status(state, attempt)  # the main process is still writing, and may fail yet
    if not processes.is_main():
        first = store.read_status(directory)
        if first.state in ("pending", "running"):
            counted = first.attempt + (first.state == "pending")
            store.set_status(directory, state, attempt=counted, error=error)
        return store.read_status(directory)
    # The place may be what failed, and then nothing can be written there.
    lenient = suppress(OSError) if state == "failed" else nullcontext()
    with lenient:
        records = store.read_jsonl(directory / "metrics.jsonl").records
        if records or state != "failed":  # a run that never began has nothing to be alarmed about
            store.write_json(directory / "alarms.json", as_records(alarms_of(records)))
        store.write_json(directory / "health.json", health.as_record(health.health_of(records, run.dump()), records))
    ended = store.read_status(directory)
    if run.parallel.processes == 1 or ended.state == "running":
        ended = store.Status(state, attempt, error)
        with lenient:
            store.set_status(directory, state, attempt=attempt, error=error)
    track(run, directory)
    return ended


def track(run: Run, directory: Path) -> None:
    """Copy what is new in the run directory to the tracker; a tracker that is away holds nothing up."""
    if not run.tracking.enabled:
        return
    try:
        mirror(directory, run.tracking_uri, prepare_store(run.tracking_uri, run.output.sweep))
    except TrackingError as error:
        print(f"{error}. The run goes on; its files have everything.", file=sys.stderr)


def _update_of(job: Job | None) -> int:
    return 0 if job is None else job.learner.cast.progress.update
