"""Scores of an arm: Pass@K and Maj@K by seed and problem, their intervals, and the words that a caption owes them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bench.evaluation import Estimates, Missing, Ties
from bench.statistics import Interval, align, crossed_interval, paired_difference, t_interval
from bench.store import RunRecord
from reports.parts.arms import Arm, counted

Measure = Literal["pass", "maj"]
TIES: dict[Ties, str] = {"random": "ties at random", "pessimistic": "ties are wrong", "optimistic": "ties are right"}
MISSING: dict[Missing, str] = {"abstain": "has no vote", "vote": "votes for none", "drop": "is drawn again"}
ESTIMANDS = ("problems", "crossed")
NAMES: dict[Measure, str] = {"pass": "Pass", "maj": "Maj"}


def tested(arm: Arm) -> list[tuple[RunRecord, Estimates]]:
    """The finished runs of an arm whose final model was evaluated on test, with that evaluation."""
    pairs = [(run, run.estimates("test")) for run in arm.finished]
    return [(run, test) for run, test in pairs if test is not None]


def ks_of(arms: Sequence[Arm]) -> list[int]:
    """Every K for which some evaluation has an estimate, in rising order."""
    found = [run.estimates(name) for arm in arms for run in arm.runs for name in ("start", "test")]
    return sorted({k for estimates in found if estimates for k in estimates.ks})


def chosen_ks(ks: Sequence[int]) -> list[int]:
    """The first, the middle and the largest K: what a table has room for."""
    return sorted({ks[0], ks[len(ks) // 2], ks[-1]}) if ks else []


def values(estimates: Estimates, measure: Measure, k: int) -> np.ndarray:
    """One value a problem; NaN everywhere where this K was not estimated."""
    if k not in estimates.ks:
        return np.full(len(estimates.n), np.nan)
    return estimates.pass_at(k) if measure == "pass" else estimates.maj_at(k)


def score(arm: Arm, measure: Measure, k: int) -> Interval | None:
    """Mean over the problems, then over seeds, with Student's t over seeds; None where nothing was evaluated."""
    means = [float(values(test, measure, k).mean()) for _, test in tested(arm)]
    return t_interval(means) if means else None


def starts_of(arms: Sequence[Arm]) -> dict[str, Estimates]:
    """The evaluations of the arms' starting model, by a name to show; several only if they differ anywhere."""
    found: dict[bytes, tuple[Estimates, dict[str, None]]] = {}
    for arm in arms:
        for run in arm.runs:
            start = run.estimates("start")
            if start is not None:
                key = repr(start.problem_id).encode() + start.passes.tobytes() + start.majorities.tobytes()
                found.setdefault(key, (start, {}))[1][arm.label] = None
    names = [f" {number} ({', '.join(of)})" for number, (_, of) in enumerate(found.values(), start=1)]
    starts = [start for start, _ in found.values()]
    return {f"Starting model{name if len(names) > 1 else ''}": one for name, one in zip(names, starts, strict=True)}


def gain(arm: Arm, measure: Measure, k: int) -> dict[str, Interval]:
    """Final minus starting model, problem by problem, with an interval for each of `ESTIMANDS`.

    One seed gives no interval over seeds. Empty where the two models were not evaluated on the same problems.
    """
    pairs = [(run.estimates("start"), test) for run, test in tested(arm)]
    complete = [(start, test) for start, test in pairs if start is not None]
    same = len({frozenset(one.problem_id) for pair in complete for one in pair}) == 1
    if len(complete) < len(pairs) or not same:
        return {}
    ids = complete[0][1].problem_id
    start, test = (
        np.array([values(one, measure, k)[align(ids, one.problem_id)] for one in side])
        for side in zip(*complete, strict=True)
    )
    intervals = {"problems": paired_difference(ids, test, ids, start).interval}
    return intervals | ({"crossed": crossed_interval(test - start)} if len(pairs) > 1 else {})


def new_seeds(arms: Sequence[Arm]) -> str:
    """What an interval over seeds generalises to: seeds of one starting model say nothing about another one."""
    starts = {(run.provenance or {}).get("start_weights_sha256") for arm in arms for run, _ in tested(arm)}
    same = len(starts) == 1 and None not in starts
    return f"new training seeds{' from the same starting weights' if same else ''}"


def protocol(arms: Sequence[Arm]) -> str:
    """What stands behind the scores: problems, samples, seeds, the vote rules, and a warning where samples are few."""
    found = [e for arm in arms for run in arm.runs for e in (run.estimates("start"), run.estimates("test")) if e]
    if not found:
        return "No evaluation yet."
    samples = sorted({int(n) for estimates in found for n in estimates.n})
    problems = sorted({len(estimates.problem_id) for estimates in found})
    rules = sorted({f"{TIES[e.ties]}, a sample without an answer {MISSING[e.missing]}" for e in found})
    seeds = counted(arms, lambda arm: len(tested(arm)))
    largest = max(k for estimates in found for k in estimates.ks)
    few = f" Caution: {samples[0]} samples are fewer than 4 x {largest}, so the largest K are noisy."
    return (
        f"{_range(problems)} problems, {_range(samples)} samples each; seeds evaluated: {seeds}. "
        f"Maj@K: {' and '.join(rules)}.{few if samples[0] < 4 * largest else ''}"
    )


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
