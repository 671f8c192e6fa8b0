"""The logs of a run directory at a checkpoint: how long each was and what it held, and cutting it back to that."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.checkpoint_folder import sync

METRICS = "metrics.jsonl"
LOGS = (METRICS, "reward_failures.jsonl", "baseline_quality.jsonl")
"""What an update appends and a resume writes again. `timings.jsonl` is not among them: it keeps every attempt."""

Position = Mapping[str, Mapping[str, Any]]


def position(directory: Path) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of each log as it is now, and now on the disk; of one that is not there, of an empty one."""
    found: dict[str, dict[str, Any]] = {}
    for name in LOGS:
        path = directory / name
        if path.exists():
            sync(path)
        content = path.read_bytes() if path.exists() else b""
        found[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return found


def held(directory: Path, at: Position) -> str | None:
    """The name of a log that no longer begins with what it held then; None where all do."""
    for name, known in at.items():
        path = directory / name
        content = path.read_bytes()[: known["bytes"]] if path.exists() else b""
        if hashlib.sha256(content).hexdigest() != known["sha256"]:
            return name
    return None


def cut_back(directory: Path, at: Position) -> None:
    """Cut every log to what it held then, in place: what was written later is written again."""
    for name in LOGS:
        path, size = directory / name, at[name]["bytes"] if name in at else 0
        if path.exists() and path.stat().st_size > size:
            with path.open("rb+") as file:
                file.truncate(size)
            sync(path)
