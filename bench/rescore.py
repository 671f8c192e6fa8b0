"""`bench score`: stored completions graded again, every verdict that changed, and the accuracies before and after."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from bench.catalog import UnknownName, load_task_class, names
from bench.completions import StoredCompletion, read_completions
from bench.dialect import ConfigError, parse_yaml
from bench.evaluation import (
    Outcome,
    OutcomeMatrix,
    estimates,
    outcome_matrix,
    read_outcomes,
    summarise,
    write_estimates,
    write_outcomes,
)
from bench.evaluation.journal import Journal
from bench.explain import explain
from bench.fingerprint import data_digest, file_digest
from bench.problems import load_problems, num_problems, problem_of
from bench.progress import progress
from bench.rescored import Change, Rescored, printable
from bench.schema import Place
from bench.store import write_json
from tasks.parts.problem import DatasetTask, Problem, Split, Task
from tasks.parts.verify import VERSION

_ROWS_AT_ONCE = 512
_KS = (1, 2, 4, 8, 16)
_GRADE = ("correct", "answer_key", "parsed", "truncated", "timed_out", "method")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for."""

    path: Path
    """Completions as JSON lines, .jsonl or .jsonl.zst."""
    task: str
    data: str | None = None
    """Folder or file of the task's data; without it, golds are taken from the file where it has them."""
    knobs: Sequence[str] = ()
    """The task's own, `key=value`; by default those of the evaluation that the file belongs to."""
    out: Path | None = None
    """Folder of the results; None is the file's own."""


def rescore(request: Request) -> Rescored:
    """Grade a file's completions again, compare, and write outcomes, estimates and manifest beside the old ones.

    Killed and started again it goes on where it was; the file and what lies beside it stay as they are.

    Raises:
        ConfigError: the file, the task or the data cannot be used, or do not belong together.
    """
    records = read_completions(request.path)
    stem = request.path.name.removesuffix(".zst").removesuffix(".jsonl").removesuffix(".json")
    manifest = _manifest(request.path.with_name(f"{stem}.json"))
    task = _task(request, manifest)
    notes: list[str] = []
    problems = _problems(request, task, records, notes)
    before = _stored_outcomes(request.path.with_name(f"{stem}.parquet"), records, notes)
    folder, name = request.out or request.path.parent, f"{stem}.rescored"
    content = {"file": file_digest(request.path), "task": task.model_dump(mode="json"), "task_version": task.version}
    content |= {"verifier_version": VERSION, "golds": sorted([p.id, p.gold] for p in problems.values())}
    journal = Journal(folder / f".{name}.journal.jsonl", data_digest(content))
    after = _graded(task, records, problems, before, journal)
    changes = tuple(_changes(records, problems, before, after))
    same = [(old, new) for old, new in zip(before, after, strict=True) if old and old.correct == new.correct]
    keys_changed = sum(old.method != "" and old.answer_key != new.answer_key for old, new in same)
    rescored = Rescored(task, before, tuple(after), changes, keys_changed, tuple(notes), folder, name)
    source = {"completions": request.path.name, "completions_sha256": content["file"]}
    _write(rescored, records, {**manifest, **source})
    journal.close()
    return rescored


# What is graded


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of the evaluation that the completions belong to; empty where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _task(request: Request, manifest: Mapping[str, Any]) -> Task:
    """The task with its knobs: those asked for, over those of the manifest where it is of the same task."""
    stored = manifest.get("task")
    own = dict(stored) if isinstance(stored, dict) and stored.get("name") == request.task else {}
    own.pop("path", None)  # of the machine that sampled, perhaps
    try:
        cls = load_task_class(request.task)
        knobs = {**own, **_knobs(request.knobs), "name": request.task}
        if request.data is not None:
            knobs["path"] = request.data
        if "path" in knobs and "path" not in cls.model_fields:
            raise ConfigError([f"--data: {knobs['path']} given, but {request.task} reads no data"])
        try:
            return cls.model_validate_json(json.dumps(knobs))
        except ValidationError as error:
            lines = explain(error, Place(cls), knobs)
            raise ConfigError([f"--knob {line}".replace("A run has", "the task has") for line in lines]) from None
    except UnknownName as error:
        raise ConfigError([f"--task: {request.task} given, {error}"]) from None


def _knobs(texts: Sequence[str]) -> dict[str, Any]:
    pairs = [text.partition("=") for text in texts]
    mistakes = [f"--knob {key}: write it as key=value, such as num_terms=3" for key, _, value in pairs if not value]
    if mistakes:
        raise ConfigError(mistakes)
    return {key: parse_yaml(value, f"--knob {key}={value}") for key, _, value in pairs}


def _problems(
    request: Request, task: Task, records: Sequence[StoredCompletion], notes: list[str]
) -> dict[str, Problem]:
    """The problem of each id in the file: the task's own, or one that is known by the file's gold alone."""
    golds: dict[str, str | None] = {}
    for record in records:
        golds[record.problem_id] = golds.get(record.problem_id) or record.gold
    strangers = [name for name in golds if _split_of(name) and _other_task(task, name)]
    if strangers:
        raise ConfigError(
            [f"{request.path}: --task {task.name} given, but {strangers[0]} is a problem of another task"]
        )
    splits: dict[str, Split] = {name: split for name in golds if (split := _split_of(name))}
    try:
        if not isinstance(task, DatasetTask):
            found = {name: problem_of(task, name) for name in golds}
        elif task.path is None and None not in golds.values():
            found = {}
        else:
            found = {problem.id: problem for split in sorted(set(splits.values())) for problem in _all(task, split)}
    except ValueError as error:
        raise ConfigError([f"{request.path}: {error}"]) from None
    absent = [name for name in golds if name not in found and ((found and name in splits) or golds[name] is None)]
    if absent:
        raise ConfigError([f"{request.path}: {task.name} has no problem {absent[0]} ({len(absent)} of {len(golds)})"])
    _compare_golds(request, task, golds, found, notes)
    by_file = {name: gold for name, gold in golds.items() if name not in found and gold is not None}
    if by_file:
        notes.append(f"{len(by_file)} problems were graded by the file's own gold answers, without the task's data")
    return {name: found.get(name) or Problem(id=name, prompt="", gold=by_file[name]) for name in golds}


def _split_of(problem_id: str) -> Split | None:
    """The split that an id names, "gsm8k/test/17"; None for an id that is not one of this suite's."""
    parts = problem_id.rsplit("/", 2)
    ours = len(parts) == 3 and parts[2].isdecimal()
    return next((split for split in get_args(Split) if ours and split == parts[1]), None)


def _other_task(task: Task, problem_id: str) -> bool:
    family = problem_id.partition("/")[0]
    return family != task.name.partition("/")[0] and family in names("tasks")


def _all(task: DatasetTask, split: Split) -> list[Problem]:
    return load_problems(task, split, 0, num_problems(task, split) or 0)


def _compare_golds(
    request: Request, task: Task, golds: Mapping[str, str | None], found: Mapping[str, Problem], notes: list[str]
) -> None:
    """The file's golds against the task's: of a task that makes its problems, another gold is another problem."""
    other = [name for name, gold in golds.items() if name in found and gold not in (None, found[name].gold)]
    if not other:
        return
    first = other[0]
    said = f"{first} has gold {printable(golds[first])} in the file and {printable(found[first].gold)} in the task"
    if not isinstance(task, DatasetTask):
        raise ConfigError([f"{request.path}: {said}: give the knobs that it was sampled with, --knob key=value"])
    notes.append(f"{len(other)} problems have another gold than the file says, and the task's counts: {said}")


# The stored verdicts


def _stored_outcomes(path: Path, records: Sequence[StoredCompletion], notes: list[str]) -> tuple[Outcome | None, ...]:
    """The verdict of each record before: from the outcomes beside the file, or from the file itself."""
    if not path.is_file():
        found = tuple(_own_verdict(record) for record in records)
    else:
        try:
            table = read_outcomes(path)
        except (ValueError, OSError) as error:
            raise ConfigError([f"{path}: the stored verdicts cannot be read: {' '.join(str(error).split())}"]) from None
        rows = {(row.problem_id, row.sample): row for row in _rows(table)}
        found = tuple(rows.get((record.problem_id, record.sample)) for record in records)
    without = found.count(None)
    if without:
        notes.append(f"{without} of {len(records)} completions have no stored verdict to compare with")
    return found


def _rows(table: OutcomeMatrix) -> Iterator[Outcome]:
    names_ = [field.name for field in fields(Outcome)]
    cells = [getattr(table, name) for name in names_]
    cells = [list(cell) if isinstance(cell, tuple) else cell.tolist() for cell in cells]
    return (Outcome(**dict(zip(names_, row, strict=True))) for row in zip(*cells, strict=True))


def _own_verdict(record: StoredCompletion) -> Outcome | None:
    """What a foreign file says: a verdict without an answer, which an empty method marks."""
    if not record.has_verdict:
        return None
    return Outcome(
        problem_id=record.problem_id,
        sample=record.sample,
        correct=record.correct,
        answer_key=None,
        parsed=True,
        truncated=bool(record.truncated),
        timed_out=False,
        num_tokens=record.num_tokens or 0,
        method="",
    )


# Grading


def _graded(
    task: Task,
    records: Sequence[StoredCompletion],
    problems: Mapping[str, Problem],
    before: Sequence[Outcome | None],
    journal: Journal,
) -> list[Outcome]:
    """The new outcomes, in the file's order; what the journal has is not graded again."""
    outcomes: list[Outcome] = []
    with progress("grading", len(records)) as advance:
        for start in range(0, len(records), _ROWS_AT_ONCE):
            part = records[start : start + _ROWS_AT_ONCE]
            old = before[start : start + _ROWS_AT_ONCE]
            grades = journal.done.get(str(start))
            if grades is None:
                cut = [_cut(record, row) for record, row in zip(part, old, strict=True)]
                asked = [(problems[r.problem_id], r.completion, c) for r, c in zip(part, cut, strict=True)]
                grades = [asdict(grade) for grade in task.grade_all(asked)]
                journal.add(str(start), grades)
            outcomes += [_outcome(*row) for row in zip(part, old, grades, strict=True)]
            advance(len(part), "")
    return outcomes


def _cut(record: StoredCompletion, old: Outcome | None) -> bool:
    return record.truncated if record.truncated is not None else bool(old and old.truncated)


def _outcome(record: StoredCompletion, old: Outcome | None, grade: Mapping[str, Any]) -> Outcome:
    num_tokens = record.num_tokens if record.num_tokens is not None else (old.num_tokens if old else 0)
    own = {"problem_id": record.problem_id, "sample": record.sample, "num_tokens": num_tokens}
    return Outcome(**own, **{name: grade[name] for name in _GRADE})


def _changes(
    records: Sequence[StoredCompletion],
    problems: Mapping[str, Problem],
    before: Sequence[Outcome | None],
    after: Sequence[Outcome],
) -> Iterator[Change]:
    for record, old, new in zip(records, before, after, strict=True):
        if old is not None and old.correct is not new.correct:
            yield Change(record, problems[record.problem_id].gold, old, new)


# What is left behind


def _write(rescored: Rescored, records: Sequence[StoredCompletion], about: Mapping[str, Any]) -> None:
    """Outcomes, estimates and, last, the manifest: that of the evaluation with what is new in its place."""
    after = outcome_matrix(rescored.after)
    most = max(Counter(after.problem_id).values())
    ks = [k for k in about.get("ks", ()) if isinstance(k, int) and 1 <= k <= most] or [k for k in _KS if k <= most]
    estimated = estimates(after, ks)
    summary = asdict(summarise(after, estimated, rescored.task.strict_methods))
    known = [old is not None and old.method != "" for old in rescored.before]
    if any(r.num_tokens is None and not old for r, old in zip(records, known, strict=True)):
        summary["mean_tokens"] = None  # a foreign file does not say
    if any(r.truncated is None and not old for r, old in zip(records, known, strict=True)):
        summary["truncated_rate"] = None
    path = rescored.folder / rescored.name
    write_outcomes(path.with_name(f"{path.name}.parquet"), after)
    write_estimates(path.with_name(f"{path.name}.estimates.parquet"), estimated)
    task = rescored.task
    record = {
        **about,
        "task": {"name": task.name, **task.model_dump(mode="json")},
        "task_version": task.version,
        "verifier_version": VERSION,
        "guess_rate": task.guess_rate,
        "ks": ks,
        "ties": estimated.ties,
        "missing": estimated.missing,
        **summary,
        "samples": most,
        "changes": rescored.directions(),
        "notes": list(rescored.notes),
    }
    write_json(path.with_name(f"{path.name}.json"), record)
