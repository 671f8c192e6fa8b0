"""Each kind of critic through real updates: gradients, warm-up, microbatches, first weights, values and resumes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.axes.batch import Credit, LossParts, Rollout, Totals, ValueBatch
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.value import ValueLoss
from bench import casting, checkpoint
from bench.config import Run
from bench.critics import make_critic
from bench.learn_online import OnlineLearner
from bench.loading import ConfigError, build_run, nested
from bench.models import base_of, create_tiny
from bench.policy import Sequences
from bench.scoring import Scorer
from bench.train import Job, execute, set_up

MakeRun = Callable[..., Run]
Kept = list[tuple[object, Tensor]]
SMALLER: Mapping[str, Any] = {
    "kind": "tiny", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 16,
}  # fmt: skip
KINDS: Mapping[str, Mapping[str, Any]] = {
    "separate": {"critic.kind": "separate"},
    "model": {"critic.kind": "model", "critic.model": SMALLER},
    "head": {"critic.kind": "head", "critic.coefficient": 0.3},
    "stopped": {"critic.kind": "head", "critic.stop_gradient": True},
    "mlp": {"critic.kind": "mlp", "critic.hidden_sizes": [8, 4]},
}
ALL_BUT_HEAD_SLOW = [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "head")) for kind in KINDS]
KNOWING = {"critic.head_init": "normal_reward"}
# Weights are random: partial credit for the form tells completions apart, so no warm start is needed.
PLAIN: Mapping[str, Any] = {
    "algorithm": "ppo",
    "task": {"name": "chain_sum", "num_terms": 2, "num_digits": 1},
    "model": {**SMALLER, "hidden_size": 32},
    "reward": {"format": 1.0},
    "rollout": {"prompts": 4, "group_size": 4, "max_completion_tokens": 6},
    "optimizer": {"lr": 1e-3},
    "critic": {"lr": 1e-2},
    "budget": {"updates": 2},
    "evaluation": {"problems": 2, "samples": 2, "ks": [1], "start": False},
    "meter": {"every": 1},
    "tracking": {"enabled": False},
}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run("mlp", **{"critic.lr": 1})`: PPO on random weights with a kind of critic and dotted knobs."""

    def make(kind: str, **knobs: Any) -> Run:
        output = {"output": {"root": str(tmp_path), "cache": str(tmp_path / "cache")}}
        return build_run(PLAIN, output, nested({**KINDS[kind], **knobs}))

    return make


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Optimizers keep their parameters as they are; each step's gradient is here, in one row, beside its optimizer."""
    found: Kept = []

    def keeping(parameters: Any, lr: float, config: object) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=lr)

        def keep(*_: object) -> None:
            own = [p for group in optimizer.param_groups for p in group["params"]]
            found.append(
                (optimizer, torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in own]))
            )
            optimizer.zero_grad()

        optimizer.register_step_pre_hook(keep)
        return optimizer

    monkeypatch.setattr(casting, "adamw", keeping)
    return found


def set_up_at(run: Run, directory: Path) -> tuple[Job, OnlineLearner]:
    job = set_up(run, directory, attempt=1)
    assert isinstance(job.learner, OnlineLearner)
    return job, job.learner


def own(job: Job) -> Tensor:
    """The policy's weights, in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in job.policy.network.parameters()])


def critics(job: Job) -> Tensor:
    critic = job.learner.cast.critic
    assert critic is not None
    return torch.cat([parameter.detach().flatten() for parameter in critic.parameters()])


def first_step(run: Run, directory: Path, kept: Kept) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The policy's and the critic's gradient in the first update, before any bound on its norm, and its record."""
    job, learner = set_up_at(run, directory)
    record = next(learner.advance())
    by_optimizer = {id(optimizer): gradient for optimizer, gradient in kept}
    cast = job.learner.cast
    return by_optimizer[id(cast.optimizer)], by_optimizer[id(cast.critic_optimizer)], record


Scored = tuple[Sequences, Rollout, Credit]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Scored]:
    """Each rollout: its completions, how the models scored them, and the credit that was made of it."""
    found: list[Scored] = []
    score, credit = Scorer.rollout, PolicyGradient.credit

    def scored(self: Scorer, groups: Any, sequences: Sequences, parts: Any) -> Rollout:
        rollout = score(self, groups, sequences, parts)
        found.append((sequences, rollout, credit(self.objective, rollout)))
        return rollout

    monkeypatch.setattr(Scorer, "rollout", scored)
    return found


FREE = {"optimizer.max_grad_norm": 1e9, "critic.max_grad_norm": 1e9}


@pytest.mark.parametrize("kind", [pytest.param("stopped", marks=pytest.mark.slow), "mlp"])
def test_a_critic_on_detached_states_leaves_the_policys_gradient_as_it_is(
    kind: str, make_run: MakeRun, tmp_path: Path, kept: Kept
) -> None:
    """Bit for bit what it is when the value loss is taken times 0. The head is not 0, or nothing could get through."""
    run = make_run(kind, **FREE, **KNOWING)
    with pytest.MonkeyPatch.context() as patch:
        fit = ValueLoss.__call__

        def nothing(self: ValueLoss, batch: ValueBatch, totals: Totals) -> LossParts:
            parts = fit(self, batch, totals)
            return replace(parts, loss=parts.loss * 0)

        patch.setattr(ValueLoss, "__call__", nothing)
        expected, none, _ = first_step(run, tmp_path / "without", kept)
    policy, critic, record = first_step(run, tmp_path / "with", kept)
    assert torch.equal(policy, expected)
    assert torch.count_nonzero(none) == 0
    assert float(policy.norm()) > 1e-4
    assert float(critic.norm()) == pytest.approx(record["value/grad_norm"], rel=1e-4)
    assert record["value/grad_norm"] > 1e-3


def test_without_a_stop_the_trunk_takes_the_joint_losss_gradient(
    make_run: MakeRun, tmp_path: Path, seen: list[Scored], kept: Kept
) -> None:
    """Policy loss + c_v * value loss in the trunk, the value loss in the head: by autograd, a completion at a time.

    A separate critic starts with the same values, so its run has the same policy loss and nothing beside it.
    """
    knobs = {**FREE, **KNOWING, "objective.value.clip": None}
    alone, _, _ = first_step(make_run("separate", **knobs), tmp_path / "separate", kept)
    joint, head, record = first_step(make_run("head", **knobs), tmp_path / "head", kept)
    (sequences, _, credit), fresh = seen[-1], set_up(make_run("head", **knobs), tmp_path / "fresh", attempt=1)
    network, critic = fresh.policy.network, fresh.learner.cast.critic
    assert critic is not None
    assert credit.returns is not None
    loss = torch.zeros(())
    for row, (prompt, completion) in enumerate(zip(sequences.prompts, sequences.completions, strict=True)):
        states = base_of(network)(torch.tensor([[*prompt, *completion]])).last_hidden_state[0, len(prompt) - 1 : -1]
        errors = critic.head(states)[:, 0] - credit.returns[row, : len(completion)]
        loss = loss + (errors**2).sum() / (2 * credit.mask.sum())
    parameters = [*network.parameters(), *critic.parameters()]
    *trunk, own_head = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(joint - alone, 0.3 * torch.cat([g.flatten() for g in trunk]), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(head, own_head.flatten(), atol=1e-6, rtol=1e-4)
    assert float((joint - alone).norm()) > 1e-3
    assert record["value/grad_norm"] == pytest.approx(float(own_head.norm()), rel=1e-4)


@pytest.mark.parametrize("kind", ALL_BUT_HEAD_SLOW)
def test_a_warm_up_of_n_updates_leaves_the_policy_bit_for_bit(kind: str, make_run: MakeRun, tmp_path: Path) -> None:
    """Three of the first rollout's four updates train the critic alone, and the fourth both."""
    knobs = {"critic.warmup_updates": 3, "rollout.updates_per_rollout": 4, "budget.updates": 4, **KNOWING}
    job, learner = set_up_at(make_run(kind, **knobs), tmp_path)
    policy, critic = own(job), critics(job)
    for update, record in enumerate(learner.advance(), start=1):
        assert torch.equal(own(job), policy) == (update <= 3)
        assert ("grad_norm" in record) == (update > 3)
        assert record["value/grad_norm"] > 0
        assert not torch.equal(critics(job), critic)
        critic = critics(job)
        assert all(parameter.grad is None for parameter in job.policy.network.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "mlp"])
def test_microbatches_change_no_step(kind: str, make_run: MakeRun, tmp_path: Path, kept: Kept) -> None:
    (policy, critic, record), (policy_2, critic_2, record_2) = [
        first_step(
            make_run(kind, **{**FREE, **KNOWING, "optimizer.microbatch_sequences": size}), tmp_path / str(size), kept
        )
        for size in (16, 8)
    ]
    assert float((policy - policy_2).norm() / policy.norm()) < 1e-5
    assert float((critic - critic_2).norm() / critic.norm()) < 1e-5
    for name in ("value/loss", "value/grad_norm", "grad_norm", "loss"):
        assert record_2[name] == pytest.approx(record[name], rel=1e-5, abs=1e-6)


def test_each_optimizer_has_its_own_limit(make_run: MakeRun, tmp_path: Path, kept: Kept) -> None:
    run = make_run("head", **{**FREE, **KNOWING, "critic.max_grad_norm": 1e-3})
    policy, critic, record = first_step(run, tmp_path, kept)
    assert record["value/grad_norm"] > 1e-2
    assert float(critic.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(policy.norm()) == pytest.approx(record["grad_norm"], rel=1e-5)


def test_a_rate_that_rises_while_the_policy_stands_still_is_refused(make_run: MakeRun) -> None:
    knobs = {"budget.updates": 6, "critic.warmup_updates": 3}
    with pytest.raises(ConfigError, match=r"optimizer\.warmup_updates: 3 given, but critic\.warmup_updates = 3"):
        make_run("separate", **knobs, **{"optimizer.warmup_updates": 3})
    assert make_run("separate", **knobs, **{"optimizer.warmup_updates": 4}).optimizer.warmup_updates == 4


def test_rep_03_the_first_weights_come_from_the_seed_alone(make_run: MakeRun) -> None:
    """The same for every kind, objective and repetition; another seed draws others; the scales are section 10's."""
    runs = [make_run("separate", **KNOWING), make_run("head", **KNOWING, **{"objective.advantage.lam": 0.9})]
    runs += [make_run("head", **KNOWING, seed=1), make_run("head", **{"critic.head_init": "initializer_range"})]
    model = create_tiny(runs[0].model, runs[0].alphabet, 0)  # type: ignore[arg-type]
    torch.manual_seed(5)
    first, second, other, wide = (next(make_critic(run, model).head.parameters()).detach() for run in runs)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    torch.testing.assert_close(first * 33, wide / 0.02, rtol=1e-5, atol=0)
    assert float((wide / 0.02).square().mean()) == pytest.approx(1, abs=0.6)
    layers = [make_critic(make_run("mlp", seed=seed), model).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(layers[0][name], layers[1][name]) for name in layers[0])
    assert not torch.equal(layers[0]["head.0.weight"], layers[2]["head.0.weight"])
    assert torch.count_nonzero(layers[0]["head.4.weight"]) == 0
    assert [tuple(layers[0][f"head.{i}.weight"].shape) for i in (0, 2, 4)] == [(8, 32), (4, 8), (1, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_resumes_as_if_undisturbed(
    kind: str, make_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    run = make_run(kind, **KNOWING, **{"budget.updates": 3, "checkpoint.every": 1})
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert execute(run, straight).state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(run, stopped).state == "interrupted"
    assert execute(run, stopped).state == "finished"
    for name in ("metrics.jsonl", "final.json"):
        assert (straight / name).read_bytes() == (stopped / name).read_bytes()
    critic = json.loads((straight / "provenance.json").read_text())["critic"]
    assert critic == json.loads((stopped / "provenance.json").read_text())["critic"]
    memory = json.loads((straight / "memory.json").read_text())["peak"]["roles"]
    rotary = sum(b.nbytes for b in make_critic(run, create_tiny(run.model, run.alphabet, 0)).buffers())  # type: ignore[arg-type]
    assert memory["critic"] - rotary == 4 * critic["num_parameters"]


@pytest.mark.parametrize("kind", ALL_BUT_HEAD_SLOW)
def test_obj_35_a_cut_goes_on_with_the_value_after_it_and_an_end_does_not(
    kind: str, make_run: MakeRun, tmp_path: Path, seen: list[Scored]
) -> None:
    """Through the sampler, the critic and the rollout of a run: with gamma = lambda = 1 an advantage is what is to
    come, and after a cut the critic's value of the state behind the last token, minus the value."""
    knobs: dict[str, Any] = {
        **KNOWING, "rollout.max_completion_tokens": 3, "objective.advantage.whiten": False,
        "objective.advantage.truncation_bootstrap": True, "objective.penalty.kind": "no_penalty",
    }  # fmt: skip
    _, learner = set_up_at(make_run(kind, **knobs), tmp_path)
    next(learner.advance())
    (sequences, rollout, credit), *_ = seen
    ended = 0
    fresh = set_up(make_run(kind, **knobs), tmp_path / "fresh", attempt=1)
    critic, network = fresh.learner.cast.critic, fresh.policy.network
    assert critic is not None
    for row, (prompt, completion) in enumerate(zip(sequences.prompts, sequences.completions, strict=True)):
        with torch.no_grad():
            states = (critic.trunk or base_of(network))(torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
            values = critic.value(states)[len(prompt) - 1 :]
        to_come = rollout.reward[row] + (0 if rollout.terminated[row] else values[-1])
        ended += int(rollout.terminated[row])
        torch.testing.assert_close(
            credit.advantage[row, : len(completion)], (to_come - values[:-1]).float(), atol=1e-5, rtol=0
        )
    assert 0 < ended < len(sequences)
    said = json.loads((tmp_path / "formula.json").read_text())["formula"]["advantage"]
    assert "a cut by the budget counts on with the critic's value" in said


def test_obj_35_the_numbers(make_run: MakeRun) -> None:
    knobs = {"objective.advantage.whiten": False, "objective.penalty.kind": "no_penalty"}
    rollout = Rollout(
        reward=torch.zeros(2, dtype=torch.float64), group=torch.tensor([0, 1]), mask=torch.ones(2, 2, dtype=torch.bool),
        terminated=torch.tensor([False, True]), old_logp=torch.zeros(2, 2), ref_logp=None,
        value=torch.tensor([[0.2, 0.4], [0.2, 0.4]]), next_value=torch.tensor([0.5, 0.5]), completion_budget=2,
    )  # fmt: skip
    expected = {True: [[0.3, 0.1], [-0.2, -0.4]], False: [[-0.2, -0.4], [-0.2, -0.4]]}
    rules = {True: "counts on with the critic's value", False: "is an end"}
    for bootstrap in (True, False):
        objective = make_run("head", **knobs, **{"objective.advantage.truncation_bootstrap": bootstrap}).objective
        assert isinstance(objective, PolicyGradient)
        torch.testing.assert_close(objective.credit(rollout).advantage, torch.tensor(expected[bootstrap]))
        assert rules[bootstrap] in objective.formula()["advantage"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_explains_what_a_policy_that_stands_still_will_earn(
    kind: str, make_run: MakeRun, tmp_path: Path
) -> None:
    """Values are taken before a rollout's update, so each rollout is new to the critic."""
    knobs: dict[str, Any] = {
        "optimizer.lr": 1e-12, "budget.updates": 30, "rollout.prompts": 16, "rollout.group_size": 8, "meter.every": 0,
        "objective.value.clip": None, "objective.penalty.kind": "no_penalty",
    }  # fmt: skip
    job, learner = set_up_at(make_run(kind, **knobs), tmp_path)
    explained: list[float] = []
    while job.learner.cast.progress.update < 30:
        explained += [record["value/explained_variance"] for record in learner.advance()]
    assert abs(explained[0]) < 1e-3
    assert sum(explained[-5:]) / 5 > 0.04


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "separate"])
def test_layers_that_are_computed_again_change_no_gradient(
    kind: str, make_run: MakeRun, tmp_path: Path, kept: Kept
) -> None:
    (policy, critic, _), (policy_2, critic_2, _) = [
        first_step(
            make_run(kind, **{**FREE, **KNOWING, "compute.gradient_checkpointing": on}), tmp_path / str(on), kept
        )
        for on in (False, True)
    ]
    torch.testing.assert_close(policy, policy_2, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(critic, critic_2, atol=1e-7, rtol=1e-5)
