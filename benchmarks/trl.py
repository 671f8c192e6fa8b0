"""How fast the suite trains against TRL: end to end, the update alone on a frozen rollout, and preference pairs.

Both sides are processes of their own that load the same model folder, prompts and reward, and work in turn, so that
only one computes at a time. Prints the tables of docs/benchmarks.md, with lines `ratio: X` (ours / TRL, completions a
second) and the share of the FLOP floor. Needs the reference extra (TRL 1.16) and an idle machine:

    python benchmarks/trl.py                                   GRPO on the reference configuration, all tiers
    python benchmarks/trl.py --algorithm dpo
    python benchmarks/trl.py --algorithm ppo --ppo-python ppo-venv/bin/python
    python benchmarks/trl.py --model smollm2 --precision bf16 --repeats 3 --updates 1 --warmup 1

TRL 1.16 has no PPO. Version 1.12 has, in an environment of its own (with the CPU build of torch, as in the README):

    python -m venv ppo-venv
    ppo-venv/bin/pip install torch==2.13.0 transformers==5.19.0 trl==1.12.0
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trl_machine
import trl_table
from trl_setup import MODELS

HERE = Path(__file__).parent
TRL_VERSION = "1.16.0"


class SideFailed(RuntimeError):
    """A side ended or refused; the message is what it said last."""


class Side:
    """One side of the comparison: a process that works when it is asked to."""

    def __init__(self, name: str, script: str, job: dict[str, Any], python: str = sys.executable) -> None:
        self.name, self._log = name, Path(job["folder"]) / f"{name}_{len(os.listdir(job['folder']))}.log"
        quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
        threads = {"OMP_NUM_THREADS": str(job["threads"]), "MLFLOW_DISABLE_TELEMETRY": "true"}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(HERE / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **quiet, **threads},
            )
        self._send(job)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _send(self, values: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is read by `answer`

    def answer(self) -> dict[str, Any]:
        """What the side says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._log.read_text().strip().splitlines()[-15:]
            raise SideFailed(f"{self.name} ended (status {self._process.wait()}):\n" + "\n".join(last))
        found = json.loads(line)
        if "refused" in found:
            raise SideFailed(found["refused"])
        return found

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for what comes of it."""
        self._send(command)
        return self.answer()

    def close(self) -> None:
        """Let it end; what does not end by itself is ended."""
        self._send({"do": "quit"})
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(sides: list[Side], options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Warm up, then let the sides work in turn.

    Returns:
        The warm-up's updates by side, the repeats by side, and the cores that others kept busy meanwhile.
    """
    warm = {side.name: side.ask(do="updates", count=options.warmup)["updates"] for side in sides}
    repeats: dict[str, Any] = {side.name: [] for side in sides}
    with trl_machine.ForeignWork([side.pid for side in sides]) as foreign:
        for _ in range(options.repeats):
            for side in sides:
                repeats[side.name].append(side.ask(do="updates", count=options.updates)["updates"])
    return warm, repeats, foreign.cores


def job_of(options: argparse.Namespace, folder: str, **own: Any) -> dict[str, Any]:
    """What both sides are told; `own` is what this part of the measurement adds."""
    return {
        "stage": "measure",
        "model": options.model,
        "algorithm": options.algorithm,
        "precision": options.precision,
        "threads": options.threads,
        "cache": options.cache,
        "folder": folder,
        "rounds": options.warmup + options.repeats * options.updates + 1,
        "overrides": [],
        "frozen": False,
        "gradient": None,
        "continuous_batching": False,
        **own,
    }


def started(sides: list[Side]) -> list[Side]:
    """The same sides, each having loaded its model; one that cannot is said and left out, unless it is ours."""
    ready: list[Side] = []
    for side in sides:
        try:
            side.answer()
            ready.append(side)
        except SideFailed as error:
            if side.name in ("ours", "trl"):
                raise
            print(f"{side.name} left out: {str(error).splitlines()[-1]}")
    return ready


def their_sides(options: argparse.Namespace, helper: Side, job: dict[str, Any]) -> list[Side]:
    """TRL's side: one process a way of sampling, where there are two."""
    if options.algorithm == "ppo":
        told = helper.ask(do="for_ppo", frozen=job["frozen"])
        if job["frozen"]:
            told["prompts"] = told["prompts"][: told["prompts_an_update"]]
        return [Side("trl", "trl_ppo.py", {**job, **told}, options.ppo_python)]
    sides = [Side("trl", "trl_theirs.py", job)]
    if not (job["frozen"] or options.algorithm == "dpo" or options.skip_continuous_batching):
        batching = {**job, "continuous_batching": True}
        sides.append(Side("trl, continuous batching", "trl_theirs.py", batching))
    return sides


def end_to_end(options: argparse.Namespace, helper: Side, made: dict[str, Any], folder: str) -> dict[str, Any]:
    """Tier C: sampling, grading and the update."""
    job = job_of(options, folder, end_ids=made["end_ids"], longest_prompt=made["longest_prompt"])
    sides = [Side("ours", "trl_ours.py", {**job, "overrides": options.overrides})]
    sides += their_sides(options, helper, job)
    try:
        ready = started(sides)
        warm, repeats, foreign = measure(ready, options)
    finally:
        for side in sides:
            side.close()
    flops = max(made["flops"], helper.ask(do="gemm")["flops"])
    rollout = MODELS[options.model]["rollout"]
    prompts = rollout["prompts"] * made["prompt_length"]
    tokens = {name: trl_table.tokens(own, "generated") for name, own in repeats.items()}
    floor = {
        name: trl_table.floor_seconds(options.algorithm, made["num_parameters"], own + prompts, flops)
        for name, own in tokens.items()
    }
    work = {"completions": rollout["prompts"] * rollout["group_size"], "tokens": tokens, "floor": floor}
    times = {name: trl_table.seconds(own, update_only=False) for name, own in repeats.items()}
    rest = [name for name in times if name != "ours"]
    best = min(rest, key=lambda name: trl_table.median_and_quartiles(times[name])[0])
    ratio = trl_table.median_and_quartiles(trl_table.ratios(times["ours"], times[best]))[0]
    share = floor["ours"] / trl_table.median_and_quartiles(times["ours"])[0]
    print(f"\n### End to end\n\n{trl_table.speed_table(repeats, work, update_only=False)}\n")
    print(f"{trl_table.phase_table(repeats)}\n")
    print(f"ratio: {ratio:.2f}\nshare of the floor: {share:.0%} (GEMM {flops / 1e9:.0f} GFLOP/s)")
    return {"warm": warm, "repeats": repeats, "work": work, "flops": flops, "ratio": ratio, "foreign_cores": foreign}


def update_only(options: argparse.Namespace, helper: Side, made: dict[str, Any], folder: str) -> dict[str, Any]:
    """Tier B: the update alone, on one frozen rollout; losses and gradients must agree."""
    own, other = f"{folder}/gradient_ours_{options.algorithm}.pt", f"{folder}/gradient_trl.pt"
    frozen = options.algorithm != "dpo"
    job = job_of(options, folder, end_ids=made["end_ids"], frozen=frozen)
    sides = [Side("ours", "trl_ours.py", {**job, "overrides": options.overrides})]
    try:
        started(sides)  # the other side reads the pairs that this one makes
        sides += their_sides(options, helper, {**job, "gradient": other})
        started(sides[1:])
        warm, repeats, foreign = measure(sides, options)
    finally:
        for side in sides:
            side.close()
    found = helper.ask(do="compare", ours=own, trl=other)
    losses = {name: [update["losses"]["loss"] for update in updates] for name, updates in warm.items()}
    trained = trl_table.tokens(repeats["ours"], "trained")
    rows = json.loads(Path(folder, "pairs.json").read_text()) if not frozen else []
    rollout = MODELS[options.model]["rollout"]
    completions = 2 * len(rows) if rows else rollout["prompts"] * rollout["group_size"]
    work = {"completions": completions, "tokens": dict.fromkeys(repeats, trained)}
    what = "preference pairs, the same in every update" if rows else "one frozen rollout"
    print(f"\n### Update only, {options.algorithm}: {what}\n")
    print(f"{trl_table.speed_table(repeats, work, update_only=True)}\n")
    gap = max(abs(a - b) for a, b in zip(losses["ours"], losses["trl"], strict=True))
    shown = ", ".join(f"{a:.8f} / {b:.8f}" for a, b in zip(losses["ours"], losses["trl"], strict=True))
    print(f"losses, ours / TRL: {shown}\nlargest loss difference: {gap:.1e}")
    print(
        f"gradient cosine: 1 - {1 - found['cosine']:.1e} (relative difference {found['relative_difference']:.1e}, "
        f"norms {found['norm_ours']:.6g} and {found['norm_trl']:.6g})"
    )
    # Under autocast both sides round, each at places of its own.
    warned = trl_table.disagreements(losses, found) if options.precision == "fp32" else []
    known = {"warm": warm, "repeats": repeats, "work": work, "gradient": found, "foreign_cores": foreign}
    return {**known, "loss_gap": gap, "warnings": warned}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""

    class Format(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
        """The text as it stands, and the defaults."""

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Format)
    parser.add_argument("--algorithm", choices=("grpo", "token_mean", "dpo", "ppo"), default="grpo")
    parser.add_argument("--tier", choices=("B", "C", "all"), default="all", help="B: update only; C: end to end")
    parser.add_argument("--model", choices=tuple(MODELS), default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3, help="updates of each side before anything is timed")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each side")
    parser.add_argument("--updates", type=int, default=5, help="updates in a turn")
    parser.add_argument("--cache", default="runs/cache", help="where the warm-started model is kept")
    parser.add_argument(
        "--skip-continuous-batching", action="store_true", help="leave out TRL's second way of sampling"
    )
    parser.add_argument("--ppo-python", help="Python of the environment with TRL 1.12, for --algorithm ppo")
    parser.add_argument("--json", type=Path, help="also write every number to this file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="knobs of our side, as in `bench run`")
    return parser.parse_args(arguments)


def refusal(options: argparse.Namespace) -> str | None:
    """What is wrong with the command line or missing here, in a sentence; None where nothing is."""
    if (options.algorithm == "ppo") != (options.ppo_python is not None):
        return "--algorithm ppo and --ppo-python go together: TRL 1.12 needs its own environment, see --help"
    if options.algorithm in ("ppo", "dpo") and options.model != "tiny":
        return f"--algorithm {options.algorithm} needs a model that solves problems: --model tiny"
    if options.algorithm == "dpo" and options.tier == "C":
        return "--algorithm dpo trains on fixed pairs, so there is no tier C: leave --tier out"
    if trl_machine.installed("trl") != TRL_VERSION:
        return f"this comparison needs TRL {TRL_VERSION}: make reference, or pip install -e '.[reference]'"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 where the updates of both sides are not the same, 2 where something is missing."""
    options = options_of(arguments)
    refused = refusal(options)
    if refused:
        print(refused, file=sys.stderr)
        return 2
    machine = trl_machine.describe()
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(options, folder) | {"stage": "help"}
        helper = Side("preparation", "trl_ours.py", job)
        try:
            helper.answer()
            made = helper.ask(do="prepare") | {"flops": helper.ask(do="gemm")["flops"]}
            print(introduction(options, machine, made))
            found = {}
            if options.tier != "C":
                found["update_only"] = update_only(options, helper, made, folder)
            if options.tier != "B" and options.algorithm != "dpo":
                found["end_to_end"] = end_to_end(options, helper, made, folder)
        except SideFailed as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            helper.close()
    foreign = max(part["foreign_cores"] for part in found.values())
    disagreements = found.get("update_only", {}).get("warnings", [])
    for line in [*trl_machine.warnings(machine["load_before"], foreign), *disagreements]:
        print(line)
    if options.json:
        kept = {"options": vars(options) | {"json": str(options.json)}, "machine": machine, "model": made, **found}
        options.json.write_text(json.dumps(kept, indent=1))
    return 1 if disagreements else 0


def introduction(options: argparse.Namespace, machine: dict[str, Any], made: dict[str, Any]) -> str:
    """What was measured, on what."""
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items())
    rollout = MODELS[options.model]["rollout"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, {options.threads} threads, cgroup quota "
        f"{machine['cgroup_quota']}, load average before {machine['load_before']:.2f}; {versions}\n\n"
        f"{options.model}, {made['num_parameters'] / 1e6:.2f}M parameters, {options.precision}, {rollout['prompts']} "
        f"prompts ({made['prompt_length']:.0f} tokens) x {rollout['group_size']} completions of at most "
        f"{rollout['max_completion_tokens']} tokens (mean {made['mean_length']:.1f} at the start, mean reward "
        f"{made['mean_reward']:.2f}); {options.warmup} updates of warm-up, {options.repeats} turns of "
        f"{options.updates} updates each"
    )


if __name__ == "__main__":
    sys.exit(main())
