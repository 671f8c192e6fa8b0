"""vLLM in a child process: started, given weights through shared memory, waited for with a limit, and ended."""

import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from bench.adapted_weights import named_weights
from bench.engines import LOG, EngineFailed
from bench.generate_vllm import Row
from bench.models import LanguageModel, save_folder
from bench.vllm_process import shared_views

COMMAND = (sys.executable, "-P", "-m", "bench.vllm_process")
_QUOTED = 300


@dataclass(frozen=True)
class Limits:
    """Seconds that the engine may stay silent."""

    answer: float = 60.0
    """To a message, which it acknowledges before it works; and while it takes weights, with a sign after each."""
    start: float = 600.0
    """While it imports vLLM and loads the model."""
    work: float = 600.0
    """Between two steps of its work; it gives a sign after each."""


@dataclass(frozen=True)
class Child:
    """The process, the trainer's end of the socket pair, its folder for the time of its life, and its log."""

    process: subprocess.Popen[bytes]
    line: Connection
    folder: Path
    log: Path
    limits: Limits

    @property
    def name(self) -> str:
        return f"the vLLM process {self.process.pid}"

    @property
    def told(self) -> str:
        """Where to read on, if the log outlives the process."""
        return "" if self.log.parent == self.folder else f"; its log is {self.log}"

    def ask(self, doing: str, message: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Send a message and wait for what it comes to; `seconds` may pass between two signs, or `limits.work`."""
        self.send(doing, message)
        self.answer(doing, self.limits.answer, sign_of_life=True)
        return self.answer(doing, self.limits.work if seconds is None else seconds)

    def send(self, doing: str, message: Mapping[str, Any]) -> None:
        try:
            self.line.send_bytes(json.dumps(message).encode())
        except BlockingIOError:
            raise self._silent(doing, self.limits.answer) from None
        except OSError:
            raise self._ended(doing) from None

    def answer(self, doing: str, seconds: float, sign_of_life: bool = False) -> dict[str, Any]:
        """The next message that is more than a sign of life, or the next of any kind; each must come in time."""
        while True:
            try:
                if not self.line.poll(seconds):
                    raise self._silent(doing, seconds)
                said = json.loads(self.line.recv_bytes())
            except BlockingIOError:
                raise self._silent(doing, seconds) from None
            except (EOFError, OSError):
                raise self._ended(doing) from None
            if said["say"] == "failed":
                why = " ".join(str(said["why"]).split())[:_QUOTED]
                raise EngineFailed(f"engine.kind: vllm failed {doing}: {why}{self.told}")
            if sign_of_life or said["say"] != "busy":
                return said

    def close(self) -> None:
        """End it at once: it has nothing to save."""
        self.process.kill()
        self.process.wait()
        self.line.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _silent(self, doing: str, seconds: float) -> EngineFailed:
        return EngineFailed(
            f"engine.kind: {self.name} gave no sign over its socket pair for {seconds:g} s {doing}, so it is taken for "
            f"hung{self.told}; started again, a run goes on from its last checkpoint"
        )

    def _ended(self, doing: str) -> EngineFailed:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return EngineFailed(f"engine.kind: {self.name} closed its socket pair {doing}{self.told}")
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        memory = "; where memory is short the system sends it: lower engine.kv_cache_gib" if code == -9 else ""
        return EngineFailed(
            f"engine.kind: {self.name} was ended {how} {doing}{memory}; its last line was "
            f"{last_line(self.log)!r}{self.told}"
        )


def spawn(
    log: Path | None, threads: int, limits: Limits, memory: "SharedWeights", command: Sequence[str] = COMMAND
) -> Child:
    """Start the process; it lives in a session of its own, so that Ctrl-C reaches the trainer alone, which ends it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-vllm-"))
    ours, theirs = socket.socketpair()
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        whole, rest = divmod(limits.answer, 1)
        ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(whole), int(1e6 * rest)))
    log = log or folder / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    with theirs, log.open("ab") as written:
        numbers = (os.getpid(), theirs.fileno(), memory.descriptor, memory.num_bytes)
        process = subprocess.Popen(
            [*command, *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=(theirs.fileno(), memory.descriptor),
            env=_environment(folder, threads),
            start_new_session=True,
        )
    memory.given()
    return Child(process, Connection(ours.detach()), folder, log, limits)


def _environment(folder: Path, threads: int) -> dict[str, str]:
    own = {
        "OMP_NUM_THREADS": str(threads),  # without it the engine takes one thread, whatever torch was told
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",  # one small function would be compiled in the first call, for half a minute
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    return {**os.environ, **own}


class SharedWeights:
    """All parameters of a network in memory that the child maps too, an adapter merged into copies of its base's; made
    once, filled before each push."""

    def __init__(self, network: PreTrainedModel) -> None:
        layout: list[tuple[str, list[int], int]] = []
        offset = 0
        for name, parameter in named_weights(network):
            assert parameter.dtype == torch.float32, f"{name} is {parameter.dtype}, and both sides compute in float32"
            layout.append((name, list(parameter.shape), offset))
            offset += parameter.numel()
        self.layout, self.num_bytes = layout, 4 * offset
        self.descriptor = _memory_file(self.num_bytes)
        self.views = shared_views(mmap.mmap(self.descriptor, self.num_bytes), layout)

    def given(self) -> None:
        """The child has the file; the mapping stays without it."""
        os.close(self.descriptor)

    @torch.no_grad()
    def take(self, network: PreTrainedModel) -> bool:
        """Copy what differs; whether anything did."""
        changed = False
        for (name, parameter), (known, view) in zip(named_weights(network), self.views, strict=True):
            assert name == known, "an engine is for models of one make"
            if not torch.equal(parameter, view):
                view.copy_(parameter)
                changed = True
        return changed


def _memory_file(num_bytes: int) -> int:
    """Descriptor of a file without a name, in memory where the system can: nothing is left of it, however all ends."""
    if sys.platform == "linux":
        number = os.memfd_create("weights")
    else:
        number, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(number, num_bytes)
    return number


class ChildEngine:
    """The engine in its process, holding weights of its own."""

    def __init__(self, child: Child, weights: SharedWeights, longest: int) -> None:
        self.child, self.weights, self.longest = child, weights, longest
        self._pushed = False

    def load(self, network: PreTrainedModel) -> bool:
        changed = self.weights.take(network)
        if not changed and self._pushed:
            return False
        self.child.ask("while it took the weights", {"ask": "load"}, seconds=self.child.limits.answer)
        self._pushed = True
        return True

    def sample(self, asked: Mapping[str, Any]) -> list[Row]:
        return self.child.ask("while it sampled", {"ask": "sample", **asked})["rows"]

    def rest(self) -> None:
        """It shares no memory with the trainer but the weights."""

    def close(self) -> None:
        self.child.close()


def start_child(
    model: LanguageModel, options: Mapping[str, Any], log: Path | None, threads: int, limits: Limits | None = None
) -> ChildEngine:
    """Save the model as an ordinary folder, and start an engine on it.

    Raises:
        EngineFailed: it cannot load the model, or does not start in time.
    """
    limits = limits or Limits()
    weights = SharedWeights(model.network)
    child = spawn(log, threads, limits, weights)
    try:
        folder = child.folder / "model"
        save_folder(model, folder)
        check_names(folder, [name for name, _, _ in weights.layout])
        child.answer("while its process began", limits.answer)
        child.send("while it started", {"model": str(folder), "options": dict(options), "layout": weights.layout})
        ready = child.answer("while it started", limits.start)
        shutil.rmtree(folder)
    except BaseException:
        child.close()
        raise
    return ChildEngine(child, weights, int(ready["longest"]))


def check_names(folder: Path, names: Sequence[str]) -> None:
    """Raises EngineFailed unless the saved model has a tensor under each of the names: the engine knows those."""
    saved: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            saved |= set(file.keys())
    unknown = [name for name in names if name not in saved]
    if unknown:
        raise EngineFailed(
            f"engine.kind: vllm cannot be given this model's weights: {len(unknown)} of them, such as {unknown[0]}, "
            "have another name in its files than in the trainer; give engine=builtin"
        )


def last_line(path: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:_QUOTED] if lines else ""
