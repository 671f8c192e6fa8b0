"""What may be said of each algorithm at the largest K, as a claim that a test backs, and where the curves cross."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.statistics import Claim, Crossover, Interval, claim, crossover
from reports.parts.arms import Arm
from reports.parts.page import sentences, slug
from reports.parts.scores import NAMES, Measure, cautions, changes_of, evaluated, gain, new_seeds, protocol
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, percent

MARGIN = 0.02
"""A change that is shown to be smaller, two points, is none that matters: fixed before any result is seen."""


def claims_table(task: str, arms: Sequence[Arm], ks: Sequence[int]) -> Table:
    """A row for each algorithm: its claim on Maj@K and Pass@K, and the K at which Pass@K turns."""
    largest = ks[-1]
    measures: tuple[Measure, ...] = ("maj", "pass") if largest > 1 else ("pass",)
    rows, records, doubts = [], [], set[str]()
    for arm in (arm for arm in arms if evaluated(arm)):
        found: dict[Measure, Interval | None] = {measure: widest(gain(arm, measure, largest)) for measure in measures}
        claims: dict[Measure, Claim] = {measure: claim(one, MARGIN) for measure, one in found.items() if one}
        turn = turning_point(arm, ks)
        said = [f"{NAMES[measure]}@{largest} {one.sentence}." for measure, one in claims.items()]
        doubt = cautions(found.values(), "")
        doubts |= {doubt}
        sentence = Cell(" ".join(said) or NOT_AVAILABLE, (doubt,) if doubt else ())
        rows.append(cells(arm.label, sentence, *_turn_cells(turn, ks)))
        record: dict[str, Any] = {**arm.keys, "k": largest, "seeds": len(evaluated(arm)), "margin": MARGIN}
        for measure, one in claims.items():
            record |= _claim_record(measure, one, found[measure])
        records.append(record | _turn_record(turn))
    if len(doubts) == 1:  # what all share is said once
        rows = [(name, Cell(sentence.text), *rest) for name, sentence, *rest in rows]
    caption = sentences(
        f"What may be said of each algorithm at K = {largest}, final against starting model, paired by problem: over "
        f"seeds and problems ({new_seeds(arms)}, new problems), with one seed over problems only. Equivalent: two "
        f"one-sided tests at 5 % with a margin of {100 * MARGIN:g} points; inconclusive is not equal. No correction "
        "for several algorithms. Crossover: the K "
        "from which the order of the Pass@K curves is the other way round, its 95 % bootstrap interval among resamples "
        "that cross this way or not at all, and the shares of the resamples without a crossing in the range of K and "
        "with one the other way round, which the interval leaves out.",
        doubts.pop() if len(doubts) == 1 else "",
        protocol(arms),
    )
    columns = ("Algorithm", "Claim", "Crossover K*", "No crossing", "Other way round")
    return Table(f"claims_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=2)


def widest(intervals: dict[str, Interval]) -> Interval | None:
    """The interval that a claim on an algorithm needs: over seeds and problems, with one seed over problems alone."""
    return intervals.get("crossed") or intervals.get("problems")


def turning_point(arm: Arm, ks: Sequence[int]) -> Crossover | None:
    """Where the final model's mean Pass@K falls behind the starting model's, or overtakes it; None where unknown."""
    changes = [changes_of(arm, "pass", k) for k in ks]
    known = [one for one in changes if one is not None]
    if len(ks) < 2 or len(known) < len(ks) or not np.isfinite(known).all():
        return None
    difference = np.stack(known, axis=-1)
    return crossover(ks, difference, np.zeros_like(difference))


def _turn_cells(turn: Crossover | None, ks: Sequence[int]) -> tuple[Cell, ...]:
    if turn is None:
        return (Cell(NOT_AVAILABLE),) * 3
    shares = [Cell(percent(share, 0)) for share in (turn.share_without_crossing, turn.share_other_direction)]
    if np.isnan(turn.k_star):
        return Cell("none", (f"K = {ks[0]} to {ks[-1]}",)), *shares
    ahead = "ahead below it" if turn.first_leads_before else "behind below it"
    return Cell(f"{turn.k_star:.1f}", (f"[{_bound(turn.low)}, {_bound(turn.high)}]", ahead)), *shares


def _bound(k: float) -> str:
    return "below" if k == 0 else "beyond" if np.isinf(k) else NOT_AVAILABLE if np.isnan(k) else f"{k:.1f}"


def _claim_record(measure: Measure, one: Claim, interval: Interval | None) -> dict[str, Any]:
    facts = {"verdict": one.verdict, "sentence": one.sentence, "minimum_detectable": one.minimum_detectable}
    if interval:
        facts |= {"change": interval.mean, "low": interval.low, "high": interval.high, "estimand": interval.estimand}
        facts |= {"caution": interval.caution}
    return {f"{measure}_{key}": value for key, value in facts.items()}


def _turn_record(turn: Crossover | None) -> dict[str, Any]:
    if turn is None:
        return {}
    names = ("k_star", "low", "high", "share_without_crossing", "share_other_direction")
    return {f"crossover_{name.removeprefix('k_')}": getattr(turn, name) for name in names} | {
        "final_leads_before": turn.first_leads_before
    }
