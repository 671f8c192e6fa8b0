"""Baseline quality in whole runs: it changes nothing, resumes, and says what it cannot measure."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import checkpoint, store
from bench.baseline_quality.afterwards import measure_saved
from bench.baseline_quality.measure import FILE
from bench.config import Run
from bench.loading import ConfigError, change
from bench.train import execute

MakeRun = Callable[..., Run]
ON = {
    "baseline_quality.every": 2, "baseline_quality.problems": 4, "baseline_quality.completions": 2,
    "baseline_quality.positions": 2, "baseline_quality.continuations": 6, "baseline_quality.max_continuations": 12,
}  # fmt: skip


JUDGED = {
    "reward.model.kind": "trained", "reward.model.problems": 48, "reward.model.samples": 8, "reward.model.updates": 8,
    "reward.model.batch_size": 8, "reward.model.lr": 3e-3, "reward.model.threads": 1, "reward.model.min_accuracy": 0.0,
}  # fmt: skip


NO_ADVANTAGE = (
    "baseline_quality: given, but dpo makes no advantage of a reward to measure; leave it out, or in a sweep give it "
    "to the other algorithms, under per_algorithm"
)


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    return list(store.read_jsonl(directory / name).records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "knobs"),
    [
        ("ppo", {}),
        ("grpo", {"rollout.updates_per_rollout": 1}),
        ("dapo", {"objective.selection.surplus": "carry_over", "rollout.old_logp": "sampler"}),
        ("rloo", {}),
        ("ppo", {"reward.noise.false_positive": 0.2, "reward.sparsity": 0.5, "meter.every": 1}),
        ("grpo", JUDGED),
    ],
)
def test_a_run_is_the_same_with_and_without_and_after_a_resume(
    algorithm: str,
    knobs: dict[str, Any],
    tiny_run: MakeRun,
    tmp_path: Path,
    stopping: Callable[[Any, str, int], None],
) -> None:
    """Metrics, weights and evaluation byte for byte; its own lines come once, also after a stop behind a checkpoint."""
    run = tiny_run(algorithm, **{"checkpoint.every": 2, **knobs})
    measured = change(run, ON)
    for one, name in ((run, "off"), (measured, "on")):
        assert execute(one, tmp_path / name).state == "finished"
    stopping(checkpoint, "save", 1)
    assert execute(measured, tmp_path / "stopped").state == "interrupted"
    store.append_jsonl(tmp_path / "stopped" / FILE, {"update": 2, "problem_id": "of a measurement that was lost"})
    assert execute(measured, tmp_path / "stopped").state == "finished"
    for file in ("metrics.jsonl", "final.json", "eval/test.estimates.parquet"):
        for name in ("on", "stopped"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "off" / file).read_bytes()
    assert not (tmp_path / "off" / FILE).exists()
    assert (tmp_path / "on" / FILE).read_bytes() == (tmp_path / "stopped" / FILE).read_bytes()
    found = lines(tmp_path / "on", FILE)
    step = run.rollout.updates_per_rollout
    assert sorted({line["update"] for line in found}) == ([0, 2, 3] if step == 1 else [0, 2])
    assert all(line["num_continuations"] in (6, 8, 10, 12) for line in found)
    assert (found[0]["critic_value"] is not None) == (algorithm == "ppo")
    timings = lines(tmp_path / "on", "timings.jsonl")
    assert sum("baseline_quality" in line["seconds"] for line in timings) == len({line["update"] for line in found})
    tokens = [[line["tokens"] for line in lines(tmp_path / name, "timings.jsonl")] for name in ("off", "on")]
    assert tokens[0] == tokens[1]
    peaks = [json.loads((tmp_path / name / "memory.json").read_text())["peak"]["roles"] for name in ("off", "on")]
    assert peaks[0] == peaks[1]


@pytest.mark.slow
def test_a_checkpoint_is_measured_afterwards_as_it_was_in_training(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The same rollout, the same continuations; the lines of other updates stay."""
    folder = tmp_path / "run"
    run = tiny_run("ppo", **{"checkpoint.every": 2, **ON})
    execute(run, folder)
    before = lines(folder, FILE)
    assert measure_saved(folder) == {2: len(before) // 2}
    after = lines(folder, FILE)
    assert [line["update"] for line in after] == [line["update"] for line in before]
    for old, new in zip(before, after, strict=True):
        assert new["num_sampled_tokens"] == old["num_sampled_tokens"]
        assert new["value_true"] == pytest.approx(old["value_true"], abs=1e-6)
        assert new["critic_advantage"] == pytest.approx(old["critic_advantage"], abs=1e-6)
    assert measure_saved(folder, ["baseline_quality.problems=2"])[2] < len(before) // 2
    with pytest.raises(ConfigError, match="only knobs of baseline_quality"):
        measure_saved(folder, ["seed=3"])
    store.write_yaml(folder / "run.yaml", change(run, {"baseline_quality": None}).dump())
    with pytest.raises(ConfigError, match="problems: 17 given, must be at most"):
        measure_saved(folder, ["baseline_quality.problems=17"])
    with pytest.raises(ConfigError, match="so it is no run"):
        measure_saved(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("algorithm", "knobs", "sentence"),
    [
        ("dpo", {}, NO_ADVANTAGE),
        (
            "grpo",
            {"baseline_quality.problems": 9},
            "baseline_quality.problems: 9 given, must be at most rollout.prompts = 8",
        ),
        (
            "grpo",
            {"baseline_quality.completions": 9},
            "baseline_quality.completions: 9 given, must be at most rollout.group_size = 8",
        ),
        (
            "grpo",
            {"baseline_quality.every": 5},
            "baseline_quality.every: 5 given, must be at most budget.updates = 4",
        ),
        (
            "grpo",
            {"baseline_quality.max_continuations": 2},
            "baseline_quality.max_continuations: 2 given, must be at least baseline_quality.continuations = 6",
        ),
        (
            "grpo",
            {"baseline_quality.continuations": 7},
            "baseline_quality.continuations: 7 given, must be a multiple of 3, such as 9: it is taken in thirds",
        ),
        (
            "ppo",
            {"objective.advantage.truncation_bootstrap": True},
            "baseline_quality: given, but with objective.advantage.truncation_bootstrap=true the critic's targets "
            "count on beyond the budget, where no continuation goes, so there is no true value to compare with; leave "
            "one of them out",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    algorithm: str, knobs: dict[str, Any], sentence: str, tiny_run: MakeRun
) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_run(algorithm, **{**ON, **knobs})
    assert error.value.lines == [sentence]
