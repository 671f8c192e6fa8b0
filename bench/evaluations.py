"""The evaluations of a run: which there are, and how the starting model's are shared between runs.

`start` and `test` are the starting and the final model on the run's own task. `start_<prompt>` is the starting model
under another prompt, and `start_<label>`, `test_<label>` are the two on another task.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from bench.checkpoint import weights_digest
from bench.config import Prompt, Run, task_content
from bench.engines import check_installed, engine_content, engine_of, engine_record
from bench.evaluation.driver import Plan
from bench.evaluation.resumable import Place, evaluate_once, evaluation_key
from bench.fingerprint import data_digest
from bench.generate import Generator, sample
from bench.models import LanguageModel
from bench.overlap import RULE, task_overlap
from bench.prepare import Start, cached, start_content, starting_model
from bench.problems import num_problems
from bench.reward_model import judge_of
from bench.store import write_bytes, write_json
from bench.tracking import TrackingError, prepare_store
from bench.train_reward_model import reward_model_content
from tasks.parts.problem import Task

Which = Literal["start", "test"]
FILES = ("parquet", "estimates.parquet", "jsonl.zst", "json")
"""What an evaluation leaves behind; the manifest is the last."""


@dataclass(frozen=True)
class Wanted:
    """One evaluation of a run's starting or final model."""

    name: str
    task: Task
    prompt: Prompt


def wanted(run: Run, which: Which) -> Iterator[Wanted]:
    """The evaluations of the starting model or of the final one, the run's own task first."""
    yield Wanted(which, run.task, run.prompt)
    if which == "start":
        yield from (Wanted(f"start_{p.label}", run.task, p) for p in run.evaluation.start_prompts)
    yield from (Wanted(f"{which}_{label}", task, run.prompt) for label, task in run.evaluation.also.items())


def plan_of(run: Run, one: Wanted, purpose: str, seed: int) -> Plan:
    """How that evaluation samples: the run's settings, on as many test problems as the task has."""
    config = run.evaluation
    there = num_problems(one.task, "test")
    return Plan(
        split="test",
        problems=config.problems if there is None or one.task == run.task else min(config.problems, there),
        samples=config.samples,
        temperature=config.temperature,
        top_p=config.top_p,
        max_completion_tokens=run.rollout.max_completion_tokens,
        seed=seed,
        purpose=purpose,
        prompt=one.prompt,
    )


def evaluate_final(run: Run, policy: LanguageModel, weights: str, folder: Path, name: str, generate: Generator) -> None:
    """Every evaluation of the final model into `folder`; a finished one is kept, a killed one goes on where it was.

    Args:
        weights: the digest of the model's weights.
        name: what the manifests call the model.
        generate: the run's engine.
    """
    for one in wanted(run, "test"):
        plan = plan_of(run, one, "evaluation", run.seed)
        label = f"evaluating {run.algorithm} seed {run.seed}{'' if one.task == run.task else f' on {one.name}'}"
        _evaluate(run, one, plan, policy, weights, Place(folder, one.name, folder), label, name, generate)


def start_evaluations(run: Run, start: Start, generate: Generator = sample) -> list[tuple[str, Path]]:
    """Name and folder of each evaluation of the starting model; each is sampled once for all runs that share it."""
    return [(one.name, _start_evaluation(run, start, one, generate)) for one in wanted(run, "start")]


def copy_evaluation(name: str, source: Path, target: Path) -> None:
    """Copy a shared evaluation into the run, which is then sufficient by itself."""
    for suffix in FILES:
        write_bytes(target / f"{name}.{suffix}", (source / f"start.{suffix}").read_bytes())


def write_overlap(run: Run, path: Path) -> None:
    """How many test problems are also training problems, by task; counted once for all runs that share the data."""
    tasks = {"": run.task, **run.evaluation.also}
    content = {"rule": RULE, "tasks": {label: task_content(task) for label, task in tasks.items()}}

    def make(folder: Path) -> dict[str, Any]:
        also = {label: task_overlap(run.task, task) for label, task in run.evaluation.also.items()}
        write_json(folder / "overlap.json", {**task_overlap(run.task), **({"also": also} if also else {})})
        return {}

    folder = cached(Path(run.output.cache), "overlap", content, make)
    write_bytes(path, (folder / "overlap.json").read_bytes())


def _start_evaluation(run: Run, start: Start, one: Wanted, generate: Generator) -> Path:
    config = {name: value for name, value in run.dump()["evaluation"].items() if name not in ("also", "start_prompts")}
    # The start has a task too, that of its warm start, which another task to evaluate on must not hide.
    content: dict[str, Any] = {"start": start_content(run), "on": task_content(one.task)}
    content |= {"prompt": one.prompt.model_dump(mode="json"), "evaluation": config}
    content["max_completion_tokens"] = run.rollout.max_completion_tokens
    content |= engine_content(run)

    def make(folder: Path) -> dict[str, Any]:
        torch.set_num_threads(run.threads if run.warm_start is None else run.warm_start.threads)
        plan = plan_of(run, one, "evaluation of the start", 0)
        label = f"evaluating the starting model{'' if one.name == 'start' else f' as {one.name}'}"
        # The journal lies beside the folder, which is emptied before it is made again.
        place = Place(folder, "start", folder.parent)
        weights = weights_digest(start.model.network)
        _evaluate(run, one, plan, start.model, weights, place, label, "starting model", generate)
        return {}

    return cached(Path(run.output.cache), "start_evaluation", content, make)


def _evaluate(
    run: Run,
    one: Wanted,
    plan: Plan,
    model: LanguageModel,
    weights: str,
    place: Place,
    label: str,
    name: str,
    generate: Generator,
) -> None:
    """One evaluation into its place; `name` is what the manifest calls the model."""
    key = evaluation_key(model, weights, one.task, plan, engine_content(run))
    about = {"model": name, "weights_sha256": weights, "rollout_temperature": run.rollout.temperature}
    about |= {"engine": engine_record(run)}
    evaluate_once(place, key, model, one.task, plan, run.evaluation.all_ks, generate, about, label)


def prepare(runs: Sequence[Run]) -> None:
    """Make whatever these runs share, the tracker's experiment first; what is there already is left alone."""
    for uri, sweep in {(run.tracking_uri, run.output.sweep): None for run in runs if run.tracking.enabled}:
        try:
            prepare_store(uri, sweep)
        except TrackingError as error:
            print(f"{error}. Runs go on; their files have everything.", file=sys.stderr)
    done: set[str] = set()
    for run in runs:
        dump = run.dump()
        own = {name: dump[name] for name in ("evaluation", "task", "prompt", "engine", "compute")}
        own["reward_model"] = reward_model_content(run) or dump["reward"]["model"]
        key = data_digest({**start_content(run), **own})
        if key in done:
            continue
        done.add(key)
        check_installed(run)
        start = starting_model(run)
        if run.evaluation.start:
            with engine_of(run) as generate:
                start_evaluations(run, start, generate)
        judge = judge_of(run, start)
        if judge is not None and "accuracy" in judge.about:
            about, tested = judge.about, judge.about["held_out"]
            print(
                f"reward model {about['path']}: orders {about['accuracy']:.3f} of {tested['pairs']} held-out pairs of "
                f"{tested['prompts']} prompts as the verifier does"
            )
