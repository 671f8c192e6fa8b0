"""The answers of a run's health that must first undo something: a ratio to nothing, or a reference that is set anew."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import hypot, sqrt
from statistics import fmean
from typing import Any

from bench.health_series import NORMAL, Series, change, number, series
from bench.health_told import Seen, Told, against_noise, short
from bench.thresholds import at

ADDED_TO_VARIANCE = 1e-5
"""What stands beside the variance of returns where a record divides by it (algorithms/axes/value.py)."""


def critic(own: Series, seen: Seen) -> Told:
    """What the critic explains of the returns of the last quarter, all its rollouts taken together.

    A mean of the rollouts' own shares would be that of a ratio without a lower bound: a rollout whose returns hardly
    differ would outweigh all others. So residuals and variances are added up before one is divided by the other.
    """
    name, spread = "value/explained_variance_mc", "returns/mc_std"
    if not series(seen.records, name).recorded:
        name, spread = "value/explained_variance", "returns/std"
        if why := _targets_contain_values(seen.run):
            return Told("cannot be told", f"targets contain V ({why})")
    both = [line for line in seen.records if None not in (number(line, name), number(line, spread))]
    shares, spreads = (series(both, one, "grad_norm") for one in (name, spread))
    if not both:
        return Told("cannot be told", f"{spread} is not recorded")
    if too_short := short(shares, seen):
        return too_short
    variances = [value**2 for value in spreads.last_values]
    if fmean(variances) <= at("returns_vary") ** 2:
        return Told("cannot be told", "the returns hardly differ")
    left = [
        (1 - share) * (variance + ADDED_TO_VARIANCE)
        for share, variance in zip(shares.last_values, variances, strict=True)
    ]
    level, limit = 1 - sum(left) / sum(variances), at("critic_explains")
    worse = ", worse than a constant" if level < -limit else ""
    text = f"{level:.2g} of the returns' variance explained in the last quarter{worse}"
    numbers = f"explains {level:.2g}, min {limit:g}"
    return Told("yes" if level > limit else "no", numbers, text, level, limit, level <= limit, name)


def _targets_contain_values(run: Mapping[str, Any]) -> str:
    """The knob by which the critic's targets hold its own values, so that it would be measured against itself."""
    objective = run.get("objective")
    advantage = objective.get("advantage") if isinstance(objective, Mapping) else None
    if not isinstance(advantage, Mapping):
        return ""
    lam = number(advantage, "lam_returns")
    lam = number(advantage, "lam") if lam is None else lam
    if lam is not None and lam < 1:
        return f"lambda {lam:g}"
    return "truncation_bootstrap" if advantage.get("truncation_bootstrap") is True else ""


def pairs_told_apart(own: Series, seen: Seen) -> Told:
    """Without each round's first update, at which policy and reference are the same and no pair is ordered."""
    later = series((line for line in seen.records if number(line, "dpo/round") is None), "dpo/accuracy")
    if not len(later):
        return Told("cannot be told", "one update a round, seen before its step")
    if too_short := short(later, seen):
        return too_short
    level, limit = later.last_quarter, at("pairs_told_apart")
    text = f"{level:.0%} of the pairs of the last quarter were ordered right"
    return Told(
        "yes" if level > limit else "no", f"{level:.0%} of pairs, min {limit:.0%}", text, level, limit, level <= limit
    )


def chosen_ground(own: Series, seen: Seen) -> Told:
    """Each round's values on top of where the rounds before it ended, for its reference is the policy of that moment.

    Where a round ended is known from one update's pairs, whose noise all later rounds carry; so the change must be
    beyond that noise too.
    """
    rounds = _rounds(seen.records)
    if len(rounds) > 1 and max(map(len, rounds)) == 1:
        return Told("cannot be told", "one update a round, seen before its step")
    total, offset = list[float](), 0.0
    for values in rounds:
        total += [offset + value for value in values]
        offset += values[-1]
    found = change(replace(own, values=tuple(total)))
    steps = [(after - before) ** 2 / 2 for values in rounds for before, after in pairwise(values)]
    carried = NORMAL * sqrt(fmean(steps) * (len(rounds) - 1))
    found = replace(found, noise=hypot(found.noise, carried))
    kind = "lost" if found.fell else "did not lose"
    over = f", summed over {len(rounds)} rounds" if len(rounds) > 1 else ""
    text = f"chosen completions {kind} probability: dpo/chosen_reward {found.start:.3g} to {found.end:.3g}{over}"
    return Told("yes" if found.fell else "no", against_noise(found), text, found.size, -found.noise, look=found.fell)


def _rounds(records: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """The values of `dpo/chosen_reward`, a list for each round that has any."""
    rounds: list[list[float]] = [[]]
    for record in records:
        if number(record, "dpo/round") is not None and rounds[-1]:
            rounds.append([])
        value = number(record, "dpo/chosen_reward")
        if value is not None:
            rounds[-1].append(value)
    return [values for values in rounds if values]
