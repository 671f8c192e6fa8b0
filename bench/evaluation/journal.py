"""The journal of an evaluation in progress: what is sampled and graded is not lost when the process is killed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.store import append_jsonl, read_jsonl, write_bytes


class Journal:
    """One line a problem, appended as soon as its completions are graded; the first line says of which evaluation.

    A journal of another evaluation (another model, task or plan) is thrown away, a torn last line is ignored.
    """

    def __init__(self, path: Path, key: str) -> None:
        """Open or begin the journal at `path`; `key` is a digest of everything that the outcomes depend on."""
        self.path = path
        records = read_jsonl(path).records
        if records and records[0].get("key") == key:
            self.done: Mapping[str, Sequence[dict[str, Any]]] = {r["problem_id"]: r["rows"] for r in records[1:]}
        else:
            self.done = {}
            write_bytes(path, b"")
            append_jsonl(path, {"key": key})

    def add(self, problem_id: str, rows: Sequence[dict[str, Any]]) -> None:
        """Record a problem's completions and grades."""
        append_jsonl(self.path, {"problem_id": problem_id, "rows": list(rows)})

    def close(self) -> None:
        """Remove the file: what it kept is stored elsewhere."""
        self.path.unlink(missing_ok=True)
