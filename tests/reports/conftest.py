"""Run directories with plausible contents, and a sweep as it might be after a bad night."""

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import store
from bench.evaluation import Estimates, write_estimates

KS = [1, 2, 4, 8, 16]
TITLES = {
    "dapo": "DAPO: clip-higher and token-level averaging on group-standardised advantages, no KL.",
    "dpo": "DPO: a logistic loss on pairs of completions of the starting policy.",
    "dr_grpo": "Dr. GRPO: centred advantages, constant length, no KL.",
    "grpo": "GRPO: group-standardised advantages, clipped ratio, KL in the loss.",
    "ppo": "PPO: a learned critic, GAE and the clipped ratio.",
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "dapo": {
        "kind": "policy_gradient",
        "shaping": {"kind": "soft_overlong", "buffer": 0.2},
        "selection": {"kind": "drop_uniform_groups"},
        "advantage": {"kind": "group_standardised"},
        "surrogate": {"kind": "clip", "low": 0.2, "high": 0.28},
        "penalty": {"kind": "no_penalty"},
        "reduction": {"kind": "token_mean"},
    },
    "dpo": {
        "kind": "preference",
        "loss": {"kind": "logistic", "beta": 0.1},
        "pairing": {"kind": "best_against_worst"},
    },
}
OBJECTIVES |= dict.fromkeys(("dr_grpo", "grpo", "ppo"), OBJECTIVES["dapo"])
BUILD = """
import sys
from pathlib import Path
from reports.build import build
build(Path(sys.argv[1]), Path(sys.argv[2]))
print(sorted({"torch", "transformers", "mlflow", "algorithms", "tasks", "bench.config"} & sys.modules.keys()))
"""
GAIN = {"dapo": 1.3, "dpo": 0.4, "dr_grpo": 1.0, "grpo": 1.1, "ppo": 0.7}
PHASES = {"rollout": 0.4, "reward": 0.03, "old_logp": 0.12, "ref_logp": 0.12, "advantage": 0.01, "policy_update": 0.4}


def write_evaluation(run: Path, name: str, estimated: Estimates) -> None:
    """The two files of an evaluation that a report reads."""
    write_estimates(run / "eval" / f"{name}.estimates.parquet", estimated)
    manifest = {
        "task": "chain_sum",
        "split": "test",
        "num_problems": len(estimated.problem_id),
        "samples": int(estimated.n.max()),
        "ks": list(estimated.ks),
        "temperature": 1.0,
        "max_completion_tokens": 32,
        "parsed_rate": 0.97,
        "truncated_rate": 0.02,
        "timed_out_rate": 0.0,
        "unscorable_rate": 0.0,
        "tie_rate": {str(k): float(estimated.tied_at(k).mean()) for k in estimated.ks},
        "model": name,
        "num_samples": int(estimated.n.sum()),
        "top_p": 1.0,
        "prompt": {"style": "task", "shots": 0},
        "verifier_version": 3,
        "guess_rate": None,
        "strict_accuracy": float(estimated.pass_at(estimated.ks[0]).mean()) - 0.01,
        "flexible_accuracy": float(estimated.pass_at(estimated.ks[0]).mean()),
        "accuracy_given_parsed": 0.5,
        "duplicate_rate": 0.25,
        "identical": False,
    }
    store.write_json(run / "eval" / f"{name}.json", manifest)


def table_of(
    num_samples: int, passes: Mapping[int, Sequence[float]], majorities: Mapping[int, Sequence[float]]
) -> Estimates:
    """Estimates with the given values for each problem, by K."""
    (num_problems,) = {len(column) for column in passes.values()}
    return Estimates(
        problem_id=tuple(f"chain_sum/test/{index}" for index in range(num_problems)),
        n=np.full(num_problems, num_samples),
        c=np.rint(np.array(passes[1]) * num_samples).astype(int),
        ks=tuple(passes),
        passes=np.array(list(passes.values()), dtype=float).T,
        majorities=np.array(list(majorities.values()), dtype=float).T,
        tied=np.zeros((num_problems, len(passes))),
        ties="random",
        missing="abstain",
    )


def simulated(rng: np.random.Generator, ability: np.ndarray, samples: int) -> Estimates:
    """Plausible estimates: the exact Pass@K of drawn counts, and a Maj@K that sharpens the odds of being right."""
    counts = rng.binomial(samples, 1 / (1 + np.exp(-ability)))
    share = counts / samples
    passes, majorities = {}, {}
    for k in KS:
        passes[k] = [1 - comb(samples - c, k) / comb(samples, k) for c in counts.tolist()]
        power = max(1.0, k / 2) ** 0.6
        majorities[k] = share**power / (share**power + 0.9 * (0.4 * (1 - share)) ** power + 1e-12) if k > 2 else share
    return table_of(samples, passes, majorities)


def write_metrics(run: Path, rng: np.random.Generator, algorithm: str, updates: int) -> None:
    """A learning curve of each kind that the algorithm has."""
    online, tokens = algorithm != "dpo", 0 if algorithm != "dpo" else 61440
    store.append_jsonl(run / "metrics.jsonl", {"update": 0, "validation/pass@1": 0.21})
    for update in range(1, updates + 1):
        progress = 1 - np.exp(-2.5 * update / 60)
        record: dict[str, Any] = {"update": update, "loss": rng.normal(0, 0.02), "lr": 1e-4, "grad_norm": 0.5}
        if online:
            tokens += int(256 * (14 - 2 * progress))
        if online and update % 2 == 1:  # two updates a rollout: what a rollout measures stands on its first
            accuracy = 0.2 + GAIN[algorithm] * 0.22 * progress
            record |= {
                "reward/mean": accuracy + rng.normal(0, 0.03),
                "reward/accuracy": accuracy + rng.normal(0, 0.03),
                "entropy": 0.9 - 0.4 * progress + rng.normal(0, 0.01),
                "len/mean": 14 - 2 * progress + rng.normal(0, 0.1),
                "groups/frac_zero_std": 0.1 + 0.25 * progress + rng.normal(0, 0.03),
            }
        if online:
            record["kl/old_k3"] = abs(rng.normal(2e-3, 5e-4))
        if algorithm in ("grpo", "ppo"):
            record["kl/ref_k3"] = 0.03 * progress
        if update % 10 == 0:
            record["validation/pass@1"] = 0.21 + GAIN[algorithm] * 0.2 * progress + rng.normal(0, 0.01)
        record["tokens/generated"] = tokens
        store.append_jsonl(run / "metrics.jsonl", record)


def write_timings(run: Path, rng: np.random.Generator, algorithm: str, updates: int) -> None:
    """Seconds by phase of each update, and the rates over those that were not metered."""
    phases = dict(PHASES) if algorithm != "dpo" else {"policy_update": 0.55}
    if algorithm == "ppo":
        phases |= {"values": 0.1, "critic_update": 0.35}
    if algorithm in ("dapo", "dr_grpo"):
        del phases["ref_logp"]
    phases["validation"] = 0.06
    if algorithm == "dpo":
        seconds = {"pairs": 14.0}
        store.append_jsonl(run / "timings.jsonl", {"attempt": 1, "update": 0, "metered": False, "seconds": seconds})
    totals = dict.fromkeys(phases, 0.0)
    for update in range(1, updates + 1):
        seconds = {phase: mean * float(rng.uniform(0.9, 1.1)) for phase, mean in phases.items()}
        metered = update % 20 == 0
        record = {"attempt": 1, "update": update, "metered": metered, "seconds": seconds, "completions": 256}
        store.append_jsonl(run / "timings.jsonl", record)
        if not metered:
            totals = {phase: totals[phase] + seconds[phase] for phase in phases}
    rates = {"rollout": 7400.0, "policy_update": 8800.0}
    throughput = {
        "phases": {p: {"seconds": s, "tokens": None, "tokens_per_second": rates.get(p)} for p, s in totals.items()},
        "generated_tokens_per_second": None if algorithm == "dpo" else 3300.0 + float(rng.normal(0, 20)),
        "processed_tokens_per_second": 6100.0,
        "trained_tokens_per_second": 3250.0,
        "completions_per_second": 250.0,
        "updates_counted": updates - updates // 20,
        "updates_excluded": updates // 20,
    }
    store.write_json(run / "throughput.json", throughput)


def write_memory(run: Path, rng: np.random.Generator, algorithm: str) -> None:
    """A peak in the update, a lower one in the rollout, and no GPU."""
    mib = 2**20
    parts = {"policy": 3, "optimizer": 6, "gradients": 3, "activations": 31}
    parts |= {"critic": 9} if algorithm == "ppo" else {}
    parts |= {"reference": 3} if algorithm in ("grpo", "ppo", "dpo") else {}
    roles = {role: size * mib for role, size in parts.items()}
    phases = {"policy_update": {"total": sum(roles.values()), "roles": roles}}
    if algorithm != "dpo":
        phases["rollout"] = {"total": 20 * mib, "roles": {"policy": 3 * mib, "rollout": 11 * mib, "optimizer": 6 * mib}}
    memory = {
        "device": "cpu",
        "kind": "measured",
        "phases": phases,
        "peak": {"phase": "policy_update", "allocated_bytes": sum(roles.values()), "roles": roles},
        "process_rss_bytes": 612 * mib + int(rng.integers(0, 9 * mib)),
        "gpu_allocated_bytes": None,
        "gpu_reserved_bytes": None,
    }
    store.write_json(run / "memory.json", memory)


def write_formula(run: Path, algorithm: str) -> None:
    """The formula in force."""
    lines = {
        "ratio": "rho_t = pi(o_t) / pi_old(o_t)",
        "surrogate": "min(rho_t A, clip(rho_t, 1 - 0.2, 1 + 0.28) A)",
        "aggregation": "sum over all tokens of the batch / number of tokens",
    }
    formula = {
        "algorithm": algorithm,
        "title": TITLES.get(algorithm, algorithm),
        "formula": lines,
        "sources": {"surrogate": "Eq. 8", "surrogate.high": "section 4.1: 0.28"},
        "objective": OBJECTIVES[algorithm],
    }
    store.write_json(run / "formula.json", formula)


def write_run(sweep: Path, algorithm: str, seed: int, *, state: store.State = "finished", samples: int = 64) -> Path:
    """One run with every file that a report reads."""
    run = sweep / f"{zlib.crc32(f'{algorithm}{seed}'.encode()):012x}"
    rng = np.random.default_rng([zlib.crc32(algorithm.encode()), seed])
    updates = 60 if state == "finished" else 23
    config = {
        "algorithm": algorithm,
        "objective": OBJECTIVES[algorithm],
        "task": {"name": "chain_sum", "terms": 3},
        "seed": seed,
        "model": {"kind": "tiny", "hidden_size": 64},
        "rollout": {"temperature": 1.0},
        "optimizer": {"lr": 1e-4},
        "budget": {"updates": 60},
        "evaluation": {"problems": 100, "samples": samples, "ks": KS, "temperature": 1.0},
        "output": {"root": "runs", "sweep": sweep.name},
    }
    store.write_yaml(run / "run.yaml", config)
    store.write_json(run / "provenance.json", {"git_commit": "0" * 40, "git_dirty": False, "device": "cpu"})
    error = None if state == "finished" else "loss is not finite at update 24"
    store.set_status(run, state, attempt=1, error=error)
    write_formula(run, algorithm)
    write_metrics(run, rng, algorithm, updates)
    write_timings(run, rng, algorithm, updates)
    write_memory(run, rng, algorithm)
    start = np.random.default_rng(7).normal(-1.5, 1.0, 100)
    write_evaluation(run, "start", simulated(np.random.default_rng(8), start, samples))
    if state == "finished":
        ability = start * 0.8 + GAIN[algorithm] + rng.normal(0, 0.06)
        write_evaluation(run, "test", simulated(rng, ability, samples))
    return run


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five algorithms and two seeds; DPO has one seed, a PPO run diverged, a DAPO run lost its memory.json."""
    folder = tmp_path_factory.mktemp("sweeps") / "quickstart"
    for algorithm in TITLES:
        for seed in (0, 1) if algorithm != "dpo" else (0,):
            state: store.State = "diverged" if (algorithm, seed) == ("ppo", 1) else "finished"
            run = write_run(folder, algorithm, seed, state=state)
            if (algorithm, seed) == ("dapo", 1):
                (run / "memory.json").unlink()
    return folder


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Writes a run: (sweep, algorithm, seed, state=, samples=) -> its directory."""
    return write_run


@pytest.fixture(scope="session")
def set_scores() -> Callable[..., None]:
    """Replaces an evaluation: (run, name, passes by K, majorities by K = the passes, num_samples = 64)."""

    def write(
        run: Path,
        name: str,
        passes: Mapping[int, Sequence[float]],
        majorities: Mapping[int, Sequence[float]] | None = None,
        num_samples: int = 64,
    ) -> None:
        write_evaluation(run, name, table_of(num_samples, passes, majorities or passes))

    return write


@pytest.fixture(scope="session")
def bare_run() -> Callable[..., Path]:
    """Writes a finished run of nothing but evaluations: (sweep, algorithm, seed, {name: {K: passes}}, **config)."""

    def write(
        sweep: Path,
        algorithm: str,
        seed: int,
        evaluations: Mapping[str, Mapping[int, Sequence[float]]],
        **config: Any,
    ) -> Path:
        run = sweep / f"{algorithm}{seed}"
        base = {"algorithm": algorithm, "task": {"name": "t"}, "seed": seed, "rollout": {"temperature": 1.0}}
        store.write_yaml(run / "run.yaml", base | config)
        store.set_status(run, "finished", attempt=1)
        for name, passes in evaluations.items():
            write_evaluation(run, name, table_of(64, passes, passes))
        return run

    return write


@pytest.fixture(scope="session")
def set_manifest() -> Callable[..., None]:
    """Changes the manifest of an evaluation: (run, name, **changes); a value of ... removes the field."""

    def change(run: Path, name: str, **changes: Any) -> None:
        path = run / "eval" / f"{name}.json"
        merged = {**json.loads(path.read_text()), **changes}
        store.write_json(path, {key: value for key, value in merged.items() if value is not ...})

    return change


@pytest.fixture(scope="session")
def built(sweep: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sweep's report, built by a process of its own, which must never load torch."""
    out = tmp_path_factory.mktemp("report")
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "7", "MPLBACKEND": "svg"}
    command = [sys.executable, "-W", "error", "-c", BUILD, str(sweep), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=out)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout + done.stderr
    return out
