"""The schema: what a run's identity consists of, what a dump keeps, and what cannot be changed behind its back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bench import catalog
from bench.config import Evaluation, Optimizer, PretrainedModel, Run, TinyModel, local_path
from bench.dialect import parse_yaml, to_yaml
from bench.loading import build_run, change, nested
from tasks.chain_sum import ChainSum

_MINIMAL: dict[str, Any] = {
    "task": "chain_sum",
    "rollout": {"prompts": 8, "group_size": 4, "updates_per_rollout": 2, "max_completion_tokens": 20},
    "optimizer": {"lr": 1e-4, "microbatch_sequences": 16},
    "budget": {"updates": 8},
}


def _run(**knobs: object) -> Run:
    return build_run(_MINIMAL, nested({name.replace("__", "."): value for name, value in knobs.items()}))


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = "".join(json.dumps({"question": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(200))
    (folder / "gsm8k_train.jsonl").write_text(rows)
    (folder / "gsm8k_test.jsonl").write_text(rows)
    return folder


@pytest.mark.parametrize("algorithm", catalog.names("algorithms"))
def test_a_dump_reads_back_to_the_same_run(algorithm: str, own_knobs: Callable[[str], dict[str, Any]]) -> None:
    knobs = {**own_knobs(algorithm), "optimizer.lr": 1e-6, "evaluation.ks": [1, 3]}
    run = build_run(_MINIMAL, {"algorithm": algorithm}, nested(knobs))
    text = to_yaml(run.dump())
    for copy in (build_run(run.dump()), build_run(parse_yaml(text, "test"))):  # type: ignore[arg-type]
        assert copy == run
        assert copy.id == run.id
    assert parse_yaml(text, "test") == run.dump()


def test_the_id_is_twelve_hexadecimal_digits_of_the_content() -> None:
    run = _run()
    assert len(run.id) == 12
    assert set(run.id) <= set("0123456789abcdef")
    assert run.id == _run().id
    assert _run(optimizer__weight_decay=0, evaluation__ks=[1, 2, 4, 8, 16]).id == run.id, (
        "a default that is written out"
    )


@pytest.mark.parametrize(
    "knobs",
    [
        {"seed": 1},
        {"threads": 2},
        {"task.num_terms": 2},
        {"optimizer.lr": 2e-4},
        {"algorithm": "dapo"},
        {"objective.surrogate.high": 0.21},
        {"reward.format": 0.1},
        {"evaluation.samples": 65},
        {"model.num_layers": 3},
    ],
)
def test_what_can_change_results_changes_the_id(knobs: dict[str, object]) -> None:
    assert build_run(_MINIMAL, nested(knobs)).id != _run().id


def test_output_and_tracking_do_not_change_the_id() -> None:
    moved = _run(output__root="elsewhere", output__sweep="other", output__cache="c", tracking__enabled=False)
    assert moved != _run()
    assert moved.id == _run().id


def test_the_task_version_changes_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _run().id
    monkeypatch.setattr(ChainSum, "version", ChainSum.version + 1)
    assert _run().id != before


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _run().dump()
    for name in ("SEED", "seed", "OPTIMIZER__LR", "BENCH_SEED", "RUN_SEED", "OUTPUT__ROOT"):
        monkeypatch.setenv(name, "7")
    assert _run().dump() == before


def test_a_local_model_counts_by_its_content(model_folder: Path, tmp_path: Path) -> None:
    def run_on(folder: Path) -> Run:
        return build_run(_MINIMAL, {"model": {"kind": "pretrained", "path": str(folder)}})

    before = run_on(model_folder).id
    copy = shutil.copytree(model_folder, tmp_path / "copy")
    (copy / ".cache").mkdir()
    (copy / ".cache" / "log").write_text("hidden files are no part of a model")
    assert run_on(copy).id == before
    (copy / "model.safetensors").rename(copy / "renamed.safetensors")
    assert run_on(copy).id != before, "same bytes under another name"
    (copy / "renamed.safetensors").rename(copy / "model.safetensors")
    (copy / "model.safetensors").write_bytes(b"other weights")
    assert run_on(copy).id != before


def test_of_a_gguf_file_nothing_else_in_its_folder_counts(model_folder: Path) -> None:
    (model_folder / "model.gguf").write_bytes(b"quantised")
    model = {"kind": "pretrained", "path": str(model_folder), "gguf_file": "model.gguf"}
    before = build_run(_MINIMAL, {"model": model}).id
    (model_folder / "model.safetensors").write_bytes(b"unused")
    assert build_run(_MINIMAL, {"model": model}).id == before
    (model_folder / "model.gguf").write_bytes(b"requantised")
    assert build_run(_MINIMAL, {"model": model}).id != before


def test_local_data_counts_by_its_content(data_folder: Path, tmp_path: Path) -> None:
    model = {"kind": "pretrained", "path": "some/model"}

    def run_on(folder: Path) -> Run:
        return build_run(_MINIMAL, {"task": {"name": "gsm8k", "path": str(folder)}, "model": model})

    before = run_on(data_folder).id
    copy = shutil.copytree(data_folder, tmp_path / "copy")
    (copy / "README.md").write_text("a file that the task does not read")
    assert run_on(copy).id == before
    with (copy / "gsm8k_test.jsonl").open("a") as file:
        file.write('{"question": "2 + 2?", "answer": "#### 4"}\n')
    assert run_on(copy).id != before


@pytest.mark.parametrize(
    ("path", "is_local"),
    [
        ("Qwen/Qwen2.5-0.5B", False),
        ("gpt2", False),
        ("./gpt2", True),
        ("../models/gpt2", True),
        ("~/gpt2", True),
        ("/models/gpt2", True),
        ("models/org/gpt2", True),
        ("SmolLM2.Q4_1.gguf", True),
    ],
)
def test_a_name_on_the_hub_is_told_from_a_path(path: str, is_local: bool) -> None:
    assert (local_path(PretrainedModel(path=path)) is not None) == is_local


def test_a_run_cannot_be_changed_behind_its_back() -> None:
    run = _run()
    with pytest.raises(ValidationError, match="frozen"):
        run.seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"^model_copy\(update=\.\.\.\) does not validate"):
        run.model_copy(update={"seed": "three"})
    with pytest.raises(TypeError, match="does not validate"):
        run.optimizer.model_copy(update={"lr": -1.0})
    assert run.model_copy() == run
    assert change(run, {"seed": 3}).seed == 3


@pytest.mark.parametrize(
    ("section", "knobs"),
    [
        (Optimizer, {"lr": 1.0, "microbatch_sequences": True}),
        (Optimizer, {"lr": "1e-4", "microbatch_sequences": 1}),
        (Optimizer, {"lr": float("nan"), "microbatch_sequences": 1}),
        (Optimizer, {"lr": float("inf"), "microbatch_sequences": 1}),
        (Optimizer, {"lr": 1.0, "microbatch_sequences": 1, "momentum": 0.9}),
        (Evaluation, {"ks": (4, 2)}),
        (Evaluation, {"ks": (2, 2)}),
        (Evaluation, {"ks": ()}),
        (TinyModel, {"hidden_size": 60, "num_heads": 4}),
    ],
)
def test_sections_refuse_by_themselves(section: type[Any], knobs: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as error:
        section(**knobs)
    assert error.value.error_count() == 1


def test_every_knob_is_documented_or_plain() -> None:
    # Names that need no explanation beyond their section's own docstring.
    assert {name for name, field in Run.model_fields.items() if field.description} == {
        "algorithm",
        "objective",
        "critic",
        "threads",
    }
    for field in Run.model_fields.values():
        annotation = field.annotation
        if isinstance(annotation, type) and annotation.__module__ == "bench.config":
            assert annotation.__doc__
