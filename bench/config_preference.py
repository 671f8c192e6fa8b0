"""Where the rows of a fixed preference set lie: on the hub, in a file or in a folder; by content in a run's id."""

from pathlib import Path
from typing import Any

from algorithms.axes.objective import Objective
from algorithms.axes.preference import FixedPairs, Preference
from bench import fingerprint

KINDS = (".jsonl", ".json", ".csv", ".parquet")
"""Kinds of files that hold rows."""


def fixed_pairs(objective: Objective) -> FixedPairs | None:
    """The fixed set that the objective learns from; None where it learns from anything else."""
    pairing = objective.pairing if isinstance(objective, Preference) else None
    return pairing if isinstance(pairing, FixedPairs) else None


def local_set(source: FixedPairs) -> Path | None:
    """The set's file or folder on this machine; None where `path` is a name on the hub."""
    path = Path(source.path).expanduser()
    looks_local = source.path.startswith((".", "/", "~")) or source.path.count("/") > 1 or path.suffix in KINDS
    return path if looks_local or path.exists() else None


def set_files(source: FixedPairs, path: Path) -> list[Path]:
    """The files with the split's rows, in order: `path` itself, or those of the folder, or of `data` in it, whose names
    begin with the split (`train.jsonl`, `train-00000-of-00002.parquet`)."""
    if path.is_file():
        return [path]
    return [file for file in data_files(path) if _of_split(file, source.split)]


def data_files(folder: Path) -> list[Path]:
    """Every file of a folder that could hold rows, in order of name."""
    inside = [file for place in (folder, folder / "data") if place.is_dir() for file in place.iterdir()]
    return sorted(file for file in inside if file.is_file() and file.suffix in KINDS)


def _of_split(file: Path, split: str) -> bool:
    name = file.name
    return name.startswith(split) and not name[len(split) : len(split) + 1].isalnum()


def set_content(objective: Objective) -> dict[str, Any]:
    """What replaces the path of a local set in a run's identity: the content of its files; empty without one."""
    source = fixed_pairs(objective)
    path = local_set(source) if source is not None else None
    if source is None or path is None:
        return {}
    files = set_files(source, path)
    # A file renamed or moved holds the same rows, but the order of several follows from their names.
    return {"path": fingerprint.data_digest([fingerprint.file_digest(file) for file in files])}
