"""Fixed preference sets: rows of TRL's formats read, checked one by one, and told apart before any model is loaded.

Standard rows are text, conversational rows are lists of `{role, content}` messages; a prompt is a column of its own
(explicit) or the beginning that chosen and rejected share (implicit). A mistake in any row is an error that names it;
a row whose two sides are the same is dropped and counted.
"""

import csv
import io
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from algorithms.axes.preference import FixedPairs
from bench.catalog import nearest
from bench.config_preference import KINDS, data_files, local_set, set_files

WANTED = (
    "wanted are prompt, chosen and rejected, or chosen and rejected with the prompt inside both, each text or each a "
    "list of {role, content} messages"
)
_NOT_READ = ("tools", "chat_template_kwargs", "images", "image")
"""Columns that change what TRL trains on and that are not supported here."""
_ROLES = ("system", "user", "assistant")
_SHOWN = 3

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Preferred:
    """One row: what came before, and two ways to go on, the first preferred. All text, or all messages."""

    prompt: str | tuple[Message, ...]
    chosen: str | tuple[Message, ...]
    rejected: str | tuple[Message, ...]

    @property
    def conversational(self) -> bool:
        """Whether a chat template has to write it."""
        return not isinstance(self.prompt, str)


@dataclass(frozen=True)
class PreferenceSet:
    """All rows of a set that can make a pair."""

    rows: tuple[Preferred, ...]
    implicit: bool
    """The prompts were no column of their own, but what chosen and rejected share."""
    num_rows: int
    """Rows of the set."""
    num_identical: int
    """Rows dropped because chosen and rejected are the same."""

    @property
    def conversational(self) -> bool:
        """Whether a chat template has to write the rows."""
        return any(row.conversational for row in self.rows)


def read_set(source: FixedPairs) -> PreferenceSet:
    """The set that `objective.pairing` names.

    Raises:
        ValueError: it cannot be found or read, or some of its rows are no preferences; one line that says which.
    """
    path = local_set(source)
    stamps = () if path is None else tuple((f, f.stat().st_mtime_ns, f.stat().st_size) for f in _files(source, path))
    return _read(source, stamps)


def _files(source: FixedPairs, path: Path) -> list[Path]:
    """The local files with the rows. Raises ValueError where there are none, or they are of several kinds."""
    given = f'"{source.path}" given'
    if not path.exists():
        raise ValueError(f"{given}, but there is no such file or folder here (looked in {Path.cwd()})")
    files = set_files(source, path)
    if not files:
        there = ", ".join(sorted(file.name for file in data_files(path))) or "no data file"
        raise ValueError(f"{given}, but no file of it is named after the split {source.split}; the folder has {there}")
    kinds = sorted({file.suffix for file in files})
    if len(kinds) > 1 or kinds[0] not in KINDS:
        ways = "files of one kind" if len(kinds) > 1 else "a file"
        raise ValueError(f"{given}, with {' and '.join(kinds)}; must be {ways} that ends with {', '.join(KINDS)}")
    return files


# A set is checked before the run and read by it; `stamps` change when a file does, so that the cache cannot be stale.
@lru_cache(maxsize=4)
def _read(source: FixedPairs, stamps: tuple[tuple[Path, int, int], ...]) -> PreferenceSet:
    try:
        rows = [row for file, _, _ in stamps for row in _file_rows(file)] if stamps else _hub_rows(source)
    except Exception as error:  # network, hub and parsers each have errors of their own
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error.__cause__ or error}".split())[:300]
        advice = "" if stamps else "; without a network, give a file or a folder as path"
        raise ValueError(f'"{source.path}" given, but it cannot be read: {reason}{advice}') from error
    return parsed(rows, source.path)


def _file_rows(file: Path) -> list[Row]:
    """The rows of one file. JSON and CSV are read as they stand: `datasets` would make a time or a number of every text
    that looks like one.

    Raises:
        ValueError: a line is no row.
    """
    if file.suffix == ".parquet":
        return _table_rows(file)
    text = file.read_text(encoding="utf-8-sig")
    if file.suffix == ".csv":
        return _csv_rows(text, file.name)
    if file.suffix == ".json" and text.lstrip().startswith("["):
        table = json.loads(text, object_pairs_hook=_once_each)
        return [_object(row, f"{file.name}, row {i}") for i, row in enumerate(table)]
    rows: list[Row] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=_once_each)
                rows.append(_object(row, f"{file.name}, line {number}"))
            except json.JSONDecodeError as error:
                raise ValueError(f"{file.name}, line {number} is not JSON: {error.msg}") from None
    return rows


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that has each of its names once; Python would keep the last of several."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"an object has {_repeated(name for name, _ in pairs)} more than once")
    return found


def _repeated(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name, times in Counter(names).items() if times > 1)


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_shown(value)}, must be an object with the columns of a row")
    return cast(Row, value)


def _csv_rows(text: str, name: str) -> list[Row]:
    csv.field_size_limit(sys.maxsize)  # a long text is one field
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if twice := _repeated(reader.fieldnames or []):
        raise ValueError(f"{name} has the column {twice} more than once")
    rows: list[Row] = []
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"{name}, line {reader.line_num} has not as many fields as the first line has columns")
        rows.append(row)
    return rows


def _table_rows(file: Path) -> list[Row]:
    import datasets  # here, because it takes a second to import

    _quiet(datasets)
    with tempfile.TemporaryDirectory() as cache:
        table: Any = datasets.load_dataset(
            "parquet", data_files=str(file), split="train", cache_dir=cache, keep_in_memory=True
        )
        return table.to_list()


def _hub_rows(source: FixedPairs) -> list[Row]:
    import datasets

    _quiet(datasets)
    table: Any = datasets.load_dataset(source.path, source.config, split=source.split, revision=source.revision)
    return table.to_list()


def _quiet(datasets: Any) -> None:
    datasets.disable_progress_bars()
    # It reports errors a second time by its logger; what goes wrong is raised, in one line.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    # And the hub's client tells of every attempt to reach it.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)


def no_template(whose: str) -> str:
    """The sentence about conversations that nothing can write."""
    return (
        f"objective.pairing.path: its rows are conversations, and {whose} has no chat template to write them with: "
        "give rows of text, or a model with a template"
    )


# Rows


class _Mistake(ValueError):
    """What is wrong with one row."""


def parsed(rows: Sequence[Row], name: str) -> PreferenceSet:
    """Rows of plain data as preferences.

    Args:
        name: of the set, for messages.

    Raises:
        ValueError: a row is no preference, or none is left; one line that names the first of them.
    """
    given = f'"{name}" given'
    if not rows:
        raise ValueError(f"{given}, but it has no rows")
    _check_columns(rows, given)
    implicit = not _has_prompt(rows)
    found: list[Preferred] = []
    mistakes: list[str] = []
    identical = 0
    for index, row in enumerate(rows):
        try:
            preferred = _preferred(row, implicit)
        except _Mistake as mistake:
            mistakes.append(f"row {index}: {mistake}")
            continue
        identical += preferred is None
        found += [] if preferred is None else [preferred]
    kinds = {row.conversational for row in found}
    if mistakes:
        more = f"; and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        raise ValueError(f"{given}, but {'; '.join(mistakes[:_SHOWN])}{more}")
    if not found:
        raise ValueError(f"{given}, but chosen and rejected are the same in all of its {len(rows)} rows")
    if len(kinds) > 1:
        raise ValueError(f"{given}, but some of its rows are text and some are conversations; must be all of one kind")
    return PreferenceSet(tuple(found), implicit, len(rows), identical)


def _check_columns(rows: Sequence[Row], given: str) -> None:
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if value is not None))
    missing = [name for name in ("chosen", "rejected") if name not in columns]
    if missing:
        near = nearest(missing[0], columns)
        hint = f" (is it {near}?)" if near else ""
        has = f"its columns are {', '.join(columns) or 'none'}"
        raise ValueError(f"{given}, but it has no column {' and '.join(missing)}{hint}: {has}; {WANTED}")
    refused = [name for name in _NOT_READ if name in columns]
    if refused:
        raise ValueError(f"{given}, but its column {refused[0]} is not supported: take it out of the data")


def _has_prompt(rows: Sequence[Row]) -> bool:
    """Whether the prompt is a column of its own: one of text beside conversations repeats what these begin with."""
    first = next((row for row in rows if row.get("prompt") is not None), None)
    return first is not None and not (isinstance(first["prompt"], str) and isinstance(first.get("chosen"), list))


def _preferred(row: Row, implicit: bool) -> Preferred | None:
    """The row; None where its sides are the same. Raises _Mistake."""
    chosen, rejected = _value(row, "chosen"), _value(row, "rejected")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise _Mistake("one of chosen and rejected is text and the other a conversation")
    if chosen == rejected:
        return None
    if implicit:
        prompt, chosen, rejected = _split(chosen, rejected)
        _check_repeated(row.get("prompt"), prompt)
    else:
        prompt = _value(row, "prompt")
        if isinstance(prompt, str) != isinstance(chosen, str):
            raise _Mistake("the prompt is a conversation and chosen and rejected are text")
    if not isinstance(prompt, str):
        _check_prompt(prompt)
        _check_answer("chosen", chosen)
        _check_answer("rejected", rejected)
    return Preferred(prompt, chosen, rejected)


def _value(row: Row, name: str) -> str | tuple[Message, ...]:
    """A column of a row: text that is not empty, or messages."""
    value = row.get(name)
    if isinstance(value, str):
        if not value.strip():
            raise _Mistake(f"{name} is empty")
        _check_text(name, value)
        return value
    if not isinstance(value, list):
        raise _Mistake(f"{name} is {_shown(value)}, must be text or a list of messages")
    if not value:
        raise _Mistake(f"{name} is a conversation without a message")
    return tuple(_message(name, item) for item in cast(list[Any], value))


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Mistake(f"{name} has half of a surrogate pair (\\ud800 to \\udfff), which is no text") from None


def _message(name: str, item: Any) -> Message:
    if not isinstance(item, Mapping):
        raise _Mistake(f"a message of {name} is {_shown(item)}, must be {{role, content}}")
    known = {key: value for key, value in cast(Row, item).items() if value is not None}
    if not {"role", "content"} <= known.keys():
        raise _Mistake(f"a message of {name} has {', '.join(known) or 'nothing'}, must have role and content")
    others = [key for key in known if key not in ("role", "content")]
    if others:
        raise _Mistake(f"a message of {name} has {others[0]}, which is not supported; role and content are")
    role, content = known["role"], known["content"]
    if role not in _ROLES:
        raise _Mistake(f"a message of {name} has the role {_shown(role)}, must be {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise _Mistake(f"a message of {name} has the content {_shown(content)}, must be text")
    if not content.strip():
        raise _Mistake(f"a message of {name} is empty")
    _check_text(name, content)
    return Message(role, content)


def _split(
    chosen: str | tuple[Message, ...], rejected: str | tuple[Message, ...]
) -> tuple[str | tuple[Message, ...], str | tuple[Message, ...], str | tuple[Message, ...]]:
    """Prompt, chosen and rejected where both sides begin with the prompt. A space before the answers is theirs."""
    pairs = zip(chosen, rejected, strict=False)
    shared = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))
    if isinstance(chosen, str) and shared and chosen[shared - 1] == " ":
        shared -= 1
    if not shared:
        raise _Mistake("chosen and rejected share no beginning, which would be the prompt; give it in a column prompt")
    if shared == min(len(chosen), len(rejected)):
        longer, shorter = ("rejected", "chosen") if len(chosen) == shared else ("chosen", "rejected")
        raise _Mistake(f"{shorter} is the beginning of {longer}, so nothing of it is left behind the prompt")
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _check_repeated(column: object, prompt: str | tuple[Message, ...]) -> None:
    """A prompt given beside conversations that hold it must be what they begin with."""
    if column is not None and not (not isinstance(prompt, str) and column in [turn.content for turn in prompt]):
        raise _Mistake("the column prompt is no message of the beginning that chosen and rejected share")


def _check_prompt(prompt: Sequence[Message]) -> None:
    turns = [message.role for message in prompt]
    turns = turns[1:] if turns[0] == "system" else turns
    expected = ["user" if i % 2 == 0 else "assistant" for i in range(len(turns))]
    if turns != expected or len(turns) % 2 == 0:
        order = ", ".join(message.role for message in prompt)
        raise _Mistake(
            f"the prompt's roles are {order}; must be user and assistant in turn, from user to user, behind a system "
            "message or none"
        )


def _check_answer(name: str, answer: str | tuple[Message, ...]) -> None:
    roles = [message.role for message in answer if isinstance(message, Message)]
    if roles != ["assistant"]:
        raise _Mistake(f"{name} has the roles {', '.join(roles)} behind the prompt; must be one assistant message")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
