"""`bench evaluate`: a trained run, or any model, sampled and graded on a task's test problems."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.catalog import UnknownName, load_task_class
from bench.config import PretrainedModel, local_path
from bench.dialect import ConfigError
from bench.evaluation import Estimates, read_estimates
from bench.evaluation.driver import Plan, evaluate, write_evaluation
from bench.generate import ContextTooSmall, sample
from bench.loading import load_run
from bench.models import LanguageModel, ModelUnavailable, load_folder, load_pretrained
from bench.problems import num_problems
from bench.progress import progress
from tasks.parts.problem import Task


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; None takes the run's own value, or the default beside it for a bare model."""

    target: str
    """A run's folder, a model's folder or a hub name."""
    task: str | None = None
    data: str | None = None
    """Folder or file of the task's data; None is the run's, or the hub."""
    problems: int | None = None
    samples: int | None = None
    ks: Sequence[int] = ()
    temperature: float | None = None
    max_completion_tokens: int | None = None
    seed: int = 0
    gguf_file: str | None = None
    prompt_format: str = "auto"
    out: Path | None = None


@dataclass(frozen=True)
class Answer:
    """Where the evaluation lies and what it estimated."""

    folder: Path
    name: str
    estimates: Estimates


_DEFAULTS = {"problems": 100, "samples": 16, "temperature": 1.0, "max_completion_tokens": 512}


def evaluate_target(request: Request) -> Answer:
    """Sample, grade, estimate and store. Raises ConfigError for a target, task or number that cannot be."""
    model, task, values, home = _opened(request)
    ks = tuple(request.ks) or tuple(k for k in (1, 2, 4, 8, 16, 32, 64) if 4 * k <= values["samples"]) or (1,)
    if max(ks) > values["samples"]:
        raise ConfigError([f"--k: {max(ks)} given, must be at most --samples = {values['samples']}"])
    available = num_problems(task, "test")
    if available is not None and values["problems"] > available:
        raise ConfigError([f"--problems: {values['problems']} given, the test split has {available}"])
    plan = Plan(split="test", seed=request.seed, purpose="bench evaluate", **values)
    size = f"p{plan.problems}-n{plan.samples}-m{plan.max_completion_tokens}"
    name = f"{task.name}-{size}-t{plan.temperature:g}-s{plan.seed}"
    with progress(f"evaluating {request.target}", plan.problems * plan.samples) as advance:
        try:
            evaluated = evaluate(model, task, plan, sample, advance=lambda done: advance(done, ""))
        except ContextTooSmall as error:
            raise ConfigError([str(error)]) from None
    folder = request.out or home
    about = {"task": {"name": task.name, **task.model_dump(mode="json")}, "model": request.target}
    write_evaluation(folder, name, evaluated, plan, ks, about)
    return Answer(folder, name, read_estimates(folder / f"{name}.estimates.parquet"))


def _opened(request: Request) -> tuple[LanguageModel, Task, dict[str, Any], Path]:
    """The model, the task, what to sample, and the folder where the results belong."""
    folder = Path(request.target).expanduser()
    asked = {name: getattr(request, name) for name in _DEFAULTS}
    if (folder / "run.yaml").is_file():
        if request.gguf_file is not None or request.prompt_format != "auto":
            raise ConfigError(
                [f"{request.target}: --gguf-file and --prompt-format are for a bare model, a run has its own"]
            )
        run = load_run(folder / "run.yaml")
        own = {name: getattr(run.evaluation, name) for name in ("problems", "samples", "temperature")}
        own["max_completion_tokens"] = run.rollout.max_completion_tokens
        final = folder / "checkpoints" / "final"
        if not final.is_dir():
            raise ConfigError([f"{request.target}: this run has no final model yet ({final} is not there)"])
        prompt_format = run.model.prompt_format if isinstance(run.model, PretrainedModel) else "plain"
        own_task = request.task in (None, run.task.name) and request.data is None
        task = run.task if own_task else _task(request.task or run.task.name, request.data)
        return load_folder(final, prompt_format), task, _chosen(asked, own), folder / "eval"
    if request.task is None:
        raise ConfigError([f"{request.target}: not a run's folder, so --task must say what to evaluate on"])
    config = PretrainedModel.model_validate(
        {"path": request.target, "gguf_file": request.gguf_file, "prompt_format": request.prompt_format}
    )
    local = local_path(config)
    if local is not None and not local.exists():
        raise ConfigError([f"{request.target}: there is no such run or model folder"])
    home = Path("evaluations") / request.target.strip("./~").replace("/", "_")
    try:
        model = load_pretrained(config)
    except ModelUnavailable as error:
        raise ConfigError([str(error)]) from error
    return model, _task(request.task, request.data), _chosen(asked, _DEFAULTS), home


def _chosen(asked: dict[str, Any], otherwise: dict[str, Any]) -> dict[str, Any]:
    return {name: otherwise[name] if value is None else value for name, value in asked.items()}


def _task(name: str, data: str | None) -> Task:
    try:
        return load_task_class(name).model_validate({} if data is None else {"path": data})
    except UnknownName as error:
        raise ConfigError([f"--task: {error}"]) from None
    except ValidationError as error:
        raise ConfigError([f"--data: {data} given, but {name} reads no data ({error.error_count()} mistake)"]) from None
