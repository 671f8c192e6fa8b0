"""What no single knob can get wrong: arithmetic between knobs, files that must be there, knobs that could not act."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from algorithms.axes.imitation import Imitation
from algorithms.axes.preference import GradedPairs, Preference
from bench.checks_adapter import adapter_mistakes
from bench.checks_critic import critic_files, critic_mistakes
from bench.checks_engine import engine_mistakes
from bench.checks_evaluation import at_hand, evaluation_mistakes, prompt_mistakes
from bench.checks_models import PROMPTS_LOOKED_AT, model_files, positions_of, prompt_lengths
from bench.checks_objective import dead_knob, objective_mistakes
from bench.checks_preference import preference_mistakes
from bench.checks_quality import quality_mistakes
from bench.checks_reward import reward_mistakes
from bench.checks_reward_model import reward_model_mistakes
from bench.config import Run, data_files
from bench.config_preference import fixed_pairs
from bench.tracking import uri_mistake
from tasks.parts.problem import DatasetTask, Split, Task


def check(run: Run) -> list[str]:
    """One line for each mistake: dotted path, value given, what would be right. Loads no model and needs no network."""
    missing = [*model_files("model", run.model), *critic_files(run), *_data_files(run)]
    parts = (
        _minibatches,
        evaluation_mistakes,
        reward_mistakes,
        _reward_model,
        critic_mistakes,
        adapter_mistakes,
        _parallel,
        objective_mistakes,
        preference_mistakes,
        engine_mistakes,
        quality_mistakes,
        _cadences,
        _context,
        _splits,
    )
    lines = [*missing, *(line for part in parts for line in part(run))]
    return lines if missing else [*lines, *_data_size(run), *_solutions(run), *prompt_mistakes(run)]


def _minibatches(run: Run) -> Iterator[str]:
    rollout = run.rollout
    parts, steps = rollout.updates_per_rollout, rollout.updates_per_rollout * rollout.epochs
    if rollout.prompts % parts:
        yield (
            f"rollout.updates_per_rollout: {parts} given, must divide rollout.prompts = {rollout.prompts}, because "
            f"groups are never split ({rollout.prompts} prompts x {rollout.group_size} completions = "
            f"{rollout.prompts * rollout.group_size}); must be {_either(_divisors(rollout.prompts))}, "
            f"or prompts = {_multiple(rollout.prompts, parts)}"
        )
    if run.budget.updates % steps:
        yield (
            f"budget.updates: {run.budget.updates} given, must be a multiple of the {steps} updates of a rollout "
            f"(updates_per_rollout {parts} x epochs {rollout.epochs}), such as {_multiple(run.budget.updates, steps)}"
        )
    if run.optimizer.warmup_updates >= run.budget.updates:
        yield (
            f"optimizer.warmup_updates: {run.optimizer.warmup_updates} given, must be below budget.updates = "
            f"{run.budget.updates}, or the learning rate is never reached"
        )


def _reward_model(run: Run) -> Iterator[str]:
    longest = max(prompt_lengths(run), default=None) if run.reward.model is not None else None
    yield from reward_model_mistakes(run, longest)


def _parallel(run: Run) -> Iterator[str]:
    if run.parallel.processes == 1:
        yield from dead_knob(run.parallel, "parallel", "strategy", "parallel.processes is 1")
    elif run.parallel.strategy == "fsdp" and run.meter.every:
        yield (
            f"meter.every: {run.meter.every} given, must be 0 with parallel.strategy=fsdp: weights are gathered and "
            "given back inside storages that the meter cannot see change"
        )


def _cadences(run: Run) -> Iterator[str]:
    if run.validation.every == 0:
        for knob in ("problems", "samples", "select"):
            yield from dead_knob(run.validation, "validation", knob, "validation.every is 0")
    elif run.validation.select == "validation" and run.validation.every > run.budget.updates:
        yield (
            f"validation.every: {run.validation.every} given, must be at most budget.updates = {run.budget.updates}, "
            "or there is nothing to select from"
        )
    if run.checkpoint.every == 0:
        for knob in ("keep", "keep_every"):
            yield from dead_knob(run.checkpoint, "checkpoint", knob, "checkpoint.every is 0")
    elif run.checkpoint.keep_every % run.checkpoint.every:
        yield (
            f"checkpoint.keep_every: {run.checkpoint.keep_every} given, must be a multiple of checkpoint.every = "
            f"{run.checkpoint.every}, because only what is written can stay; such as "
            f"{_multiple(run.checkpoint.keep_every, run.checkpoint.every)}"
        )
    mistake = uri_mistake(run.tracking_uri)
    if mistake is not None:
        yield mistake
    if not run.tracking.enabled:
        yield from dead_knob(run.tracking, "tracking", "uri", "tracking.enabled is false")


def _context(run: Run) -> Iterator[str]:
    budget, positions = run.rollout.max_completion_tokens, positions_of(run.model)
    if positions is None:
        return
    longest = max([1, *prompt_lengths(run)])
    if longest + budget > positions:
        fix = f"must be at most {positions - longest}, or " if positions > longest else ""
        yield (
            f"rollout.max_completion_tokens: {budget} given, but the model has {positions} positions and a prompt "
            f"takes {longest}; {fix}the model must have at least {longest + budget}"
        )


def _data_files(run: Run) -> Iterator[str]:
    yield from _files_of("task", run.task, run.task.source.files if isinstance(run.task, DatasetTask) else {})
    for label, task in run.evaluation.also.items():
        files = task.source.files if isinstance(task, DatasetTask) else {}
        yield from _files_of(f"evaluation.also.{label}", task, {k: v for k, v in files.items() if k == "test"})


def _files_of(knob: str, task: Task, files: Mapping[Split, str]) -> Iterator[str]:
    """A line for each of `files` that is not where the task's `path` says."""
    if not isinstance(task, DatasetTask) or task.path is None:
        return
    path = Path(task.path).expanduser()
    if not path.exists():
        yield f'{knob}.path: "{task.path}" given, but there is no such file or folder here (looked in {Path.cwd()})'
    elif path.is_dir():
        wanted = sorted(set(files.values()))
        there = [file.name for file in data_files(task, path)]
        for name in wanted:
            if name not in there:
                given = f'{knob}.path: "{task.path}" given'
                yield f"{given}, but {name} is not in it; {task.name} reads {', '.join(wanted)}"


def _splits(run: Run) -> Iterator[str]:
    if not isinstance(run.task, DatasetTask):
        return
    there = run.task.source.splits
    if "train" not in there and fixed_pairs(run.objective) is None:
        yield (
            f"task.name: {run.task.name} given, which has no train split to train on; "
            "give it under evaluation.also, and another task here"
        )
    elif "validation" not in there and run.validation.every:
        yield f"validation.every: {run.validation.every} given, but {run.task.name} has no validation split; must be 0"


def _data_size(run: Run) -> Iterator[str]:
    if not at_hand(run.task):
        return  # only the hub knows
    # Only here, because reading data takes a second to import.
    from bench.problems import num_problems

    wanted: list[tuple[str, int, Split]] = []
    if fixed_pairs(run.objective) is None:  # whose prompts are not the task's
        wanted.append(("rollout.prompts", run.rollout.prompts, "train"))
    if run.validation.every:
        wanted.append(("validation.problems", run.validation.problems, "validation"))
    if run.warm_start is not None:
        wanted.append(("warm_start.check_problems", run.warm_start.check_problems, "validation"))
    wanted.append(("evaluation.problems", run.evaluation.problems, "test"))
    for path, count, split in wanted:
        try:
            there = num_problems(run.task, split)
        except ValueError as error:  # the data cannot be read or lacks a column; says so in one line
            yield f"task.path: {error}"
            continue
        if there is not None and count > there:
            outcome = ", so 0 updates would run" if split == "train" else ""
            yield f"{path}: {count} given, but the {split} split has {there} problems{outcome}; must be at most {there}"


def _solutions(run: Run) -> Iterator[str]:
    """A line if an objective learns from worked solutions and the task's first problems have none."""
    objective = run.objective
    pairing = objective.pairing if isinstance(objective, Preference) else None
    if isinstance(objective, Imitation) and not objective.source.samples:
        given = "objective.source.kind: gold_solutions given"
        instead = "objective.source.kind=accepted_samples, which learns from the model's own correct samples"
    elif isinstance(pairing, GradedPairs) and pairing.gold_solution:
        given, instead = "objective.pairing.gold_solution: true given", "leave it out"
    else:
        return
    if not at_hand(run.task):
        return
    from bench.problems import load_problems, num_problems

    try:
        count = num_problems(run.task, "train")
        looked_at = min(PROMPTS_LOOKED_AT, PROMPTS_LOOKED_AT if count is None else count)
        problems = load_problems(run.task, "train", 0, looked_at)
    except ValueError:
        return  # said already, by the check on the data's size
    if not any(problem.solution for problem in problems):
        yield f"{given}, but {run.task.name} has no worked solutions; give another task, or {instead}"


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, min(number, 4096) + 1) if number % part == 0]


def _multiple(number: int, part: int) -> int:
    """The smallest multiple of `part` that is not below `number`."""
    return -(-number // part) * part


def _either(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
