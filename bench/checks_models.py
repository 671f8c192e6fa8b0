"""What can be told of a model's files without loading it: that they are there, and how long a text it reads."""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.catalog import nearest
from bench.config import Model, PretrainedModel, Prompt, Run, TinyModel, local_path
from tasks.parts.problem import ProceduralTask, Split, Task

# Prompts are made for the checks on a context, so only this many of them.
PROMPTS_LOOKED_AT = 64
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


def prompt_lengths(run: Run) -> Iterator[int]:
    """Lengths of the first prompts of every kind that a tiny model is given, whose tokens are characters."""
    if not isinstance(run.model, TinyModel):
        return
    from bench.prompting import prompt_texts

    others: list[tuple[Task, Prompt]] = [(run.task, prompt) for prompt in run.evaluation.start_prompts]
    others.extend((task, run.prompt) for task in run.evaluation.also.values())
    asked: list[tuple[Task, Prompt, Split]] = [(run.task, run.prompt, "train")]
    asked.extend((task, prompt, "test") for task, prompt in others)
    for task, prompt, split in asked:
        if isinstance(task, ProceduralTask):
            there = task.num_problems(split)
            count = min(PROMPTS_LOOKED_AT, PROMPTS_LOOKED_AT if there is None else there)
            problems = [task.generate(split, index) for index in range(count)]
            yield from map(len, prompt_texts(task, problems, prompt))


def positions_of(model: Model) -> int | None:
    """The model's positions, where they can be told without loading it: not for a hub name or a GGUF file."""
    if isinstance(model, TinyModel):
        return model.max_positions
    folder = local_path(model)
    if folder is None or model.gguf_file is not None or not (folder / "config.json").is_file():
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # GPT-2 and its kin have another name for it.
        return next((config[name] for name in POSITIONS if isinstance(config.get(name), int)), None)
    except (ValueError, AttributeError):
        return None  # loading the model will say what is wrong with the file


def model_files(knob: str, model: Model) -> Iterator[str]:
    """A line for each thing that is wrong with a local model's path.

    Args:
        knob: where the configuration has the model.
    """
    folder = local_path(model) if isinstance(model, PretrainedModel) else None
    if folder is None or not isinstance(model, PretrainedModel):
        return
    given = f'{knob}.path: "{model.path}" given'
    if folder.is_file():
        gguf = f" {knob}.gguf_file={folder.name}" if folder.suffix == ".gguf" else ""
        yield f"{given}, which is a file; must be a folder: {knob}.path={folder.parent}{gguf}"
    elif not folder.is_dir():
        yield f"{given}, but there is no such folder here (looked in {Path.cwd()})"
    elif model.gguf_file is not None and not (folder / model.gguf_file).is_file():
        there = _found(model.gguf_file, folder, "*.gguf")
        yield f'{knob}.gguf_file: "{model.gguf_file}" given, but {folder} has no such file; {there}'
    elif model.gguf_file is None and not (folder / "config.json").is_file():
        yield f"{given}, but there is no config.json in it, so it holds no model"
    if model.revision is not None:
        given = f'{knob}.revision: "{model.revision}" given'
        yield f"{given}, but {knob}.path is a folder, so it could not act; leave it out"


def _found(name: str, folder: Path, pattern: str) -> str:
    files = sorted(file.name for file in folder.glob(pattern))
    near = nearest(name, files)
    return f"did you mean {near}?" if near else f"it has {', '.join(files) or 'none'}"
