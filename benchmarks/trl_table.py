"""Tables of the comparison with TRL: medians and quartiles, ratios, shares of the floor, phases, and agreement."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Repeats = Sequence[Sequence[Mapping[str, Any]]]
"""Repeats, each of several updates."""
PHASES = (
    "engine_start", "sync", "rollout", "reward", "old_logp", "ref_logp", "values", "advantage", "critic_update",
    "policy_update",
)  # fmt: skip
"""In the order of the table; a phase that is not named here stands after them, before `other`."""
FLOP_A_TOKEN = {"grpo": 8, "token_mean": 8, "ppo": 18}
"""In parameters N: 2 to sample a token, 6 to train on it; for PPO also 2 for the reference, 2 for the values and 6 for
the critic."""
LOSS_TOLERANCE, COSINE_TOLERANCE = 1e-5, 1e-6


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
            # The reward model's verdict is given inside that function; on our side grading is a phase of its own.
            found = {"rollout": told["rollout"], "reward": told["reward"]}
            found["values"] = told["scoring"] - told["reward"]
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


def floor_seconds(algorithm: str, num_parameters: int, tokens_an_update: float, flops: float) -> float:
    """Seconds an update would take if only the products counted: `FLOP_A_TOKEN` for each token."""
    return FLOP_A_TOKEN[algorithm] * num_parameters * tokens_an_update / flops


def disagreements(losses: Mapping[str, Sequence[float]], gradient: Mapping[str, float]) -> list[str]:
    """Why both sides do not compute the same update in float32; nothing where they do.

    Args:
        losses: of the same updates, by side.
        gradient: cosine, and how many parameters had a gradient on each side and on both.
    """
    found: list[str] = []
    gaps = [abs(own - other) for own, other in zip(losses["ours"], losses["trl"], strict=True)]
    if not all(gap <= LOSS_TOLERANCE for gap in gaps):  # a comparison with NaN is not a pass
        found.append(f"losses differ by up to {max(gaps):.1e}, more than {LOSS_TOLERANCE:g}")
    if not gradient["cosine"] >= 1 - COSINE_TOLERANCE:
        found.append(f"the cosine of the gradients is 1 - {1 - gradient['cosine']:.1e}, below 1 - {COSINE_TOLERANCE:g}")
    own, other, shared = (int(gradient[f"parameters_{side}"]) for side in ("ours", "trl", "shared"))
    if not own == other == shared:
        found.append(f"{own} parameters have a gradient on our side, {other} on TRL's and {shared} on both")
    return [f"warning: {line}: both sides do not make the same update" for line in found]


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
    """Mean seconds an update by phase and side: means, because they add up to the mean update, the last row."""
    found: dict[str, dict[str, float]] = {}
    for name, repeats in measured.items():
        updates = [phases_of(update) for repeat in repeats for update in repeat]
        phases = {phase for update in updates for phase in update}
        found[name] = {phase: statistics.mean(update.get(phase, 0.0) for update in updates) for phase in phases}
    known = {phase for phases in found.values() for phase in phases}
    shown = [phase for phase in PHASES if phase in known] + sorted(known - {*PHASES, "other"}) + ["other"]
    rows = [
        [phase, *(f"{phases[phase]:.4f}" if phase in phases else "" for phases in found.values())] for phase in shown
    ]
    rows.append(["whole update", *(f"{sum(phases.values()):.4f}" for phases in found.values())])
    return table(["mean seconds by phase", *found], rows)
