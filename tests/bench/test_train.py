"""Whole runs of every algorithm: deterministic, paired, resumable, and ending as what they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import catalog, checkpoint, store
from bench.casting import make_cast
from bench.config import Run
from bench.learner import Cast
from bench.models import create_tiny
from bench.rollout import PromptStream
from bench.train import execute

MakeRun = Callable[..., Run]
ALGORITHMS = catalog.names("algorithms")


def lines(directory: Path, name: str = "metrics.jsonl") -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def test_rep_01_rep_09_a_run_repeats_bit_for_bit_also_when_stopped_and_resumed(
    each_algorithm: str,
    tiny_run: MakeRun,
    counted_alike: Callable[[Path], bool],
    tmp_path: Path,
    stopping: Callable[[Any, str, int], None],
) -> None:
    """Twice straight, and once stopped after its first checkpoint and started again: the same metrics file byte for
    byte, completions, verdicts and weights. The tokens that its timings count are those of its metrics."""
    run = tiny_run(each_algorithm, **{"checkpoint.every": 2})
    for name in ("first", "second"):
        assert execute(run, tmp_path / name).state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    status = execute(run, tmp_path / "stopped")
    assert (status.state, status.attempt) == ("finished", 2)
    for file in ("metrics.jsonl", "final.json", "eval/test.estimates.parquet", "eval/test.jsonl.zst"):
        for name in ("second", "stopped"):
            assert (tmp_path / "first" / file).read_bytes() == (tmp_path / name / file).read_bytes()
    assert [line["update"] for line in lines(tmp_path / "first")] == [0, 1, 2, 3, 4]
    assert counted_alike(tmp_path / "first")
    assert (
        json.loads((tmp_path / "first/final.json").read_text())["weights_sha256"]
        != json.loads((tmp_path / "first/provenance.json").read_text())["start_weights_sha256"]
    )


def test_rep_02_seeds_differ_and_share_the_start(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Other prompts, other samples, another end; the warm-started weights are one."""
    first, second = tmp_path / "0", tmp_path / "1"
    execute(tiny_run("grpo", seed=0), first)
    execute(tiny_run("grpo", seed=1), second)
    assert (first / "metrics.jsonl").read_bytes() != (second / "metrics.jsonl").read_bytes()
    final = [json.loads((folder / "final.json").read_text())["weights_sha256"] for folder in (first, second)]
    start = [json.loads((folder / "provenance.json").read_text())["start_weights_sha256"] for folder in (first, second)]
    assert final[0] != final[1]
    assert start[0] == start[1]


def test_rep_10_every_algorithm_sees_the_same_prompts(tiny_run: MakeRun) -> None:
    streams = [PromptStream(run.task, run.seed, run.rollout.prompts) for run in map(tiny_run, ALGORITHMS)]
    for index in range(3):
        assert len({tuple(p.id for p in stream.round(index)) for stream in streams}) == 1
    other = PromptStream(tiny_run("grpo").task, 1, 8)
    assert other.round(0)[0].id != streams[0].round(0)[0].id


def test_obj_38_one_verifier_gives_all_online_algorithms_the_same_first_rewards(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    """The first rollout of each comes from the same weights, prompts and draws; DAPO's is compared before selection."""
    for algorithm in ("ppo", "grpo", "dr_grpo"):
        execute(tiny_run(algorithm), tmp_path / algorithm)
    first = [lines(tmp_path / algorithm)[1] for algorithm in ("ppo", "grpo", "dr_grpo")]
    names = ("reward/mean", "reward/std", "reward/accuracy", "len/mean", "groups/all_wrong")
    assert len({tuple(record[name] for name in names) for record in first}) == 1
    assert 0 < first[0]["reward/accuracy"] < 1


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "dr_grpo", "dapo"])
def test_obj_26_the_first_step_is_on_policy(algorithm: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    """Ratio 1 for every token and no clipping on a rollout's first step, yet a gradient; off-policy on its second."""
    execute(tiny_run(algorithm), tmp_path / algorithm)
    first, second = lines(tmp_path / algorithm)[1:3]
    assert first["ratio/mean"] == pytest.approx(1, abs=1e-6)
    assert first["ratio/max"] == pytest.approx(1, abs=1e-6)
    assert first["clip/region"] == 0
    assert first["grad_norm"] > 1e-4
    assert first["mismatch/absdiff_max"] < 1e-5
    assert second["ratio/max"] > 1.001


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_what_the_objective_needs_is_loaded(algorithm: str, tiny_run: MakeRun) -> None:
    """PPO holds policy, reference and critic; GRPO policy and reference; Dr. GRPO and DAPO the policy alone; DPO takes
    the reference's log-probabilities before the first update and holds no second model."""
    run = tiny_run(algorithm)
    cast = make_cast(run, create_tiny(run.model, run.task.alphabet, 0))
    held = {name for name in ("reference", "critic", "critic_optimizer") if getattr(cast, name) is not None}
    with_reference = ("grpo", "rloo", "reinforce_pp")
    expected = {"ppo": {"reference", "critic", "critic_optimizer"}} | {key: {"reference"} for key in with_reference}
    assert held == expected.get(algorithm, set())


def test_the_critic_starts_at_zero_and_apart_from_the_policy(tiny_run: MakeRun) -> None:
    run = tiny_run("ppo")
    cast = make_cast(run, create_tiny(run.model, run.task.alphabet, 0))
    assert cast.critic is not None
    assert torch.count_nonzero(cast.critic.head.weight) == 0
    policy = {p.data_ptr() for p in cast.policy.network.parameters()}
    assert not policy & {p.data_ptr() for p in cast.critic.parameters()}


def test_cfg_12_the_learning_rate_reaches_the_optimizer(tiny_run: MakeRun, tmp_path: Path) -> None:
    execute(tiny_run("ppo", **{"optimizer.lr": 1e-6, "critic.lr": 3e-5}), tmp_path / "run")
    optimizers = json.loads((tmp_path / "run/provenance.json").read_text())["optimizers"]
    assert optimizers["policy"]["lr"] == 1e-6
    assert optimizers["critic"]["lr"] == 3e-5
    assert {line["lr"] for line in lines(tmp_path / "run")[1:]} == {1e-6}


def test_a_run_whose_gradient_is_not_finite_ends_as_diverged(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are kept, the state says which update, and running it again does not start it over."""
    from bench import train

    def poisoned(run: Run, start: object) -> Cast:
        cast = make_cast(run, start)  # type: ignore[arg-type]
        with torch.no_grad():
            next(cast.policy.network.parameters())[0, 0] = float("inf")
        return cast

    monkeypatch.setattr(train, "make_cast", poisoned)
    run = tiny_run("dr_grpo", **{"validation.every": 0, "validation.problems": 100, "validation.samples": 4})
    status = execute(run, tmp_path / "run")
    assert status.state == "diverged"
    assert status.error is not None
    assert "at update 1" in status.error
    assert (tmp_path / "run/run.yaml").exists()
    assert execute(run, tmp_path / "run").attempt == 1


def test_a_run_without_a_signal_ends_with_a_sentence(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Right and wrong are worth the same up to rounding: every group is flat, nothing could move, the run says so."""
    run = tiny_run("grpo", **{"reward.correct": 1e-9})
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert status.error is not None
    assert "no informative group" in status.error


def test_dpo_without_a_pair_ends_with_a_sentence(tiny_run: MakeRun, tmp_path: Path) -> None:
    status = execute(tiny_run("dpo", **{"reward.correct": 1e-9}), tmp_path / "run")
    assert status.state == "failed"
    assert status.error is not None
    assert "no preference pair" in status.error


def test_the_validation_chosen_model_is_the_final_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo", **{"validation.select": "validation", "optimizer.lr": 0.1})
    assert execute(run, tmp_path / "run").state == "finished"
    scores = {
        line["update"]: line["validation/pass@1"] for line in lines(tmp_path / "run") if "validation/pass@1" in line
    }
    best = max(scores, key=lambda update: (scores[update], -update))
    assert json.loads((tmp_path / "run/final.json").read_text())["update"] == best


def test_the_run_directory_holds_the_file_contract(tiny_run: MakeRun, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    execute(tiny_run("ppo"), directory)
    record = store.read_run(directory)
    assert not record.problems
    assert record.status.state == "finished"
    assert record.formula is not None
    assert set(record.formula) == {"algorithm", "title", "formula", "sources", "objective", "reward"}
    timings = record.timings
    assert [line["update"] for line in timings] == [0, 1, 2, 3, 4]
    assert all(line["tokens"]["trained"] > 0 for line in timings[1:])
    assert sum(line["completions"] for line in timings) == 2 * 8 * 8
    memory = record.memory
    assert memory is not None
    roles = memory["peak"]["roles"]
    network = create_tiny(tiny_run("ppo").model, "0123456789+=", 0).network
    policy_bytes = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    assert roles["policy"] == roles["reference"] == policy_bytes
    head_bytes = 4 * 32
    assert roles["critic"] == policy_bytes + head_bytes
    assert memory["gpu_allocated_bytes"] is None
    assert memory["process_rss_bytes"] > 0
    for name in ("start", "test"):
        estimates = record.estimates(name)
        assert estimates is not None
        assert len(estimates.problem_id) == 9
        manifest = record.manifest(name)
        assert manifest is not None
        assert manifest["split"] == "test"


def test_checkpoints_are_hugging_face_folders_and_old_ones_go(tiny_run: MakeRun, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = tiny_run("grpo", **{"checkpoint.every": 2, "budget.updates": 8})
    execute(run, tmp_path / "run")
    assert [folder.name for folder in checkpoint.complete(tmp_path / "run/checkpoints")] == ["step_000006"]
    final = tmp_path / "run/checkpoints/final"
    tokenizer = AutoTokenizer.from_pretrained(final)
    assert tokenizer.decode(tokenizer("3+4=")["input_ids"]) == "3+4="
    network = AutoModelForCausalLM.from_pretrained(final)
    digest = json.loads((tmp_path / "run/final.json").read_text())["weights_sha256"]
    assert checkpoint.weights_digest(network) == digest


def test_a_checkpoint_without_its_marker_does_not_count(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo")
    cast = make_cast(run, create_tiny(run.model, run.task.alphabet, 0))
    for update in (2, 4, 10):
        cast.progress.update = update
        checkpoint.save(tmp_path, cast, keep=3, extra={})
    (tmp_path / "step_000010" / checkpoint.MARKER).unlink()
    (tmp_path / "step_000004" / checkpoint.MARKER).write_text("{")
    assert [folder.name for folder in checkpoint.complete(tmp_path)] == ["step_000002"]


def test_completions_are_counted_before_selection(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Dynamic sampling is charged for every completion it drew."""
    execute(tiny_run("dapo"), tmp_path / "run")
    rollouts = [line for line in lines(tmp_path / "run") if "groups/rounds" in line]
    assert rollouts[-1]["completions/generated"] == sum(line["groups/rounds"] for line in rollouts) * 64
    assert all(line["groups/kept_frac"] * line["groups/rounds"] == pytest.approx(1) for line in rollouts)
    assert any(line["groups/all_correct"] + line["groups/all_wrong"] > 0 for line in rollouts), "nothing to select from"


def test_a_partial_rollout_does_not_exceed_the_budget(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Few groups qualify, so minibatches are empty and rollouts give fewer updates; the schedule stays above 0."""
    knobs = {
        "objective.selection.on_exhausted": "use_partial", "objective.selection.max_rounds": 1, "rollout.prompts": 4,
        "rollout.updates_per_rollout": 4, "budget.updates": 8, "optimizer.schedule": "linear", "rollout.group_size": 4,
    }  # fmt: skip
    assert execute(tiny_run("dapo", **knobs), tmp_path / "run").state == "finished"
    updates = lines(tmp_path / "run")[1:]
    assert [line["update"] for line in updates] == list(range(1, 9))
    assert all(line["lr"] > 0 for line in updates)
    assert sum("groups/rounds" in line for line in updates) > 2, "the rollouts were not partial"


def test_one_update_a_rollout_needs_no_pass_for_the_old_policy(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The update's own pass is the old one: ratio exactly 1, the sampler agrees; PPO, whose KL comes first, differs."""
    once = {"rollout.updates_per_rollout": 1}
    for algorithm in ("grpo", "ppo"):
        assert execute(tiny_run(algorithm, **once), tmp_path / algorithm).state == "finished"
    for line in lines(tmp_path / "grpo")[1:]:
        assert line["ratio/max"] == line["ratio/mean"] == 1
        assert line["mismatch/absdiff_max"] < 1e-5
        assert line["kl/ref_k3"] < 1
    assert all("old_logp" not in line["seconds"] for line in lines(tmp_path / "grpo", "timings.jsonl"))
    assert all("old_logp" in line["seconds"] for line in lines(tmp_path / "ppo", "timings.jsonl")[1:])


def test_an_unscored_step_moves_nothing(tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader that can never tell: no weight moves, not even by decay, and the run says that nothing was scorable."""
    from tasks.chain_sum import ChainSum
    from tasks.parts.problem import Grade

    unknown = Grade(correct=float("nan"), answer_key=None, method="none", parsed=False, truncated=False)  # type: ignore[arg-type]
    assert unknown.correct is None
    run = tiny_run("dr_grpo", **{"optimizer.weight_decay": 0.1})
    start = tiny_run("dr_grpo")
    execute(start, tmp_path / "warm")
    monkeypatch.setattr(ChainSum, "grade", lambda *arguments, **knobs: unknown)
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert status.error is not None
    assert "unscorable" in status.error
