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


def mistakes(algorithm: str, knobs: dict[str, Any], **other: Any) -> list[str]:
    layer = {"algorithm": algorithm, **{f"reward.{knob}": value for knob, value in knobs.items()}, **other}
    with pytest.raises(ConfigError) as error:
        build_run(MINIMAL, nested(layer))
    return error.value.lines


def own_function(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """`sized_reward:f`, a reward that can be called."""
    (folder / "sized_reward.py").write_text("def f(completions): return [1.0] * len(completions)\n")
    monkeypatch.syspath_prepend(str(folder))


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
        ({"noise": {"per": "answer"}},
         ["reward.noise: given, but both of its rates are 0, so it could not act; leave it out"]),
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


PAIRS = "dpo makes pairs by which rewards are above their group's mean"
VERDICT = "{} reads the verdict, which of a function is whether its reward is above 0"
BEST = "objective.advantage.kind=pass_at_k divides by the rewards' own standard deviation"


def test_where_no_factor_counts_the_only_part_has_no_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What reads verdicts, pairs by order, and what is divided by the rewards' spread: one line, with the reason."""
    own_function(monkeypatch, tmp_path)
    size = "so its size could not act; give"
    assert mistakes("dpo", {"correct": 5.0, "wrong": -3.0}) == [
        idle("correct", "5.0 ", PAIRS),
        idle("wrong", "-3.0 ", PAIRS),
    ]
    assert mistakes("dpo", {"correct": 5.0, "noise": NOISE, "sparsity": 0.5}) == [idle("correct", "5.0 ", PAIRS)]
    assert mistakes("dpo", {"source": "format_only", "format": 7.0}) == [
        f"reward.format: 7 given, but {PAIRS}, {size} reward.format=1"
    ]
    for algorithm, why in (
        ("dpo", PAIRS),
        ("rft", VERDICT.format("rft")),
        ("online_rft", VERDICT.format("online_rft")),
    ):
        for weight, better in ((3.0, 1), (-0.2, -1)):
            functions = [{"function": "sized_reward:f", "weight": weight}]
            assert mistakes(algorithm, {"source": "functions", "functions": functions}) == [
                f"reward.functions.0.weight: {weight:g} given, but {why}, {size} {better}"
            ]
    best = {"objective.advantage": {"kind": "pass_at_k", "k": 2}}
    assert mistakes("grpo", {"correct": 2.0}, **best) == [idle("correct", "2.0 ", BEST)]
    exact = {"objective.advantage.epsilon": 0.0}
    assert mistakes("grpo", {"correct": 2.0}, **exact) == [
        idle("correct", "2.0 ", BEST.replace("pass_at_k", "group_standardised"))
    ]


def test_where_another_part_makes_the_size_matter_it_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_function(monkeypatch, tmp_path)
    function = [{"function": "sized_reward:f", "weight": 3.0}]
    worth, alone = {"reward.correct": 5.0, "reward.wrong": -3.0}, {"reward.source": "functions"}
    taken: list[tuple[str, dict[str, Any]]] = [
        ("dpo", {**worth, "reward.format": 0.5}),
        ("dpo", {**worth, "reward.functions": function}),
        ("dpo", {**alone, "reward.functions": function, "reward.format": 0.5}),
        ("dpo", {**alone, "reward.functions": [*function, {"function": "sized_reward:f", "weight": -0.5}]}),
        ("rft", {**alone, "reward.functions": [*function, {"function": "sized_reward:f", "weight": -0.5}]}),
        ("rft", {**alone, "reward.functions": [{"function": "sized_reward:f", "weight": -1.0}]}),
        ("dpo", {"reward.correct": 1e-9}),  # a tie up to rounding: no pair is made
        ("grpo", worth),
        ("ppo", {**alone, "reward.functions": function, "critic.lr": 1e-5}),
        ("dapo", {**alone, "reward.functions": function}),
        ("grpo", {**worth, "objective.advantage": {"kind": "pass_at_k", "k": 2},
                  "objective.shaping": {"kind": "missing_eos", "penalty": 1.0}}),
    ]  # fmt: skip
    for algorithm, knobs in taken:
        assert build_run(MINIMAL, nested({"algorithm": algorithm, **knobs})).id


@pytest.mark.parametrize("algorithm", ["rft", "online_rft"])
def test_worths_that_nothing_reads_are_refused_once(algorithm: str) -> None:
    """Neither below nor above the other: there is nothing for either to be."""
    (line,) = mistakes(algorithm, {"correct": 0.0})
    assert line.startswith(f"reward.correct: 0.0 given, but {algorithm} reads the verifier's verdict, not the reward")
    assert mistakes("dpo", {"correct": 0.0}) == ["reward.correct: 0 given, must be above reward.wrong = 0"]


def test_every_imperfection_is_another_run() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"noise": NOISE}, {"noise": {**NOISE, "per": "answer"}},
        {"noise": {"false_positive": 0.0, "false_negative": 0.1}}, {"sparsity": 0.5},
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
