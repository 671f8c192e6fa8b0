"""The file system is the registry: one file is one algorithm, task or report, found by looking and loaded by name."""

import ast
import difflib
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:  # torch is behind the first of these, and `bench list` must not wait for it
    from algorithms.axes.objective import Objective
    from tasks.parts.problem import Task

Kind = Literal["algorithms", "tasks", "reports"]


# What tells an entry from a helper file beside it.
_MARK: Mapping[Kind, Callable[[ast.stmt], bool]] = {
    "algorithms": lambda line: isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "objective",
    "tasks": lambda line: isinstance(line, ast.ClassDef) and any(ast.unparse(b).endswith("Task") for b in line.bases),
    "reports": lambda line: isinstance(line, ast.FunctionDef) and line.name == "render",
}


class UnknownName(ValueError):
    """No file has this name; the message says which names there are and which is nearest."""


@dataclass(frozen=True)
class Entry:
    """One file of the catalog, read without importing it."""

    name: str
    title: str
    """First line of the file's docstring."""


@dataclass(frozen=True)
class Preset:
    """A published algorithm: an objective written in full, and where each of its constants comes from."""

    name: str
    title: str
    objective: "Objective"
    sources: Mapping[str, str]
    """From an axis ("surrogate") or one of its knobs ("surrogate.high") to its citation."""

    def source(self, knob: str) -> str:
        """The citation of a dotted knob of the objective: its own, else that of the axis it belongs to.

        An axis that the algorithm's file does not name is off, but for those that are part of another: a ratio per
        token of its surrogate, a mean over pairs of its loss.
        """
        while knob not in self.sources and "." in knob:
            knob = knob.rpartition(".")[0]
        knob = (
            {"ratio": "surrogate", "reduction": "loss_function"}.get(knob, knob) if knob not in self.sources else knob
        )
        return self.sources.get(knob, "" if knob == "kind" else "off: the algorithm does not have it")


def entries(kind: Kind) -> list[Entry]:
    """Everything of one kind, in alphabetical order."""
    spec = importlib.util.find_spec(kind)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = sorted((path for folder in folders for path in Path(folder).glob("*.py")), key=lambda path: path.stem)
    found = [_entry(kind, path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
    return [entry for entry in found if entry is not None]


# A configuration with a mistake asks for names often; a file that has not changed is parsed once.
@lru_cache(maxsize=1024)
def _entry(kind: Kind, path: Path, _modified_ns: int, _size: int) -> Entry | None:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    is_entry = any(map(_MARK[kind], tree.body))
    return Entry(path.stem, (ast.get_docstring(tree) or "").partition("\n")[0]) if is_entry else None


def names(kind: Kind) -> list[str]:
    """The names of everything of one kind, in alphabetical order."""
    return [entry.name for entry in entries(kind)]


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that `name` was most likely meant to be, if any is near.

    Initials count as near, so that `learning_rate` finds `lr`.
    """
    choices = list(choices)
    word = name.lower().replace("-", "_")
    initials = "".join(part[0] for part in word.split("_") if part)
    if len(initials) > 1 and initials in choices:
        return initials
    return next(iter(difflib.get_close_matches(word, choices, 1, cutoff)), None)


def check_name(kind: Kind, name: str) -> None:
    """Do nothing if there is a file of that name.

    Raises:
        UnknownName: there is none.
    """
    choices = names(kind)
    if name not in choices:
        near = nearest(name, choices)
        hint = f"did you mean {near}? " if near else ""
        raise UnknownName(f"there is no {kind[:-1]} of that name; {hint}there are {', '.join(choices) or 'none'}")


def load_preset(name: str) -> Preset:
    """The algorithm of that name.

    Raises:
        UnknownName: there is no such file.
    """
    check_name("algorithms", name)
    module = importlib.import_module(f"algorithms.{name}")
    title = (module.__doc__ or "").partition("\n")[0]
    return Preset(name, title, module.objective, cast(Mapping[str, str], module.sources))


def load_task_class(name: str) -> "type[Task]":
    """The one task that the file of that name defines.

    Raises:
        UnknownName: there is no such file.
        TypeError: the file does not define exactly one task.
    """
    from tasks.parts.problem import Task

    # "reasoning_gym/sudoku": what stands after the slash is the task's own affair, and it checks it.
    file = name.partition("/")[0] if name.startswith("reasoning_gym/") else name
    check_name("tasks", file)
    module = importlib.import_module(f"tasks.{file}")
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Task)]
    tasks = [cls for cls in classes if cls.__module__ == module.__name__]
    if len(tasks) != 1:
        raise TypeError(f"tasks/{file}.py defines {len(tasks)} tasks, a task file defines exactly one")
    return tasks[0]
