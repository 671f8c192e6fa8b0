"""One of the processes that `tests/bench/test_processes_runs.py` starts: `python processes_worker.py DOES RUN.YAML`.

`many`: each run of many.json beside the run's file, one after another. The rest is the command line's `bench run`, with
an accident in rank 1 (or none) in the update that the environment's ACCIDENT_AT names.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench import checkpoint, cli, learn_online, processes
from bench.config import Run
from bench.loading import build_run
from bench.train import execute


def many(file: Path) -> None:
    """Every run, in a folder of its own; a run whose name ends in `stopped` is stopped at a checkpoint and resumed."""
    runs: dict[str, Any] = json.loads((file.parent / "many.json").read_text())
    with processes.joined(2, "cpu"):
        check_sums()
        for name, knobs in runs.items():
            run = build_run(knobs)
            if name.endswith("stopped"):
                stop_at_checkpoint(run, file.parent / name)
            status = execute(run, file.parent / name)
            assert status.state == "finished", f"{name}: {status}"
        processes.barrier()
        if processes.is_main():
            (file.parent / "done").touch()


def check_sums() -> None:
    """Gradients are summed where any rank has one, and stay absent where none has; what differs is noticed."""
    rank = processes.rank()
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[0].grad = torch.full((2,), 1.0 + rank)
    parameters[rank].grad = parameters[0].grad if rank == 0 else torch.ones(2)
    processes.sum_gradients(parameters)
    gradients = [None if p.grad is None else p.grad.tolist() for p in parameters]
    assert gradients == [[3.0, 3.0], [1.0, 1.0], None], gradients
    assert processes.gather_items([f"{item} again" for item in processes.mine("abc")]) == [
        "a again",
        "b again",
        "c again",
    ]
    half = torch.tensor([1.0, torch.nan, torch.nan] if rank == 0 else [torch.nan, 2.0, torch.nan])
    assert str(processes.filled(half).tolist()) == "[1.0, 2.0, nan]"
    processes.agree("nothing", float("nan"))
    with pytest.raises(processes.ProcessesDisagree, match=r"the rank differs between the run's processes \(0, 1\)"):
        processes.agree("the rank", rank)


def stop_at_checkpoint(run: Run, folder: Path) -> None:
    original = checkpoint.save

    def save_then_stop(*arguments: Any, **knobs: Any) -> None:
        original(*arguments, **knobs)
        raise KeyboardInterrupt

    checkpoint.save = save_then_stop
    assert execute(run, folder).state == "interrupted"
    checkpoint.save = original
    processes.barrier()


def befall(what: str) -> None:
    """Let rank 1 meet with an accident before it takes the step of the update ACCIDENT_AT."""
    original, steps = learn_online.take_step, 0

    def take_step(*arguments: Any) -> float:
        nonlocal steps
        steps += 1
        if os.environ["RANK"] == "1" and steps == int(os.environ["ACCIDENT_AT"]):
            if what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("the accident of rank 1")
        return original(*arguments)

    learn_online.take_step = take_step


if __name__ == "__main__":
    does, path = sys.argv[1], sys.argv[2]
    if does == "many":
        many(Path(path))
    else:
        if does != "nothing":
            befall(does)
        sys.argv = ["bench", "run", path]
        cli.main()
