"""Starting the processes of one run on this machine, and watching them: if one dies, all end, and the run says why."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bench import store
from bench.config import Run
from bench.dialect import ConfigError
from bench.endings import killed
from bench.loading import change
from bench.origin import refuse_unusable
from bench.stopping import Interrupted, stoppable

LAUNCHED = "BENCH_LAUNCHED"
"""Set in the environment of the processes that `launch` starts, to the user's command; they leave the account of the
run to it."""
GRACE_SECONDS = 15.0
"""Time that the others have to end in good order once one has ended badly."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Member:
    """A process that someone started as one of several."""

    rank: int
    by_us: bool
    """Whether `launch` did, and not accelerate or torchrun."""


def membership(run: Run) -> tuple[Run, Member | None]:
    """The run with the number of processes that the environment tells, and which of them this one is.

    Raises:
        ConfigError: the environment and the knob contradict each other.
    """
    world, rank = os.environ.get("WORLD_SIZE"), os.environ.get("RANK")
    asked = run.parallel.processes
    if world is None or rank is None:
        if asked == 1 and {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys():
            raise ConfigError(
                [
                    "accelerate launch was asked for several processes and started one, as it does where it sees no "
                    "GPUs: give it --multi_gpu (which is torchrun, on a CPU too), or use bench run --processes N"
                ]
            )
        return run, None
    if not (world.isdigit() and rank.isdigit() and int(rank) < int(world)):
        raise ConfigError([f"RANK={rank} and WORLD_SIZE={world} in the environment are no launcher's: unset them"])
    if asked not in (1, int(world)):
        raise ConfigError(
            [
                f"parallel.processes: {asked} given, but this process was started as one of WORLD_SIZE={world}; give "
                "the launcher the same number, or leave the knob out"
            ]
        )
    if int(world) == 1:
        return run, None
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise ConfigError(
            [
                f"WORLD_SIZE={world} in the environment, but no MASTER_ADDR and MASTER_PORT: use bench run --processes "
                "N, or unset WORLD_SIZE and RANK"
            ]
        )
    check_devices(run, int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    return change(run, {"parallel.processes": int(world)}), Member(int(rank), LAUNCHED in os.environ)


def check_devices(run: Run, here: int) -> None:
    """Raises ConfigError where this machine has fewer devices than processes."""
    if run.device != "cuda":
        return
    import torch

    there = torch.cuda.device_count()
    if here > there:
        raise ConfigError([f"parallel.processes: {here} given, but torch sees {there} CUDA devices; each needs one"])


def launch(run: Run, directory: Path, command: Sequence[str] = (sys.executable, "-m", "bench.cli", "run")) -> None:
    """Run the processes to their end, whatever it is; `status.json` says which. A run that has ended is left as it is.

    Args:
        command: what is started for each, with the run's file at the end.
    """
    before = store.read_status(directory)
    if before.terminal and before.state != "failed":
        return
    check_devices(run, run.parallel.processes)
    refuse_unusable(run, directory)
    store.write_yaml(directory / "run.yaml", run.dump())
    store.set_status(directory, "pending", attempt=before.attempt)
    port = _free_port()
    children: list[subprocess.Popen[bytes]] = []
    sentence, stopped = None, False
    try:
        with stoppable():
            for rank in range(run.parallel.processes):
                children.append(_start([*command, str(directory / "run.yaml")], _environment(run, rank, port)))
            sentence = _watch(children)
    except (Interrupted, KeyboardInterrupt):
        stopped = True
    finally:
        _end(children)
    status = store.read_status(directory)
    attempt = status.attempt + (status.state == "pending")  # they died before they could count themselves
    unsaid = status.state in ("pending", "running")
    if stopped and (unsaid or status.state == "failed"):
        store.set_status(directory, "interrupted", attempt=attempt, error=status.error)
    elif sentence is not None:
        print(f"{directory}: {sentence}", file=sys.stderr)
        store.set_status(directory, "failed", attempt=attempt, error=sentence)
    elif unsaid:
        codes = ", ".join(str(child.returncode) for child in children)
        error = f"its processes ended with exit status {codes} and did not finish the run"
        store.set_status(directory, "failed", attempt=attempt, error=error)
    else:
        return
    if run.tracking.enabled:
        _mirror(run, directory)


def _follow_launcher() -> None:
    """End when it ends, and leave Ctrl-C to it, which asks all in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        # Nobody writes: this returns when the other end is closed, by its death if by nothing else.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def take_part(run: Run, directory: Path, member: Member) -> NoReturn:
    """Be a process of a run whose lock and account are another's, to its end."""
    from bench.train import execute

    if member.by_us:
        _follow_launcher()
    leave(0 if execute(run, directory).state == "finished" else 1)


def leave(code: int) -> NoReturn:
    """End this process at once. The interpreter's own end would wait for sums that the others never finish."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _mirror(run: Run, directory: Path) -> None:
    from bench.tracking import TrackingError, mirror, prepare_store

    try:
        mirror(directory, run.tracking_uri, prepare_store(run.tracking_uri, run.output.sweep))
    except TrackingError as error:
        print(f"{error}. The run's files have everything.", file=sys.stderr)


def _environment(run: Run, rank: int, port: int) -> dict[str, str]:
    count, threads = str(run.parallel.processes), str(run.threads)
    return {
        LAUNCHED: json.dumps(sys.argv),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # In our process group, so that whoever kills the group whole (a sweep does) leaves none of them behind. Their
    # standard input is ours to hold open: its end tells them that we are gone.
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **environment})


def _watch(children: Sequence[subprocess.Popen[bytes]]) -> str | None:
    """Wait until all have ended or one has ended badly; a sentence if a signal killed it."""
    while True:
        codes = [child.poll() for child in children]
        for rank, code in enumerate(codes):
            if code is not None and code < 0:
                return f"process {rank} of {len(children)} was {killed(-code)}"
        if any(codes) or all(code is not None for code in codes):
            return None
        time.sleep(_POLL_SECONDS)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all that still run to end, and kill those that have not after the grace."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
