"""What is broken is named and not trained on: models, caches, checkpoints, logs, and a run that is already running."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from bench import checkpoint, store
from bench.cli import app
from bench.config import PretrainedModel, Run, TinyModel
from bench.generate import NotFinite, sample
from bench.models import LanguageModel, ModelUnavailable, create_tiny, load_pretrained, save_folder
from bench.prepare import cached
from bench.train import execute

MakeRun = Callable[..., Run]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model on disk."""
    save_folder(create_tiny(TinyModel(hidden_size=32, num_heads=2), "0123456789+=", 0), tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path) -> LanguageModel:
    return load_pretrained(PretrainedModel(path=str(folder)))


def test_a_model_without_some_of_its_weights_is_refused(folder: Path) -> None:
    """transformers would fill the gap with random numbers."""
    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if "down_proj" in name)
    save_file({name: w for name, w in weights.items() if name != gone}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelUnavailable, match=f"lacks the weights of {gone}"):
        load(folder)


def test_a_model_without_an_end_token_is_refused(folder: Path) -> None:
    for file in ("tokenizer_config.json", "config.json", "generation_config.json"):
        content = json.loads((folder / file).read_text())
        content.pop("eos_token", None)
        content.pop("eos_token_id", None)
        (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelUnavailable, match="has no end token"):
        load(folder)


def test_a_broken_model_is_one_line(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelUnavailable) as error:
        load(folder)
    assert str(error.value).startswith(f"model.path: {folder} cannot be loaded: ")
    assert "\n" not in str(error.value)


def test_logits_that_are_no_numbers_are_not_sampled(folder: Path) -> None:
    model = load(folder)
    with torch.no_grad():
        next(model.network.parameters()).fill_(float("nan"))
    with pytest.raises(NotFinite):
        sample(model, [[4, 5]], [[1, 2]], max_tokens=3, temperature=1.0)


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def make(folder: Path) -> dict[str, int]:
        made.append(1)
        (folder / "table").write_text("whole")
        return {}

    folder = cached(tmp_path, "kind", {"a": 1}, make)
    (folder / "table").write_text("cut")
    cached(tmp_path, "kind", {"a": 1}, make)
    (folder / "made.json").write_text("[]")
    cached(tmp_path, "kind", {"a": 1}, make)
    (folder / "table").unlink()
    cached(tmp_path, "kind", {"a": 1}, make)
    assert len(made) == 4
    assert (folder / "table").read_text() == "whole"


def test_a_log_that_lost_lines_below_the_checkpoint_starts_over(
    tiny_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    """A resume would leave a hole that no later update fills; the same end is reached from the start instead."""
    run = tiny_run("dr_grpo", **{"checkpoint.every": 2})
    execute(run, tmp_path / "straight")
    stopping(checkpoint, "save", 1)
    execute(run, tmp_path / "run")
    (tmp_path / "run/metrics.jsonl").write_text('{"update": 0}\nnot json\n{"loss": 1}\n')
    assert execute(run, tmp_path / "run").state == "finished"
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "straight/metrics.jsonl").read_bytes()


def test_odd_folders_and_markers_are_no_checkpoints(tmp_path: Path) -> None:
    for name, marker in (("step_foo", "{}"), ("step_000002", "[]"), ("step_000004", '{"format": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / checkpoint.MARKER).write_text(marker)
    assert checkpoint.complete(tmp_path) == []


def test_a_run_in_progress_is_not_started_twice(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo")
    directory = Path(run.output.root) / run.output.sweep / run.id
    store.write_yaml(tmp_path / "run.yaml", run.dump())
    directory.mkdir(parents=True)
    with FileLock(directory / "run.lock"):
        result = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    assert "another process is running this run" in result.output
    assert not (directory / "status.json").exists()


def test_a_place_that_cannot_be_written_is_one_line(tiny_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = tiny_run("grpo", **{"output.root": str(tmp_path / "file")})
    store.write_yaml(tmp_path / "run.yaml", run.dump())
    result = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert "Not a directory" in result.output
