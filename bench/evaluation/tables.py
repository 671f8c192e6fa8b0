"""Tables in parquet files, which appear whole or not at all; pyarrow is loaded only where one is read or written."""

import importlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def arrow(module: str) -> Any:
    """pyarrow, which has no type information, loaded only where a file is read or written."""
    return importlib.import_module(module)


def write_table(path: Path, table: Any) -> None:
    """Write a pyarrow table. Raises: OSError that names the path; an older file then stays as it was."""
    buffer = io.BytesIO()
    arrow("pyarrow.parquet").write_table(table, buffer, compression="zstd")
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def read_table(path: Path) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Columns and metadata of a parquet file."""
    # By its path, not as bytes: Arrow's threads free Python buffers after the read has returned, and where the process
    # ends just then that aborts it (exit status 134), with everything written.
    with arrow("pyarrow.parquet").ParquetFile(str(path)) as file:
        table: Any = file.read(use_threads=False)
    metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
    return table.to_pydict(), {key.decode(): value.decode() for key, value in metadata.items()}
