"""Tables of the comparison with TRL: medians and quartiles, ratios of paired repeats, shares of the floor, phases."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Repeats = Sequence[Sequence[Mapping[str, Any]]]
"""Repeats, each of several updates."""
PHASES = ("rollout", "reward", "ref_logp", "values", "advantage", "critic_update", "policy_update", "other")


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile (inclusive method)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def seconds(repeats: Repeats, *, update_only: bool) -> list[float]:
    """Mean seconds of an update, repeat by repeat; without sampling and grading where that is asked for."""
    return [statistics.mean(_seconds(update, update_only) for update in repeat) for repeat in repeats]


def _seconds(update: Mapping[str, Any], update_only: bool) -> float:
    phases = phases_of(update)
    return update["seconds"] - (phases["rollout"] + phases["reward"] if update_only else 0.0)


def phases_of(update: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by phase, in the suite's names; what a side does not tell apart counts as `other`."""
    if "own_phases" in update:
        found = dict(update["own_phases"])
    else:
        told = update["phases"]
        if "scoring" in told:  # PPOTrainer: value and reward models are read by one function, policies by another
            update_seconds = told["forward"] + told["backward"] + told["optimizer"]
            found = {"rollout": told["rollout"], "reward": 0.0, "values": told["scoring"]}
            found["policy_update"] = update_seconds
            return found | {"other": update["seconds"] - sum(found.values())}
        made = told.get("inputs", 0.0)
        found = {"rollout": told.get("rollout", 0.0), "reward": told.get("reward", 0.0)}
        found["advantage"] = max(0.0, made - found["rollout"] - found["reward"])
        found["policy_update"] = told.get("step", 0.0) - made + told.get("optimizer", 0.0)
    found = {"rollout": 0.0, "reward": 0.0, **found}
    return found | {"other": update["seconds"] - sum(found.values())}


def tokens(repeats: Repeats, name: str) -> float:
    """Mean tokens an update."""
    return statistics.mean(update["tokens"].get(name, 0) for repeat in repeats for update in repeat)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How often our speed theirs is, repeat by repeat: both ran next to each other."""
    return [other / own for own, other in zip(ours, theirs, strict=True)]


def floor_seconds(num_parameters: int, tokens_an_update: float, flops: float) -> float:
    """Seconds an update would take if only the products counted: 8 N FLOP for each token sampled and trained on."""
    return 8 * num_parameters * tokens_an_update / flops


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed_table(measured: Mapping[str, Repeats], work: Mapping[str, Any], *, update_only: bool) -> str:
    """One row a side: seconds an update, completions and tokens a second, share of the floor."""
    rows: list[list[str]] = []
    own = seconds(measured["ours"], update_only=update_only)
    for name, repeats in measured.items():
        times = seconds(repeats, update_only=update_only)
        middle, low, high = median_and_quartiles(times)
        per_update = work["tokens"][name]
        faster, least, most = median_and_quartiles(ratios(own, times))
        row = [name, f"{middle:.4f} ({low:.4f}-{high:.4f})", f"{work['completions'] / middle:.0f}"]
        row += [f"{per_update / middle:.0f}", f"{per_update / work['completions']:.1f}"]
        row.append("" if update_only else f"{work['floor'][name] / middle:.0%}")
        rows.append([*row, "" if name == "ours" else f"{faster:.2f} ({least:.2f}-{most:.2f})"])
    header = ["side", "seconds an update (quartiles)", "completions/s", "tokens/s", "tokens a completion"]
    return table([*header, "share of the floor", "ours is faster by (quartiles)"], rows)


def phase_table(measured: Mapping[str, Repeats]) -> str:
    """Median seconds an update by phase and side."""
    found: dict[str, dict[str, float]] = {}
    for name, repeats in measured.items():
        updates = [phases_of(update) for repeat in repeats for update in repeat]
        found[name] = {
            phase: statistics.median(update.get(phase, 0.0) for update in updates)
            for phase in PHASES
            if any(phase in update for update in updates)
        }
    shown = [phase for phase in PHASES if any(phase in phases for phases in found.values())]
    rows = [
        [phase, *(f"{phases[phase]:.4f}" if phase in phases else "" for phases in found.values())] for phase in shown
    ]
    return table(["seconds by phase", *found], rows)
