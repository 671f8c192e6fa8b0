"""What is wrong with a run's reward: idle knobs, functions that cannot be called, a schema that is none."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from algorithms.axes.baseline import BatchScaled, GroupStandardised, PassAtK
from algorithms.axes.imitation import Imitation
from algorithms.axes.knobs import kind_of
from algorithms.axes.masked import slack
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from algorithms.axes.shaping import NoShaping
from bench.checks_evaluation import at_hand
from bench.checks_objective import dead_knob
from bench.checks_reward_model import scale_mistakes
from bench.config import Run

_PROBLEMS_LOOKED_AT = 64


def reward_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right."""
    reward = run.reward
    if not run.objective.needs.samples:
        material = "worked solutions" if isinstance(run.objective, Imitation) else "pairs of a data set"
        for knob in ("source", "format_rule", "format_schema", "functions", "model", "noise", "sparsity"):
            yield from _dead(run, knob, f"{run.algorithm} reads {material}, and no completion is graded")
        return
    # Of an objective that reads no reward, the check on objectives refuses the two as such.
    if reward.source == "verifier" and run.objective.needs.reward and reward.correct <= reward.wrong:
        yield f"reward.correct: {reward.correct:g} given, must be above reward.wrong = {reward.wrong:g}"
    else:
        yield from _scale(run)
    yield from _idle(run)
    if reward.noise is not None and not (reward.noise.false_positive or reward.noise.false_negative):
        yield "reward.noise: given, but both of its rates are 0, so it could not act; leave it out"
    yield from _schema(run)
    yield from _functions(run)


def _idle(run: Run) -> Iterator[str]:
    """Knobs of a part that this source, or this objective, has no use for."""
    reward, reads_reward = run.reward, run.objective.needs.reward
    # Of an objective that reads no reward, the check on objectives has refused the three numbers already.
    numbers = ("correct", "wrong") if reads_reward else ()
    form = ("format_rule", "format_schema")
    if reward.source == "random":
        for knob in (*numbers, *(("format",) if reads_reward else ()), *form, "functions", "noise"):
            yield from _dead(run, knob, "reward.source=random is a coin alone, worth 1 or 0")
        return
    if reward.source != "verifier":
        for knob in (*numbers, "noise"):
            yield from _dead(run, knob, f"reward.source={reward.source} has no verdict")
    if reward.source == "format_only":
        yield from _dead(run, "functions", "reward.source=format_only is the format score alone")
        if reads_reward and not reward.format:
            yield "reward.format: 0 given, but reward.source=format_only has no other reward; give reward.format=1"
    elif not reward.format:
        for knob in form:
            yield from _dead(run, knob, "reward.format is 0")
    if reward.source == "functions" and not reward.functions:
        yield "reward.functions: none given, but reward.source=functions has no other reward; name at least one"
    if reward.source == "verifier" and not reads_reward:
        why = f"{run.algorithm} reads the verdict, not the reward (reward.source=functions makes them the verdict)"
        yield from _dead(run, "functions", why)


def _scale(run: Run) -> Iterator[str]:
    """The size of a reward that has one part, for an objective that no common factor changes.

    Beside another part the same knob says how much either counts, and acts.
    """
    why, reward, reads_reward = _scale_free(run), run.reward, run.objective.needs.reward
    parts = (reads_reward and reward.format > 0) + len(reward.functions) + (reward.source == "verifier")
    parts += reward.model is not None
    if why is None or parts > 1:
        return
    if reward.source == "verifier" and reads_reward:
        # Two worths that could be taken for equal, up to rounding, do act: they tie.
        apart = (reward.correct - reward.wrong) / run.rollout.group_size
        if apart > slack(max(abs(reward.correct), abs(reward.wrong))):
            for knob in ("correct", "wrong"):
                yield from _dead(run, knob, why)
    elif reward.source == "format_only" and reward.format not in (0, 1) and reads_reward:
        yield f"reward.format: {reward.format:g} given, but {why}, so its size could not act; give reward.format=1"
    elif reward.source == "functions" and reward.functions:
        weight = reward.functions[0].weight
        if abs(weight) not in (0, 1):
            given = f"reward.functions.0.weight: {weight:g} given, but {why}"
            yield f"{given}, so its size could not act; give {math.copysign(1, weight):g}"
    elif reward.source == "model" and reward.model is not None:
        yield from scale_mistakes(run, why)


def _scale_free(run: Run) -> str | None:
    """Why no positive factor on all rewards could change what this objective learns; None where one could."""
    objective = run.objective
    if not objective.needs.reward:
        if run.reward.source == "model":
            return f"{run.algorithm} reads which rewards are above their group's mean"
        return f"{run.algorithm} reads the verdict, which of a function is whether its reward is above 0"
    if isinstance(objective, Preference):
        return f"{run.algorithm} makes pairs by which rewards are above their group's mean"
    if not isinstance(objective, PolicyGradient) or objective.penalty.in_reward:
        return None
    advantage = objective.advantage
    exact = isinstance(advantage, GroupStandardised | BatchScaled) and advantage.epsilon == 0
    if isinstance(objective.shaping, NoShaping) and (exact or isinstance(advantage, PassAtK)):
        return f"objective.advantage.kind={kind_of(advantage)} divides by the rewards' own standard deviation"
    return None


def _dead(run: Run, knob: str, why: str) -> Iterator[str]:
    for line in dead_knob(run.reward, "reward", knob, why):
        # The value of a whole section would be its Python form.
        yield (
            line
            if knob not in ("functions", "model", "noise")
            else f"reward.{knob}: given, but {line.partition(', but ')[2]}"
        )


def _schema(run: Run) -> Iterator[str]:
    reward = run.reward
    if reward.format_schema is None:
        return
    given = f'reward.format_schema: "{reward.format_schema}" given, but'
    if reward.format_rule != "json":
        yield f"{given} reward.format_rule is {reward.format_rule}, so it could not act; leave it out"
        return
    from bench.json_form import schema_mistake

    path = Path(reward.format_schema).expanduser()
    if not path.is_file():
        yield f"{given} there is no such file here (looked in {Path.cwd()})"
        return
    try:
        mistake = schema_mistake(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        mistake = f"cannot be read as JSON: {error}"
    if mistake is not None:
        yield f"{given} it {mistake}"


def _functions(run: Run) -> Iterator[str]:
    """Each function is imported and asked what it takes, in a process of its own: nothing of the user's runs here."""
    if not run.reward.functions:
        return
    from bench.reward_functions import describe

    columns = _columns(run)
    for index, function in enumerate(run.reward.functions):
        path = f"reward.functions.{index}"
        if not function.weight:
            yield f"{path}.weight: 0 given, so {function.function} could not act; leave the function out"
        try:
            wanted = describe(function.function)
        except ValueError as error:
            yield f"{path}.function: {function.function} {error}"
            continue
        missing = None if columns is None else wanted.missing(columns)
        if missing is not None:
            yield f"{path}.function: {function.function} {missing}"


def _columns(run: Run) -> list[str] | None:
    """The columns of the task's first problems; None where they are not at hand, and the first rollout will tell."""
    if not at_hand(run.task):
        return None
    from bench.problems import load_problems, num_problems
    from bench.rewards import columns_of

    try:
        there = num_problems(run.task, "train")
        looked_at = _PROBLEMS_LOOKED_AT if there is None else min(there, _PROBLEMS_LOOKED_AT)
        return list(columns_of(load_problems(run.task, "train", 0, looked_at)))
    except ValueError:
        return None  # said already, by the check on the data's size
