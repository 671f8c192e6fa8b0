"""The model card of a final model: what was trained, on what, by which formula, what came of it, and how to repeat it.

The front matter is what the Hugging Face hub reads; nothing stands there that is not known.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench import store
from bench.budget import completions_per_update
from bench.config import PretrainedModel, Run, local_path
from bench.config_adapter import Lora
from bench.config_preference import fixed_pairs, local_set
from bench.config_reward import Reward
from bench.config_reward_model import PretrainedReward
from bench.dialect import to_yaml
from bench.evaluation import graded
from bench.nameless import without_places
from bench.statistics import accuracy_interval
from tasks.parts.problem import DatasetTask

SUITE = "rl-objective-bench"
_NOT_REPEATED = ("output", "tracking")


def write_card(run: Run, directory: Path, final: Mapping[str, Any]) -> None:
    """Write README.md into the run's final model, from what its directory says; `final` is its final.json."""
    text = card(run, store.read_run(directory), final)
    store.write_text(directory / "checkpoints" / "final" / "README.md", text)


def card(run: Run, record: store.RunRecord, final: Mapping[str, Any]) -> str:
    """The card's whole text.

    Args:
        record: the run's directory after its last evaluation.
        final: which update the model is of, and the digest of its weights.
    """
    shown = without_places(run)
    formula = {**shown.formula(), **({"reward": shown.reward.formula()} if run.objective.needs.samples else {})}
    repeated = {name: part for name, part in shown.dump().items() if name not in _NOT_REPEATED}
    placed = "" if shown == run else " Files and folders stand without the place where they lay: give yours."
    parts = [
        f"---\n{to_yaml(front_matter(run))}---",
        f"# {run.algorithm} on {run.task.name}, seed {run.seed}",
        f"{_about(run, record)}",
        "## Objective",
        _table(["part", "formula in force"], [[name, f"`{text}`"] for name, text in formula.items()]),
        "## Training",
        _table(["setting", "value"], list(_settings(shown, final))),
        "## Results",
        _results(record),
        "## Use",
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
        'model = AutoModelForCausalLM.from_pretrained("FOLDER")\n```',
        _prompts(run, record),
        "## Repeat",
        f"Save this as `run.yaml` and give it to the same version of the suite: `bench run run.yaml`.{placed}",
        f"```yaml\n{to_yaml(repeated)}```",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(run: Run) -> dict[str, Any]:
    """What the hub reads; a base model and its licence only where they are known."""
    tags = [SUITE, "reinforcement-learning", run.algorithm, run.task.name]
    matter: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": tags}
    if isinstance(run.model, PretrainedModel):
        folder = local_path(run.model)
        if folder is None:
            matter["base_model"] = run.model.path
        elif (licence := _licence(folder / "README.md")) is not None:
            matter["license"] = licence
    datasets = list(dict.fromkeys(_datasets(run)))
    return {**matter, "datasets": datasets} if datasets else matter


def _datasets(run: Run) -> Iterator[str]:
    """The names on the hub of what the run was trained on."""
    pairs = fixed_pairs(run.objective)
    if pairs is not None and local_set(pairs) is None:
        yield pairs.path
    if _trains_on_task(run) and isinstance(run.task, DatasetTask) and run.task.path is None:
        yield run.task.source.hub_id


def _trains_on_task(run: Run) -> bool:
    """Of a fixed set of pairs the task is evaluated on alone, unless a warm start has learned its solutions."""
    return fixed_pairs(run.objective) is None or run.warm_start is not None


def _licence(readme: Path) -> str | None:
    """The licence that a base model's own card states."""
    if not readme.is_file():
        return None
    _, opened, rest = readme.read_text(encoding="utf-8", errors="replace").partition("---\n")
    try:
        matter = yaml.safe_load(rest.partition("\n---")[0]) if opened else None
    except yaml.YAMLError:
        return None
    licence = matter.get("license") if isinstance(matter, dict) else None
    return licence if isinstance(licence, str) else None


def _about(run: Run, record: store.RunRecord) -> str:
    made = record.provenance or {}
    version, commit = made.get("suite_version"), made.get("git_commit")
    suite = " ".join([SUITE, *([version] if version else []), *([f"(commit {commit[:12]})"] if commit else [])])
    if isinstance(run.model, PretrainedModel):
        # A folder's own place says nothing to anyone else.
        folder = local_path(run.model)
        start = f"`{run.model.path if folder is None else folder.name}`"
    else:
        start = "a tiny Llama with a character tokenizer, made from scratch"
    warm = "" if run.warm_start is None else ", warm-started on worked solutions"
    title = (record.formula or {}).get("title", f"{run.algorithm}.")
    return f"Run `{record.id}` of {suite}: {title} It started from {start}{warm}."


def _settings(run: Run, final: Mapping[str, Any]) -> Iterator[list[str]]:
    optimizer = run.optimizer
    task = f"{run.task.name}, version {run.task.version}"
    yield ["task and data", task if _trains_on_task(run) else f"{task}; for evaluation alone"]
    yield ["updates", f"{run.budget.updates}; this is the model after update {final['update']}"]
    yield ["model chosen by", "best validation Pass@1" if run.validation.select == "validation" else "the last update"]
    yield ["longest completion", f"{run.rollout.max_completion_tokens} tokens"]
    yield from _sampling(run)
    if run.adapter is not None:
        yield ["adapter", _adapter(run.adapter)]
    yield ["learning rate", f"{optimizer.lr:g} ({optimizer.schedule}, {optimizer.warmup_updates} warm-up updates)"]
    if run.critic is not None:
        yield ["critic", f"{run.critic.kind}: `{run.critic.formula()}`"]
        yield ["critic's learning rate", f"{run.critic.lr:g}"]
    yield ["seed", str(run.seed)]
    yield ["device, engine", f"{run.device}, {run.engine.kind}"]
    yield ["weights (SHA-256)", f"`{final['weights_sha256']}`"]


def _sampling(run: Run) -> Iterator[list[str]]:
    """What was sampled and rewarded; of an objective that samples nothing, how much an update reads."""
    rollout = run.rollout
    if not run.objective.needs.samples:
        yield ["completions an update", f"at most {completions_per_update(rollout)}; nothing is sampled for training"]
        return
    yield ["rollout", f"{rollout.prompts} prompts x {rollout.group_size} completions"]
    yield ["sampling temperature", f"{rollout.temperature:g}"]
    yield ["updates per rollout", f"{rollout.updates_per_rollout} x {rollout.epochs} epochs"]
    yield from _imperfections(run.reward)


def _imperfections(reward: Reward) -> Iterator[list[str]]:
    """What stands between the verifier's verdict and the learner."""
    model, noise = reward.model, reward.noise
    if isinstance(model, PretrainedReward):
        yield ["reward model", f"`{model.path}`, whose tokens are {model.tokens}"]
    elif model is not None:
        made = f"{model.problems} problems x {model.samples} samples, {model.updates} updates at {model.lr:g}"
        yield ["reward model", f"trained on the starting policy's own samples: {made}, seed {model.seed}"]
    if noise is not None:
        flips = f"{noise.false_positive:g} of the wrong, {noise.false_negative:g} of the correct"
        yield ["verdicts flipped", f"{flips}, drawn for each {noise.per}"]
    if reward.sparsity < 1:
        yield ["share with a label", f"{reward.sparsity:g}"]


def _adapter(lora: Lora) -> str:
    """What is trained in place of all weights; the model in this folder has it merged in."""
    if lora.path is None:
        where = "all linear layers of the decoder" if lora.targets is None else ", ".join(lora.targets)
        scale = f"alpha {lora.alpha:g}{', rsLoRA' if lora.rslora else ''}"
        parts = [f"LoRA of rank {lora.rank}, {scale}, on {where}"]
    else:
        parts = [f"LoRA, begun from the trained adapter `{lora.path}`"]
    parts += ["the reference is the base without it"] if lora.reference == "base" else []
    parts += [f"its base in {lora.quantization}"] if lora.quantization != "none" else []
    return "; ".join([*parts, "merged into this model"])


def _results(record: store.RunRecord) -> str:
    """Pass@1 of every evaluation with its interval, and the largest K beside it."""
    rows: list[list[str]] = []
    for name in [name for name in record.evaluations if name.partition("_")[0] in ("start", "test")]:
        found, manifest = record.estimates(name), record.manifest(name) or {}
        if found is None or 1 not in found.ks:
            continue
        found = graded(found)
        if np.isnan(found.pass_at(1)).any():  # nothing of it could be graded
            continue
        interval = accuracy_interval(found.pass_at(1))
        k = found.ks[-1]
        bounds = f"{max(interval.low, 0):.3f} to {min(interval.high, 1):.3f}" if np.isfinite(interval.low) else "none"
        scores = [f"{interval.mean:.3f}", bounds, f"Pass@{k} {found.pass_at(k).mean():.3f}"]
        asked = f"{len(found.problem_id)} problems x {manifest.get('samples', '?')} samples"
        rows.append([name, *scores, asked, f"{manifest.get('temperature', '?')}"])
    if not rows:
        return "It was not evaluated with Pass@1."
    columns = ["evaluation", "Pass@1", "95 % interval over problems", "largest K", "sampled", "temperature"]
    note = (
        "`start` is the starting model and `test` this one, on the task's test split; a word behind `_` is another "
        "task of `evaluation.also` or another prompt. One seed says nothing of others."
    )
    return f"{_table(columns, rows)}\n\n{note}"


def _prompts(run: Run, record: store.RunRecord) -> str:
    written = (record.manifest("test") or {}).get("prompt_format", "plain")
    how = "the tokenizer's chat template" if written == "chat" else "plain text, without a chat template"
    return f"vLLM loads the same folder. Prompts were written as {how}, in the style `{run.prompt.label}`."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell would end it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)
