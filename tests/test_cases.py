"""Acceptance cases through whole steps and runs, where tests of single parts could all pass and the case still fail."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from algorithms.axes.batch import Batch, LossParts, Totals, group_tokens
from algorithms.axes.policy_gradient import PolicyGradient
from bench import casting, catalog, checkpoint, store
from bench.cli import app
from bench.config import Run
from bench.dialect import to_yaml
from bench.generate import Completion, sample
from bench.glossary import METRICS
from bench.loading import build_run, load_run, nested
from bench.models import create_tiny, load_folder, save_folder
from bench.policy import Sequences, token_logps
from bench.rollout import Graded, Group, Sampler
from bench.rollout_metrics import reward_metrics
from bench.train import Job, execute, set_up
from sweeps.grid import load_sweep
from tasks.chain_sum import ChainSum
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
FIVE = ("ppo", "grpo", "dr_grpo", "dapo", "dpo")
# Weights are random: partial credit for the form tells completions apart, so no warm start is needed.
PLAIN: dict[str, Any] = {
    "task": {"name": "chain_sum", "num_terms": 2, "num_digits": 1},
    "model": {
        "kind": "tiny", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64,
        "max_positions": 16,
    },
    "reward": {"format": 1.0},
    "rollout": {"prompts": 4, "group_size": 4, "max_completion_tokens": 6},
    "optimizer": {"lr": 1e-3, "microbatch_sequences": 16},
    "budget": {"updates": 2},
    "evaluation": {"problems": 2, "samples": 2, "ks": [1], "start": False},
    "tracking": {"enabled": False},
}  # fmt: skip
# Random weights are hardly ever right, so DAPO would find no group with both verdicts.
ONE_ROUND = {"selection": {"max_rounds": 1, "on_exhausted": "pad_with_uniform"}}


@pytest.fixture
def make_run(tmp_path: Path, own_knobs: Callable[[str], dict[str, Any]]) -> MakeRun:
    """`make_run("dapo", **{"optimizer.lr": 1e-4})`: a run of a random tiny model, with dotted knobs."""

    def make(algorithm: str, **knobs: Any) -> Run:
        dynamic = catalog.load_preset(algorithm).objective.formula().get("selection", "").startswith("groups with")
        own: dict[str, Any] = {"objective": ONE_ROUND} if dynamic else {}
        if not catalog.load_preset(algorithm).objective.needs.reward:
            own["reward"] = {"format": 0.0}
        output = {"output": {"root": str(tmp_path), "cache": str(tmp_path / "cache")}}
        return build_run({"algorithm": algorithm, **PLAIN, **own, **output}, nested({**own_knobs(algorithm), **knobs}))

    return make


@pytest.fixture
def plain_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers become SGD at rate 1, so that the change of the weights is minus their gradient."""

    def sgd(parameters: Any, lr: float, config: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0)

    monkeypatch.setattr(casting, "adamw", sgd)


def first_rollout(run: Run, directory: Path) -> tuple[Job, list[dict[str, Any]]]:
    """Everything up to the end of the first rollout's optimizer steps, and their metrics."""
    job = set_up(run, directory, attempt=1)
    job.learner.prepare()
    return job, list(job.learner.advance())


def weights(job: Job) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in job.policy.network.parameters()])


def _skip_what_needs_a_correct_sample(algorithm: str) -> None:
    if algorithm in ("rft", "online_rft"):
        pytest.skip("random weights are hardly ever right: whole runs of it are in test_train.py")


@pytest.mark.usefixtures("plain_descent")
def test_obj_02_04_05_accumulation_changes_no_step(each_algorithm: str, make_run: MakeRun, tmp_path: Path) -> None:
    """One step on the same 16 completions in 1, 4 and 16 microbatches: the same change of every weight, the same
    critic's gradient and the same reported loss, with no factor for the number of parts."""
    _skip_what_needs_a_correct_sample(each_algorithm)
    steps: list[tuple[Tensor, dict[str, Any]]] = []
    for size in (16, 4, 1):
        knobs = {"optimizer.microbatch_sequences": size, "optimizer.lr": 1.0, "optimizer.max_grad_norm": 1e9}
        run = make_run(each_algorithm, **knobs)
        job = set_up(run, tmp_path / str(size), attempt=1)
        start = weights(job)
        job.learner.prepare()
        (record,) = job.learner.advance()
        steps.append((weights(job) - start, record))
    whole, record = steps[0]
    assert whole.norm() > 1e-2
    for part, other in steps[1:]:
        assert float((part - whole).norm() / whole.norm()) <= 1e-5
        for name in ("loss", "grad_norm", *(["value/grad_norm"] if each_algorithm == "ppo" else [])):
            assert other[name] == pytest.approx(record[name], rel=1e-5, abs=1e-6)


def test_obj_03_each_step_is_divided_by_its_own_counts(
    each_online: str, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout of 4 groups in 2 steps of 4 microbatches each: every denominator counts its own step's 2 groups, 8
    completions and their tokens, not the rollout's and not the microbatch's."""
    steps: dict[int, list[tuple[Batch, Totals]]] = {}
    original = PolicyGradient.loss

    def recorded(self: PolicyGradient, batch: Batch, totals: Totals) -> LossParts:
        steps.setdefault(id(totals), []).append((batch, totals))
        return original(self, batch, totals)

    monkeypatch.setattr(PolicyGradient, "loss", recorded)
    if catalog.load_preset(each_online).objective.needs.one_update:
        pytest.skip("one step a rollout: nothing to tell apart")
    knobs = {"rollout.updates_per_rollout": 2, "optimizer.microbatch_sequences": 2, "seed": 3}
    _, records = first_rollout(make_run(each_online, **knobs), tmp_path / "run")
    assert [len(parts) for parts in steps.values()] == [4, 4]
    counted = []
    for parts in steps.values():
        totals = parts[0][1]
        assert totals.num_tokens == sum(int(batch.mask.sum()) for batch, _ in parts)
        assert (totals.num_sequences, totals.num_groups, totals.completion_budget) == (8, 2, 6)
        counted.append(totals.num_tokens)
    assert counted[0] != counted[1], "equal counts could not tell the steps apart"
    assert [record["tokens/trained"] for record in records] == [counted[0], sum(counted)]


@pytest.mark.parametrize("reward", [0.0, 1.0, 3.0, -17.25])
def test_obj_09_the_metric_says_that_every_group_is_flat(reward: float) -> None:
    """Eight equal rewards: frac_zero_std is 1 and the spread within the group 0, with no warning on the way."""
    grade = Grade(correct=True, answer_key="1", method="end", parsed=True, truncated=False)
    member = Graded(Completion((5, 1), terminated=True, logps=(-1.0, -1.0)), "1", grade, reward, True)
    metrics = reward_metrics([Group(ChainSum().generate("train", 0), (4,), (member,) * 8)])
    assert metrics["groups/frac_zero_std"] == 1
    assert (metrics["reward/mean"], metrics["reward/within_group_std"]) == (reward, 0)


def test_obj_22_the_end_token_is_trained_and_padding_is_not(make_run: MakeRun) -> None:
    """Pad = end: of [t, t, END] in width 6 the gradient reaches three tokens, END among them, and no pad."""
    run = make_run("dapo")
    model = create_tiny(run.model, run.task.alphabet, 0)  # type: ignore[arg-type]
    end = model.end_ids[0]
    sequences = Sequences.of([[4, end, 5]] * 2, [[7, 8, end], [7, 8, 9, 3, 4, end]], pad_id=end)
    logp = token_logps(model.network, sequences, 1.0).detach().requires_grad_()
    group = torch.zeros(2, dtype=torch.int64)
    batch = Batch(
        logp=logp, old_logp=logp.detach(), ref_logp=None, advantage=torch.ones(2, 6), mask=sequences.mask,
        group_tokens=group_tokens(sequences.mask, group),
    )  # fmt: skip
    assert isinstance(run.objective, PolicyGradient)
    run.objective.loss(batch, Totals.of(sequences.mask, group, 6)).loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [pytest.approx([-1 / 9] * 3 + [0] * 3), pytest.approx([-1 / 9] * 6)]


def test_obj_22_a_run_does_not_notice_that_pad_is_the_end_token(make_run: MakeRun, tmp_path: Path) -> None:
    """The same weights with a pad token of their own and with pad = end: the same metrics of every update."""
    tiny = make_run("grpo")
    model = create_tiny(tiny.model, tiny.task.alphabet, 0)  # type: ignore[arg-type]
    lines = []
    for name in ("own", "end"):
        if name == "end":
            model.tokenizer.pad_token = model.tokenizer.eos_token
        save_folder(model, tmp_path / name)
        assert (load_folder(tmp_path / name, "plain").pad_id in model.end_ids) == (name == "end")
        plain = {key: value for key, value in PLAIN.items() if key != "model"}
        pretrained = {"model": {"kind": "pretrained", "path": str(tmp_path / name)}}
        run = build_run({"algorithm": "grpo", **plain, **pretrained, "meter": {"every": 0}})
        lines.append(first_rollout(run, tmp_path / f"run {name}")[1])
    assert lines[0][0]["len/min"] < lines[0][0]["len/max"], "nothing is padded"
    assert lines[0] == lines[1]


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_obj_27_dropout_is_off_in_a_whole_run(algorithm: str, make_run: MakeRun, tmp_path: Path) -> None:
    """A checkpoint that asks for dropout 0.5: sampler, old policy, reference and first step agree on every token."""
    tiny = make_run("grpo")
    model = create_tiny(tiny.model, tiny.task.alphabet, 0)  # type: ignore[arg-type]
    model.network.config.attention_dropout = 0.5
    save_folder(model, tmp_path / "model")
    noisy = load_folder(tmp_path / "model", "plain").network.train()
    ids = torch.tensor([[4, 5, 6, 7]])
    assert not torch.equal(noisy(ids).logits, noisy(ids).logits), "dropout would be seen if it were on"
    dump = make_run(algorithm).dump() | {"model": {"kind": "pretrained", "path": str(tmp_path / "model")}}
    _, (first, *_) = first_rollout(build_run(dump), tmp_path / "run")
    assert (first["ratio/mean"], first["ratio/max"]) == (pytest.approx(1, abs=1e-6), pytest.approx(1, abs=1e-6))
    assert first["mismatch/absdiff_max"] < 1e-5
    assert abs(first["kl/ref_k1"]) < 1e-6


def test_obj_28_policy_old_and_reference_are_tempered_alike(make_run: MakeRun, tmp_path: Path) -> None:
    """Temperature 0.5: one untempered side would move the ratio, the KL to the reference or the sampler's gap."""
    _, (first, *_) = first_rollout(make_run("grpo", **{"rollout.temperature": 0.5}), tmp_path / "run")
    assert first["ratio/max"] == pytest.approx(1, abs=1e-6)
    assert abs(first["kl/ref_k1"]) < 1e-6
    assert abs(first["kl/ref_k3"]) < 1e-6
    assert first["mismatch/absdiff_max"] < 1e-5


def test_obj_38_rep_10_one_verifier_and_the_same_prompts_for_every_algorithm(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain function grades for all five. Before the first update weights and draws are one, so prompts, completions
    and rewards are equal in every algorithm; the second rollout still has the same prompts."""
    graded: list[tuple[str, str, float]] = []
    original = Sampler.groups

    def recorded(self: Sampler, model: Any, problems: Sequence[Problem], round_index: int) -> list[Group]:
        groups = original(self, model, problems, round_index)
        graded.extend((group.problem.id, member.text, member.reward) for group in groups for member in group.members)
        return groups

    def plain_verifier(self: ChainSum, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        right = "7" in completion
        return Grade(correct=right, answer_key=str(right), method="end", parsed=True, truncated=truncated)

    monkeypatch.setattr(Sampler, "groups", recorded)
    monkeypatch.setattr(ChainSum, "grade", plain_verifier)
    logged, rollouts = {}, {}
    for algorithm in FIVE:
        graded.clear()
        run = make_run(algorithm, **{"reward.format": 0.0})
        job, (first,) = first_rollout(run, tmp_path / algorithm)
        list(job.learner.advance())
        rollouts[algorithm] = list(graded)
        logged[algorithm] = {name: first[name] for name in ("reward/mean", "reward/accuracy")}
    for algorithm in FIVE:
        assert rollouts[algorithm][:16] == rollouts["grpo"][:16]
        assert [row[0] for row in rollouts[algorithm]] == [row[0] for row in rollouts["grpo"]]
        if algorithm != "dpo":
            assert logged[algorithm] == logged["grpo"]
    assert all(reward == float("7" in text) for _, text, reward in rollouts["grpo"])
    assert {row[2] for row in rollouts["grpo"]} == {0.0, 1.0}
    assert rollouts["grpo"][0][0] != rollouts["grpo"][16][0]


def test_rep_02_five_seeds_are_five_trajectories(make_run: MakeRun, tmp_path: Path) -> None:
    """The seed reaches the model's first weights, the critic made of them, the prompts and the draws."""
    seen: list[tuple[Any, ...]] = []
    for seed in range(5):
        job, records = first_rollout(make_run("ppo", seed=seed), tmp_path / str(seed))
        start = json.loads((tmp_path / str(seed) / "provenance.json").read_text())["start_weights_sha256"]
        assert job.learner.cast.critic is not None
        critic = float(job.learner.cast.critic.trunk.get_input_embeddings().weight.detach().sum())
        prompts = tuple(problem.id for problem in job.learner.stream.round(0))  # type: ignore[attr-defined]
        seen.append((start, critic, prompts, checkpoint.weights_digest(job.policy.network), json.dumps(records)))
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 5


def test_rep_02_samples_differ_between_seeds_on_the_same_weights(make_run: MakeRun, tmp_path: Path) -> None:
    """One prompt and one model for all seeds: what is left is the sampler's own stream."""
    problem = ChainSum(num_terms=2, num_digits=1).generate("train", 0)
    texts = set()
    for seed in range(5):
        run = make_run("grpo", seed=seed)
        job = set_up(run, tmp_path / str(seed), attempt=1)
        model = create_tiny(run.model, run.task.alphabet, 0)  # type: ignore[arg-type]
        (group,) = job.learner.sampler.groups(model, [problem], 0)  # type: ignore[attr-defined]
        texts.add(tuple(member.text for member in group.members))
    assert len(texts) == 5


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_cfg_01_three_misspelt_keys_of_a_file_end_it_with_status_2(verb: str, tmp_path: Path) -> None:
    """A near name, a right name in the wrong place and a hyphen, all said at once with section and nearest knob."""
    data = {key: dict(value) for key, value in PLAIN.items()}
    data["optimizer"]["learning_rat"] = data["optimizer"].pop("lr")
    data |= {"lr": 1e-3, "num-epochs": 2, "output": {"root": str(tmp_path / "runs")}}  # type: ignore[dict-item]
    path = tmp_path / "mistakes.yaml"
    path.write_text(to_yaml({"base": data} if verb == "sweep" else data))
    result = CliRunner().invoke(app, [verb, str(path), *(["--go"] if verb == "sweep" else [])])
    said = " ".join((result.stdout + result.stderr).split())
    assert result.exit_code == 2
    assert "Traceback" not in said
    for key, nearest in (
        ("optimizer.learning_rat:", "optimizer.lr"),
        (" lr:", "optimizer.lr"),
        (" num-epochs:", "rollout.epochs"),
    ):
        _, found, line = said.partition(key)
        assert found
        assert f"did you mean {nearest}?" in line[:120]
    assert not (tmp_path / "runs").exists()


def test_cfg_12_a_learning_rate_of_1e_6_reaches_the_optimizer_by_every_road(make_run: MakeRun, tmp_path: Path) -> None:
    """YAML, command line and sweep grid: provenance.json is read back from the optimizer, and so is every update."""
    plain = {key: value for key, value in PLAIN.items() if key != "optimizer"}
    yaml, grid = tmp_path / "run.yaml", tmp_path / "grid.yaml"
    yaml.write_text(to_yaml({"algorithm": "ppo", "critic": {"lr": 3e-5}, **PLAIN}).replace("0.001", "1e-6"))
    base = to_yaml({"base": {**plain, "optimizer": {"microbatch_sequences": 16}}})
    grid.write_text(base + "cross: {algorithm: [grpo], optimizer.lr: [1e-6]}\n")
    knobs = [f"output.root={tmp_path}", f"output.cache={tmp_path}/cache"]
    roads = {
        "yaml": load_run(yaml, knobs),
        "override": load_run(yaml, [*knobs, "optimizer.lr=1e-6", "seed=1"]),
        "grid": load_sweep(grid, knobs).trials[0].run,
    }
    for name, run in roads.items():
        job, records = first_rollout(run, tmp_path / name)
        written = json.loads((tmp_path / name / "provenance.json").read_text())["optimizers"]["policy"]
        assert {written["lr"], job.learner.cast.optimizer.param_groups[0]["lr"], records[0]["lr"]} == {1e-6}


@pytest.mark.usefixtures("plain_descent")
def test_cfg_12_the_record_is_the_optimizers_own(make_run: MakeRun, tmp_path: Path) -> None:
    set_up(make_run("grpo", **{"optimizer.lr": 1e-6}), tmp_path, attempt=1)
    written = json.loads((tmp_path / "provenance.json").read_text())["optimizers"]["policy"]
    assert (written["kind"], written["lr"]) == ("SGD", 1.0)


@pytest.mark.parametrize("algorithm", ["ppo", "dpo"])
def test_thr_02_03_tokens_of_a_run_are_those_of_its_completions(
    algorithm: str, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts count once a completion, generated tokens to their end token, trained ones over all 8 microbatches."""
    lengths: list[int] = []
    original = Sampler.groups

    def recorded(self: Sampler, model: Any, problems: Sequence[Problem], round_index: int) -> list[Group]:
        groups = original(self, model, problems, round_index)
        lengths.extend(len(member.completion.token_ids) for group in groups for member in group.members)
        return groups

    monkeypatch.setattr(Sampler, "groups", recorded)
    job, records = first_rollout(make_run(algorithm, **{"optimizer.microbatch_sequences": 2}), tmp_path / "run")
    taken = job.instruments.clock.take(attempt=1, update=1, metered=False)
    rollouts = 2 if algorithm == "dpo" else 1  # DPO samples its whole budget first
    assert (len(lengths), taken["completions"]) == (16 * rollouts, 16 * rollouts)
    assert taken["tokens"]["generated"] == sum(lengths) == records[0]["tokens/generated"]
    assert taken["tokens"]["prompt"] == len("1+2=") * 16 * rollouts
    trained = sum(lengths) if algorithm == "ppo" else records[0]["tokens/trained"]
    assert taken["tokens"]["trained"] == records[0]["tokens/trained"] == trained
    assert taken["tokens"]["padded"] > taken["tokens"]["trained"] > 0


def test_mem_04_the_memory_report_of_a_run_without_a_gpu(make_run: MakeRun, tmp_path: Path) -> None:
    """GPU columns are n/a, never 0; the process's own memory is a number; the file says null and not 0."""
    from reports import memory
    from reports.parts.table import Table

    run = make_run("grpo", **{"meter.every": 1})
    assert execute(run, tmp_path / "sweep" / run.id).state == "finished"
    page = memory.render(store.read_sweep(tmp_path / "sweep"))
    table = next(b for b in page.blocks if isinstance(b, Table) and b.name.startswith("memory_phases"))
    shown = dict(zip(table.columns, map(str, table.rows[0]), strict=True))
    assert (shown["GPU allocated"], shown["GPU reserved"]) == ("n/a", "n/a")
    assert float(shown["Process RSS"].replace(",", "")) > 50
    assert [table.records[0][name] for name in ("gpu_allocated_bytes", "gpu_reserved_bytes")] == [None, None]


def test_obj_26_every_metric_of_a_run_is_explained(each_algorithm: str, make_run: MakeRun, tmp_path: Path) -> None:
    """The glossary knows each name that a run records, and says of the loss that 0 is normal and what to watch."""
    _skip_what_needs_a_correct_sample(each_algorithm)
    knobs = {"validation.every": 1, "validation.problems": 2, "validation.samples": 1}
    assert execute(make_run(each_algorithm, **knobs), tmp_path / "run").state == "finished"
    names = {name for line in store.read_run(tmp_path / "run").metrics for name in line}
    assert names <= set(METRICS), names - set(METRICS)
    assert all(word in METRICS["loss"] for word in ("near 0 is normal", "reward/mean", "grad_norm"))


def test_obj_24_any_of_several_end_tokens_ends_a_completion(make_run: MakeRun) -> None:
    """Two end ids: each ends some of 64 completions, none goes on after one, and the one that came is kept."""
    run = make_run("grpo")
    model = create_tiny(run.model, run.task.alphabet, 0)  # type: ignore[arg-type]
    assert model.network.generation_config is not None
    model.network.generation_config.eos_token_id = [1, 5]
    keys = [list(range(64))]
    (group,) = sample(model, [[4, 1, 5, 6]], keys, max_tokens=8, temperature=1.0)
    assert all(completion.terminated == (completion.token_ids[-1] in (1, 5)) for completion in group)
    assert not any({1, 5} & set(completion.token_ids[:-1]) for completion in group)
    assert {completion.token_ids[-1] for completion in group if completion.terminated} == {1, 5}
