"""What several runs share, made once under a lock and cached by content; here the starting model."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch.nn.functional import cross_entropy

from bench.adapters import adapted
from bench.config import PretrainedModel, PromptFormat, Run, TinyModel, WarmStart, model_digest, task_content
from bench.config_adapter import adapter_digest
from bench.evaluation.driver import Plan, evaluate, pass_at_1
from bench.fingerprint import data_digest
from bench.generate import sample
from bench.models import LanguageModel, create_tiny, load_folder, load_pretrained, save_folder
from bench.policy import Sequences, completion_logits
from bench.progress import progress
from bench.prompting import encode_prompts
from bench.seeding import stream_key
from bench.store import write_json
from tasks.parts.problem import ProceduralTask, Task

MARKER = "made.json"


class PreparationFailed(RuntimeError):
    """A shared stage did not reach what it was asked for; the message says what to change."""


@dataclass(frozen=True)
class Start:
    """The model that every run of a sweep starts from."""

    model: LanguageModel
    about: Mapping[str, Any]
    """How it came to be: empty for a pretrained model, the warm start's record otherwise."""


def cached(cache: Path, kind: str, content: Mapping[str, Any], make: Callable[[Path], dict[str, Any]]) -> Path:
    """The folder of this content in the cache, made now by `make` if it is not there; one process makes, others wait.

    `make` fills the folder and returns a record, which is written last and marks the folder as whole.
    """
    folder = cache / kind / data_digest(dict(content))[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            record = make(folder)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
            write_json(folder / MARKER, {"content": content, **record, "sizes": sizes})
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether the marker is there and readable, and every file is as large as it was when the folder was made."""
    try:
        sizes = json.loads((folder / MARKER).read_text())["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def start_content(run: Run) -> dict[str, Any]:
    """Everything that the starting model depends on; runs that agree in it share it. A fresh adapter adds nothing."""
    content, adapter = base_content(run), run.adapter
    if adapter is not None and adapter.path is not None:
        content["adapter"] = adapter_digest(adapter.path)
    if adapter is not None and adapter.quantization != "none":
        content["quantization"] = adapter.quantization
    return content


def base_content(run: Run) -> dict[str, Any]:
    """The same for the starting model without its adapter."""
    dump = run.dump()
    content: dict[str, Any] = {name: dump[name] for name in ("model", "warm_start")}
    if isinstance(run.model, PretrainedModel):
        content["model"]["path"] = model_digest(run.model)
    if run.warm_start is not None:
        content |= {**task_content(run.task), "prompt": dump["prompt"], "alphabet": run.alphabet}
        content |= {name: dump["rollout"][name] for name in ("max_completion_tokens", "temperature")}
    elif isinstance(run.model, TinyModel):
        content |= {"alphabet": run.alphabet, "seed": run.seed}
    return content


def starting_model(run: Run) -> Start:
    """Load the pretrained model, or the warm-started one, which is made first where the cache does not hold it; with
    the run's adapter in place, where it has one."""
    if run.device == "cuda" and not torch.cuda.is_available():
        raise PreparationFailed("device: cuda given, but torch sees no CUDA device here; use device=cpu")
    start = _base(run)
    if run.adapter is not None:
        network = start.model.network
        if run.adapter.quantization != "none":
            torch.nn.Module.to(network, run.device)
        precision = torch.float32 if run.compute.autocast == "none" else torch.bfloat16
        adapted(network, run.adapter, run.seed, "policy", precision)
    return start


def _base(run: Run) -> Start:
    if run.warm_start is None:
        return Start(_initial(run, run.seed), {})
    folder = cached(Path(run.output.cache), "warm_start", base_content(run), lambda folder: warm_start(run, folder))
    model = load_folder(folder / "model", _initial_format(run))
    return Start(model, json.loads((folder / MARKER).read_text()))


def _initial_format(run: Run) -> PromptFormat:
    return run.model.prompt_format if isinstance(run.model, PretrainedModel) else "plain"


def _initial(run: Run, seed: int) -> LanguageModel:
    if isinstance(run.model, TinyModel):
        return create_tiny(run.model, run.alphabet, seed)
    return load_pretrained(run.model)


def warm_start(run: Run, folder: Path) -> dict[str, Any]:
    """Supervised fine-tuning on worked solutions until the validation Pass@1 that was asked for.

    Raises:
        PreparationFailed: `warm_start.max_updates` steps did not reach it.
    """
    config = run.warm_start
    assert config is not None, "a run without a warm start has none to make"
    torch.set_num_threads(config.threads)
    model = _initial(run, config.seed)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=config.lr, weight_decay=0.0, fused=True)
    checks: list[dict[str, float]] = []
    with progress("warm start", config.max_updates) as advance:
        for update in range(1, config.max_updates + 1):
            loss = _fine_tune(run, config, model, optimizer, update)
            advance(1, f"loss {loss:.3f}" + (f", Pass@1 {checks[-1]['pass@1']:.2f}" if checks else ""))
            if update % config.check_every == 0 or update == config.max_updates:
                checks.append({"update": update, "loss": loss, "pass@1": _check(run, config, model)})
                if checks[-1]["pass@1"] >= config.stop_at_pass_at_1:
                    save_folder(model, folder / "model")
                    return {"updates": update, "checks": checks}
    best = max(check["pass@1"] for check in checks)
    raise PreparationFailed(
        f"warm_start.stop_at_pass_at_1: {config.stop_at_pass_at_1} was not reached in {config.max_updates} updates "
        f"(best {best:.3f}): raise warm_start.max_updates or lr, enlarge the model, or make the task easier"
    )


def _fine_tune(
    run: Run, config: WarmStart, model: LanguageModel, optimizer: torch.optim.Optimizer, update: int
) -> float:
    """One step on the mean cross-entropy per solution token, end token included; returns the loss."""
    problems = _solved(run.task, config, update)
    prompts = encode_prompts(model, run.task, problems, run.prompt)
    solutions = [model.encode_completion(problem.solution or "") for problem in problems]
    sequences = Sequences.of(prompts, solutions, model.pad_id)
    logits, mask = completion_logits(model.network, sequences), sequences.mask
    loss = cross_entropy(logits[mask], sequences.completion_ids[mask], label_smoothing=config.label_smoothing)
    if not bool(loss.isfinite()):
        raise PreparationFailed(f"warm_start.lr: {config.lr} given, and the loss is no longer finite: lower it")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def _solved(task: Task, config: WarmStart, update: int) -> list[Any]:
    """The solved training problems of one step, from a stream of the warm start's own."""
    if not isinstance(task, ProceduralTask):
        raise PreparationFailed("warm_start: only tasks that make their own problems can be warm-started so far")
    keys = [stream_key(config.seed, "warm start", update, i) for i in range(config.batch_size)]
    return [task.generate("train", key) for key in keys]


def _check(run: Run, config: WarmStart, model: LanguageModel) -> float:
    plan = Plan(
        split="validation",
        problems=config.check_problems,
        samples=config.check_samples,
        temperature=run.rollout.temperature,
        max_completion_tokens=run.rollout.max_completion_tokens,
        seed=config.seed,
        purpose="warm start check",
        prompt=run.prompt,
    )
    return pass_at_1(evaluate(model, run.task, plan, sample))
