"""A sweep whose trials are small real processes: they keep a run's contract and do what the test tells each seed."""

import io
import json
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.store import Status, read_status
from sweeps.grid import load_sweep
from sweeps.runner import Commands, Options, run_sweep

SPEC = """# Question: does the runner keep its word?
base:
  task: chain_sum
  model: {kind: tiny, max_positions: 32}
  rollout: {prompts: 4, group_size: 4, max_completion_tokens: 12}
  optimizer: {lr: 1e-3, microbatch_sequences: 8}
  budget: {updates: 2}
  threads: 3
  output: {root: ROOT}
cross: {seed: [0, 1, 2]}
"""

PROCESS = """
import json, os, re, signal, subprocess, sys, time
from pathlib import Path

here, verb, argument = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with open(here / f"{verb}.calls", "a") as calls:
    print(json.dumps(sys.argv[3:]), file=calls)
if verb != "run":
    sys.exit(int((here / verb).read_text()) if (here / verb).exists() else 0)

directory = Path(argument).parent
seed = re.search(r"^seed: (\\d+)$", Path(argument).read_text(), re.M)[1]
does = json.loads((here / "does.json").read_text()).get(seed, "finish")
print("OMP", os.environ["OMP_NUM_THREADS"], "MKL", os.environ["MKL_NUM_THREADS"])
if does == "die before it starts":
    raise ImportError("no module named nothing")

status = directory / "status.json"
attempt = json.loads(status.read_text())["attempt"] + 1

def set_status(state, error=None):
    text = json.dumps({"state": state, "attempt": attempt, "error": error})
    status.with_suffix(".tmp").write_text(text)
    status.with_suffix(".tmp").replace(status)

set_status("running")
if does == "finish":
    lines = [{"update": 1, "reward/mean": 0.25}, {"update": 2, "reward/mean": 0.4125}, {"update": 2, "loss": 1.0}]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
    set_status("finished")
elif does == "fail":
    set_status("failed", "ValueError: seed 1 is unlucky" + chr(10) + "second line")
    sys.exit(1)
elif does == "diverge":
    set_status("diverged", "loss is not finite at update 2")
    sys.exit(1)
elif does == "crash":
    raise RuntimeError("out of luck")
elif does == "vanish":
    pass
elif does == "be killed":
    child = subprocess.Popen(["sleep", "60"])
    (here / "orphan").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
elif does == "meet":
    # The first two wait for each other; all stay a little, so that one too many would be seen.
    (here / f"meeting.{seed}").touch()
    most, end, wanted = 0, time.monotonic() + 20, 2 if int(seed) < 2 else 1
    while most < wanted and time.monotonic() < end:
        most = max(most, len(list(here.glob("meeting.*"))))
    time.sleep(0.2)
    most = max(most, len(list(here.glob("meeting.*"))))
    (here / f"meeting.{seed}").unlink()
    with open(here / "meetings", "a") as file:
        print(most, file=file)
    set_status("finished")
elif does == "hang":
    def interrupted(*_):
        set_status("interrupted")
        sys.exit(130)
    signal.signal(signal.SIGTERM, interrupted)
    (here / "hangs").touch()
    time.sleep(60)
elif does == "hang deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (here / "hangs").touch()
    time.sleep(60)
"""


@dataclass
class Bench:
    """A specification, what each seed's process does, and what running it said and did."""

    here: Path
    does: dict[int, str] = field(default_factory=dict)
    said: str = ""

    @property
    def spec(self) -> Path:
        return self.here / "study.yaml"

    @property
    def directory(self) -> Path:
        return self.here / "runs" / "study"

    def run(self, *overrides: str, go: bool = True, **options: Any) -> int:
        """Run the sweep, one trial at a time unless told otherwise; its output is in `said`."""
        (self.here / "does.json").write_text(json.dumps(self.does))
        # -I -S: a bare interpreter starts in 20 ms.
        command = (sys.executable, "-I", "-S", str(self.here / "process.py"), str(self.here))
        commands = Commands(*((*command, verb) for verb in ("prepare", "run", "report")))
        options = {"grace_seconds": 10.0, "jobs": 1, **options}
        console = Console(file=io.StringIO(), width=300)
        code = run_sweep(self.spec, overrides, go=go, options=Options(commands=commands, **options), console=console)
        assert isinstance(console.file, io.StringIO)
        self.said = console.file.getvalue()
        return code

    @cached_property
    def ids(self) -> list[str]:
        """Of every seed, in order."""
        return [trial.run.id for trial in load_sweep(self.spec).trials]

    def run_directory(self, seed: int) -> Path:
        return self.directory / self.ids[seed]

    def statuses(self) -> list[Status]:
        """Of every seed, in order."""
        return [read_status(self.directory / name) for name in self.ids]

    def states(self) -> list[str]:
        return [status.state for status in self.statuses()]

    def calls(self, verb: str) -> list[list[str]]:
        """The arguments of each process that was launched."""
        path = self.here / f"{verb}.calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Three trials, seeds 0 to 2, each of which finishes unless told otherwise."""
    (tmp_path / "process.py").write_text(PROCESS)
    (tmp_path / "study.yaml").write_text(SPEC.replace("ROOT", str(tmp_path / "runs")))
    return Bench(tmp_path)
