"""Whether a run killed with SIGKILL at a random moment, and started again, ends as an undisturbed one, bit for bit.

Each algorithm runs once undisturbed. Then fresh copies of it are killed: half of them after a random time, half of them
at a random one of the run's own operations on files (an open, a rename, a removal), so that moments that take
microseconds are met as well. One in three is killed again after it was resumed. A killed run is then resumed to its
end, and its metrics, weights, evaluation, verdicts and alarms are compared with the undisturbed run's, byte for byte.
Processes are forks of this one, which has the libraries loaded. Exit status 1 where anything differs:

    python benchmarks/kill_resume.py --kills 200 --out results/kills
"""

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.config import Run
from bench.loading import build_run, nested
from bench.train import execute

ALGORITHMS = ("ppo", "grpo", "dr_grpo", "dapo", "dpo")
TINY: Mapping[str, Any] = {
    "task": {"name": "chain_sum", "num_terms": 2, "num_digits": 1},
    "model": {
        "kind": "tiny", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64,
        "max_positions": 16,
    },
    "warm_start": {
        "max_updates": 600, "batch_size": 64, "lr": 0.01, "stop_at_pass_at_1": 0.2, "check_every": 10,
        "check_problems": 8, "check_samples": 32, "threads": 1,
    },
    "rollout": {"prompts": 4, "group_size": 4, "updates_per_rollout": 1, "max_completion_tokens": 4},
    "optimizer": {"lr": 1e-3, "microbatch_sequences": 8, "schedule": "linear"},
    "budget": {"updates": 6},
    "validation": {"every": 1, "problems": 8, "samples": 2, "select": "validation"},
    "evaluation": {"problems": 8, "samples": 4, "ks": [1, 2]},
    "checkpoint": {"every": 1, "keep": 2, "keep_every": 3},
    "meter": {"every": 2},
    "tracking": {"enabled": False},
}  # fmt: skip
OWN: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"validation.select": "last"},
    "dpo": {"validation.select": "last"},
    "ppo": {"critic.lr": 1e-2, "critic.warmup_updates": 1},
    "dapo": {"objective.selection.surplus": "carry_over", "rollout.old_logp": "sampler"},
}
COMPARED = ("metrics.jsonl", "final.json", "alarms.json", "health.json", "overlap.json")
NOT_COMPARED = ("complete.json", "README.md")
# The first word that a path holds says what the run was at.
PHASES = (
    ("step_", "checkpoint"), ("best_", "best model"), ("round_", "pairs kept"), ("README", "model card"),
    ("final", "final model"), ("eval", "evaluation"), ("status.json", "status"), ("metrics.jsonl", "after an update"),
    ("timings.jsonl", "between updates"), ("memory.json", "closing files"), ("throughput.json", "closing files"),
    ("alarms.json", "closing files"), ("health.json", "closing files"), ("provenance.json", "start"),
    ("run.yaml", "start"), ("formula.json", "start"), ("overlap.json", "start"),
)  # fmt: skip
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")


@dataclass
class Tally:
    """What came of the kills of one algorithm."""

    kills: int = 0
    exact: int = 0
    """Kills after which the run ended as if there had been none."""
    phases: Counter[str] = field(default_factory=Counter[str])
    mismatches: list[str] = field(default_factory=list[str])


class Note:
    """A word and a number that a process leaves where its parent can read it after its death."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 64)

    def write(self, count: int, phase: str) -> None:
        self.memory[:64] = f"{count} {phase}".encode().ljust(64)

    def read(self) -> tuple[int, str]:
        count, _, phase = self.memory[:64].decode().strip("\0 ").partition(" ")
        return int(count or 0), phase or "start"


def watched(directory: Path, note: Note, last: int | None) -> Callable[[str, Sequence[Any]], None]:
    """An audit hook that notes what the run is at, and kills the process at its operation `last` on a file of it."""
    count, place = 0, str(directory)

    def hook(event: str, arguments: Sequence[Any]) -> None:
        nonlocal count
        if event not in EVENTS:
            return
        path = next((str(a) for a in arguments[:2] if isinstance(a, str | Path) and place in str(a)), None)
        if path is None:
            return
        count += 1
        below = path.partition(place)[2]
        phase = next((phase for word, phase in PHASES if word in below), note.read()[1])
        note.write(count, phase)
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def attempt(
    run: Run, directory: Path, note: Note, *, after: float | None = None, at: int | None = None
) -> tuple[bool, float]:
    """One process of the run, killed after some seconds or at an operation on a file; whether it was killed, and the
    seconds it took."""
    note.write(0, "start")
    start = time.monotonic()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        log = os.open(directory.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.addaudithook(watched(directory, note, at))
        try:
            execute(run, directory)
        finally:
            sys.stderr.flush()
            os._exit(0)
    while after is not None and time.monotonic() - start < after:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WIFSIGNALED(status), time.monotonic() - start
        time.sleep(0.0005)
    if after is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), time.monotonic() - start


def differences(straight: Path, resumed: Path) -> list[str]:
    """Names of the files that are not as the undisturbed run's; what is missing or too much counts too."""
    files = sorted(path for path in straight.rglob("*") if path.is_file())
    # Of the checkpoints, all but their markers, which hold what memory each attempt had.
    held = [p for p in files if p.parent.name == "eval" or ("checkpoints" in p.parts and p.name not in NOT_COMPARED)]
    names = [*COMPARED, *(str(path.relative_to(straight)) for path in held)]
    found = [name for name in names if _content(straight / name) != _content(resumed / name)]
    state = json.loads(_content(resumed / "status.json") or b"{}").get("state")
    found += [f"status {state}"] if state != "finished" else []
    paths = (folder.rglob("*") for folder in (resumed, straight))
    there, expected = (
        {str(p.relative_to(folder)) for p in own if p.suffix != ".lock"}
        for folder, own in zip((resumed, straight), paths, strict=True)
    )
    return found + [f"{name} is left over" for name in sorted(there - expected)] + sorted(expected - there)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def run_of(algorithm: str, root: Path, more: Mapping[str, Any]) -> Run:
    """The small run of an algorithm, with what the five have in common."""
    output = {"output": {"root": str(root / "runs"), "cache": str(root / "cache")}}
    return build_run({"algorithm": algorithm, **TINY, **output}, nested({**OWN.get(algorithm, {}), **more}))


def kill_and_resume(
    run: Run, directory: Path, straight: Path, whole: tuple[float, int], draw: random.Random, tally: Tally
) -> None:
    """Kill a fresh run once or twice, resume it to its end, and compare."""
    seconds, operations = whole
    note, told = Note(), []
    for _ in range(1 + (draw.random() < 1 / 3)):
        if draw.random() < 0.5:
            killed, _ = attempt(run, directory, note, after=draw.uniform(0, seconds))
        else:
            killed, _ = attempt(run, directory, note, at=draw.randint(1, operations))
        if killed:
            count, phase = note.read()
            tally.kills += 1
            tally.phases[phase] += 1
            told.append(f"{phase} (operation {count})")
    attempt(run, directory, note)
    found = differences(straight, directory)
    if found:
        tally.mismatches.append(f"{directory}: killed at {', then '.join(told)}: {', '.join(found)}")
        return
    tally.exact += len(told)
    shutil.rmtree(directory)
    directory.with_suffix(".log").unlink()


def campaign(kills: int, seed: int, algorithms: Sequence[str], root: Path, more: Mapping[str, Any]) -> dict[str, Tally]:
    """All kills, shared evenly among the algorithms; what differs stays in `root`."""
    tallies: dict[str, Tally] = {}
    for number, algorithm in enumerate(algorithms):
        run, folder = run_of(algorithm, root, more), root / algorithm
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        note, straight = Note(), folder / "straight"
        attempt(run, folder / "warm", note)  # what runs share is made here, so that it is in no other run's time
        _, seconds = attempt(run, straight, note)
        whole, tally, draw = (seconds, note.read()[0]), Tally(), random.Random(f"{seed} {algorithm}")
        wanted = kills // len(algorithms) + (number < kills % len(algorithms))
        tallies[algorithm] = tally
        index = 0
        while tally.kills < wanted and index < 3 * wanted:
            kill_and_resume(run, folder / f"{index:03d}", straight, whole, draw, tally)
            index += 1
        print(f"{algorithm}: {tally.kills} kills, {len(tally.mismatches)} mismatches", file=sys.stderr, flush=True)
    return tallies


def report(tallies: Mapping[str, Tally]) -> str:
    """The table: kills, runs that ended exactly, mismatches, and the phases in which kills fell."""
    phases = sorted({phase for tally in tallies.values() for phase in tally.phases})
    columns = ["algorithm", "kills", "exact resumes", "mismatches", *phases]
    rows = [
        [name, str(t.kills), str(t.exact), str(len(t.mismatches)), *(str(t.phases[phase]) for phase in phases)]
        for name, t in tallies.items()
    ]
    rows.append(["all", *(str(sum(int(row[i]) for row in rows)) for i in range(1, len(columns)))])
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    wrong = [line for tally in tallies.values() for line in tally.mismatches]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *wrong])


def main() -> int:
    """Exit status 1 where a resumed run differs, or where no kill was made."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, help="folder of the runs; a temporary one by default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further knobs of every run")
    options = parser.parse_args()
    more = {key: json.loads(value) for key, _, value in (text.partition("=") for text in options.set)}
    root = options.out or Path(tempfile.mkdtemp(prefix="kill-resume-"))
    tallies = campaign(options.kills, options.seed, options.algorithms, root.absolute(), more)
    print(report(tallies))
    made = sum(tally.kills for tally in tallies.values())
    if options.out is None:
        shutil.rmtree(root)
    return 0 if made >= options.kills and not any(tally.mismatches for tally in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
