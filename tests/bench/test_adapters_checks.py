"""Mistakes about adapters: named before training, with what would be right."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from bench.adapter_files import save_adapter
from bench.adapters import adapted, misfits
from bench.cli import app
from bench.config import Run, TinyModel
from bench.config_adapter import Lora
from bench.dialect import ConfigError, to_yaml
from bench.loading import build_run, nested
from bench.models import ModelUnavailable, create_tiny

BASE = TinyModel(hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64)


def run_of(algorithm: str = "grpo", **knobs: Any) -> Run:
    small = {"rollout.prompts": 2, "rollout.group_size": 4, "rollout.max_completion_tokens": 4, "budget.updates": 2}
    model = {f"model.{name}": value for name, value in BASE.model_dump().items()}
    layer = {
        **small,
        **model,
        "optimizer.lr": 1e-3,
        "tracking.enabled": False,
        **({} if "adapter" in knobs else {"adapter.kind": "lora"}),
        **knobs,
    }
    return build_run({"algorithm": algorithm, "task": "chain_sum"}, nested(layer))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A trained adapter for the base of these runs."""
    network = create_tiny(BASE, run_of().alphabet, 0).network
    save_adapter(adapted(network, Lora(rank=4), 0, "policy"), tmp_path / "trained")
    return tmp_path / "trained"


def edit(**entries: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))

    return change


def reshape(end: str, rows: int | None, more: str = "") -> Callable[[Path], None]:
    """Cut rows off the tensor with this end of its name, or drop it; or add one under another name."""

    def change(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        tensors = load_file(file)
        (name,) = [name for name in tensors if name.endswith(end)]
        cut = tensors.pop(name)
        if rows is not None:
            tensors[name] = cut[:rows].clone()
        if more:
            tensors |= {name: cut, more: cut.clone()}
        save_file(tensors, file)

    return change


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        ({"adapter.kind": "dora"}, 'adapter.kind: "dora" given, must be lora'),
        ({"adapter.rank": 0}, "adapter.rank: 0 given, must be a whole number, at least 1"),
        ({"adapter.targets": []}, "adapter.targets:"),
        ({"adapter.reference": "base"}, "without adapter.path the starting policy is the base, so it could not act"),
        ({"adapter.quantization": "int3"}, 'adapter.quantization: "int3" given, must be none or nf4'),
        ({"adapter.path": "nowhere"}, 'adapter.path: "nowhere" given, but there is no such folder here'),
        (
            {"parallel.processes": 2, "parallel.strategy": "fsdp", "meter.every": 0},
            "parallel.strategy: fsdp given with an adapter",
        ),
    ],
)
def test_mistakes_in_knobs_are_configuration_errors(knobs: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(**knobs)
    assert line in str(caught.value)
    assert len(caught.value.lines) == 1


def test_a_trained_adapter_brings_its_own_rank_and_a_run_without_a_reference_has_no_choice_of_it(trained: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of("dapo", **{"adapter.path": str(trained), "adapter.rank": 4, "adapter.reference": "base"})
    lines = caught.value.lines
    assert [line.partition(":")[0] for line in lines] == ["adapter.reference", "adapter.rank"]
    assert "dapo has no reference" in lines[0]
    assert "adapter.path brings its own" in lines[1]


def test_rounds_of_pairs_have_references_of_their_own_and_take_no_base(trained: Path) -> None:
    knobs = {"adapter.path": str(trained), "adapter.reference": "base"}
    run_of("dpo", **knobs)
    with pytest.raises(ConfigError) as caught:
        run_of("dpo", **{**knobs, "objective.pairing.rounds": 2})
    (line,) = caught.value.lines
    assert line.startswith("adapter.reference: base given with objective.pairing.rounds 2, whose reference is")


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "but it holds no adapter_config.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "but it cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "adapter_config.json holds no settings"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"no"), "but it cannot be read"),
        (edit(peft_type="PREFIX_TUNING"), "an adapter of kind PREFIX_TUNING; must be LORA"),
        (edit(use_dora=True), "which is not plain LoRA: it sets use_dora"),
        (edit(of_a_newer_peft=True), "which is not plain LoRA: it sets of_a_newer_peft"),
        (edit(bias="all"), "which is not plain LoRA: it sets bias"),
        (edit(lora_alpha=0), "whose lora_alpha is 0; must be a number above 0"),
        (edit(lora_alpha="x"), "whose lora_alpha is x; must be a number above 0"),
        (lambda folder: (folder / "base.json").write_text('{"x": 1}'), "but it cannot be read"),
        (edit(init_lora_weights="pissa_niter_4"), "it sets init_lora_weights=pissa_niter_4"),
        (reshape("q_proj.lora_A.weight", None), "q_proj.lora_B.weight has no counterpart"),
        (reshape("q_proj.lora_A.weight", 2), "has no counterpart"),
        (reshape("q_proj.lora_A.weight", 4, "base_model.model.lm_head.weight"), "it holds base_model.model.lm_head"),
    ],
)
def test_a_folder_that_holds_no_plain_adapter_is_a_configuration_error(
    harm: Callable[[Path], None], line: str, trained: Path
) -> None:
    run_of(**{"adapter.path": str(trained)})
    harm(trained)
    with pytest.raises(ConfigError) as caught:
        run_of(**{"adapter.path": str(trained)})
    assert line in str(caught.value)
    assert len(caught.value.lines) == 1


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        (
            {"adapter.rank": 64},
            "adapter.rank: 64 given, but model.layers.0.self_attn.q_proj has 32 inputs and 32 outputs",
        ),
        (
            {"adapter.targets": ["q_proj", "c_attn"]},
            "adapter.targets: c_attn given, but no linear layer has a name that",
        ),
        ({"adapter.targets": ["lm_head"]}, "adapter.targets: lm_head given"),
        ({"adapter.path": "trained", "model.hidden_size": 64}, "its model.layers.0.mlp.down_proj goes from 64 to 32"),
        ({"adapter.path": "deep"}, "here has no linear layer model.layers.1."),
    ],
)
def test_what_does_not_fit_the_model_ends_before_training_with_exit_status_2(
    knobs: dict[str, Any], line: str, trained: Path, tmp_path: Path
) -> None:
    deep = create_tiny(BASE.model_validate({**BASE.model_dump(), "num_layers": 2}), run_of().alphabet, 0).network
    save_adapter(adapted(deep, Lora(rank=4, targets=("layers.1.mlp.up_proj",)), 0, "policy"), tmp_path / "deep")
    if "adapter.path" in knobs:
        knobs = {**knobs, "adapter.path": str(tmp_path / knobs["adapter.path"])}
    run = run_of(**{**knobs, "output.root": str(tmp_path / "runs")})
    assert len(misfits(run)) == 1
    (tmp_path / "run.yaml").write_text(to_yaml(run.dump()))
    result = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml")])
    assert result.exit_code == 2
    assert line in result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_adapter_of_another_model_on_the_hub_is_told_by_its_name(trained: Path) -> None:
    edit(base_model_name_or_path="owner/other")(trained)
    knobs = {"adapter.path": str(trained)}
    model = {"kind": "pretrained", "path": "Owner/Base"}
    small = {"rollout": {"prompts": 2, "group_size": 4, "max_completion_tokens": 4}, "budget": {"updates": 2}}
    layer = {"algorithm": "grpo", "task": "chain_sum", "model": model, "optimizer": {"lr": 1e-3}, **small}
    with pytest.raises(ConfigError, match=r"which was trained on owner/other, and model\.path is Owner/Base"):
        build_run(layer, nested(knobs))
    edit(base_model_name_or_path="owner/base")(trained)
    assert build_run(layer, nested(knobs)).adapter is not None


def test_a_configuration_that_is_not_that_of_the_weights_is_refused(trained: Path) -> None:
    edit(target_modules=["q_proj"])(trained)
    network = create_tiny(BASE, run_of().alphabet, 0).network
    with pytest.raises(ModelUnavailable, match=r"adapter_config\.json and weights are not of one adapter"):
        adapted(network, Lora(path=str(trained)), 0, "policy")


def test_four_bits_without_their_package_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match="nf4 given, and the package bitsandbytes, which it is computed with"):
        run_of(**{"adapter.quantization": "nf4"})


@pytest.mark.parametrize("harm", [edit(r=-4), edit(r="four"), edit(r=8), edit(target_modules=["nope"])])
def test_values_that_peft_cannot_use_are_told_before_the_model_is_loaded(
    harm: Callable[[Path], None], trained: Path
) -> None:
    harm(trained)
    (line,) = misfits(run_of(**{"adapter.path": str(trained)}))
    assert line.startswith("adapter.path: ")


def test_weights_that_are_no_numbers_are_told(trained: Path) -> None:
    file = trained / "adapter_model.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(file).items()}, file)
    (line,) = misfits(run_of(**{"adapter.path": str(trained)}))
    assert line.endswith("has values that are no numbers")


@pytest.mark.parametrize("kind", ["separate", "model"])
def test_a_critics_adapter_that_does_not_fit_is_named_by_its_own_knob(kind: str) -> None:
    model = {"critic.model": BASE.model_dump()} if kind == "model" else {}
    run = run_of(
        "ppo", **{"adapter": None, "critic.lr": 1e-3, "critic.kind": kind, "critic.adapter.rank": 100, **model}
    )
    (line,) = misfits(run)
    assert line.startswith("critic.adapter.rank: 100 given, but ")
