"""`bench doctor`: what would go wrong with a run, or be regretted later, said before it costs anything."""

import os
import shutil
import sqlite3
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from algorithms.axes.imitation import Imitation
from algorithms.axes.preference import Preference
from algorithms.axes.selection import DropUniformGroups
from bench.catalog import load_preset
from bench.config import Run
from bench.config_preference import fixed_pairs
from bench.overlap import task_overlap
from bench.problems import load_problems, num_problems
from bench.progress import progress
from bench.reward_functions import describe
from bench.rewards import columns_of
from tasks.parts.problem import DatasetTask, Problem, Split, Task
from tasks.parts.selftest import Failure, self_test

State = Literal["ok", "warn", "fail"]

_TRAIN_LOOKED_AT = 2000
_MADE_TESTS_LOOKED_AT = 2000
"""Of a test split that a task makes and that may be huge; a data set's is looked at as a whole."""
_AT_ONCE = 256
_SHOWN_FAILURES, _SHOWN_IDS = 5, 40
_CHARACTERS = 150
_OVERLAP_WARNED = 0.01
"""Share of the test problems from which on an overlap is a warning; GSM8K's own is 0.7 % by the looser rule."""
_SERVER_SECONDS = 5.0


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    lines: tuple[str, ...]
    """What was found. Indented lines are quoted text."""

    def printed(self, width: int) -> Iterator[str]:
        """The lines of the check in its column, none wider than `width` where it can be broken."""
        head = f"{self.state:<4}  {self.name:<13} "
        for line in self.lines:
            parts = [line] if line.startswith("  ") else textwrap.wrap(line, max(40, width - len(head))) or [""]
            for part in parts:
                yield f"{head}{part}".rstrip()
                head = " " * len(head)


@dataclass(frozen=True)
class Material:
    """The problems of one of the run's tasks that are looked at."""

    label: str
    """Empty for the run's own task, else its label among the other tasks of the evaluation."""
    task: Task
    train: Sequence[Problem]
    """None of a task that is evaluated on only."""
    test: Sequence[Problem]

    @property
    def where(self) -> str:
        """How lines about it begin."""
        return f"{self.label}: " if self.label else ""


def doctor(run: Run, most_problems: int | None = None) -> Iterator[Check]:
    """Every check of a run that is valid as a configuration, as it is done; those that need data or model come last.

    Args:
        most_problems: how many problems of each split to look at; None is all of the test split and 2000 for training.
    """
    yield configuration(run)
    yield batch(run)
    yield disk(run)
    yield tracker(run)
    materials: list[Material] = []
    for label, task in (("", run.task), *run.evaluation.also.items()):
        check, material = data(run, label, task, most_problems)
        yield check
        materials += [material] if material else []
    for material in materials:
        yield golds(material)
        yield overlaps(run, material)
    if materials and not materials[0].label:
        yield from rewards(run, materials[0])
    # Here, because it imports what loads models.
    from bench.doctor_model import model_checks

    yield from model_checks(run, materials)


def configuration(run: Run) -> Check:
    """What the loader has checked by now."""
    preset = load_preset(run.algorithm)
    return Check(
        "configuration", "ok", (f"run {run.id}: {run.algorithm} on {run.task.name}, seed {run.seed}", preset.title)
    )


def batch(run: Run) -> Check:
    """The batch arithmetic, in words."""
    rollout, updates = run.rollout, run.budget.updates
    whole = rollout.prompts * rollout.group_size
    share = whole // rollout.updates_per_rollout
    rounds = updates // (rollout.updates_per_rollout * rollout.epochs)
    config = run.optimizer
    most = f" and {config.microbatch_sequences} completions" if config.microbatch_sequences else ""
    passes = f", {rollout.epochs} passes over each" if rollout.epochs > 1 else ""
    lines = [
        f"{rollout.prompts} prompts x {rollout.group_size} completions = {whole:,} completions a rollout",
        f"{_plural(rollout.updates_per_rollout, 'update')} a rollout{passes}: {share:,} completions an update, "
        f"in microbatches of at most {config.microbatch_tokens:,} tokens{most}",
        f"{_plural(updates, 'update')} = {_plural(rounds, 'rollout')}: {rounds * whole:,} completions, "
        f"at most {rounds * whole * rollout.max_completion_tokens:,} completion tokens",
    ]
    objective, source = run.objective, fixed_pairs(run.objective)
    if isinstance(objective, Imitation) and not objective.source.samples:
        lines.append("nothing is sampled: as many worked solutions are imitated instead")
    elif source is not None:
        lines.append(f"nothing is sampled: as many completions, two a pair, come from {source.path} instead")
    elif isinstance(objective, Preference) and objective.pairing.rounds > 1:
        each = updates // objective.pairing.rounds
        lines.append(f"{objective.pairing.rounds} rounds of {_plural(each, 'update')}, each on its own samples' pairs")
    selection = getattr(objective, "selection", None)
    if isinstance(selection, DropUniformGroups) and selection.max_rounds > 1:
        lines.append(f"dynamic sampling may draw up to {selection.max_rounds} times as many")
    config = run.evaluation
    lines.append(
        f"evaluation: {config.problems} problems x {config.samples} samples = {config.problems * config.samples:,} "
        f"completions{', also of the starting model' if config.start else ''}"
    )
    return Check("batch", "ok", tuple(lines))


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


# Data


def data(run: Run, label: str, task: Task, most: int | None) -> tuple[Check, Material | None]:
    """The splits and their sizes, and the problems that the other checks look at; none where they cannot be read."""
    splits: tuple[Split, ...] = ("test",) if label else ("train", "validation", "test")
    where = f"{label}: " if label else ""
    try:
        sizes = {split: num_problems(task, split) for split in splits}
        train = [] if label else _first(task, "train", sizes["train"], most or _TRAIN_LOOKED_AT)
        made = None if isinstance(task, DatasetTask) else max(_MADE_TESTS_LOOKED_AT, run.evaluation.problems)
        test = _first(task, "test", sizes["test"], most or made)
    except ValueError as error:
        return Check("data", "fail", (f"{where}{error}", "what needs it is not checked")), None
    source = "made by the task"
    if isinstance(task, DatasetTask):
        source = f"from {task.path or f'{task.source.hub_id}, revision {task.source.revision[:7]}'}"
    counts = ", ".join(f"{split} {'without end' if size is None else f'{size:,}'}" for split, size in sizes.items())
    lines = [f"{where}{task.name} version {task.version}, {source}", counts]
    size = sizes.get("train")
    if size and fixed_pairs(run.objective) is None:
        rounds = run.budget.updates // (run.rollout.updates_per_rollout * run.rollout.epochs)
        lines.append(f"the run takes {rounds * run.rollout.prompts:,} training prompts, {_share(rounds, run, size)}")
    return Check("data", "ok", tuple(lines)), Material(label, task, train, test)


def _share(rounds: int, run: Run, size: int) -> str:
    passes = rounds * run.rollout.prompts / size
    return f"{passes:.1%} of the split" if passes < 1 else f"{passes:.1f} times the split"


def _first(task: Task, split: Split, size: int | None, most: int | None) -> list[Problem]:
    counts = [count for count in (size, most) if count is not None]
    return load_problems(task, split, 0, min(counts))


def golds(material: Material) -> Check:
    """Whether the grader accepts every gold answer and refuses corrupted ones; the rows that fail are named."""
    problems = [*material.train, *material.test]
    failures: list[Failure] = []
    with progress("grading gold answers", len(problems)) as advance:
        for start in range(0, len(problems), _AT_ONCE):
            part = problems[start : start + _AT_ONCE]
            failures += self_test(material.task, part)
            advance(len(part), f"{len(failures)} failures" if failures else "")
    looked_at = (
        f"{len(material.train):,} train and {len(material.test):,} test"
        if material.train
        else f"{len(problems):,} test"
    )
    if not failures:
        unknown = sum(material.task.stated(problem) is None for problem in problems)
        without = f"; {unknown:,} have no answer to test" if unknown else ""
        line = f"{material.where}{looked_at} problems: golds are right, corrupted ones wrong{without}"
        return Check("gold answers", "ok", (line,))
    lines = [f"{material.where}{len({f.problem_id for f in failures}):,} of {looked_at} problems fail:"]
    lines += [f"  {f.problem_id}: {f.what}: {_cut(f.detail)}" for f in failures[:_SHOWN_FAILURES]]
    others = list(dict.fromkeys(f.problem_id for f in failures[_SHOWN_FAILURES:]))
    if others:
        more = f" and {len(others) - _SHOWN_IDS:,} more" if len(others) > _SHOWN_IDS else ""
        lines.append(f"also {', '.join(others[:_SHOWN_IDS])}{more}")
    return Check("gold answers", "fail", tuple(lines))


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."


def overlaps(run: Run, material: Material) -> Check:
    """How many test problems are among the training problems of the run's own task."""
    other = material.task if material.label else None
    try:
        found = task_overlap(run.task, other)
    except ValueError as error:
        return Check("overlap", "fail", (f"{material.where}{error}",))
    exact, shared = found["exact"], found.get("ten_gram", 0)
    compared = f"{found['num_test']:,} test against {found['num_train']:,} training problems"
    line = f"{material.where}{compared}: {exact:,} the same"
    if "ten_gram" in found:
        line += f", {shared:,} share ten words in a row"
    ids = f"such as {', '.join(found['ids'][:3])}"
    alarming = exact > 0 or shared > _OVERLAP_WARNED * found["num_test"]
    return Check("overlap", "warn" if alarming else "ok", (line, *([ids] if found["ids"] else [])))


# Rewards


def rewards(run: Run, material: Material) -> Iterator[Check]:
    """Whether the user's reward functions can be imported, and find the columns that they take; nothing without any."""
    found = list(columns_of([*material.train[:1], *material.test[:1]]))
    for function in run.reward.functions:
        try:
            wanted = describe(function.function)
        except ValueError as error:
            yield Check("reward", "fail", (f"{function.function}: {error}",))
            continue
        missing = wanted.missing(found)
        takes = ", ".join((*wanted.required, *wanted.optional)) or "the completions alone"
        told = missing or f"weight {function.weight:g}, takes {'every column' if wanted.everything else takes}"
        yield Check("reward", "fail" if missing else "ok", (f"{function.function}: {told}",))


# Where results go


def disk(run: Run) -> Check:
    """Whether the run's folder can be written, and how much room there is; the model check says how much is needed."""
    root = Path(run.output.root).absolute()
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if not there.is_dir():
        return Check("disk", "fail", (f"output.root: {run.output.root} given, but {there} is a file",))
    if not os.access(there, os.W_OK | os.X_OK):
        return Check("disk", "fail", (f"output.root: {run.output.root} given, but {there} cannot be written",))
    return Check("disk", "ok", (f"{shutil.disk_usage(there).free / 1e9:,.1f} GB free at {root}",))


def tracker(run: Run) -> Check:
    """Whether MLflow can be reached. A warning at most: a run goes on without it, and its files have everything."""
    uri = run.tracking_uri
    if not run.tracking.enabled:
        return Check("tracker", "ok", ("off: tracking.enabled is false",))
    if uri.startswith("sqlite:///"):
        trouble = _database_trouble(Path(uri.removeprefix("sqlite:///")))
    elif uri.startswith(("http://", "https://")):
        trouble = _server_trouble(uri)
    else:
        return Check("tracker", "ok", ("a database server, which is not tried here",))
    place = uri.rpartition("@")[2]  # without a password
    if trouble:
        return Check("tracker", "warn", (f"{place}: {trouble}; the run would go on without it",))
    return Check("tracker", "ok", (place,))


def _database_trouble(file: Path) -> str | None:
    if not file.exists():
        parent = next(folder for folder in file.absolute().parents if folder.exists())
        writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        return None if writable else f"cannot be made, because {parent} cannot be written"
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        try:
            connection.execute("select count(*) from experiments").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return f"is not a database of MLflow ({error})"
    return None if os.access(file, os.W_OK) else "cannot be written"


def _server_trouble(uri: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_SERVER_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"answers {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return f"cannot be reached ({getattr(error, 'reason', error)})"
