"""`bench evaluate`: a trained run, or any model, sampled and graded on tasks, prompts and temperatures; resumable."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from bench import fingerprint
from bench.catalog import UnknownName, load_task_class, nearest
from bench.checkpoint import weights_digest
from bench.config import PretrainedModel, Prompt, Run, local_path
from bench.dialect import ConfigError
from bench.engines import EngineFailed, EngineMismatch, engine_content, engine_of
from bench.evaluation import Estimates, graded, read_estimates
from bench.evaluation.driver import Plan
from bench.evaluation.resumable import Place, evaluate_once, evaluation_key, read_manifest
from bench.generate import ContextTooSmall, Generator, check_context, sample
from bench.loading import load_run, parse_overrides
from bench.models import LanguageModel, ModelUnavailable, load_folder, load_pretrained
from bench.problems import load_problems, num_problems
from bench.prompting import encode_prompts, prompt_texts, tells_apart
from bench.statistics import accuracy_interval
from tasks.parts.problem import Split, Task


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; None or nothing takes the run's own value, or the default beside it for a bare model."""

    target: str
    """A run's folder, a model's folder or a hub name."""
    tasks: Sequence[str] = ()
    data: str | None = None
    """Folder or file of the task's data; None is the run's, or the hub."""
    knobs: Sequence[str] = ()
    """Knobs of the task, each key=value."""
    split: Split = "test"
    prompts: Sequence[str] = ()
    """`task`, `question` or `few_shot:N`."""
    problems: int | None = None
    samples: int | None = None
    ks: Sequence[int] = ()
    temperatures: Sequence[float] = ()
    top_p: float | None = None
    max_completion_tokens: int | None = None
    seed: int = 0
    gguf_file: str | None = None
    prompt_format: str = "auto"
    out: Path | None = None


@dataclass(frozen=True)
class Answer:
    """One evaluation: where it lies, what it estimated and what its manifest says."""

    folder: Path
    name: str
    estimates: Estimates
    manifest: Mapping[str, Any]
    was_there: bool
    """Whether an earlier call had finished it, so that nothing was sampled now."""


@dataclass(frozen=True)
class Opened:
    """The model with everything that the request leaves to it."""

    load: Callable[[], LanguageModel]
    """Loads it, which takes long, so that mistakes are told before."""
    tasks: Sequence[Task]
    prompt: Prompt
    values: Mapping[str, Any]
    home: Path
    """Where results belong."""
    run: Run | None = None
    """The run, whose engine samples; a bare model is sampled with the suite's own."""


_DEFAULTS = {"problems": 100, "samples": 16, "top_p": 1.0, "max_completion_tokens": 512}


def evaluate_target(request: Request) -> list[Answer]:
    """Sample, grade, estimate and store, once for each task, prompt and temperature asked for.

    What an earlier call with the same content finished is read, and what one began goes on where it was killed.

    Raises:
        ConfigError: a target, task or number that cannot be.
    """
    if not all(math.isfinite(temperature) for temperature in request.temperatures):
        raise ConfigError([f"--temperature: {max(request.temperatures)} given, must be a number from 0"])
    if request.top_p is not None and request.top_p < 1 and 0 in request.temperatures:
        raise ConfigError([f"--top-p: {request.top_p} given, but --temperature 0 is greedy, so it could not act"])
    prompts = [_prompt(text) for text in request.prompts]
    opened = _opened(request)
    values, seed = opened.values, request.seed
    ks = tuple(request.ks) or tuple(k for k in (1, 2, 4, 8, 16, 32, 64) if 4 * k <= values["samples"]) or (1,)
    if max(ks) > values["samples"]:
        raise ConfigError([f"--k: {max(ks)} given, must be at most --samples = {values['samples']}"])
    temperatures = list(dict.fromkeys(request.temperatures)) or [values["temperature"]]
    plans: list[tuple[Task, Plan]] = []
    for task, prompt, temperature in itertools.product(opened.tasks, prompts or [opened.prompt], temperatures):
        _check_size(task, request.split, values["problems"])
        if prompt.style == "question" and not tells_apart(task, request.split):
            raise ConfigError([f"--prompt: question given, but a prompt of {task.name} is its question"])
        numbers = {**values, "temperature": temperature}
        plans.append((task, Plan(split=request.split, seed=seed, purpose="bench evaluate", prompt=prompt, **numbers)))
    try:
        for task, plan in plans:
            prompt_texts(task, load_problems(task, plan.split, 0, plan.problems), plan.prompt)
        model = opened.load()
        for task, plan in plans:  # all of them before the first, which may take hours
            problems = load_problems(task, plan.split, 0, plan.problems)
            check_context(model, encode_prompts(model, task, problems, plan.prompt), plan.max_completion_tokens)
        weights = weights_digest(model.network)
        with nullcontext(sample) if opened.run is None else engine_of(opened.run) as generate:
            return [_evaluated(request, opened, model, weights, task, plan, ks, generate) for task, plan in plans]
    except ContextTooSmall as error:
        raise ConfigError([str(error).replace("rollout.max_completion_tokens", "--max-tokens")]) from None
    except (ModelUnavailable, EngineFailed, EngineMismatch) as error:
        raise ConfigError([str(error)]) from None
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError([_as_option(str(error))]) from None


def table(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one row an evaluation and K; identical samples have no K beyond 1.

    A score stands with its 95 % interval over problems, which says how another draw of problems would have turned out
    and nothing about another training seed.
    """
    header = ["task", "prompt", "temperature", "K", "Pass@K [95 %]", "Maj@K [95 %]", "strict"]
    header += ["parsed", "truncated", "timed out"]
    rows: list[list[str]] = []
    for answer in answers:
        said, found = answer.manifest, graded(answer.estimates)
        prompt = Prompt.model_validate(said["prompt"]).label
        rates = [said[rate] for rate in ("strict_accuracy", "parsed_rate", "truncated_rate", "timed_out_rate")]
        about = [said["task"]["name"], prompt, f"{said['temperature']:g}"]
        shown = ["n/a" if rate is None else f"{rate:.3f}" for rate in rates]
        if said["identical"]:  # then every K gives what K = 1 gives
            scores = [_scored(found.c[found.n > 0] / found.n[found.n > 0])] * 2
            rows.append([*about, "1", *scores, *shown])
            continue
        for k in found.ks:
            rows.append([*about, str(k), _scored(found.pass_at(k)), _scored(found.maj_at(k)), *shown])
            about, shown = [""] * len(about), [""] * len(shown)
    return header, rows


def _scored(values: np.ndarray) -> str:
    """The mean over problems and its interval, where there is one."""
    if np.isnan(values).any() or not len(values):
        return "n/a"
    interval = accuracy_interval(values)
    bounds = f" [{max(interval.low, 0):.3f}, {min(interval.high, 1):.3f}]" if math.isfinite(interval.low) else ""
    return f"{interval.mean:.4f}{bounds}"


def _check_size(task: Task, split: Split, problems: int) -> None:
    try:
        available = num_problems(task, split)
    except ValueError as error:
        raise ConfigError([_as_option(str(error))]) from None
    if available is not None and problems > available:
        raise ConfigError([f"--problems: {problems} given, the {split} split of {task.name} has {available}"])


def _as_option(line: str) -> str:
    """A message about a run's knobs in the words of this command."""
    return line.replace("as task.path", "as --data").replace("prompt.shots:", "--prompt few_shot:")


def _evaluated(
    request: Request,
    opened: Opened,
    model: LanguageModel,
    weights: str,
    task: Task,
    plan: Plan,
    ks: Sequence[int],
    generate: Generator,
) -> Answer:
    own = {} if opened.run is None else engine_content(opened.run)
    key = evaluation_key(model, weights, task, plan, own)
    folder, name = request.out or opened.home, _name(task, plan)
    lying = read_manifest(Place(folder, name, folder))
    if lying is not None and lying.get("key") != key:
        name = f"{name}-{key[:6]}"  # another model's, or made by another version of the task: both are kept
    place, label = Place(folder, name, folder), f"evaluating {request.target} on {task.name}"
    about = {"model": request.target, "weights_sha256": weights, **own}
    manifest, was_there = evaluate_once(place, key, model, task, plan, ks, generate, about, label)
    return Answer(folder, name, read_estimates(folder / f"{name}.estimates.parquet"), manifest, was_there)


def _name(task: Task, plan: Plan) -> str:
    """A file name that tells what was evaluated and how; knobs that differ from the task's defaults by a digest."""
    knobs = task.model_dump(mode="json", exclude_defaults=True, exclude={"name", "path"})
    digest = f"-{fingerprint.data_digest(knobs)[:6]}" if knobs else ""
    split = "" if plan.split == "test" else f"-{plan.split}"
    size = f"p{plan.problems}-n{plan.samples}-m{plan.max_completion_tokens}-t{plan.temperature:g}"
    nucleus = "" if plan.top_p == 1 else f"-top{plan.top_p:g}"
    prompt = "" if plan.prompt.style == "task" else f"-{plan.prompt.label}"
    return f"{task.name.replace('/', '.')}{digest}{split}-{size}{nucleus}{prompt}-s{plan.seed}"


def _prompt(text: str) -> Prompt:
    style, _, shots = text.partition(":")
    if style not in ("task", "question", "few_shot") or (style == "few_shot") != (shots.isdecimal() and int(shots) > 0):
        raise ConfigError([f"--prompt: {text} given, must be task, question or few_shot:N with N at least 1"])
    return Prompt.model_validate({"style": style, "shots": int(shots or 0)})


def _opened(request: Request) -> Opened:
    folder = Path(request.target).expanduser()
    return _opened_run(request, folder) if (folder / "run.yaml").is_file() else _opened_model(request)


def _opened_run(request: Request, folder: Path) -> Opened:
    if request.gguf_file is not None or request.prompt_format != "auto":
        raise ConfigError(
            [f"{request.target}: --gguf-file and --prompt-format are for a bare model, a run has its own"]
        )
    run = load_run(folder / "run.yaml")
    final = folder / "checkpoints" / "final"
    if not final.is_dir():
        raise ConfigError([f"{request.target}: this run has no final model yet ({final} is not there)"])
    own = {name: getattr(run.evaluation, name) for name in ("problems", "samples", "temperature", "top_p")}
    own["max_completion_tokens"] = run.rollout.max_completion_tokens
    prompt_format = run.model.prompt_format if isinstance(run.model, PretrainedModel) else "plain"
    as_trained = not request.knobs and request.data is None
    tasks = [
        run.task if as_trained and name == run.task.name else _task(name, request)
        for name in request.tasks or [run.task.name]
    ]
    load = partial(load_folder, final, prompt_format)
    return Opened(load, tasks, run.prompt, _chosen(request, own), folder / "eval", run)


def _opened_model(request: Request) -> Opened:
    if not request.tasks:
        raise ConfigError([f"{request.target}: not a run's folder, so --task must say what to evaluate on"])
    tasks = [_task(name, request) for name in request.tasks]
    asked = {"path": request.target, "gguf_file": request.gguf_file, "prompt_format": request.prompt_format}
    try:
        config = PretrainedModel.model_validate(asked)
    except ValidationError:
        given = request.prompt_format
        raise ConfigError([f"--prompt-format: {given} given, must be auto, chat or plain"]) from None
    local = local_path(config)
    if local is not None and not local.exists():
        raise ConfigError([f"{request.target}: there is no such run or model folder"])
    home = Path("evaluations") / request.target.strip("./~").replace("/", "--")
    values = _chosen(request, {**_DEFAULTS, "temperature": 1.0})
    return Opened(partial(load_pretrained, config), tasks, Prompt(), values, home)


def _chosen(request: Request, otherwise: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: getattr(request, name) for name in _DEFAULTS}
    return {**otherwise, **{name: value for name, value in asked.items() if value is not None}}


def _task(name: str, request: Request) -> Task:
    knobs: dict[str, Any] = {"name": name, **parse_overrides(request.knobs)}
    if request.data is not None:
        knobs["path"] = request.data
    try:
        return load_task_class(name).model_validate_json(json.dumps(knobs))
    except UnknownName as error:
        raise ConfigError([f"--task: {error}"]) from None
    except ValidationError as error:
        raise ConfigError(list(_knob_mistakes(name, error))) from None


def _knob_mistakes(name: str, error: ValidationError) -> Iterator[str]:
    for mistake in error.errors():
        knob = ".".join(map(str, mistake["loc"]))
        if mistake["type"] == "extra_forbidden" and knob == "path":
            yield f"--data: {mistake['input']} given, but {name} reads no data"
        elif mistake["type"] == "extra_forbidden":
            fields = load_task_class(name).model_fields.keys() - {"name", "path"}
            near = nearest(knob, fields)
            hint = f"; did you mean {near}?" if near else ""
            yield f"--knob: {knob} given, but {name} has {', '.join(sorted(fields)) or 'no knobs'}{hint}"
        else:
            yield f"--knob: {knob or name}: {mistake['input']!r} given for {name}: {mistake['msg'].lower()}"
