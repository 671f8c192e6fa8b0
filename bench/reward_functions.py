"""A user's reward functions: found by name without being run here, called in worker processes, their results checked.

The attribute `package/module:function@digest` of this module is such a function, ready to answer a worker's requests:
`tasks.parts.workers` loads it by that name, so the import is no part of any call's time, and the digest gives changed
code new workers. Nothing here loads torch or the configuration.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from bench.fingerprint import file_digest
from tasks.parts.workers import run_all

Columns = Mapping[str, Sequence[Any]]
_START_SECONDS = 60.0
_FIRST = "completions"


@dataclass(frozen=True)
class Wanted:
    """The columns that a function takes beside the completions, and the name that its workers know it by."""

    entrance: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    everything: bool
    """Whether it takes any column (`**columns`)."""

    def of(self, columns: Columns) -> Columns:
        """Those of the columns that it can take."""
        names = (*self.required, *self.optional)
        return {name: column for name, column in columns.items() if self.everything or name in names}

    def missing(self, found: Sequence[str]) -> str | None:
        """What it wants and the data lacks, in words; None where nothing is missing."""
        missing = [name for name in self.required if name not in found]
        if not missing:
            return None
        near = get_close_matches(missing[0], found, n=1)
        hint = f"; is it {near[0]}?" if near else ""
        return f"wants {', '.join(self.required)}, but there is no {', '.join(missing)}: found {', '.join(found)}{hint}"


@dataclass(frozen=True)
class Result:
    """What one call gave: a number for each completion (NaN: none), or what is wrong with what it returned."""

    values: tuple[float, ...] = ()
    mistake: str | None = None


# In the process that trains


def reward_fingerprint(functions: Sequence[str], format_schema: str | None = None) -> dict[str, Any]:
    """Content of the files that a reward's results depend on, to stand in a run's identity.

    Args:
        functions: each `package.module:function`; its module's file counts, not what that imports.
        format_schema: file with a JSON schema.

    Returns:
        SHA-256 of each function's file under `function_files` and of the schema under `format_schema`; None where there
        is no such file.
    """
    schema = None if format_schema is None else Path(format_schema).expanduser()
    digests = {function: _digest(_source(function)) for function in functions}
    return {"function_files": digests, "format_schema": _digest(schema)}


def describe(function: str) -> Wanted:
    """Import a function, in a worker, and say what it takes.

    Raises:
        ValueError: it cannot be imported or called as a reward; the message says why.
    """
    try:
        entrance = f"{__name__}:{function.replace('.', '/')}@{_digest(_source(function))}"
        (found,) = run_all(entrance, [("describe", entrance)], limit_seconds=_START_SECONDS, workers=1)
    except ImportError as error:
        raise ValueError(f"cannot be imported: {str(error).partition(' worker process: ')[2]}") from None
    if isinstance(found.value, Wanted):
        return found.value
    raise ValueError(found.error or found.value)


def call_all(
    wanted: Wanted, requests: Sequence[tuple[Sequence[str], Columns]], *, limit_seconds: float
) -> list[Result | str]:
    """Call a function on several batches of completions and their columns.

    Returns:
        For each batch what it gave, or why the call has no result: the exception's text, or that it took too long.

    Raises:
        ValueError: a new worker was needed, and the function can no longer be imported or its file has changed.
    """
    calls = [("call", list(completions), dict(columns)) for completions, columns in requests]
    try:
        outcomes = run_all(wanted.entrance, calls, limit_seconds=limit_seconds)
    except ImportError as error:
        raise ValueError(f"can no longer be imported: {str(error).partition(' worker process: ')[2]}") from None
    return [outcome.value if outcome.error is None else outcome.error for outcome in outcomes]


def _source(function: str) -> Path | None:
    """The file of a function's module. Looked for without importing anything, neither it nor its packages."""
    _look_here()
    importlib.invalidate_caches()
    top, *inner = function.partition(":")[0].split(".")
    found = (finder.find_spec(top, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next((each for each in found if each is not None), None)
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name alone: of a dotted one, the packages would have to be imported.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def _digest(file: Path | None) -> str | None:
    return file_digest(file) if file is not None and file.is_file() else None


def _look_here() -> None:
    """The folder where a run is started is on the path of a script, but not of an installed command. It comes last, so
    that it hides nothing."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


# In the worker


def __getattr__(name: str) -> Callable[..., Any]:
    place, _, digest = name.partition("@")
    if ":" not in place:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    function = place.replace("/", ".")
    found = partial(_answer, _loaded(function))
    if str(_digest(_source(function))) != digest:
        # A run has one reward: a worker that comes late must not score by other code than those before it.
        raise ImportError("its file has changed since it was first used")
    return found


def _loaded(function: str) -> Callable[..., Any]:
    module_name, _, name = function.partition(":")
    module = importlib.import_module(module_name)
    found = getattr(module, name, None)
    if found is None:
        names = [each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_"]
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names) or 'none'}"
        raise ImportError(f"{module_name} has no function {name}; {hint}")
    if not callable(found) or inspect.isclass(found):
        raise ImportError(f"{name} of {module_name} is {_kind(found)}, not a function")
    return found


def _answer(function: Callable[..., Any], question: str, *asked: Any) -> Wanted | str | Result:
    """Say what the function takes ("describe", entrance), or call it ("call", completions, columns)."""
    if question == "describe":
        return _wanted(function, *asked)
    completions, columns = asked
    count = len(completions)  # before the call, which may change the list
    parameters = inspect.signature(function).parameters
    named = _FIRST in parameters and parameters[_FIRST].kind is not inspect.Parameter.POSITIONAL_ONLY
    if named or not _positional(list(parameters.values())):
        return checked(function(**{_FIRST: completions}, **columns), count)
    return checked(function(completions, **columns), count)


def _positional(parameters: Sequence[inspect.Parameter]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return bool(parameters) and parameters[0].kind in kinds


def _wanted(function: Callable[..., Any], entrance: str) -> Wanted | str:
    """What a function takes, or why it cannot be a reward."""
    if inspect.iscoroutinefunction(function):
        return "is an async function, which returns a coroutine; must be a plain function that returns the numbers"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "does not say what it takes; must be a Python function (completions, **columns)"
    everything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    parameters = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    named = [each for each in parameters if each.name == _FIRST and each.kind is not each.POSITIONAL_ONLY]
    rest = [each for each in parameters if each not in named]
    if not named:
        if not _positional(rest) and not everything:
            return f"takes {inspect.signature(function)}; must take (completions, **columns)"
        rest = rest[_positional(rest) :]
    unnamed = [each.name for each in rest if each.kind is each.POSITIONAL_ONLY and each.default is each.empty]
    if unnamed:
        return f"takes {', '.join(unnamed)} by position only; columns are given by name"
    rest = [each for each in rest if each.kind is not each.POSITIONAL_ONLY]
    return Wanted(
        entrance=entrance,
        required=tuple(each.name for each in rest if each.default is each.empty),
        optional=tuple(each.name for each in rest if each.default is not each.empty),
        everything=everything,
    )


def checked(value: Any, count: int) -> Result:
    """A function's return value as numbers, or what is wrong with it."""
    expected = f"must return a list, tuple, array or tensor of {count} numbers or None, one for each completion"
    if inspect.iscoroutine(value):
        value.close()
    if not isinstance(value, list | tuple):
        shape, to_list = getattr(value, "shape", None), getattr(value, "tolist", None)
        items = to_list() if callable(to_list) else None
        if not isinstance(items, list) or isinstance(value, memoryview):
            single = " that is a single number" if shape == () and not isinstance(value, float) else ""
            return Result(mistake=f"{expected}; returned {_kind(value)}{single}")
        if shape is not None and len(shape) > 1:
            return Result(mistake=f"{expected}; returned {_kind(value)} of shape {tuple(shape)}")
        value = items
    if len(value) != count:
        return Result(mistake=f"{expected}; returned {len(value)} of them")
    numbers: list[float] = []
    for position, item in enumerate(value):
        number = _number(item)
        if isinstance(number, str):
            return Result(mistake=f"{expected}; returned {number} at position {position}")
        numbers.append(number)
    return Result(values=tuple(numbers))


def _number(item: Any) -> float | str:
    """One reward, NaN where there is none; or what else it is."""
    if item is None:
        return float("nan")
    if isinstance(item, str | bytes) or getattr(item, "shape", ()) != () or not hasattr(item, "__float__"):
        return _kind(item)
    try:
        return float(item)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return _kind(item)


def _kind(value: Any) -> str:
    """What a value is, in words."""
    if inspect.iscoroutine(value):
        return "a coroutine (an async function?)"
    if isinstance(value, int | float | complex | bool):
        return f"the single number {value!r}"
    if value is None:
        return "None"
    name = {"str": "string", "ndarray": "array"}.get(type(value).__name__, type(value).__name__)
    shown = f" {value[:20]!r}" if isinstance(value, str | bytes) else ""
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}{shown}"
