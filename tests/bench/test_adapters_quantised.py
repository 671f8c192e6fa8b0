"""An adapter around weights of four bits (QLoRA), where bitsandbytes is installed; it computes on a CPU as well."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from bench.adapted_weights import adapted_layers, adapter_parameters, base_weight, plain_copy, plain_state, trained
from bench.adapters import adapted, reference_of
from bench.checkpoint import weights_digest
from bench.config import Run, TinyModel
from bench.config_adapter import Lora
from bench.models import LanguageModel, ModelUnavailable, create_tiny, load_folder
from bench.policy import Sequences, token_logps
from bench.seeding import generator
from bench.train import execute

MakeRun = Callable[..., Run]
SIZE = TinyModel(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=128, max_positions=32)
NF4 = Lora(rank=4, quantization="nf4")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _needs_bitsandbytes() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: make slow installs it")


def tiny() -> LanguageModel:
    return create_tiny(SIZE, "0123456789+-=", 0)


def logps(network: Any) -> torch.Tensor:
    return token_logps(network, Sequences.of([[3, 4, 5], [6, 7]], [[8, 9, 1], [4]], 0), 1.0)


@torch.no_grad()
def moved(network: Any) -> Any:
    for name, parameter in adapter_parameters(network).items():
        draws = generator(0, "moved", name).normal(0, 0.1, tuple(parameter.shape))
        parameter.copy_(torch.from_numpy(draws))
    return network


def test_the_network_computes_with_its_rounded_weights_and_so_do_its_gradients_and_its_reference() -> None:
    """Log-probabilities and gradients are those of the same adapter around the four-bit numbers written out in full,
    in training as after passes without a gradient; the base takes an eighth of the bytes and is shared."""
    network = moved(adapted(tiny().network, NF4, 0, "policy"))
    plain = tiny().network
    for name, layer in adapted_layers(network).items():
        plain.get_submodule(name).weight = torch.nn.Parameter(base_weight(layer).clone())
        assert layer.base_layer.weight.dtype == torch.uint8
        assert layer.base_layer.weight.numel() * 2 == base_weight(layer).numel()
    plain = moved(adapted(plain, Lora(rank=4), 0, "policy"))
    reference = reference_of(network, NF4)
    with torch.no_grad():
        assert torch.equal(logps(reference), logps(network))
        rounded = logps(reference_of(network, Lora(reference="base")))
        assert float((logps(tiny().network) - rounded).abs().max()) > 1e-3
    for one in (network, plain):
        logps(one).sum().backward()
    torch.testing.assert_close(logps(network), logps(plain), rtol=0, atol=1e-5)
    for ours, theirs in zip(trained(network), trained(plain), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logps(plain_copy(network)), logps(plain), rtol=0, atol=1e-5)
    assert list(plain_state(network)) == list(tiny().network.state_dict())


def test_a_run_trains_it_and_leaves_an_ordinary_folder(tiny_run: MakeRun, tmp_path: Path) -> None:
    knobs = {"adapter.kind": "lora", "adapter.rank": 4, "optimizer.lr": 3e-3}
    sizes: list[int] = []
    for kind in ("none", "nf4"):
        run = tiny_run("grpo", **knobs, **{"adapter.quantization": kind})
        assert execute(run, tmp_path / kind).state == "finished"
        memory = json.loads((tmp_path / kind / "memory.json").read_text())
        sizes.append(memory["phases"]["policy_update"]["roles"]["policy"])
    assert sizes[1] < 0.5 * sizes[0]
    final = json.loads((tmp_path / "nf4/final.json").read_text())
    network = load_folder(tmp_path / "nf4/checkpoints/final", "plain").network
    assert weights_digest(network) == final["weights_sha256"]
    record = [json.loads(line) for line in (tmp_path / "nf4/metrics.jsonl").read_text().splitlines()][1]
    assert record["mismatch/absdiff_max"] < 1e-5
    assert record["grad_norm"] > 1e-4


def test_layers_that_it_cannot_quantise_are_refused() -> None:
    config = GPT2Config(vocab_size=16, n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=1, bos_token_id=0)
    with pytest.raises(ModelUnavailable, match="nf4 given, but GPT2LMHeadModel has no layers that it could quantise"):
        adapted(GPT2LMHeadModel(config).eval(), NF4, 0, "policy")
