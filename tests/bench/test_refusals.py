"""Refusals by name: what cannot be compared fairly or could not act is one line that says what to do, never ignored."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.config import Run
from bench.dialect import to_yaml
from bench.loading import ConfigError, build_run, change, flat, nested
from bench.refusals import ALIASES, double_kl
from bench.schema import Place

_MINIMAL: dict[str, Any] = {
    "task": "chain_sum",
    "rollout": {"prompts": 8, "group_size": 4, "updates_per_rollout": 2, "max_completion_tokens": 20},
    "optimizer": {"lr": 1e-4, "microbatch_sequences": 16},
    "budget": {"updates": 8},
}
_TWICE = (
    "objective.penalty: {} and {} given at once, which would charge one divergence twice, in the reward and in the "
    "loss; keep one: objective.penalty.kind={} or objective.penalty.kind=loss_kl"
)


def _refused(tmp_path: Path, *knobs: str, extra: dict[str, Any] | None = None) -> list[str]:
    """The lines on stderr of `bench run` and of `bench show`, which must be the same, without a traceback."""
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml({**_MINIMAL, **(extra or {})}))
    found: list[list[str]] = []
    for command in ("run", "show"):
        result = CliRunner().invoke(app, [command, str(path), *knobs])
        assert isinstance(result.exception, SystemExit)
        assert (result.exit_code, result.stdout) == (2, "")
        found.append(result.stderr.splitlines())
    assert found[0] == found[1]
    return found[0]


# Sampling


@pytest.mark.parametrize("knob", ["top_p", "top_k", "min_p", "repetition_penalty"])
def test_training_rollouts_sample_from_the_whole_distribution(knob: str, tmp_path: Path) -> None:
    """Also where the value is the neutral one: the knob is not there."""
    line = (
        f" given, but training samples from the whole distribution: with {knob} the sampler's probabilities would not "
        "be the trainer's, which biases the importance ratio; leave it out (rollout.temperature is the one knob of "
        "sampling)"
    )
    assert _refused(tmp_path, f"rollout.{knob}=0.9") == [f"rollout.{knob}: 0.9{line}"]
    assert _refused(tmp_path, f"{knob}=1") == [f"{knob}: 1{line}"]
    rollout = {**_MINIMAL["rollout"], knob: 1}
    assert _refused(tmp_path, extra={"rollout": rollout}) == [f"rollout.{knob}: 1{line}"]


@pytest.mark.parametrize(
    ("override", "shown", "knob"),
    [
        ("rollout.typical_p=0.9", "rollout.typical_p: 0.9", "typical_p"),
        ("rollout.sampling.top_p=0.9", 'rollout.sampling: {"top_p": 0.9}', "top_p"),
        ("generation.top_k=5", 'generation: {"top_k": 5}', "top_k"),
        ("generation.sampling.top-k=5", 'generation: {"sampling": {"top-k": 5}}', "top_k"),
    ],
)
def test_cuts_of_the_distribution_are_known_also_in_a_section_of_their_own(
    override: str, shown: str, knob: str, tmp_path: Path
) -> None:
    (line,) = _refused(tmp_path, override)
    assert line.startswith(f"{shown} given, but training samples from the whole distribution: with {knob} the sampler")


# KL in the reward and in the loss at once


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        (["objective.penalty=reward_kl", "objective.penalty=loss_kl"], ("reward_kl", "loss_kl")),
        (["objective.penalty=loss_kl", "objective.penalty.kind=reward_kl"], ("reward_kl", "loss_kl")),
        (["objective.penalty=[reward_kl, loss_kl]"], ("reward_kl", "loss_kl")),
        (["objective.penalty=reward_kl,loss_kl"], ("reward_kl", "loss_kl")),
        (["objective.penalty.kind=[sequence_reward_kl, loss_kl]"], ("sequence_reward_kl", "loss_kl")),
        (["objective.reward_kl.coefficient=0.1", "objective.loss_kl.coefficient=0.1"], ("reward_kl", "loss_kl")),
        (["objective.use_kl_in_reward=true", "objective.use_kl_loss=true"], ("use_kl_in_reward", "use_kl_loss")),
    ],
)  # fmt: skip
def test_obj_31_kl_in_reward_and_loss_is_refused_on_the_command_line(
    knobs: list[str], names: tuple[str, str], tmp_path: Path
) -> None:
    kind = names[0] if names[0].endswith("reward_kl") else "reward_kl"
    assert _refused(tmp_path, *knobs) == [_TWICE.format(*names, kind)]


@pytest.mark.parametrize(
    "objective",
    [
        {"penalty": ["reward_kl", "loss_kl"]},
        {"penalty": [{"kind": "reward_kl", "coefficient": 0.1}, {"kind": "loss_kl", "coefficient": 0.1}]},
        {"penalty": {"reward_kl": {"coefficient": 0.1}, "loss_kl": {"coefficient": 0.1}}},
        {"reward_kl": 0.1, "loss_kl": 0.1},
        {"penalty": {"kind": "reward_kl"}, "loss_kl": {"coefficient": 0.1}},
    ],
)
def test_obj_31_kl_in_reward_and_loss_is_refused_in_a_file(objective: dict[str, Any], tmp_path: Path) -> None:
    """Beside the file's other mistakes."""
    twice = _TWICE.format("reward_kl", "loss_kl", "reward_kl")
    assert _refused(tmp_path, extra={"objective": objective}) == [twice]
    objective = {**objective, "reduction": "token_men"}
    lines = _refused(tmp_path, extra={"objective": objective, "seed": -1})
    assert (lines[0], len(lines)) == (twice, 3)
    assert lines[1].startswith('objective.reduction.kind: "token_men" given, must be ')
    assert lines[2] == "seed: -1 given, must be a whole number, at least 0"


def test_obj_31_a_second_penalty_on_top_of_the_presets_is_refused_with_both_named(tmp_path: Path) -> None:
    assert _refused(tmp_path, "algorithm=ppo", "critic.lr=1e-3", "objective.loss_kl=0.1") == [
        "objective.loss_kl: 0.1 given, but that is a kind of objective.penalty, of which a run has one, here "
        "reward_kl; leave it out, or give objective.penalty.kind=loss_kl in its place"
    ]
    assert _refused(tmp_path, "algorithm=grpo", "objective.loss_kl.coefficient=0.1") == [
        'objective.loss_kl: {"coefficient": 0.1} given, but that is the kind of objective.penalty already; its knobs '
        "are objective.penalty.coefficient, objective.penalty.estimator, objective.penalty.weight"
    ]


def test_one_penalty_in_place_of_another_is_no_mistake() -> None:
    """A later layer replaces the penalty of an earlier one; a place that is switched off is none."""
    layers = ({"penalty": {"kind": "loss_kl", "coefficient": 0.1}}, {"penalty": {"kind": "reward_kl"}})
    run = build_run({**_MINIMAL, "algorithm": "ppo", "critic": {"lr": 1e-3}}, {"objective": layers[0]})
    assert run.dump()["objective"]["penalty"]["kind"] == "loss_kl"
    changed = change(run, {"objective.penalty": {"kind": "reward_kl", "coefficient": 0.2}})
    assert changed.dump()["objective"]["penalty"]["coefficient"] == 0.2
    assert double_kl([("use_kl_loss", False), ("penalty", "reward_kl")]) == []
    assert double_kl([("penalty", {"kind": "loss_kl"}), ("reward_kl", None)]) == []


# Knobs that could not act


def test_a_bound_on_a_surrogate_without_one_is_refused(tmp_path: Path) -> None:
    once = {"rollout": {**_MINIMAL["rollout"], "updates_per_rollout": 1}}
    assert _refused(tmp_path, "algorithm=reinforce", "objective.surrogate.high=0.3", extra=once) == [
        "objective.surrogate.high: 0.3 given, which is a knob of clip or dual_clip or cispo or cispo_masked, but "
        "objective.surrogate.kind is reinforce; leave it out, or give objective.surrogate.kind=clip"
    ]


def test_knobs_of_a_critic_are_refused_where_there_is_none(tmp_path: Path) -> None:
    assert _refused(tmp_path, "algorithm=dapo", "critic.lr=1e-3") == [
        "critic: given, but dapo has no critic, so it could not act; leave it out"
    ]
    assert _refused(tmp_path, "algorithm=dapo", "objective.value.clip=0.2", "objective.advantage.lam=0.9") == [
        "objective.advantage.lam: 0.9 given, which is a knob of gae, but objective.advantage.kind is "
        "group_standardised; leave it out, or give objective.advantage.kind=gae",
        "objective.value.clip: 0.2 given, which is a knob of value_loss, but objective.value.kind is no_critic; leave "
        "it out, or give objective.value.kind=value_loss",
    ]


@pytest.mark.parametrize(
    ("algorithm", "knob"),
    [
        ("grpo", "lr=1e-3"),
        ("rloo", "warmup_updates=1"),
        ("dpo", "max_grad_norm=1"),
        ("sft", "vf_coef=0.1"),
        ("grpo", "learning_rate=no"),
    ],
)
def test_any_knob_of_a_critic_is_refused_at_once_where_there_is_none(algorithm: str, knob: str, tmp_path: Path) -> None:
    """Also beside mistakes in the objective itself; no advice leads to the next refusal."""
    line = f"critic: given, but {algorithm} has no critic, so it could not act; leave it out"
    once = {"rollout": {**_MINIMAL["rollout"], "updates_per_rollout": 1}}
    assert _refused(tmp_path, f"algorithm={algorithm}", f"critic.{knob}", extra=once) == [line]
    lines = _refused(tmp_path, f"algorithm={algorithm}", f"critic.{knob}", "objective.xyzzy=1", extra=once)
    assert (lines[0], len(lines)) == (line, 2)


def test_a_critic_that_is_asked_for_still_needs_its_learning_rate(tmp_path: Path) -> None:
    missing = "critic.lr: missing, must be a number, above 0"
    assert _refused(tmp_path, "algorithm=ppo", "critic.warmup_updates=1") == [missing]
    gae = ["objective.advantage=gae", "objective.value=value_loss", "objective.xyzzy=1"]
    assert missing in _refused(tmp_path, "algorithm=grpo", "critic.warmup_updates=1", *gae)


def test_a_group_of_one_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, "algorithm=grpo", "rollout.group_size=1") == [
        "rollout.group_size: 1 given, grpo compares completions of one prompt, so it needs at least 2, such as 8"
    ]


# Names that others use

_BOUNDS = "did you mean objective.surrogate.low and objective.surrogate.high?"
_COEFFICIENT = "did you mean objective.penalty.coefficient?"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        *((f"{name}=0.2", _BOUNDS) for name in ("epsilon", "clip_range", "cliprange", "surrogate.clip")),
        *((f"objective.{name}=0.2", _BOUNDS) for name in ("surrogate.epsilon", "surrogate.clip", "epsilon")),
        ("objective.surrogate.epsilon_high=0.2", "did you mean objective.surrogate.high?"),
        *((f"{name}=0.1", _COEFFICIENT) for name in ("beta", "kl_coef", "objective.beta", "objective.penalty.beta")),
        ("num_generations=8", "did you mean rollout.group_size?"),
        ("max_completion_length=8", "did you mean rollout.max_completion_tokens?"),
        ("rollout.max_new_tokens=8", "did you mean rollout.max_completion_tokens?"),
        ("learning_rate=1", "did you mean optimizer.lr?"),
        ("trainer.learning_rate=1", "did you mean optimizer.lr?"),
        ("warm_start.learning_rate=1", "did you mean warm_start.lr?"),
        ("num_iterations=2", "did you mean rollout.epochs?"),
        ("ppo_epochs=2", "did you mean rollout.epochs?"),
        ("scale_rewards=none", "did you mean objective.advantage?"),
        ("loss_type=dapo", "did you mean algorithm or objective.reduction?"),
        ("per_device_train_batch_size=2", "did you mean optimizer.microbatch_sequences?"),
        ("gradient_accumulation_steps=2", "none is needed: "),
        ("use_kl_loss=true", "did you mean objective.penalty.kind=loss_kl?"),
        ("objective.use_kl_loss=true", "did you mean objective.penalty.kind=loss_kl?"),
        ("actor.use_kl_loss=true", "did you mean objective.penalty.kind=loss_kl?"),
        ("use_kl_loss=false", "did you mean objective.penalty.kind=no_penalty?"),
        ("reward_kl=0.1", "did you mean objective.penalty.kind=reward_kl?"),
        ("kl_penalty=low_var", "did you mean objective.penalty.kind?"),
        # A name that is nearly one of ours is ours, and so is one in its own section.
        ("optimiser.epsilon=1e-6", "did you mean optimizer?"),
        ("advantage.epsilon=1e-6", "did you mean objective.advantage?"),
    ],
)
def test_the_fields_names_lead_to_our_knobs(override: str, hint: str, tmp_path: Path) -> None:
    line = _refused(tmp_path, override)[-1]
    assert line.startswith(f"{override.partition('=')[0].partition('.')[0]}")
    assert f"but there is no such knob; {hint}" in line


@pytest.mark.parametrize(
    ("algorithm", "override", "hint"),
    [
        ("dpo", "objective.beta=0.1", "did you mean objective.loss_function.beta?"),
        ("dpo", "loss_type=ipo", "did you mean algorithm or objective.loss_function?"),
        ("dpo", "epsilon=0.2", "the objective has nothing of the kind;"),
        ("sft", "use_kl_loss=true", "the objective has nothing of the kind;"),
        (
            "dapo",
            "kl_coef=0.1",
            "did you mean objective.penalty.coefficient with objective.penalty.kind=reward_kl or sequence_reward_kl or "
            "loss_kl?",
        ),
        ("ppo", "critic.learning_rate=1", "did you mean critic.lr?"),
    ],
)
def test_a_hint_is_a_knob_that_this_objective_can_have(
    algorithm: str, override: str, hint: str, tmp_path: Path
) -> None:
    line = _refused(tmp_path, f"algorithm={algorithm}", override)[-1]
    assert f"but there is no such knob; {hint}" in line


def test_every_alias_leads_to_a_knob_that_there_is() -> None:
    """Of some objective: a renamed knob would leave its hint behind."""
    paths = {".".join(path) for path in Place(Run).below({})}
    targets = {knob for names in ALIASES.values() for text in names for knob in text.split(" and ")}
    assert targets <= paths
    assert not set(ALIASES) & {path for path in paths if "." not in path}, "a knob of ours needs no other name"


# Names


_FULL: dict[str, Any] = {
    **_MINIMAL,
    "algorithm": "ppo",
    "critic": {"lr": 1e-3},
    "warm_start": {"max_updates": 1, "batch_size": 1, "lr": 1.0, "stop_at_pass_at_1": 0.5},
}


def _knobs() -> list[str]:
    """Every dotted knob and some sections; without its name a task is unknown, and so are its knobs."""
    knobs = [knob for knob in flat(build_run(_FULL).dump()) if knob != "task.name"]
    return [*knobs, "objective.surrogate", "rollout", "critic", "warm_start"]


@pytest.mark.parametrize("knob", _knobs())
def test_cfg_13_a_knob_of_another_name_is_never_ignored(knob: str) -> None:
    """Every knob of a run under the name that it might have had once: refused, and named."""
    section, _, name = knob.rpartition(".")
    renamed = f"{section}.{name}_v1" if section else f"{name}_v1"
    data = build_run(_FULL).dump()
    inside: dict[str, Any] = data
    for part in filter(None, section.split(".")):
        inside = inside[part]
    inside[f"{name}_v1"] = inside.pop(name)
    with pytest.raises(ConfigError) as error:
        build_run(data)
    assert any(line.startswith(f"{renamed}: ") for line in error.value.lines), error.value.lines


def test_every_section_of_a_run_refuses_a_knob_it_does_not_have() -> None:
    """Every section and every component that may stand anywhere in a run, also those that no preset uses."""
    seen: set[type] = set()

    def walk(place: Place) -> None:
        for cls in place.sections:
            if cls in seen or cls.__name__ == "Task":
                continue
            seen.add(cls)
            settings: Any = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None)
            assert settings["extra"] == "forbid", cls
            for field in getattr(cls, "__pydantic_fields__").values():
                walk(Place(field.annotation, tuple(field.metadata)))

    walk(Place(Run))
    assert len(seen) > 50, "the walk reaches the components of every axis"


def test_what_only_a_second_update_of_a_rollout_could_tell_apart_is_refused_with_one() -> None:
    """The clip of values and a detached weight of the KL term: runs that differ in them alone end in one model."""
    one = build_run({"algorithm": "ppo", **_MINIMAL}, nested({"critic.lr": 1e-5, "rollout.updates_per_rollout": 1}))
    penalty = {"kind": "loss_kl", "estimator": "k3", "coefficient": 0.1, "weight": "detached_ratio"}
    for knobs in ({"objective.value.clip": 0.5}, {"objective.penalty": penalty}):
        with pytest.raises(ConfigError) as error:
            change(one, knobs)
        assert any("with one update a rollout" in line for line in error.value.lines), error.value.lines
        change(one, {**knobs, "rollout.updates_per_rollout": 2})
