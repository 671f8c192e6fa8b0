"""Content hashes: what is the same inside has the same name, wherever it lies."""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


def data_digest(data: object) -> str:
    """SHA-256 of plain data (mappings, lists, text, numbers, null), whatever the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def files_digest(folder: Path, files: Iterable[Path]) -> str:
    """SHA-256 of files by their content and their names relative to `folder`."""
    return data_digest(sorted([file.relative_to(folder).as_posix(), file_digest(file)] for file in files))


def folder_digest(folder: Path) -> str:
    """SHA-256 of all files below `folder`, hidden ones (a `.git`, a download cache) left out."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    hidden = {path for path in files if any(part.startswith(".") for part in path.relative_to(folder).parts)}
    return files_digest(folder, set(files) - hidden)


def file_digest(file: Path) -> str:
    """SHA-256 of a file's content."""
    status = file.stat()
    return _file_digest(file.resolve(), status.st_size, status.st_mtime_ns)


# A sweep asks for the same model once a run, so a file that has not been touched is read once.
@lru_cache(maxsize=4096)
def _file_digest(file: Path, _size: int, _modified_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
