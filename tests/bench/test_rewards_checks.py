"""Knobs of the reward that could not act, or cannot be: one line each, before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest

from bench.loading import ConfigError, build_run, nested

MINIMAL: dict[str, Any] = {
    "task": "chain_sum",
    "rollout": {"prompts": 8, "group_size": 4, "max_completion_tokens": 20},
    "optimizer": {"lr": 1e-4, "microbatch_sequences": 16},
    "budget": {"updates": 8},
}
FUNCTION = [{"function": "json:dumps"}]
NOISE = {"false_positive": 0.1, "false_negative": 0.0}
COIN = "reward.source=random is a coin alone, worth 1 or 0"
FORM = "reward.source=format_only is the format score alone"


def mistakes(algorithm: str, knobs: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        build_run(MINIMAL, nested({"algorithm": algorithm, **{f"reward.{knob}": v for knob, v in knobs.items()}}))
    return error.value.lines


def idle(knob: str, given: str, why: str) -> str:
    return f"reward.{knob}: {given}given, but {why}, so it could not act; leave it out"


@pytest.mark.parametrize(
    ("knobs", "lines"),
    [
        ({"source": "random", "correct": 2.0, "wrong": -1.0},
         [idle("correct", "2.0 ", COIN), idle("wrong", "-1.0 ", COIN)]),
        ({"source": "random", "format": 0.5}, [idle("format", "0.5 ", COIN)]),
        ({"source": "random", "format_rule": "json"}, [idle("format_rule", "json ", COIN)]),
        ({"source": "random", "noise": NOISE}, [idle("noise", "", COIN)]),
        ({"source": "format_only", "format": 1.0, "correct": 2.0},
         [idle("correct", "2.0 ", "reward.source=format_only has no verdict")]),
        ({"source": "format_only", "format": 1.0, "noise": NOISE},
         [idle("noise", "", "reward.source=format_only has no verdict")]),
        ({"source": "format_only"},
         ["reward.format: 0 given, but reward.source=format_only has no other reward; give reward.format=1"]),
        ({"format_rule": "think_answer"}, [idle("format_rule", "think_answer ", "reward.format is 0")]),
        ({"source": "functions"},
         ["reward.functions: none given, but reward.source=functions has no other reward; name at least one"]),
        ({"noise": {}}, ["reward.noise: given, but both of its rates are 0, so it could not act; leave it out"]),
        ({"correct": 0.0}, ["reward.correct: 0 given, must be above reward.wrong = 0"]),
    ],
)  # fmt: skip
def test_a_knob_that_could_not_act_is_refused(knobs: dict[str, Any], lines: list[str]) -> None:
    assert mistakes("grpo", knobs) == lines


@pytest.mark.parametrize("source", ["random", "format_only"])
def test_a_control_takes_no_functions(source: str) -> None:
    knobs = {"source": source, "functions": FUNCTION} | ({"format": 1.0} if source == "format_only" else {})
    assert mistakes("grpo", knobs)[0] == idle("functions", "", COIN if source == "random" else FORM)


@pytest.mark.parametrize(
    ("knob", "value"),
    [("source", "random"), ("sparsity", 0.5), ("noise", NOISE), ("format_rule", "json"), ("functions", FUNCTION)],
)
def test_what_learns_from_worked_solutions_has_no_reward_at_all(knob: str, value: Any) -> None:
    (line,) = mistakes("sft", {knob: value})
    assert line.startswith(f"reward.{knob}: ")
    assert "sft reads worked solutions, and no completion is graded, so it could not act" in line


def test_what_reads_verdicts_takes_noise_but_no_functions_beside_the_verdict() -> None:
    (line,) = mistakes("rft", {"functions": FUNCTION})
    assert line.startswith("reward.functions: given, but rft reads the verdict, not the reward")
    for knobs in ({"noise": NOISE}, {"source": "random"}, {"source": "format_only"}, {"sparsity": 0.5}):
        layer = {"algorithm": "rft", **{f"reward.{knob}": value for knob, value in knobs.items()}}
        assert build_run(MINIMAL, nested(layer)).id


def test_every_imperfection_is_another_run() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"noise": NOISE}, {"noise": {"false_positive": 0.0, "false_negative": 0.1}}, {"sparsity": 0.5},
        {"source": "random"}, {"source": "format_only", "format": 1.0}, {"format": 1.0},
        {"format": 1.0, "format_rule": "think_answer"}, {"format": 1.0, "format_rule": "json"},
    ]  # fmt: skip
    ids = {build_run(MINIMAL, nested({f"reward.{k}": v for k, v in own.items()})).id for own in changes}
    assert len(ids) == len(changes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"type": "objekt"}',
         "it is not a JSON schema: 'objekt' is not valid under any of the given schemas (at $.type)"),
        ("[1]", "it is not a JSON schema, which is an object"),
        ("{", "it cannot be read as JSON: Expecting property name enclosed in double quotes"),
        ('{"$ref": "https://example.com/schema"}', "it cannot be used as a JSON schema: "),
        (None, "there is no such file here (looked in "),
    ],
)  # fmt: skip
def test_a_schema_is_read_before_training(content: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content)
    (line,) = mistakes("grpo", {"format": 1.0, "format_rule": "json", "format_schema": str(path)})
    assert line.startswith(f'reward.format_schema: "{path}" given, but {says}')


def test_a_schema_is_for_json_alone(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text("{}")
    schema = {"format": 1.0, "format_schema": str(tmp_path / "schema.json")}
    for rule in ("task", "think_answer"):
        (line,) = mistakes("grpo", {**schema, "format_rule": rule})
        assert f"but reward.format_rule is {rule}, so it could not act" in line


def test_a_weight_of_nothing_is_refused() -> None:
    lines = mistakes("grpo", {"functions": [{"function": "json:loads", "weight": 0.0}]})
    assert lines[0] == "reward.functions.0.weight: 0 given, so json:loads could not act; leave the function out"
