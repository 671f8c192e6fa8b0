"""Problems of a task by split and position: made by the task itself, or read from its public data with `datasets`."""

import difflib
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

from tasks.parts.problem import DatasetTask, Problem, ProceduralTask, Source, Split, Task

if TYPE_CHECKING:
    import datasets


_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
"""The reader of `datasets` for each kind of file."""


def load_problems(task: Task, split: Split, start: int, count: int) -> list[Problem]:
    """Problems `start` to `start + count - 1` of a split, always the same ones in the same order.

    Raises:
        ValueError: the split has fewer problems, or the data cannot be found or read; one line that says which.
    """
    _check_split(split)
    if isinstance(task, ProceduralTask):
        return [task.generate(split, index) for index in range(start, start + count)]
    assert isinstance(task, DatasetTask), "a task either makes its problems or reads them"
    problems = _read(task, split)
    if start + count > len(problems):
        raise ValueError(
            f"{task.name}: problems {start} to {start + count - 1} of {split} were asked for, "
            f"but {_place(task, split)} has {len(problems)}"
        )
    return list(problems[start : start + count])


def num_problems(task: Task, split: Split) -> int | None:
    """How many problems a split has; None where it never runs out.

    Raises:
        ValueError: the data cannot be found or read.
    """
    _check_split(split)
    if isinstance(task, ProceduralTask):
        return task.num_problems(split)
    assert isinstance(task, DatasetTask), "a task either makes its problems or reads them"
    return len(_read(task, split)) if split in task.source.splits else 0


def problem_of(task: Task, problem_id: str) -> Problem:
    """The problem of that id, "gsm8k/test/17".

    Raises:
        ValueError: the task has no such problem, or its data cannot be read.
    """
    name, _, index = problem_id.rpartition("/")
    split = name.rpartition("/")[2]
    if _is_split(split) and index.isdecimal():
        if isinstance(task, ProceduralTask):
            problem = task.generate(split, int(index))
        else:
            assert isinstance(task, DatasetTask), "a task either makes its problems or reads them"
            problem = next((problem for problem in _read(task, split) if problem.id == problem_id), None)
        if problem is not None and problem.id == problem_id:
            return problem
    raise ValueError(f"{task.name} has no problem {problem_id!r}")


def _is_split(text: str) -> TypeGuard[Split]:
    return text in get_args(Split)


def _check_split(split: str) -> None:
    if not _is_split(split):
        raise ValueError(f'split: "{split}" given, must be one of {", ".join(get_args(Split))}')


def _read(task: DatasetTask, split: Split) -> tuple[Problem, ...]:
    if split not in task.source.splits:
        raise ValueError(f"{task.name} has no {split} split, only {', '.join(task.source.splits)}")
    file = _local_file(task, split)
    stat = file.stat() if file else None
    return _problems(task, split, file, (stat.st_mtime_ns, stat.st_size) if stat else None)


def _local_file(task: DatasetTask, split: Split) -> Path | None:
    """The file with a split's rows; None where they come from the hub."""
    if task.path is None:
        return None
    path, name = Path(task.path).expanduser(), task.source.files[split]
    if path.is_file():
        if path.name != name and len(set(task.source.files.values())) > 1:
            raise ValueError(
                f"{task.name}: {split} is read from {name}, but task.path is the file {path}: give its folder"
            )
        return path
    if not (path / name).is_file():
        there = sorted(file.name for file in path.glob("*") if file.suffix in _READERS)
        found = f"the folder has {', '.join(there) or 'no data file'}" if path.is_dir() else "there is no such folder"
        raise ValueError(f"{task.name}: {path / name} with the {split} problems does not exist; {found}")
    return path / name


def _place(task: DatasetTask, split: Split) -> str:
    """Where a split's rows come from, for messages."""
    source = task.source
    if task.path is None:
        return f"{source.hub_id} ({source.hub_config}, {source.splits[split]}, revision {source.revision[:7]})"
    return f"{_local_file(task, split)} ({source.splits[split]})"


@lru_cache(maxsize=8)
def _problems(task: DatasetTask, split: Split, file: Path | None, stamp: object) -> tuple[Problem, ...]:
    """All problems of a split; `stamp` changes when the file does, so that the cache cannot be stale."""
    problems: list[Problem] = []
    failures: list[str] = []
    for index, row in enumerate(_rows(task, split, file)):
        try:
            if not task.selects(split, row):
                continue
            problems.append(task.from_row(split, index, row))
        except ValueError as error:
            failures.append(f"row {index}: {error}")
    if failures:
        rest = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
        raise ValueError(f"{task.name}: {_place(task, split)}: {'; '.join(failures[:3])}{rest}")
    return tuple(problems)


def _rows(task: DatasetTask, split: Split, file: Path | None) -> list[dict[str, Any]]:
    if file and file.stat().st_size == 0:
        raise ValueError(f"{task.name}: {file} is empty")
    import datasets  # here, because it takes a second to import and most commands need no data

    datasets.disable_progress_bars()
    # It reports errors a second time by its logger; what goes wrong is raised below, in one line.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        table = _table(task.source, task.source.splits[split].partition("[")[0], file)
    except Exception as error:  # network, hub and parser each have errors of their own
        reason = " ".join(f"{type(error).__name__}: {error.__cause__ or error}".split())
        files = " and ".join(sorted(set(task.source.files.values())))
        advice = "" if file else f"; without a network, give a folder with {files} as task.path"
        raise ValueError(f"{task.name}: cannot read {_place(task, split)}: {reason}{advice}") from error
    _check_columns(task, split, table.column_names)
    # Not left to load_dataset, which refuses a slice without rows: a small file may well have none for validation.
    (part,) = datasets.ReadInstruction.from_spec(task.source.splits[split]).to_absolute({str(table.split): len(table)})
    return table.to_list()[part.from_ : part.to]


def _table(source: Source, hub_split: str, file: Path | None) -> "datasets.Dataset":
    """All rows of one of the hub's splits."""
    import datasets

    if file is None:
        table = datasets.load_dataset(source.hub_id, source.hub_config, split=hub_split, revision=source.revision)
    else:
        # The converted copy lives in memory: nothing is left in the user's cache or beside the data.
        with tempfile.TemporaryDirectory() as cache:
            files = {hub_split: str(file)}
            if file.suffix not in _READERS:
                raise ValueError(f"must end with one of {', '.join(_READERS)}")
            table = datasets.load_dataset(
                _READERS[file.suffix], data_files=files, split=hub_split, cache_dir=cache, keep_in_memory=True
            )
    assert isinstance(table, datasets.Dataset)
    return table


def _check_columns(task: DatasetTask, split: Split, found: list[str]) -> None:
    missing = [column for column in task.source.columns if column not in found]
    if missing:
        near = difflib.get_close_matches(missing[0], found, n=1)
        hint = f"; is it {near[0]}?" if near else ""
        raise ValueError(
            f"{task.name}: {_place(task, split)} has no column {', '.join(missing)}: "
            f"its columns are {', '.join(found) or 'none'}{hint}"
        )
