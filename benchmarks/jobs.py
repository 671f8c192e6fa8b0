"""Two trials side by side with one thread each, against the same two one after another with two threads each.

The trials are those of the quickstart, as a sweep starts them: a process each, OMP_NUM_THREADS set to the trial's
threads. What they share is prepared before the clock starts. The two ways take turns. Prints the table of
docs/benchmarks_rollout.md and the ratio of trials an hour; knobs change both ways alike:

    python benchmarks/jobs.py
    python benchmarks/jobs.py --repeats 3 budget.updates=20
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.dialect import to_yaml
from sweeps.cores import usable_cores
from sweeps.executors import Job, LocalProcesses
from sweeps.grid import load_sweep

SPEC = Path(__file__).parents[1] / "sweeps/specs/quickstart.yaml"
ALGORITHM, SEEDS = "grpo", (0, 1)
WAYS = {"side by side, 1 thread each": (2, 1), "one after another, 2 threads each": (1, 2)}
"""Trials at a time, and threads of each."""
BENCH = (sys.executable, "-m", "bench.cli")


def write_runs(folder: Path, threads: int, knobs: Sequence[str]) -> list[Path]:
    """The files of both trials, whose results go below `folder`."""
    own = [f"threads={threads}", f"output.root={folder}", "tracking.enabled=false", "meter.every=0"]
    files: list[Path] = []
    for trial in load_sweep(SPEC, [f"cross.seed={list(SEEDS)}", *own, *knobs]).trials:
        if trial.algorithm != ALGORITHM:
            continue
        files.append(folder / f"seed_{trial.seed}.yaml")
        files[-1].write_text(to_yaml(trial.run.dump()), encoding="utf-8")
    return files


def seconds(way: str, knobs: Sequence[str]) -> tuple[float, float]:
    """How long both trials take in one way, and their processor time."""
    at_a_time, threads = WAYS[way]
    with tempfile.TemporaryDirectory(prefix="jobs_") as name:
        folder = Path(name)
        waiting = write_runs(folder, threads, knobs)
        for file in waiting:
            subprocess.run([*BENCH, "prepare", str(file)], check=True, capture_output=True)
        environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        processes, start, used = LocalProcesses(), time.perf_counter(), processor_seconds()
        while waiting or processes.running:
            while waiting and len(processes.running) < at_a_time:
                file = waiting.pop(0)
                processes.start(Job(file.stem, (*BENCH, "run", str(file)), environment, folder / f"{file.stem}.log"))
            time.sleep(0.02)
            for end in processes.poll():
                log = (folder / f"{end.job.name}.log").read_text(encoding="utf-8")
                assert end.code == 0, f"{end.sentence}\n{log}"
        return time.perf_counter() - start, processor_seconds() - used


def processor_seconds() -> float:
    """Processor time of the processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("knobs", nargs="*", metavar="KEY=VALUE", help="knobs of both trials")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for repeat in range(given.repeats):
        for way in list(WAYS)[:: 1 if repeat % 2 == 0 else -1]:
            found[way].append(seconds(way, given.knobs))
    print(f"{usable_cores():g} cores; two trials of the quickstart, {' '.join(given.knobs) or 'as they are'}\n")
    print("| way | s for both (median) | all | processor s | trials an hour |\n|---|---|---|---|---|")
    for way, times in found.items():
        wall, used = (statistics.median(column) for column in zip(*times, strict=True))
        every = ", ".join(f"{each:.1f}" for each, _ in times)
        print(f"| {way} | {wall:.1f} | {every} | {used:.1f} | {2 * 3600 / wall:,.0f} |")
    side, after = ([wall for wall, _ in times] for times in found.values())
    print(f"\nratio of trials an hour: {statistics.median(b / a for a, b in zip(side, after, strict=True)):.2f}")


if __name__ == "__main__":
    main()
