"""Scores of an arm: Pass@K and Maj@K by seed and problem, their intervals, and the words that a caption owes them."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from bench.evaluation import Estimates, Missing, Ties, graded
from bench.statistics import Band, Interval, accuracy_interval, align, crossed_interval, problems_interval, t_interval
from bench.store import RunRecord
from reports.parts.arms import Arm, counted
from reports.parts.table import NOT_AVAILABLE, number

Measure = Literal["pass", "maj"]
TIES: dict[Ties, str] = {"random": "ties at random", "pessimistic": "ties are wrong", "optimistic": "ties are right"}
MISSING: dict[Missing, str] = {"abstain": "has no vote", "vote": "votes for none", "drop": "is drawn again"}
MARK = "*"
"""Beside an interval that covers less than it promises, or in place of one that nothing tells."""
NUMBERS = r"\d+( problems?)?"
"""What cautions of one kind differ in."""
ESTIMANDS = ("problems", "crossed")
NAMES: dict[Measure, str] = {"pass": "Pass", "maj": "Maj"}


def evaluation(run: RunRecord, name: str) -> Estimates | None:
    """An evaluation of a run; only its Pass@1 where all samples of a problem are the same, for that is all it has.

    A problem of which no sample could be graded is as good as not there: it has no score, in no arm.
    """
    found = run.estimates(name)
    found = found and graded(found)
    if found is None or found.ks == (1,) or not (run.manifest(name) or {}).get("identical"):
        return found
    share = (found.c / np.where(found.n > 0, found.n, np.nan))[:, None]
    return replace(found, ks=(1,), passes=share, majorities=share, tied=0 * share, variants={}, errors={})


def evaluated(arm: Arm, name: str = "test") -> list[tuple[RunRecord, Estimates]]:
    """The finished runs of an arm whose final model was evaluated on test, with that evaluation."""
    pairs = [(run, evaluation(run, name)) for run in arm.finished]
    return [(run, test) for run, test in pairs if test is not None]


def ks_of(arms: Sequence[Arm], names: Sequence[str] = ("start", "test")) -> list[int]:
    """Every K for which some evaluation has an estimate, in rising order."""
    found = [evaluation(run, name) for arm in arms for run in arm.runs for name in names]
    return sorted({k for estimates in found if estimates for k in estimates.ks})


def chosen_ks(ks: Sequence[int]) -> list[int]:
    """The K of tables and tests, named before any result: the first, 8 (else the middle one) and the largest."""
    return sorted({ks[0], 8 if 8 in ks else ks[len(ks) // 2], ks[-1]}) if ks else []


def measures_of(arms: Sequence[Arm], names: Sequence[str] = ("start", "test")) -> list[tuple[Measure, int]]:
    """What tables show and tests compare: Pass@K at the chosen K, then Maj@K without K = 1, where it is Pass@1."""
    ks = chosen_ks(ks_of(arms, names))
    return [*(("pass", k) for k in ks), *(("maj", k) for k in ks if k > 1)]


def values(estimates: Estimates, measure: Measure, k: int) -> np.ndarray:
    """One value a problem; NaN everywhere where this K was not estimated."""
    if k not in estimates.ks:
        return np.full(len(estimates.n), np.nan)
    return estimates.pass_at(k) if measure == "pass" else estimates.maj_at(k)


def score(arm: Arm, measure: Measure, k: int, name: str = "test") -> Interval | None:
    """Mean over the problems, then over seeds, with Student's t over seeds; None where nothing was evaluated."""
    means = [float(values(test, measure, k).mean()) for _, test in evaluated(arm, name)]
    return t_interval(means) if means else None


def score_over_problems(arm: Arm, measure: Measure, k: int, name: str = "test") -> Interval | None:
    """The same mean with the sampling of problems alone; None where the seeds met different problems."""
    tests = [test for _, test in evaluated(arm, name)]
    if len({frozenset(test.problem_id) for test in tests}) != 1:
        return None
    ids = tests[0].problem_id
    scores = np.array([values(test, measure, k)[align(ids, test.problem_id)] for test in tests])
    return accuracy_interval(scores[0]) if len(scores) == 1 else problems_interval(scores.mean(axis=0))


def starts_of(arms: Sequence[Arm], name: str = "start") -> dict[str, Estimates]:
    """The evaluations of the arms' starting model, by a name to show; several only if they differ anywhere."""
    found: dict[bytes, tuple[Estimates, dict[str, None]]] = {}
    for arm in arms:
        for run in arm.runs:
            start = evaluation(run, name)
            if start is not None:
                key = repr(start.problem_id).encode() + start.passes.tobytes() + start.majorities.tobytes()
                found.setdefault(key, (start, {}))[1][arm.label] = None
    names = [f" {number} ({', '.join(of)})" for number, (_, of) in enumerate(found.values(), start=1)]
    starts = [start for start, _ in found.values()]
    return {f"Starting model{name if len(names) > 1 else ''}": one for name, one in zip(names, starts, strict=True)}


def changes_of(arm: Arm, measure: Measure, k: int, suffix: str = "") -> Float[np.ndarray, "seeds problems"] | None:
    """Final minus starting model of every seed and problem; None where they were not evaluated on the same problems."""
    pairs = [(evaluation(run, f"start{suffix}"), test) for run, test in evaluated(arm, f"test{suffix}")]
    complete = [(start, test) for start, test in pairs if start is not None]
    same = len({frozenset(one.problem_id) for pair in complete for one in pair}) == 1
    if len(complete) < len(pairs) or not same:
        return None
    ids = complete[0][1].problem_id
    start, test = (
        np.array([values(one, measure, k)[align(ids, one.problem_id)] for one in side])
        for side in zip(*complete, strict=True)
    )
    return test - start


def gain(arm: Arm, measure: Measure, k: int, suffix: str = "") -> dict[str, Interval]:
    """Final minus starting model, problem by problem, with an interval for each of `ESTIMANDS`.

    One seed gives no interval over seeds. Empty where the two models were not evaluated on the same problems.
    """
    changes = changes_of(arm, measure, k, suffix)
    if changes is None:
        return {}
    intervals = {"problems": problems_interval(changes.mean(axis=0))}
    return intervals | ({"crossed": crossed_interval(changes)} if len(changes) > 1 else {})


def cautions(intervals: Iterable[Interval | Band | None], mark: str = f" ({MARK})") -> str:
    """What must be said beside intervals that do not cover what they promise, each thing once, with its worst number.

    A caution of several things names them between semicolons.

    Args: mark, how a reader finds the intervals in question.
    """
    found: dict[str, str] = {}
    texts = {text for one in intervals if one and one.caution for text in one.caution.split("; ")}
    kinds = Counter(re.sub(NUMBERS, "", text) for text in texts)
    for text in texts:
        kind = re.sub(NUMBERS, "", text)
        found[kind] = min(text, found.get(kind, text), key=lambda words: [int(n) for n in re.findall(r"\d+", words)])
    said = [found[kind].replace(" on about ", " on as few as ") if kinds[kind] > 1 else found[kind] for kind in found]
    return f"Caution{mark}: {'; '.join(sorted(said))}." if said else ""


def new_seeds(arms: Sequence[Arm]) -> str:
    """What an interval over seeds generalises to: seeds of one starting model say nothing about another one."""
    starts = {(run.provenance or {}).get("start_weights_sha256") for arm in arms for run, _ in evaluated(arm)}
    same = len(starts) == 1 and None not in starts
    return f"new training seeds{' from the same starting weights' if same else ''}"


def bracket(interval: Interval, sign: bool = False, within: tuple[float, float] = (-1.0, 1.0)) -> str:
    """The interval, cut at the values that are possible, and marked where there is a caution."""
    if math.isnan(interval.half_width):
        return f"{NOT_AVAILABLE}{MARK if interval.caution else ''}"
    low, high = max(interval.low, within[0]), min(interval.high, within[1])
    return f"[{number(low, sign=sign)}, {number(high, sign=sign)}]{MARK if interval.caution else ''}"


def protocol(arms: Sequence[Arm]) -> str:
    """What stands behind the scores: problems, samples, seeds, the vote rules, and a warning where samples are few."""
    both = ("start", "test")
    found = [e for arm in arms for run in arm.runs for e in (evaluation(run, name) for name in both) if e]
    if not found:
        return "No evaluation yet."
    samples = sorted({int(n) for estimates in found for n in estimates.n})
    problems = sorted({len(estimates.problem_id) for estimates in found})
    rules = sorted({f"{TIES[e.ties]}, a sample without an answer {MISSING[e.missing]}" for e in found})
    seeds = counted(arms, lambda arm: len(evaluated(arm)))
    largest = max(k for estimates in found for k in estimates.ks)
    few = f" Caution: {samples[0]} samples are fewer than 4 x {largest}, so the largest K are noisy."
    return (
        f"{_range(problems)} problems, {_range(samples)} samples each; seeds evaluated: {seeds}. "
        f"Maj@K: {' and '.join(rules)}.{few if samples[0] < 4 * largest else ''}"
    )


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
