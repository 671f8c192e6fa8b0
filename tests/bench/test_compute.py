"""Precision and checkpointing of the training step: what they change and leave, and that nothing is read in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from algorithms.axes.batch import Totals, group_tokens
from bench import policy
from bench.casting import make_cast, make_learner
from bench.compute import enable_checkpointing, passes
from bench.config import Run, TinyModel
from bench.config_compute import Compute
from bench.generate import sample
from bench.instruments import Instruments
from bench.learn_online import OnlineLearner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, ModelUnavailable, create_tiny
from bench.policy import Sequences, planned, token_logps
from bench.rollout import Sampler, sequences_of
from bench.store import read_jsonl
from bench.train import execute

MakeRun = Callable[..., Run]
DEEP = TinyModel(hidden_size=32, num_layers=4, num_heads=2, intermediate_size=64)


def some(model: LanguageModel) -> Sequences:
    return Sequences.of([[5, 6, 7]] * 8, [[4, 5, 6, 7, 8, 9, 3, 1]] * 8, model.pad_id)


def test_checkpointing_changes_memory_and_not_the_gradient() -> None:
    model = create_tiny(DEEP, "0123456789+=", 0)
    enable_checkpointing(model.network)
    found = []
    for wanted in (False, True):
        model.network.zero_grad()
        meter = MemoryMeter("cpu")
        meter.metering = True
        with meter.measure("update"):
            with passes(Compute(gradient_checkpointing=wanted), "cpu", model.network):
                logp = token_logps(model.network, some(model), 1.0)
            logp.sum().backward()
        found.append((meter.report()["peak"]["allocated_bytes"], [p.grad for p in model.network.parameters()]))
    assert found[1][0] < found[0][0] / 1.5
    for plain, again in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(plain, again)
    assert not any(module.training for module in model.network.modules())


def test_checkpointing_leaves_dropout_off() -> None:
    """Equal twice, in a model whose dropout modules would act in train mode."""
    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=16)).eval()
    assert network.config.resid_pdrop > 0
    enable_checkpointing(network)
    sequences = Sequences.of([[5, 6]], [[4, 3, 2]], 0)
    plain = token_logps(network, sequences, 1.0)
    with passes(Compute(gradient_checkpointing=True), "cpu", network):
        assert torch.equal(token_logps(network, sequences, 1.0), plain)


def test_a_layer_with_dropout_of_its_own_is_refused_with_the_reason() -> None:
    config = OPTConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, ffn_dim=16, num_attention_heads=2, word_embed_proj_dim=16
    )
    with pytest.raises(ModelUnavailable, match="OPTDecoderLayer has dropout: set it to 0"):
        enable_checkpointing(OPTForCausalLM(config))


def test_autocast_rounds_the_pass_and_leaves_float32_weights_and_gradients() -> None:
    model = create_tiny(DEEP, "0123456789+=", 0)
    exact = token_logps(model.network, some(model), 1.0).detach()
    with passes(Compute(autocast="bfloat16"), "cpu", model.network):
        rounded = token_logps(model.network, some(model), 1.0)
    rounded.sum().backward()
    assert 1e-6 < float((rounded.detach() - exact).abs().max()) < 0.05
    assert rounded.dtype == torch.float32
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.network.parameters() if p.grad is not None)


def test_nothing_is_read_in_the_step(each_online: str, tiny_run: MakeRun) -> None:
    """The forward and backward pass of a microbatch runs under fake tensors, which have shapes and no numbers."""
    run = tiny_run(each_online, **{"warm_start": None, "threads": 1})
    cast = make_cast(run, create_tiny(run.model, run.alphabet, 0))
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    learner = make_learner(run, cast, Sampler(run, run.task, sample, instruments), instruments)
    assert isinstance(learner, OnlineLearner)
    groups = learner.sampler.groups(cast.policy, learner.stream.round(0), 0)
    sequences = sequences_of(groups, cast.policy.pad_id)
    part = list(range(16))
    rollout = learner.scorer.rollout(groups, sequences, [part, list(range(16, len(sequences)))])
    rollout.old_logp.nan_to_num_(nan=0.0)
    credit = learner.objective.credit(rollout)
    totals = Totals.of(credit.mask, rollout.group, rollout.completion_budget)
    tokens = group_tokens(credit.mask, rollout.group)
    planned(cast.policy.network, sequences.rows(part))
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch, *_ = learner.scorer.batch(part, sequences, rollout, credit, tokens)
        loss = learner.objective.loss(batch, totals).loss
        loss.backward()
    assert loss.shape == ()


@pytest.mark.parametrize("algorithm", ["ppo", "dpo", "sft"])
def test_shapes_are_made_before_the_step(algorithm: str, tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """No layout and no padded rectangle is made while an update is measured."""
    coin = {} if algorithm == "sft" else {"reward.source": "random"}
    run = tiny_run(algorithm, **{"warm_start": None, "optimizer.microbatch_sequences": 8, **coin})
    cast = make_cast(run, create_tiny(run.model, run.alphabet, 0))
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    learner = make_learner(run, cast, Sampler(run, run.task, sample, instruments), instruments)
    learner.prepare()
    made: list[str | None] = []
    for name in ("layout_of", "pad_left", "pad_right"):
        original = getattr(policy, name)

        def noted(*arguments: Any, original: Any = original, **options: Any) -> Any:
            made.append(instruments.clock._running)
            return original(*arguments, **options)

        monkeypatch.setattr(policy, name, noted)
    next(iter(learner.advance()))
    assert None in made
    assert not {"policy_update", "critic_update"} & set(made)


def test_checkpointing_gives_the_same_run(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Of policy and critic, with a reference beside them: every number but the seconds."""
    found = []
    for wanted in (False, True):
        run = tiny_run("ppo", **{"budget.updates": 2, "compute.gradient_checkpointing": wanted, "meter.every": 0})
        directory = tmp_path / str(wanted)
        assert execute(run, directory).state == "finished"
        found.append((directory / "metrics.jsonl").read_text())
    assert found[0] == found[1]


@pytest.mark.parametrize("algorithm", ["ppo", "dpo"])
def test_a_run_in_bfloat16_samples_and_trains_in_it(algorithm: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run(algorithm, **{"budget.updates": 2, "compute.autocast": "bfloat16"})
    assert execute(run, tmp_path / "run").error is None
    first = read_jsonl(tmp_path / "run" / "metrics.jsonl").records[1]
    if algorithm == "ppo":
        assert 0 < first["mismatch/absdiff_max"] < 0.2
