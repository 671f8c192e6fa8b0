"""Cross-field checks: impossible arithmetic, missing files, knobs that could not act; each says what would be right."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.loading import ConfigError, build_run, change, nested
from tasks.chain_sum import ChainSum

_MINIMAL: dict[str, Any] = {
    "task": "chain_sum",
    "rollout": {"prompts": 8, "group_size": 4, "updates_per_rollout": 2, "max_completion_tokens": 20},
    "optimizer": {"lr": 1e-4, "microbatch_sequences": 16},
    "budget": {"updates": 8},
}
_HUB_MODEL = {"model.kind": "pretrained", "model.path": "some/model"}


def _mistakes(knobs: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        build_run(_MINIMAL, nested(knobs))
    return error.value.lines


def _accepted(knobs: dict[str, Any]) -> bool:
    return build_run(_MINIMAL, nested(knobs)).id != ""


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "dpo"])
def test_a_group_needs_two_members(algorithm: str) -> None:
    assert _mistakes({"algorithm": algorithm, "rollout.group_size": 1}) == [
        f"rollout.group_size: 1 given, {algorithm} compares completions of one prompt, so it needs at least 2, "
        "such as 8"
    ]
    assert _accepted({"algorithm": algorithm, "rollout.group_size": 2})


def test_ppo_takes_single_completions() -> None:
    assert _accepted({"algorithm": "ppo", "critic.lr": 1e-5, "rollout.group_size": 1})


@pytest.mark.parametrize(
    ("samples", "ks"), [(5, (1, 2, 4)), (1, (1,)), (3, (1, 2)), (16, (1, 2, 4, 8, 16)), (64, (1, 2, 4, 8, 16))]
)
def test_cfg_05_evaluation_samples_are_free_of_the_training_group(samples: int, ks: tuple[int, ...]) -> None:
    """K left alone follows the samples, also when those are changed later; a K that was asked for is not moved."""
    run = build_run(_MINIMAL, nested({"rollout.group_size": 8, "evaluation.samples": samples}))
    assert run.evaluation.all_ks == ks
    assert change(run, {"evaluation.samples": 2}).evaluation.all_ks == (1, 2)
    written = change(run, {"evaluation.ks": list(ks)})
    assert written.evaluation.all_ks == ks
    assert written.id == run.id, "a default that is written out is the same run"
    assert _mistakes({"evaluation.samples": samples, "evaluation.ks": [1, samples + 1]})[0].startswith(
        f"evaluation.ks: {samples + 1} given, must be at most evaluation.samples = {samples}, "
    )


def test_minibatches_are_whole_groups() -> None:
    assert _mistakes({"rollout.updates_per_rollout": 3, "budget.updates": 9}) == [
        "rollout.updates_per_rollout: 3 given, must divide rollout.prompts = 8, because groups are never split "
        "(8 prompts x 4 completions = 32); must be 1, 2, 4 or 8, or prompts = 9"
    ]
    assert _accepted({"rollout.updates_per_rollout": 8})


def test_the_budget_is_whole_rollouts() -> None:
    assert _mistakes({"rollout.updates_per_rollout": 2, "rollout.epochs": 3}) == [
        "budget.updates: 8 given, must be a multiple of the 6 updates of a rollout (updates_per_rollout 2 x epochs 3), "
        "such as 12"
    ]
    assert _accepted({"rollout.updates_per_rollout": 2, "rollout.epochs": 2})


def test_warmup_ends_within_the_budget() -> None:
    assert _mistakes({"optimizer.warmup_updates": 8}) == [
        "optimizer.warmup_updates: 8 given, must be below budget.updates = 8, or the learning rate is never reached"
    ]
    assert _accepted({"optimizer.warmup_updates": 7})


def test_k_is_at_most_n() -> None:
    assert _mistakes({"evaluation.ks": [1, 65]}) == [
        "evaluation.ks: 65 given, must be at most evaluation.samples = 64, because Pass@K needs K samples of each "
        "problem; 260 samples keep its error small"
    ]
    assert _accepted({"evaluation.ks": [1, 64]}), "below 4 K is a warning in the caption, no mistake"


def test_a_right_answer_is_worth_more_than_a_wrong_one() -> None:
    assert _mistakes({"reward.wrong": 1.0}) == ["reward.correct: 1 given, must be above reward.wrong = 1"]


def test_a_critic_is_given_exactly_where_there_is_one() -> None:
    assert _mistakes({"algorithm": "ppo"}) == [
        "critic: missing, but ppo trains one; give its learning rate, such as critic.lr=1e-5"
    ]
    assert _mistakes({"critic.lr": 1e-5}) == [
        "critic: given, but grpo has no critic, so it could not act; leave it out"
    ]


def test_knobs_that_could_not_act_are_refused() -> None:
    assert _mistakes({"algorithm": "dpo", "rollout.old_logp": "sampler"}) == [
        "rollout.old_logp: sampler given, but dpo has no importance ratio, so it could not act; leave it out"
    ]
    assert _mistakes(
        {"validation.problems": 5, "validation.samples": 1, "validation.select": "validation", "checkpoint.keep": 2}
    ) == [
        "validation.problems: 5 given, but validation.every is 0, so it could not act; leave it out",
        "validation.samples: 1 given, but validation.every is 0, so it could not act; leave it out",
        "validation.select: validation given, but validation.every is 0, so it could not act; leave it out",
        "checkpoint.keep: 2 given, but checkpoint.every is 0, so it could not act; leave it out",
    ]
    assert _mistakes({"tracking.enabled": False, "tracking.uri": "sqlite:///x.db"}) == [
        "tracking.uri: sqlite:///x.db given, but tracking.enabled is false, so it could not act; leave it out"
    ]


def test_defaults_that_are_written_out_are_no_dead_knobs() -> None:
    assert _accepted({"algorithm": "dpo", "rollout.old_logp": "recomputed"})
    assert _accepted(
        {"validation.problems": 100, "checkpoint.keep": 1, "tracking.enabled": False, "tracking.uri": None}
    )


def test_selection_by_validation_needs_a_validation() -> None:
    assert _mistakes({"validation.every": 9, "validation.select": "validation"}) == [
        "validation.every: 9 given, must be at most budget.updates = 8, or there is nothing to select from"
    ]
    assert _accepted({"validation.every": 8, "validation.select": "validation"})


def test_prompt_and_completion_fit_a_tiny_model() -> None:
    # "12+34+56=" is nine characters.
    assert _accepted({"model.max_positions": 29})
    assert _mistakes({"model.max_positions": 28}) == [
        "rollout.max_completion_tokens: 20 given, but the model has 28 positions and a prompt takes 9; must be at most "
        "19, or the model must have at least 29"
    ]
    assert _mistakes({"model.max_positions": 9}) == [
        "rollout.max_completion_tokens: 20 given, but the model has 9 positions and a prompt takes 9; "
        "the model must have at least 29"
    ]


def test_several_mistakes_are_listed_at_once() -> None:
    lines = _mistakes(
        {"rollout.group_size": 1, "critic.lr": 1.0, "evaluation.ks": [128], "rollout.updates_per_rollout": 5}
    )
    assert sorted(line.partition(":")[0] for line in lines) == [
        "budget.updates",
        "critic",
        "evaluation.ks",
        "rollout.group_size",
        "rollout.updates_per_rollout",
    ]


# Files


def test_a_model_path_must_hold_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "tiny.Q4_1.gguf").write_bytes(b"GGUF")

    def mistakes(**knobs: str) -> list[str]:
        return _mistakes({"model.kind": "pretrained", **{f"model.{name}": value for name, value in knobs.items()}})

    assert mistakes(path="./nowhere") == [
        f'model.path: "./nowhere" given, but there is no such folder here (looked in {tmp_path})'
    ]
    assert mistakes(path="empty", revision="main") == [
        'model.path: "empty" given, but there is no config.json in it, so it holds no model',
        'model.revision: "main" given, but model.path is a folder, so it could not act; leave it out',
    ]
    assert mistakes(path="tiny.Q4_1.gguf") == [
        'model.path: "tiny.Q4_1.gguf" given, which is a file; must be a folder: '
        "model.path=. model.gguf_file=tiny.Q4_1.gguf"
    ]
    assert mistakes(path=".", gguf_file="tiny.Q4_0.gguf") == [
        'model.gguf_file: "tiny.Q4_0.gguf" given, but . has no such file; did you mean tiny.Q4_1.gguf?'
    ]
    assert mistakes(path="empty", gguf_file="tiny.gguf") == [
        'model.gguf_file: "tiny.gguf" given, but empty has no such file; it has none'
    ]
    assert _accepted({"model.kind": "pretrained", "model.path": ".", "model.gguf_file": "tiny.Q4_1.gguf"})


def test_a_data_path_must_hold_the_data(tmp_path: Path) -> None:
    knobs = {"task.name": "gsm8k", **_HUB_MODEL}
    path = tmp_path / "nowhere"
    assert _mistakes({**knobs, "task.path": str(path)}) == [
        f'task.path: "{path}" given, but there is no such file or folder here (looked in {Path.cwd()})'
    ]
    (tmp_path / "gsm8k_train.jsonl").write_text("")
    assert _mistakes({**knobs, "task.path": str(tmp_path)}) == [
        f'task.path: "{tmp_path}" given, but gsm8k_test.jsonl is not in it; '
        "gsm8k reads gsm8k_test.jsonl, gsm8k_train.jsonl"
    ]


def test_a_data_set_must_fill_a_rollout_and_an_evaluation(tmp_path: Path) -> None:
    rows = [json.dumps({"question": f"{number} + 1?", "answer": f"#### {number + 1}"}) for number in range(3)]
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    assert _mistakes({"task.name": "gsm8k", "task.path": str(tmp_path), **_HUB_MODEL}) == [
        "rollout.prompts: 8 given, but the train split has 3 problems, so 0 updates would run; must be at most 3",
        "evaluation.problems: 100 given, but the test split has 3 problems; must be at most 3",
    ]


def test_data_without_a_column_is_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        (tmp_path / name).write_text('{"question": "1 + 1?", "anwser": "#### 2"}\n' * 9)
    lines = _mistakes({"task.name": "gsm8k", "task.path": str(tmp_path), **_HUB_MODEL, "evaluation.problems": 9})
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("task.path: gsm8k: ")
        assert "answer" in line
        assert "anwser" in line


def test_a_procedural_split_may_be_too_small() -> None:
    split = {"task.num_terms": 2, "task.num_digits": 1}
    there = ChainSum(num_terms=2, num_digits=1).num_problems("test")
    assert there is not None
    assert _mistakes({**split, "evaluation.problems": there + 1}) == [
        f"evaluation.problems: {there + 1} given, but the test split has {there} problems; must be at most {there}"
    ]
    assert _accepted({**split, "evaluation.problems": there})
    warm_start = {"max_updates": 1, "batch_size": 1, "lr": 1.0, "stop_at_pass_at_1": 0.5, "check_problems": 99}
    lines = _mistakes({**split, "evaluation.problems": 1, "warm_start": warm_start, "validation.every": 4})
    assert [line.partition(":")[0] for line in lines] == ["validation.problems", "warm_start.check_problems"]
