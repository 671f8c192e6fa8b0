"""A specification means what the design page says, and everything wrong with it is said at once."""

from itertools import pairwise
from pathlib import Path

import pytest

from bench.loading import ConfigError
from sweeps.grid import Sweep, load_sweep

BASE = """
base:
  task: chain_sum
  model: {kind: tiny, max_positions: 32}
  rollout: {prompts: 4, group_size: 4, updates_per_rollout: 2, max_completion_tokens: 12}
  optimizer: {lr: 1e-3, microbatch_sequences: 8}
  budget: {updates: 4}
"""


def sweep_of(tmp_path: Path, text: str, *overrides: str, base: str = BASE) -> Sweep:
    path = tmp_path / "study.yaml"
    path.write_text(base + text)
    return load_sweep(path, overrides)


def mistakes(tmp_path: Path, text: str, *overrides: str, base: str = BASE) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        sweep_of(tmp_path, text, *overrides, base=base)
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.lines]


def test_cross_is_every_combination_the_first_axis_slowest(tmp_path: Path):
    sweep = sweep_of(tmp_path, "cross: {algorithm: [grpo, dapo], rollout.epochs: [1, 2], seed: [0, 3]}")
    assert [(t.algorithm, t.arm, t.seed) for t in sweep.trials] == [
        (algorithm, f"rollout.epochs={n}", seed) for algorithm in ("grpo", "dapo") for n in (1, 2) for seed in (0, 3)
    ]
    assert [(t.run.algorithm, t.run.rollout.epochs, t.run.seed) for t in sweep.trials] == [
        (algorithm, n, seed) for algorithm in ("grpo", "dapo") for n in (1, 2) for seed in (0, 3)
    ]
    assert sweep.trials[0].name == "grpo chain_sum (rollout.epochs=1) seed 0"
    assert len({t.run.id for t in sweep.trials}) == 8
    assert sweep.directory == Path("runs/study")


def test_without_axes_there_is_one_trial(tmp_path: Path):
    (trial,) = sweep_of(tmp_path, "").trials
    assert trial.name == "grpo chain_sum seed 0"


def test_later_layers_win_and_leave_their_siblings_alone(tmp_path: Path):
    text = "cross: {algorithm: [ppo, grpo]}\nper_algorithm: {ppo: {critic.lr: 2e-3, optimizer: {lr: 5e-4}}}"
    ppo, grpo = sweep_of(tmp_path, text).trials
    assert (ppo.run.optimizer.lr, grpo.run.optimizer.lr) == (5e-4, 1e-3)
    assert ppo.run.optimizer.microbatch_sequences == 8
    assert ppo.run.critic is not None
    assert ppo.run.critic.lr == 2e-3
    assert grpo.run.critic is None
    assert [t.run.optimizer.lr for t in sweep_of(tmp_path, text, "optimizer.lr=1e-6").trials] == [1e-6, 1e-6]


def test_a_small_learning_rate_is_a_number_wherever_it_is_given(tmp_path: Path):
    in_base = sweep_of(tmp_path, "", base=BASE.replace("lr: 1e-3", "lr: 1e-6")).trials[0]
    in_cross = sweep_of(tmp_path, "cross: {optimizer.lr: [1e-6]}", base=BASE.replace("lr: 1e-3, ", "")).trials[0]
    on_command_line = sweep_of(tmp_path, "", "optimizer.lr=1e-6").trials[0]
    assert {t.run.optimizer.lr for t in (in_base, in_cross, on_command_line)} == {1e-6}
    assert len({t.run.id for t in (in_base, in_cross, on_command_line)}) == 1


def test_crossed_tasks_may_carry_knobs_and_are_told_apart(tmp_path: Path):
    text = "cross: {task: [chain_sum, {name: chain_sum, num_terms: 2}]}"
    sweep = sweep_of(tmp_path, text, base=BASE.replace("  task: chain_sum\n", ""))
    assert [t.name for t in sweep.trials] == ["grpo chain_sum seed 0", "grpo chain_sum(num_terms=2) seed 0"]
    assert [t.run.dump()["task"]["num_terms"] for t in sweep.trials] == [3, 2]


def test_ablation_changes_one_thing_at_a_time_from_one_start(tmp_path: Path):
    text = """
cross: {seed: [0, 1]}
ablate: {from: dapo, one_at_a_time: {objective.reduction: [sequence_mean], objective.surrogate.high: [0.2, 0.4]}}
"""
    trials = sweep_of(tmp_path, text).trials
    assert [(t.algorithm, t.arm, t.seed) for t in trials] == [
        ("dapo", arm, seed)
        for arm in ("", "reduction=sequence_mean", "surrogate.high=0.2", "surrogate.high=0.4")
        for seed in (0, 1)
    ]
    start = trials[0].run.dump()["objective"]
    changed = [{axis for axis, part in t.run.dump()["objective"].items() if part != start[axis]} for t in trials[::2]]
    assert changed == [set(), {"reduction"}, {"surrogate"}, {"surrogate"}]


def test_the_start_of_an_ablation_that_is_crossed_too_comes_up_once(tmp_path: Path):
    text = "cross: {algorithm: [grpo, dapo]}\nablate: {from: dapo, one_at_a_time: {objective.surrogate.high: [0.2]}}"
    assert [(t.algorithm, t.arm) for t in sweep_of(tmp_path, text).trials] == [
        ("grpo", ""),
        ("dapo", ""),
        ("dapo", "surrogate.high=0.2"),
    ]


def test_a_ladder_climbs_one_difference_at_a_time_to_the_other_objective(tmp_path: Path):
    trials = sweep_of(tmp_path, "ladder: {from: grpo, to: dapo}").trials
    goal = sweep_of(tmp_path, "", "algorithm=dapo").trials[0].run.objective
    assert trials[0].arm == ""
    assert trials[-1].run.objective == goal
    assert all(t.algorithm == "grpo" for t in trials)
    for below, above in pairwise(trials):
        old, new = below.run.dump()["objective"], above.run.dump()["objective"]
        (axis,) = [axis for axis in new if new[axis] != old[axis]]
        if new[axis]["kind"] == old[axis]["kind"]:
            assert len([knob for knob in new[axis] if new[axis][knob] != old[axis][knob]]) == 1
    assert trials[1].arm.startswith("rung 1 of ")


def test_families_that_share_nothing_have_no_ladder(tmp_path: Path):
    assert mistakes(tmp_path, "ladder: {from: grpo, to: dpo}") == [
        "ladder: policy_gradient and preference share no knobs, there is nothing between them"
    ]


def test_every_mistake_of_every_trial_is_said_once_with_its_origin(tmp_path: Path):
    text = """
cross: {algorithm: [ppo, grpo, dpo], seed: [0, 1]}
per_algorithm: {ppo: {critic.rl: 1e-3}, dpo: {rollout.epochs: 0}}
"""
    lines = mistakes(tmp_path, text, base=BASE.replace("{updates: 4}", "{update: 4}"))
    assert len(lines) == len(set(lines)) == 5
    (unknown,) = [line for line in lines if line.startswith("budget.update:")]
    assert "did you mean budget.updates?" in unknown
    assert unknown.endswith("[base; all 6 trials]")
    assert [line for line in lines if line.startswith("budget.updates: missing")]
    (critic,) = [line for line in lines if line.startswith("critic.rl:")]
    assert critic.endswith("[per_algorithm.ppo; ppo chain_sum seed 0 and 1 more]")
    (epochs,) = [line for line in lines if line.startswith("rollout.epochs:")]
    assert epochs.endswith("[per_algorithm.dpo; dpo chain_sum seed 0 and 1 more]")


def test_a_group_of_one_is_refused_before_anything_runs(tmp_path: Path):
    (line,) = mistakes(tmp_path, "", "rollout.group_size=1")
    assert "needs at least 2" in line
    assert line.endswith("[command line; the only trial]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("crossed: {seed: [0]}", "crossed: no such section; did you mean cross? the sections are base, cross,"),
        ("optimizer: {lr: 1}", "optimizer: no such section; a knob belongs under base;"),
        ("tune: {knob: optimizer.lr}", "tune: not supported yet; the sections are base, cross, per_algorithm, ablate,"),
        ("cross: [1]", "cross: [1] given, must be a section with knobs"),
        ("cross: {seed: 3}", "cross.seed: 3 given, must be a list of values, such as [3]"),
        ("cross: {seed: []}", "cross.seed: [] given, must be a list of values, such as [0]"),
        ("cross: {seed: [1, 0, 1]}", "cross.seed: 1 is given twice"),
        ("cross: {optimizer.lr: [1e-3]}", "base.optimizer.lr: cross varies optimizer.lr already; give it in one"),
        (
            "cross: {algorithm: [ppo]}\nper_algorithm: {pppo: {critic.lr: 1}}",
            "per_algorithm.pppo: not in this sweep; did you",
        ),
        ("ladder: {from: grpo}", "ladder: from given, must be from and to"),
        (
            "ablate: {from: dapo, one_at_a_time: {objective.surrogate.high: 1}}",
            "ablate.one_at_a_time.objective.surrogate.high",
        ),
    ],
)
def test_a_malformed_specification_is_explained(tmp_path: Path, text: str, said: str):
    (line,) = mistakes(tmp_path, text)
    assert line.startswith(f"study.yaml: {said}")


def test_a_variation_that_changes_nothing_is_a_duplicate(tmp_path: Path):
    text = "ablate: {from: dapo, one_at_a_time: {objective.surrogate.high: [0.28]}}"
    (line,) = mistakes(tmp_path, text)
    assert line.startswith("dapo chain_sum (surrogate.high=0.28) seed 0 is the same run as dapo chain_sum seed 0 (")


def test_runs_of_a_sweep_go_to_one_place(tmp_path: Path):
    (line,) = mistakes(tmp_path, "cross: {algorithm: [grpo, dapo]}\nper_algorithm: {dapo: {output.root: elsewhere}}")
    assert line == "output: differs between trials; the runs of a sweep share it, give it under base"


def test_what_is_crossed_is_narrowed_on_the_command_line_only_by_name(tmp_path: Path):
    text = "cross: {algorithm: [grpo, dapo], seed: [0, 1]}"
    (line,) = mistakes(tmp_path, text, "seed=1")
    assert line.endswith("the sweep varies seed; to choose among the values write cross.seed=[...]")
    sweep = sweep_of(tmp_path, text, "cross.seed=[1]", "cross.algorithm=[dapo]")
    assert [t.name for t in sweep.trials] == ["dapo chain_sum seed 1"]


def test_values_with_special_characters_arrive_as_written(tmp_path: Path):
    (trial,) = sweep_of(tmp_path, "", "tracking.uri='http://höst:1/a=b, c #d'", "evaluation.ks=[1, 2]").trials
    assert trial.run.tracking.uri == "http://höst:1/a=b, c #d"
    assert trial.run.evaluation.ks == (1, 2)


def test_every_shipped_specification_is_valid_and_opens_with_question_cost_and_hardware(root: Path):
    paths = sorted((root / "sweeps" / "specs").glob("*.yaml"))
    assert "quickstart.yaml" in [path.name for path in paths]
    for path in paths:
        sweep = load_sweep(path)
        assert sweep.directory == Path("runs") / path.stem
        lines = path.read_text().splitlines()
        assert [line.partition(":")[0] for line in lines[:3]] == ["# Question", "# Cost", "# Hardware"]


def test_the_quickstart_gives_every_algorithm_the_same_budget(root: Path):
    trials = load_sweep(root / "sweeps" / "specs" / "quickstart.yaml").trials
    assert {t.algorithm for t in trials} == {"ppo", "grpo", "dr_grpo", "dapo", "dpo"}
    sampled, passed = set(), set()
    for trial in trials:
        rollout, updates = trial.run.rollout, trial.run.budget.updates
        a_rollout = rollout.prompts * rollout.group_size
        sampled.add(updates // (rollout.updates_per_rollout * rollout.epochs) * a_rollout)
        passed.add(a_rollout // rollout.updates_per_rollout)
    assert len(sampled) == len(passed) == 1
