"""How one side of the comparison with TRL talks to the measuring script: JSON lines in, JSON lines out, laps between.

Standard library alone at the top, because one side runs in an environment of its own without the suite.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


class Channel:
    """The pipe to the measuring script. What libraries print goes to stderr, so that it cannot come between."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.job: JSON = self.ask()

    def ask(self) -> JSON:
        """The next command; `{"do": "quit"}` when the measuring script is gone."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else {"do": "quit"}

    def answer(self, **values: Any) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


class Laps:
    """Seconds of each update, and a hold between the updates of one command and those of the next.

    A trainer that owns its loop calls `lap` at the end of each update and waits inside it while the other side works.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._wanted, self._updates, self._mark = 0, [], 0.0
        self._phases: JSON = {}

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its seconds added to a phase of the present update."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._phases[phase] = self._phases.get(phase, 0.0) + time.perf_counter() - start

        return wrapper

    def hold(self) -> bool:
        """Wait for the next command; False where that is to end."""
        command = self._channel.ask()
        self._wanted, self._updates = command.get("count", 0), []
        self._phases, self._mark = {}, time.perf_counter()
        return command["do"] == "updates"

    def lap(self, **record: Any) -> bool:
        """An update is done: note it, and hold if it was the last one asked for. False where that is to end."""
        seconds = time.perf_counter() - self._mark
        self._updates.append({"seconds": seconds, "phases": self._phases, **record})
        self._phases, self._mark = {}, time.perf_counter()
        if len(self._updates) < self._wanted:
            return True
        self._channel.answer(updates=self._updates)
        return self.hold()


def keep_first_gradient(optimizer: Any, network: Any, path: str) -> None:
    """Write the gradient that the optimizer's first step reads, by parameter name, to a file."""
    import torch

    def keep(*_: Any) -> None:
        handle.remove()
        found = {name: p.grad.detach().clone() for name, p in network.named_parameters() if p.grad is not None}
        torch.save(found, path)

    handle = optimizer.register_step_pre_hook(keep)


def libraries_last() -> None:
    """Let `import trl` find the library and not the script of that name in this folder, which Python looks at first."""
    here = Path(__file__).resolve().parent
    own = [entry for entry in sys.path if entry and Path(entry).resolve() == here]
    sys.path[:] = [entry for entry in sys.path if entry not in own] + own


def take_part(train: Callable[[Channel, JSON], None]) -> None:
    """What a side with TRL does as a process: train as it is asked to, until the measuring script has had enough."""
    libraries_last()
    channel = Channel()
    channel.job["started"] = time.perf_counter()
    import torch

    torch.set_num_threads(channel.job["threads"])
    train(channel, channel.job)
