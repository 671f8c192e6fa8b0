"""The evaluations of a run: other prompts for the starting model, other tasks for both, each shared and named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.config import Run
from bench.dialect import ConfigError
from bench.evaluation import read_estimates
from bench.evaluations import FILES, evaluate_final, start_evaluations
from bench.generate import sample
from bench.loading import build_run
from bench.prepare import starting_model
from bench.train import execute

MakeRun = Callable[..., Run]

HARDER = {"name": "chain_sum", "num_terms": 3, "num_digits": 1}
BARE = [{"style": "few_shot", "shots": 1}]
ROOM = {"model.max_positions": 64}
"""For the example before the question."""


def test_other_tasks_and_prompts_are_evaluated_beside_the_own_one(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo", **ROOM, **{"evaluation.also": {"harder": HARDER}, "evaluation.start_prompts": BARE})
    assert execute(run, tmp_path / "run").state == "finished"
    folder = tmp_path / "run/eval"
    names = ("start", "start_few_shot_1", "start_harder", "test", "test_harder")
    assert {path.name for path in folder.iterdir()} == {f"{name}.{suffix}" for name in names for suffix in FILES}
    manifests = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    assert [manifests[name]["task"]["num_terms"] for name in names] == [2, 2, 3, 2, 3]
    assert manifests["start_few_shot_1"]["prompt"] == {"style": "few_shot", "shots": 1}
    assert manifests["test"]["rollout_temperature"] == 1.0
    # Three terms do not fit the model's habit of two, so the harder task is a different measurement.
    assert read_estimates(folder / "test_harder.estimates.parquet").problem_id[0] == "chain_sum/test/0"


def test_further_evaluations_leave_training_and_the_own_evaluation_alone(tiny_run: MakeRun, tmp_path: Path) -> None:
    execute(tiny_run("grpo"), tmp_path / "a")
    execute(tiny_run("grpo", **{"evaluation.also": {"harder": HARDER}}), tmp_path / "b")
    for file in ("metrics.jsonl", "eval/test.parquet", "eval/start.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_they_enter_the_identity_of_the_run(tiny_run: MakeRun) -> None:
    plain = tiny_run("grpo")
    assert tiny_run("grpo", **{"evaluation.also": {"harder": HARDER}}).id != plain.id
    roomy = tiny_run("grpo", **ROOM)
    assert tiny_run("grpo", **ROOM, **{"evaluation.start_prompts": BARE}).id != roomy.id
    assert build_run(plain.dump()).id == plain.id
    full = tiny_run("grpo", **ROOM, **{"evaluation.also": {"harder": HARDER}, "evaluation.start_prompts": BARE})
    assert build_run(full.dump()).id == full.id


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"evaluation.start_prompts": BARE, "evaluation.start": False}, "they could not act"),
        ({"evaluation.start_prompts": [{"style": "task"}]}, "the run's own prompt"),
        ({"evaluation.start_prompts": BARE, "evaluation.also": {"few_shot_1": HARDER}}, "names two evaluations"),
        ({"evaluation.temperature": 0.0, "evaluation.top_p": 0.9}, "evaluation.top_p: 0.9 given"),
        ({"prompt.style": "few_shot"}, "prompt: shots is 0, must be at least 1"),
        ({"prompt.shots": 2}, "prompt: shots is 2"),
        ({"prompt.style": "question"}, "prompt.style: question given"),
        ({"evaluation.start_prompts": BARE}, "rollout.max_completion_tokens: 4 given"),
        (
            {"evaluation.also": {"long": {"name": "chain_sum", "num_terms": 16}}},
            "rollout.max_completion_tokens: 4 given",
        ),
        ({"evaluation.start_prompts": [{"style": "question"}]}, "evaluation.start_prompts.style: question given"),
        ({"evaluation.also": {"same": {"name": "chain_sum", "num_terms": 2, "num_digits": 1}}}, "the run's own task"),
        ({"prompt.style": "few_shot", "prompt.shots": 1}, "rollout.max_completion_tokens: 4 given"),
        ({"evaluation.also": {"other": {"name": "no_task"}}}, "there is no task of that name"),
        ({"evaluation.also": {"other": {"name": "gsm8k", "path": "nowhere"}}}, 'evaluation.also.other.path: "nowhere"'),
        ({"evaluation.also": {"Other Task": HARDER}}, "evaluation.also"),
    ],
)
def test_what_cannot_be_or_could_not_act_is_refused(tiny_run: MakeRun, knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_run("grpo", **knobs)
    assert message in "\n".join(error.value.lines)


def test_a_run_killed_between_two_evaluations_keeps_the_finished_one(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("grpo", **{"evaluation.also": {"harder": HARDER}, "evaluation.start": False})
    calls: list[int] = []

    def dies_at_the_second(*arguments: object, **options: object) -> object:
        calls.append(len(arguments[1]))  # pyright: ignore[reportArgumentType]
        if len(calls) == 2:
            raise KeyboardInterrupt
        return sample(*arguments, **options)  # pyright: ignore[reportArgumentType]

    def final(*arguments: object) -> None:
        evaluate_final(*arguments[:-1], dies_at_the_second)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("bench.train.evaluate_final", final)
    assert execute(run, tmp_path / "run").state == "interrupted"
    stored = (tmp_path / "run/eval/test.parquet").stat().st_mtime_ns
    assert execute(run, tmp_path / "run").state == "finished"
    assert len(calls) == 3
    assert (tmp_path / "run/eval/test.parquet").stat().st_mtime_ns == stored


def test_another_version_of_the_verifier_is_another_run(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts may differ, so nothing that is cached or averaged may mix them."""
    plain = tiny_run("grpo")
    before = plain.id
    monkeypatch.setattr("bench.config.VERSION", 10**6)
    assert plain.id != before


def test_starts_of_two_warm_starts_are_not_taken_for_each_other(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Two runs whose models were warmed up on different sums, evaluated on the same third task."""
    shared = {"evaluation.also": {"third": {"name": "chain_sum", "num_terms": 4, "num_digits": 1}}, **ROOM}
    cache = {"output.cache": str(tmp_path / "cache"), "warm_start.stop_at_pass_at_1": 0.01}
    runs = [tiny_run("grpo", **shared, **cache, **{"task.num_terms": terms}) for terms in (2, 3)]
    folders = [dict(start_evaluations(run, starting_model(run)))["start_third"] for run in runs]
    assert folders[0] != folders[1]
    digests = {json.loads((folder / "start.json").read_text())["weights_sha256"] for folder in folders}
    assert len(digests) == 2
