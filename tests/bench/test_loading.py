"""The loader: precedence, shorthand, kinds that change, and every mistake on one line in the user's words."""

from pathlib import Path
from typing import Any

import pytest

from algorithms.axes.shaping import NoShaping, SoftOverlong
from bench import catalog
from bench.config import Run
from bench.loading import ConfigError, build_run, change, flat, load_run, nested, parse_overrides

_MINIMAL: dict[str, Any] = {
    "task": "chain_sum",
    "rollout": {"prompts": 8, "group_size": 4, "updates_per_rollout": 2, "max_completion_tokens": 20},
    "optimizer": {"lr": 1e-4, "microbatch_sequences": 16},
    "budget": {"updates": 8},
}
_YAML = """
algorithm: dapo
task: chain_sum
rollout: {prompts: 8, group_size: 4, updates_per_rollout: 2, max_completion_tokens: 20}
optimizer: {lr: 1e-6, microbatch_sequences: 16}
budget: {updates: 8}
objective:
  surrogate: {high: 0.3}
"""


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(_YAML)
    return path


def _run(*overrides: str) -> Run:
    return build_run(_MINIMAL, nested(parse_overrides(overrides)))


def _mistakes(*overrides: str, base: dict[str, Any] = _MINIMAL) -> list[str]:
    with pytest.raises(ConfigError) as error:
        build_run(base, nested(parse_overrides(overrides)))
    return error.value.lines


# Layers


def test_precedence_is_default_preset_file_command_line(run_yaml: Path) -> None:
    run = load_run(run_yaml, ["objective.surrogate.low=0.1", "optimizer.beta1=0.8"])
    objective = run.dump()["objective"]
    assert objective["surrogate"] == {"kind": "clip", "low": 0.1, "high": 0.3}, "command line, file"
    assert objective["shaping"] == {"kind": "soft_overlong", "buffer": 0.2, "factor": 0.5}, "preset"
    assert (run.optimizer.beta1, run.optimizer.beta2, run.optimizer.lr) == (0.8, 0.999, 1e-6)
    assert load_run(run_yaml, ["objective.surrogate.high=0.4"]).dump()["objective"]["surrogate"]["high"] == 0.4


def test_a_learning_rate_of_1e_6_is_that_number_by_every_road(run_yaml: Path) -> None:
    roads = [
        load_run(run_yaml),
        _run("optimizer.lr=1e-6"),
        build_run(_MINIMAL, nested({"optimizer.lr": 1e-6})),
        change(_run(), {"optimizer.lr": 1e-6}),
    ]
    assert [run.optimizer.lr for run in roads] == [1e-6] * 4


def test_a_name_stands_for_a_component() -> None:
    written = _run("objective.reduction=token_mean", "task=chain_sum", "model=tiny")
    spelled = build_run(
        _MINIMAL,
        {"objective": {"reduction": {"kind": "token_mean"}}, "task": {"name": "chain_sum"}, "model": {"kind": "tiny"}},
    )
    assert written == spelled
    assert written.dump()["objective"]["reduction"] == {"kind": "token_mean"}


@pytest.mark.parametrize("knob", ["objective.shaping=no_shaping", "objective.shaping.kind=no_shaping"])
def test_the_knobs_of_a_replaced_component_go(knob: str) -> None:
    assert isinstance(_run("algorithm=dapo").objective.shaping, SoftOverlong)  # type: ignore[union-attr]
    assert _run("algorithm=dapo", knob).objective.shaping == NoShaping()  # type: ignore[union-attr]


def test_the_same_kind_again_keeps_the_presets_knobs() -> None:
    shaping = _run("algorithm=dapo", "objective.shaping=soft_overlong", "objective.shaping.buffer=0.5").dump()[
        "objective"
    ]["shaping"]
    assert shaping == {"kind": "soft_overlong", "buffer": 0.5, "factor": 0.5}


def test_a_replaced_task_or_family_takes_nothing_over(run_yaml: Path) -> None:
    run_yaml.write_text(_YAML.replace("task: chain_sum", "task: {name: chain_sum, num_terms: 5}"))
    knobs = ["task=gsm8k", "model.kind=pretrained", "model.path=some/model"]
    run = load_run(run_yaml, knobs)
    assert run.dump()["task"] == {"name": "gsm8k", "path": None}
    assert run.dump()["model"]["kind"] == "pretrained"
    assert _mistakes("objective=preference") == [
        "objective.loss_function: missing, must be sigmoid, sigmoid_norm or ipo",
        "objective.pairing: missing, must be graded_pairs or fixed_pairs",
    ]


def test_an_empty_table_takes_the_names_of_a_file_away(run_yaml: Path) -> None:
    """Names of the user's own; a section of knobs that is given as empty changes none of them."""
    run_yaml.write_text(_YAML + "evaluation: {samples: 9, also: {longer: {name: chain_sum, num_terms: 4}}}\n")
    assert list(load_run(run_yaml, []).evaluation.also) == ["longer"]
    none = load_run(run_yaml, ["evaluation.also={}"]).evaluation
    assert (none.also, none.samples) == ({}, 9)
    same = load_run(run_yaml, ["evaluation={}"]).evaluation
    assert (list(same.also), same.samples) == (["longer"], 9)


def test_the_order_of_overrides_does_not_matter() -> None:
    knobs = ["objective.penalty=loss_kl", "objective.penalty.coefficient=0.5", "algorithm=dapo", "model.num_layers=1"]
    assert _run(*knobs) == _run(*reversed(knobs))


def test_a_knob_of_a_default_component_needs_no_kind() -> None:
    assert _run("model.max_positions=96").dump()["model"]["max_positions"] == 96


def test_a_section_can_be_switched_on_and_off() -> None:
    assert _run("algorithm=ppo", "critic.lr=1e-5").critic is not None
    assert (
        build_run(_MINIMAL, {"algorithm": "ppo", "critic": {"lr": 1e-5}}, {"algorithm": "grpo", "critic": None}).critic
        is None
    )


def test_an_algorithm_cannot_be_renamed_over_a_complete_objective() -> None:
    dump = _run("algorithm=dapo", "objective.surrogate.high=0.3").dump()
    assert build_run(dump, {"seed": 1, "algorithm": "dapo"}).algorithm == "dapo"
    with pytest.raises(ConfigError) as error:
        build_run(dump, {"algorithm": "grpo"})
    assert error.value.lines == [
        'algorithm: "grpo" given, but every part of the objective is already given, so it could not act; '
        "remove `objective` from the file"
    ]
    partly = {"algorithm": "dapo", "objective": {"reduction": "sequence_mean"}}
    assert build_run(_MINIMAL, partly, {"algorithm": "grpo"}).dump()["objective"]["reduction"] == {
        "kind": "sequence_mean",
        "count_masked": False,
    }


def test_layers_are_left_as_they_were() -> None:
    layer = {**_MINIMAL, "algorithm": "dapo", "objective": {"surrogate": {"high": 0.3}}}
    before = repr(layer)
    build_run(layer, nested({"objective.surrogate.low": 0.1, "task.num_terms": 2}))
    assert repr(layer) == before


# The command line's knobs


def test_values_are_read_as_in_a_file() -> None:
    texts = ["a=1e-6", "b=true", "c=no", "d=[1, 2]", "e=null", "f.g={kind: x}", "h='1'", "i=http://host:5000"]
    assert parse_overrides(texts) == {
        "a": 1e-6, "b": True, "c": "no", "d": [1, 2], "e": None, "f.g": {"kind": "x"}, "h": "1", "i": "http://host:5000",
    }  # fmt: skip


def test_malformed_overrides_are_all_listed() -> None:
    with pytest.raises(ConfigError) as error:
        parse_overrides(["seed", "seed=", "a..b=1", "seed=1", "seed=2", "x={a", "=3"])
    assert error.value.lines == [
        "seed: write a knob as key=value, such as optimizer.lr=1e-4",
        "seed: no value given; write seed=null for none",
        "a..b=1: write a knob as key=value, such as optimizer.lr=1e-4",
        "seed: given twice on the command line",
        "x={a: line 1: expected ',' or '}', but got '<stream end>'",
        "=3: write a knob as key=value, such as optimizer.lr=1e-4",
    ]


def test_knobs_that_contradict_each_other_are_refused() -> None:
    assert nested({"a.b": 1, "a.c": 2, "objective.surrogate": "clip", "objective.surrogate.kind": "clip"}) == {
        "a": {"b": 1, "c": 2},
        "objective": {"surrogate": {"kind": "clip"}},
    }
    with pytest.raises(ConfigError) as error:
        nested({"critic": None, "critic.lr": 1, "objective.penalty": "loss_kl", "objective.penalty.kind": "no_penalty"})
    assert error.value.lines == [
        "critic.lr: 1 given, but that contradicts another knob given beside it",
        'objective.penalty.kind: "no_penalty" given, but that contradicts another knob given beside it',
    ]


def test_flat_is_the_reverse_of_nested() -> None:
    knobs = {"a.b": 1, "a.c": [1, 2], "d": None, "e": {}}
    assert flat(nested(knobs)) == knobs


# Mistakes of one knob


def test_misspelt_and_misplaced_keys_name_the_nearest_knob(run_yaml: Path) -> None:
    run_yaml.write_text(_YAML.replace("{lr: 1e-6,", "{learning_rat: 1e-6,") + "lr: 0.1\nnum-epochs: 3\n")
    with pytest.raises(ConfigError) as error:
        load_run(run_yaml)
    optimizer = "lr, weight_decay, beta1, beta2, epsilon, max_grad_norm, warmup_updates, schedule, "
    optimizer += "microbatch_tokens, microbatch_sequences"
    top = f"A run has {', '.join(Run.model_fields)}"
    assert error.value.lines == [
        "optimizer.lr: missing, must be a number, above 0",
        "optimizer.learning_rat: 1e-06 given, but there is no such knob; did you mean optimizer.lr? "
        f"optimizer has {optimizer}",
        f"lr: 0.1 given, but there is no such knob; did you mean optimizer.lr? {top}",
        f"num-epochs: 3 given, but there is no such knob; did you mean rollout.epochs? {top}",
    ]


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("group_size=3", "did you mean rollout.group_size?"),
        ("rollout.group-size=3", "did you mean rollout.group_size?"),
        ("rollout.groupsize=3", "did you mean rollout.group_size?"),
        ("optimizer.seed=3", "did you mean seed?"),
        ("learning_rate=3", "did you mean optimizer.lr?"),
        ("surrogate.high=3", "did you mean objective.surrogate?"),
        ("reduction=token_mean", "did you mean objective.reduction?"),
        ("num_terms=4", "did you mean task.num_terms?"),
        ("task.num_trems=4", "did you mean task.num_terms?"),
        ("objective.surrogate.hihg=4", "did you mean objective.surrogate.high?"),
    ],
)
def test_hints(override: str, hint: str) -> None:
    (line,) = _mistakes(override)
    assert hint in line


def test_a_key_like_none_gets_no_hint() -> None:
    (line,) = _mistakes("xyzzy=1")
    assert line == f"xyzzy: 1 given, but there is no such knob; A run has {', '.join(Run.model_fields)}"


def test_a_dotted_key_in_a_file_is_shown_its_section() -> None:
    (line,) = _mistakes(base={**_MINIMAL, "optimizer.beta1": 0.5})
    assert "did you mean beta1 in the section optimizer?" in line


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=true", "seed: true given, must be a whole number, at least 0"),
        ("seed=1.0", "seed: 1.0 given, must be a whole number, at least 0"),
        ("seed=-1", "seed: -1 given, must be a whole number, at least 0"),
        ("optimizer.lr=no", 'optimizer.lr: "no" given, must be a number, above 0'),
        ("optimizer.lr='1e-4'", 'optimizer.lr: "1e-4" given, must be a number, above 0'),
        ("optimizer.lr=true", "optimizer.lr: true given, must be a number, above 0"),
        ("optimizer.lr=.nan", "optimizer.lr: NaN given, must be a number, above 0 and finite"),
        ("optimizer.lr=-.inf", "optimizer.lr: -Infinity given, must be a number, above 0 and finite"),
        ("optimizer.lr=1e999", "optimizer.lr: Infinity given, must be a number, above 0 and finite"),
        ("objective.surrogate.high=.nan", "objective.surrogate.high: NaN given, must be a number, above 0 and finite"),
        ("optimizer.beta1=1", "optimizer.beta1: 1 given, must be a number, at least 0 and below 1"),
        ("evaluation.start=no", 'evaluation.start: "no" given, must be true or false'),
        ("evaluation.start=1", "evaluation.start: 1 given, must be true or false"),
        ("tracking.uri=5", "tracking.uri: 5 given, must be text or null"),
        ("evaluation.ks=4", "evaluation.ks: 4 given, must be a list, each a whole number, at least 1"),
        ("evaluation.ks=[1, x]", 'evaluation.ks[1]: "x" given, must be a whole number, at least 1'),
        ("evaluation.ks=[4, 2]", "evaluation.ks: [4, 2] given, must rise without repeats, such as [2, 4]"),
        ("device=gpu", 'device: "gpu" given, must be cpu or cuda; did you mean cpu?'),
        ("critic=3", "critic: 3 given, must be separate, model, head or mlp or null"),
        ("output.sweep=a/b", 'output.sweep: "a/b" given, must be the name of one folder, without slashes'),
        ("task.num_terms=1", "task.num_terms: 1 given, must be a whole number, at least 2 and at most 16"),
        ("task.num_terms=yes", 'task.num_terms: "yes" given, must be a whole number, at least 2 and at most 16'),
        ("objective.penalty.estimator=k4", 'objective.penalty.estimator: "k4" given, must be k1, k2 or k3'),
        ("objective.advantage=gae", "objective: this advantage reads a critic: give objective.value.kind=value_loss"),
        ("model=pretrained", "model.path: missing, must be text"),
        ("model.path=x", 'model.path: "x" given, which is a knob of pretrained, but model.kind is tiny'),
        ("model.kind=pretraind", 'model.kind: "pretraind" given, must be tiny or pretrained; did you mean pretrained?'),
        ("model=3", "model: 3 given, must be tiny or pretrained"),
        ("model.hidden_size=60", "model: hidden_size is 60, must be a multiple of 2 * num_heads = 8"),
        (
            "objective.shaping.buffer=0.3",
            "objective.shaping.buffer: 0.3 given, which is a knob of soft_overlong, but objective.shaping.kind is "
            "no_shaping",
        ),
        (
            "objective.surrogate.high={a: 1}",
            'objective.surrogate.high: {"a": 1} given, must be a number, above 0',
        ),
    ],
)  # fmt: skip
def test_every_wrong_value_is_one_line(override: str, line: str) -> None:
    (found,) = _mistakes(override)
    assert found.startswith(line)
    for tag in ("policy_gradient", "soft_overlong.", "loss_kl.", ".tiny", ".pretrained"):
        assert tag not in found.partition(":")[0], "a union's tag is no part of a path"


def test_a_reduction_of_no_such_kind_lists_those_there_are() -> None:
    (line,) = _mistakes("objective.reduction=tokn_mean")
    assert line.startswith('objective.reduction.kind: "tokn_mean" given, must be sequence_mean, token_mean, ')
    assert line.endswith("; did you mean token_mean?")


def test_unknown_algorithms_and_tasks_name_the_nearest_beside_other_mistakes() -> None:
    algorithms, tasks = (", ".join(catalog.names(kind)) for kind in ("algorithms", "tasks"))
    base = {**_MINIMAL, "algorithm": "dap", "task": "chain_sun", "objective": {"surrogate": {"hihg": 1}}, "seed": "x"}
    assert _mistakes(base=base) == [
        f'algorithm: "dap" given, there is no algorithm of that name; did you mean dapo? there are {algorithms}',
        f'task: "chain_sun" given, there is no task of that name; did you mean chain_sum? there are {tasks}',
        'seed: "x" given, must be a whole number, at least 0',
    ]
    assert _mistakes(base={**_MINIMAL, "algorithm": 3}) == [f"algorithm: 3 given, must be {algorithms}"]
    assert _mistakes(base={**_MINIMAL, "task": {"num_terms": 3}}) == [f"task: needs a name, one of {tasks}"]


def test_an_empty_run_lists_what_is_missing() -> None:
    lines = _mistakes(base={})
    assert [line.partition(":")[0] for line in lines] == ["task", "rollout", "optimizer", "budget"]
    assert lines[-1] == "budget: missing, must be a section with updates"
