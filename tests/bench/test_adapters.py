"""Adapters: where they begin, what they train, what they are measured against, and that the base never moves."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from bench.adapted_weights import (
    adapted_layers,
    adapter_parameters,
    merged_weight,
    named_weights,
    plain_copy,
    plain_state,
    state_digest,
    trained,
)
from bench.adapter_files import save_adapter
from bench.adapters import adapted, adapted_copy, as_reference, linear_layers
from bench.casting import make_cast
from bench.checkpoint import restore, save, save_model, weights_digest
from bench.config import Run, TinyModel
from bench.config_adapter import Lora
from bench.critics import Critic
from bench.decoder_weights import decoder_weights, decodes_natively
from bench.generate import sample
from bench.loading import build_run, change, nested
from bench.memory import MemoryMeter
from bench.models import LanguageModel, ModelUnavailable, base_of, create_tiny
from bench.policy import Sequences, reads_packed, token_logps, token_values
from bench.prepare import start_content, starting_model
from bench.seeding import generator, stream_key
from bench.vllm_link import SharedWeights

SIZE = TinyModel(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=32)
PROMPTS, COMPLETIONS = [[3, 4, 5], [3, 4, 5], [6, 7]], [[8, 9, 1], [4], [5, 6, 7, 8]]


@cache
def alphabet() -> str:
    return run_of().alphabet


def tiny(seed: int = 0) -> LanguageModel:
    return create_tiny(SIZE, alphabet(), seed)


def run_of(algorithm: str = "grpo", **knobs: Any) -> Run:
    """A run on a tiny model without a warm start; nothing in it is trained here."""
    small = {"rollout.prompts": 2, "rollout.group_size": 4, "rollout.max_completion_tokens": 4, "budget.updates": 2}
    model = {f"model.{name}": value for name, value in SIZE.model_dump().items()}
    own = {"critic.lr": 1e-3} if algorithm == "ppo" else {}
    layer = {**small, **model, **own, "optimizer.lr": 1e-3, "adapter.kind": "lora", **knobs}
    return build_run({"algorithm": algorithm, "task": "chain_sum"}, nested(layer))


@torch.no_grad()
def moved(network: Any, seed: int = 0, size: float = 0.1) -> Any:
    """The network with an adapter as training might leave it: B is not 0."""
    for name, parameter in adapter_parameters(network).items():
        draws = generator(seed, "moved", name).normal(0, size, tuple(parameter.shape))
        parameter.copy_(torch.from_numpy(draws))
    return network


def logps(network: Any) -> torch.Tensor:
    with torch.no_grad():
        return token_logps(network, Sequences.of(PROMPTS, COMPLETIONS, 0), 1.0)


def trained_folder(folder: Path, **knobs: Any) -> Path:
    """A trained adapter for the tiny base."""
    save_adapter(moved(adapted(tiny().network, Lora(rank=4, **knobs), 0, "policy")), folder)
    return folder


def kl(policy: torch.Tensor, reference: torch.Tensor) -> float:
    """The larger estimate of the divergence over these tokens, k3."""
    ratio = reference - policy
    return float((ratio.exp() - 1 - ratio).max())


def test_rep_03_the_start_follows_the_seed_bit_for_bit_and_draws_from_no_global_generator() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1]
    first = adapter_parameters(adapted(tiny().network, Lora(), 0, "policy"))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    torch.manual_seed(6)
    again = adapter_parameters(adapted(tiny().network, Lora(), 0, "policy"))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    for other in (adapted(tiny().network, Lora(), 1, "policy"), adapted(tiny().network, Lora(), 0, "critic")):
        same = {name for name, tensor in adapter_parameters(other).items() if torch.equal(tensor, first[name])}
        assert same == {name for name in first if ".lora_B." in name}
    a = first["base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"]
    assert a.shape == (16, 64)
    assert not torch.equal(a, first["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"])
    assert 0.9 * 64**-0.5 < float(a.detach().abs().max()) < 64**-0.5
    one = adapter_parameters(adapted(tiny().network, Lora(targets=("down_proj",)), 0, "policy"))
    assert all(torch.equal(tensor, first[name]) for name, tensor in one.items()), "not by what else is adapted"


def test_rep_03_algorithms_begin_with_the_same_adapter() -> None:
    digests = {
        state_digest(adapter_parameters(starting_model(run_of(name)).model.network)) for name in ("ppo", "grpo", "dpo")
    }
    assert len(digests) == 1


def test_all_linear_layers_of_the_decoder_are_adapted_and_the_network_stays_what_it_was() -> None:
    bare, network = tiny().network, tiny().network
    for one in (bare, network):
        one.model.layers[0].mlp.down_proj.weight.data[0, 0] = -0.0
    adapted(network, Lora(rank=4), 0, "policy")
    assert type(network) is type(bare)
    kinds = {name.rpartition(".")[2] for name in adapted_layers(network)}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(adapted_layers(network)) == len(linear_layers(bare)) == 14
    assert reads_packed(network)
    assert decodes_natively(network)
    assert {id(p) for p in trained(network)} == {id(p) for p in adapter_parameters(network).values()}
    assert torch.equal(logps(network), logps(bare)), "B is 0"
    assert weights_digest(network) == weights_digest(bare)
    assert [name for name, _ in named_weights(network)] == [name for name, _ in bare.named_parameters()]
    assert list(plain_state(network)) == list(bare.state_dict())
    logps_with_gradient = token_logps(network, Sequences.of(PROMPTS, COMPLETIONS, 0), 1.0)
    logps_with_gradient.sum().backward()
    assert all(p.grad is None for p in network.parameters() if not p.requires_grad)
    assert all(p.grad is not None for p in trained(network))
    assert any(float(p.grad.abs().max()) > 0 for p in trained(network) if p.grad is not None)


@pytest.mark.parametrize(
    ("knobs", "scale"),
    [
        ({"alpha": 6.0}, 1.5),
        ({"alpha": 6.0, "rslora": True}, 3.0),
        ({"targets": ("q_proj", "1.mlp.up_proj")}, 8),
    ],
)
def test_the_sampler_computes_from_merged_copies_what_the_trainer_computes(knobs: dict[str, Any], scale: float) -> None:
    """Log-probabilities of every sampled token to 1e-5 with B != 0, merged by hand as well."""
    model = tiny()
    network = moved(adapted(model.network, Lora(rank=4, **knobs), 0, "policy"), size=0.3)
    layer = adapted_layers(network)["model.layers.0.self_attn.q_proj"]
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(merged_weight(layer), layer.base_layer.weight + scale * b @ a)
    prompts = [[3, 4, 5], [6, 7]]
    found = sample(model, prompts, [[stream_key(0, i, m) for m in range(4)] for i in range(2)], max_tokens=8,
                   temperature=1.0)  # fmt: skip
    flat = [(prompt, one) for prompt, own in zip(prompts, found, strict=True) for one in own]
    sequences = Sequences.of([p for p, _ in flat], [one.token_ids for _, one in flat], 0)
    with torch.no_grad():
        scored = token_logps(network, sequences, 1.0)
    told = torch.zeros_like(scored)
    for row, (_, one) in enumerate(flat):
        told[row, : len(one.logps)] = torch.tensor(one.logps)
    assert float((scored - told).abs().max()) < 1e-5
    assert float((logps(network) - logps(tiny().network)).abs().max()) > 1e-2, "the adapter does something"


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_vlm_08_the_base_is_the_same_after_50_pushes(precision: torch.dtype) -> None:
    """Fifty times new adapter weights, merged for the sampler and for an engine: other weights go out each time, and
    the frozen base stays what it was, bit for bit and in the same memory."""
    network = adapted(tiny().network.to(precision), Lora(rank=4), 0, "policy")
    before = state_digest(plain_state(network, merged=False))
    places = {name: tensor.data_ptr() for name, tensor in plain_state(network, merged=False).items()}
    shared = SharedWeights(network) if precision == torch.float32 else None
    sent: set[str] = set()
    for push in range(50):
        moved(network, push, 0.3)
        with torch.inference_mode():
            weights = decoder_weights(network, precision)
        assert bool(weights.layers[0].down[0].isfinite().all())
        if shared is not None:
            assert shared.take(network)
            assert not shared.take(network), "the same weights are not sent twice"
        sent.add(state_digest(dict(named_weights(network))))
    assert len(sent) == 50
    assert state_digest(plain_state(network, merged=False)) == before
    assert {name: tensor.data_ptr() for name, tensor in plain_state(network, merged=False).items()} == places
    assert {tensor.dtype for tensor in plain_state(network).values()} == {precision}


def test_obj_33_the_reference_is_the_start_with_its_adapter_or_the_base_by_choice(tmp_path: Path) -> None:
    folder = trained_folder(tmp_path / "adapter")
    found: dict[str, float] = {}
    for choice in ("start", "base"):
        run = run_of("grpo", **{"adapter.path": str(folder), "adapter.reference": choice})
        cast = make_cast(run, starting_model(run).model)
        assert cast.reference is not None
        assert not trained(cast.reference.network)
        found[choice] = kl(logps(cast.policy.network), logps(cast.reference.network))
        before = logps(cast.reference.network)
        moved(cast.policy.network, 9)
        assert torch.equal(logps(cast.reference.network), before), "it does not follow the policy"
    assert found["start"] <= 1e-6
    assert found["base"] > 1e-3
    network = starting_model(run_of("dpo", **{"adapter.path": str(folder)})).model.network
    with as_reference(network, run_of("dpo", **{"adapter.path": str(folder), "adapter.reference": "base"}).adapter):
        assert torch.equal(logps(network), logps(tiny().network))
    assert kl(logps(network), logps(tiny().network)) > 1e-3
    assert trained(network), "and trains as before"


def test_the_reference_and_the_optimizer_hold_no_more_than_the_adapter() -> None:
    """Bytes by role: the base is the policy's alone; the reference has a copy of A and B, the optimizer two moments."""
    run = run_of("grpo", **{"adapter.rank": 4})
    cast = make_cast(run, starting_model(run).model)
    meter = MemoryMeter("cpu")
    meter.metering = True
    assert cast.reference is not None
    assert len(cast.optimizer.param_groups[0]["params"]) == len(trained(cast.policy.network))
    meter.own("optimizer", cast.optimizer)
    meter.own("reference", cast.reference.network)
    meter.own("policy", cast.policy.network)
    with meter.measure("policy_update"):
        token_logps(cast.policy.network, Sequences.of(PROMPTS, COMPLETIONS, 0), 1.0).sum().backward()
        cast.optimizer.step()
        logps(cast.reference.network)
    roles = meter.report()["phases"]["policy_update"]["roles"]
    size = sum(p.numel() for p in trained(cast.policy.network)) * 4
    assert roles["reference"] == size
    assert 2 * size <= roles["optimizer"] < 2.2 * size
    assert roles["policy"] > 4 * size


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_a_saved_model_is_merged_and_its_adapter_loads_through_peft_on_the_base(tmp_path: Path) -> None:
    from peft import PeftModel

    model = tiny()
    moved(adapted(model.network, Lora(rank=4, rslora=True), 0, "policy"))
    save_model(model, tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert weights_digest(merged) == weights_digest(model.network)
    assert not adapted_layers(merged)
    ids = torch.tensor([[3, 4, 5, 6]])
    wrapped = PeftModel.from_pretrained(tiny().network, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        own = model.network(ids).logits
        assert torch.equal(wrapped(ids).logits, own)
        torch.testing.assert_close(merged(ids).logits, own, rtol=0, atol=1e-5)
    said = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert said["target_modules"] == sorted(said["target_modules"]) != []
    again = adapted(tiny().network, Lora(path=str(tmp_path / "adapter")), 3, "policy")
    assert torch.equal(logps(again), logps(model.network))


def test_a_checkpoint_of_an_adapter_holds_no_base_and_is_put_back_on_the_same_base_alone(tmp_path: Path) -> None:
    run = run_of("grpo", **{"adapter.rank": 4})
    cast = make_cast(run, starting_model(run).model)
    token_logps(cast.policy.network, Sequences.of(PROMPTS, COMPLETIONS, 0), 1.0).sum().backward()
    cast.optimizer.step()
    folder = save(tmp_path, cast, keep=1, extra={"best": 1})
    size = sum(parameter.numel() for parameter in trained(cast.policy.network)) * 4
    assert size < sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 4 * size
    other = make_cast(run, starting_model(run).model)
    assert restore(folder, other) == {"best": 1}
    assert weights_digest(other.policy.network) == weights_digest(cast.policy.network)
    moments = [cast_.optimizer.state_dict()["state"] for cast_ in (cast, other)]
    assert all(torch.equal(moments[0][i]["exp_avg"], moments[1][i]["exp_avg"]) for i in moments[0])
    elsewhere = change(run, {"seed": 1})
    with pytest.raises(ModelUnavailable, match="its adapter was trained on another base than the run starts from now"):
        restore(folder, make_cast(elsewhere, starting_model(elsewhere).model))


def test_a_critic_may_share_the_base_or_take_all_weights_with_it() -> None:
    new = adapted(tiny().network, Lora(rank=4), 0, "policy")
    sharing = adapted_copy(new, Lora(rank=2), 0, "critic")
    network = moved(new)
    whole, apart = plain_copy(network), adapted_copy(network, Lora(rank=2), 0, "critic")
    torch.testing.assert_close(logps(whole), logps(network), rtol=0, atol=1e-5)
    torch.testing.assert_close(logps(apart), logps(network), rtol=0, atol=1e-5)
    assert not {p.data_ptr() for p in apart.parameters()} & {p.data_ptr() for p in network.parameters()}
    assert sorted(adapter_parameters(apart)) == sorted(adapter_parameters(sharing))
    assert len(trained(whole)) == len(list(tiny().network.parameters()))
    assert not {p.data_ptr() for p in whole.parameters()} & {p.data_ptr() for p in network.parameters()}
    base = {p.data_ptr() for p in network.parameters() if not p.requires_grad}
    assert base == {p.data_ptr() for p in sharing.parameters() if not p.requires_grad}
    before = logps(network)
    critic = Critic(torch.nn.Linear(32, 1, bias=False), base_of(sharing))
    assert len(trained(critic)) == len(adapter_parameters(sharing)) + 1, "its head as well"
    moved(sharing, 1)
    critic.head.weight.data.fill_(0.1)
    token_values(critic, base_of(sharing), Sequences.of(PROMPTS, COMPLETIONS, 0)).sum().backward()
    assert all(p.grad is not None for p in trained(critic))
    assert all(p.grad is None for p in network.parameters())
    assert torch.equal(logps(network), before)
    bare = tiny().network
    assert not {p.data_ptr() for p in adapted_copy(bare, Lora(), 0, "critic").parameters()} & {
        p.data_ptr() for p in bare.parameters()
    }, "weights that the policy trains are its own"


def test_layers_of_gpt2_are_adapted_too_without_a_warning(tmp_path: Path) -> None:
    """Its weights lie the other way round."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=16, n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=1, bos_token_id=0)
    bare = GPT2LMHeadModel(config).eval()
    before = logps(bare)
    network = moved(adapted(bare, Lora(rank=4), 0, "policy"), size=0.3)
    assert len(adapted_layers(network)) == 4
    assert reads_packed(network)
    torch.testing.assert_close(logps(plain_copy(network)), logps(network), rtol=0, atol=1e-5)
    assert float((logps(network) - before).abs().max()) > 1e-2


def test_a_run_counts_an_adapter_by_its_content_and_a_fresh_one_shares_the_start(tmp_path: Path) -> None:
    first, second = trained_folder(tmp_path / "a"), trained_folder(tmp_path / "b")
    runs = [run_of(**{"adapter.path": str(folder)}) for folder in (first, second)]
    assert runs[0].id == runs[1].id
    assert start_content(runs[0]) == start_content(runs[1]) != start_content(run_of())
    assert start_content(run_of(**{"adapter.rank": 4})) == start_content(change(run_of(), {"adapter": None}))
    save_adapter(moved(adapted(tiny().network, Lora(rank=4), 0, "policy"), 1), second)
    assert runs[0].id != runs[1].id
    assert start_content(runs[0]) != start_content(runs[1])


def test_another_base_is_refused_by_its_weights(tmp_path: Path) -> None:
    folder = trained_folder(tmp_path / "adapter")
    with pytest.raises(ModelUnavailable, match=r"adapter\.path: .* was trained on other weights than this base has"):
        adapted(tiny(1).network, Lora(path=str(folder)), 0, "policy")
