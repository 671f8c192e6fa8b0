"""Folders that are whole or do not count: written aside, forced to the disk, and given their marker last.

The marker lists every file with its size and its SHA-256, so that a folder that was cut short, lost a file or had a
byte flipped is told from a whole one. Nothing here knows what the files mean, and nothing loads torch.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import store
from bench.fingerprint import data_digest

MARKER = "complete.json"
FORMAT = 3
"""Raised whenever a checkpoint of before could no longer be resumed to the same end."""
SLACK_BYTES = 32 * 2**20
"""Free room asked for beside the tensors: tokenizer, records, and the words that say how the run ended."""
_STEP = re.compile(r"step_([0-9]{6,})")


class NoRoom(RuntimeError):
    """What is to be written would not fit; the message names needed and free bytes."""


# Writing


@contextmanager
def whole_folder(final: Path, record: Mapping[str, Any]) -> Iterator[Path]:
    """Give an empty folder to fill; on success it takes the place of `final` and gets its marker, else it is removed.

    Args:
        record: plain values that the marker holds beside the list of files.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        files = _sealed(partial)
        remove(final)
        partial.rename(final)
        sync(final.parent)
        content = {"format": FORMAT, **record, "files": files}
        store.write_json(final / MARKER, {**content, "sha256": data_digest(content)})
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # half a folder would keep a full disk full
        raise


def _sealed(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and digest of every file below the folder, once all of it is on the disk."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sync(path)
            found[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest_of(path)}
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync(path)
    return found


def digest_of(path: Path) -> str:
    """SHA-256 of a file as it is now, which a flipped bit changes without touching its time of change."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Force a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder, its marker first: a kill in between must not leave a marker that vouches for the rest."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def require_room(directory: Path, needed_bytes: int, what: str) -> None:
    """Raises NoRoom unless the disk of a folder has that many bytes free, and some to say so."""
    needed, free = needed_bytes + SLACK_BYTES, free_bytes(directory)
    if free < needed:
        raise NoRoom(
            f"{what} needs {needed:,} bytes and {directory} has {free:,} free: free some room and start the run again, "
            "which goes on from its newest whole checkpoint, or give output.root=FOLDER on another disk"
        )


def free_bytes(directory: Path) -> int:
    """Free bytes of the disk that a folder is on, or would be."""
    there = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


# Reading


def marker_of(folder: Path) -> dict[str, Any] | str:
    """A folder's marker, or what is wrong with it in a few words; the files themselves are not looked at."""
    try:
        marker = json.loads((folder / MARKER).read_bytes())
    except FileNotFoundError:
        return "it was never finished"
    except (OSError, ValueError, RecursionError):
        return f"its {MARKER} cannot be read"
    if not isinstance(marker, dict) or not isinstance(marker.get("format"), int):
        return f"its {MARKER} is not one"
    sealed = marker["format"] == FORMAT or "sha256" in marker
    if sealed and marker.get("sha256") != _own_digest(marker):
        return f"its {MARKER} was changed"
    return marker


def _own_digest(marker: Mapping[str, Any]) -> str | None:
    try:
        return data_digest({name: value for name, value in marker.items() if name != "sha256"})
    except ValueError:  # a number that is not finite, which no marker of ours has
        return None


def fault_of(folder: Path, *, deep: bool = True) -> str | None:
    """What is wrong with a folder of the present format, in a few words; None where it is whole.

    Args:
        deep: also read every file again and compare its digest.
    """
    marker = marker_of(folder)
    if isinstance(marker, str):
        return marker
    if marker["format"] != FORMAT:
        return f"it has format {marker['format']}"
    for name, known in marker["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != known["bytes"]:
            return f"{name} has {path.stat().st_size:,} bytes instead of {known['bytes']:,}"
        if deep and digest_of(path) != known["sha256"]:
            return f"the content of {name} was changed"
    return None


def steps(directory: Path) -> list[tuple[int, Path]]:
    """All folders that are named as checkpoints, whole or not, with their updates, oldest first by number."""
    named = [(match, path) for path in directory.glob("step_*") if (match := _STEP.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in named if path.is_dir())


def complete(directory: Path) -> list[Path]:
    """Checkpoints whose marker and file sizes are right, oldest first by number."""
    return [folder for _, folder in steps(directory) if fault_of(folder, deep=False) is None]


def newest_whole(directory: Path) -> Iterator[Path]:
    """Whole checkpoints, newest first, every byte compared; of each that is not, a word on stderr."""
    for _, folder in reversed(steps(directory)):
        fault = fault_of(folder)
        missing = None if fault else next((name for name in needs(folder) if fault_of(directory / name)), None)
        if fault or missing:
            say_skipped(folder, fault or f"{missing}, which it needs, {fault_of(directory / str(missing))}")
        else:
            yield folder


def say_skipped(folder: Path, why: str) -> None:
    """One line on stderr about a checkpoint that is passed over."""
    print(f"{folder}: {why}; skipped, an older whole checkpoint is looked for", file=sys.stderr)


def needs(folder: Path) -> list[str]:
    """Names of the folders beside a checkpoint that it is not whole without."""
    marker = marker_of(folder)
    return [] if isinstance(marker, str) else list(marker.get("needs", []))


def step_of(folder: Path) -> int:
    """The update that a checkpoint's folder is named after."""
    return int(folder.name.removeprefix("step_"))


# Keeping


def prune(directory: Path, keep: int, shared: Iterable[str] = ()) -> None:
    """Remove what is no longer kept: all but the newest `keep` whole checkpoints and those marked to stay.

    Nothing newer than the newest whole one is touched. What checkpoints share stays while one that is kept needs it.

    Args:
        shared: names of shared folders that are needed whatever the checkpoints say.
    """
    whole = complete(directory)
    stay = {folder for folder in whole if _stays(folder)} | set(whole[-keep:])
    for update, folder in steps(directory):
        if whole and folder not in stay and update < step_of(whole[-1]):
            remove(folder)
    needed = {name for folder in stay for name in needs(folder)} | set(shared)
    for folder in directory.glob("best_*"):
        if folder.name not in needed:
            remove(folder)


def _stays(folder: Path) -> bool:
    marker = marker_of(folder)
    return not isinstance(marker, str) and bool(marker.get("stays"))


def clean(directory: Path) -> None:
    """Remove what a kill left half written: folders that never got their place, or never their marker."""
    for folder in directory.glob(".*.partial"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in [*(path for _, path in steps(directory)), *directory.glob("best_*")]:
        if not (folder / MARKER).exists():
            shutil.rmtree(folder, ignore_errors=True)
