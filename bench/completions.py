"""Stored completions, read back to be graded again: our own files and anyone's, each mistake named by its line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from bench.catalog import nearest
from bench.dialect import ConfigError

_SHOWN_MISTAKES = 5
_KNOWN = ("problem_id", "sample", "gold", "completion", "truncated", "num_tokens", "correct")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredCompletion:
    """One completion of a file; what a foreign file does not say is None."""

    line: int
    problem_id: str
    sample: int
    gold: str | None
    completion: str
    truncated: bool | None
    num_tokens: int | None
    correct: bool | None
    has_verdict: bool
    """Whether the file gives a verdict in `correct`, which may be null: unscorable."""


def read_completions(path: Path) -> tuple[StoredCompletion, ...]:
    """Every completion of a file of JSON lines, compressed with zstandard where its name ends in .zst.

    Only `completion` must be there, and `problem_id` or `gold`. Samples without a number are numbered as they occur; a
    line without a problem_id is a problem of its own, named after its line.

    Raises:
        ConfigError: the file cannot be read, or the first few of its lines that cannot, each with the reason.
    """
    records: list[StoredCompletion] = []
    mistakes: list[str] = []
    occurred: dict[str, int] = {}
    seen: dict[tuple[str, int], int] = {}
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _row(line)
            name = str(row.get("problem_id", f"line/{number}"))
            sample = row.get("sample", occurred.get(name, 0))
            first = seen.setdefault((name, sample), number)
            if first != number:
                raise ValueError(f"sample {sample} of {name} was given before, in line {first}")
            occurred[name] = occurred.get(name, 0) + 1
            records.append(_stored(row, number, name, sample))
        except ValueError as error:
            mistakes.append(f"{path}, line {number}: {error}")
    mistakes += _two_golds(path, records)
    if mistakes:
        more = len(mistakes) - _SHOWN_MISTAKES
        rest = [f"{path}: and {more} more such lines"] if more > 0 else []
        raise ConfigError(mistakes[:_SHOWN_MISTAKES] + rest)
    if not records:
        raise ConfigError([f"{path}: there is no completion in it"])
    return tuple(records)


def _content(path: Path) -> bytes:
    try:
        if path.suffix != ".zst":
            return path.read_bytes()
        with path.open("rb") as file:
            return b"".join(_frames(iter(lambda: file.read(_CHUNK_BYTES), b"")))
    except zstandard.ZstdError as error:
        raise ConfigError([f"{path}: not a whole zstandard file ({error})"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None


def _frames(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of one compressed frame after the other; a reader of streams would not notice a file cut short."""
    frame = None
    for chunk in chunks:
        while chunk:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(chunk)
            chunk = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise zstandard.ZstdError("it ends in the middle")


def _row(line: bytes) -> dict[str, Any]:
    """The object of a line, its fields checked.

    Raises:
        ValueError: the reason why it cannot be used.
    """
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("not text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"holds {type(row).__name__}, must be an object with a completion")
    if "completion" not in row:
        near = nearest("completion", row)
        hint = f"; is it {near}?" if near else ""
        raise ValueError(f"has no completion, only {', '.join(row) or 'nothing'}{hint}")
    # A field that says nothing is as good as none, except for a verdict.
    row = {name: value for name, value in row.items() if value is not None or name in ("correct", "completion")}
    if "problem_id" not in row and "gold" not in row:
        raise ValueError("has neither a problem_id nor a gold, so there is nothing to grade it by")
    for name in _KNOWN:
        if name in row and not _fits(name, row[name]):
            raise ValueError(f"{name} is {_short(row[name])}, must be {_WANTED[name]}")
    return row


_WANTED = {
    "problem_id": "text or a whole number",
    "sample": "a whole number from 0",
    "gold": "text or a number",
    "completion": "text",
    "truncated": "true or false",
    "num_tokens": "a whole number from 0",
    "correct": "true, false or null",
}


def _fits(name: str, value: object) -> bool:
    if name in ("truncated", "correct"):
        # Verdicts are stored as 0 and 1 too, and as 0.0 and 1.0.
        return isinstance(value, bool) or (name == "correct" and (value is None or value in (0, 1)))
    if isinstance(value, bool):
        return False
    if name in ("sample", "num_tokens"):
        return isinstance(value, int) and 0 <= value < 2**63
    return (
        isinstance(value, str)
        or (name == "gold" and isinstance(value, int | float))
        or (name == "problem_id" and isinstance(value, int))
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _stored(row: Mapping[str, Any], line: int, name: str, sample: int) -> StoredCompletion:
    verdict = row.get("correct")
    return StoredCompletion(
        line=line,
        problem_id=name,
        sample=sample,
        gold=str(row["gold"]) if "gold" in row else None,
        completion=row["completion"],
        truncated=row.get("truncated"),
        num_tokens=row.get("num_tokens"),
        correct=None if verdict is None else bool(verdict),
        has_verdict="correct" in row,
    )


def _two_golds(path: Path, records: Sequence[StoredCompletion]) -> Iterator[str]:
    """A line for each record whose gold differs from the one given before for the same problem."""
    golds: dict[str, StoredCompletion] = {}
    for record in records:
        if record.gold is not None:
            first = golds.setdefault(record.problem_id, record)
            if first.gold != record.gold:
                yield (
                    f"{path}, line {record.line}: gold {_short(record.gold)} for {record.problem_id}, which has gold "
                    f"{_short(first.gold)} in line {first.line}"
                )
