"""Baseline quality from the lines of a run: which numbers are compared with which truth, by position and group size.

A line is one token of one completion, as `bench.baseline_quality` writes it. Values are compared with V(s_t), that of
the state before the token; advantages with Q(s_t, a_t) - V(s_t). Both refer to the return that the objective itself
defines: discounted as its critic's, with the shaping and the penalty that it puts into the reward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.statistics.agreement import Agreement, agreement

Line = Mapping[str, Any]
EPSILON = 1e-4
"""Added to a group's standard deviation, as `group_standardised` has it."""
VALUES = ("critic", "group_mean", "leave_one_out")
ADVANTAGES = ("critic", "group_mean", "leave_one_out", "standardised", "in_force")
SCALED = ("standardised", "in_force")
"""Advantages in units of their own: only their correlation and their error at the best factor mean anything."""
RELATIVE = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Bins of position / length; a completion's first token stands at 0, its last below 1."""


@dataclass(frozen=True)
class Found:
    """What several subgroups make of one token: as many numbers, which together count as one observation."""

    estimates: np.ndarray
    truth: float
    noise: float


def value_quality(lines: Sequence[Line], name: str, size: int | None = None) -> Agreement | None:
    """A baseline against the true value; `size` cuts groups down to that many members. None where there is none."""
    return _agreement(lines, [_value(line, name, size) for line in lines])


def advantage_quality(lines: Sequence[Line], name: str, size: int | None = None) -> Agreement | None:
    """An advantage against the true one, otherwise as `value_quality`."""
    return _agreement(lines, [_advantage(line, name, size) for line in lines])


def latest(lines: Sequence[Line]) -> list[Line]:
    """The lines of a run's last measurement."""
    last = max((line["update"] for line in lines), default=None)
    return [line for line in lines if line["update"] == last]


def relative_bins(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines by the part of the completion that the token stands in; empty bins are left out."""
    bins = {
        f"{low:g}-{high:g}": [x for x in lines if low <= x["position"] / x["length"] < high] for low, high in RELATIVE
    }
    return {label: own for label, own in bins.items() if own}


def absolute_bins(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines by position: 0, 1, 2-3, 4-7 and so on."""
    bins: dict[int, list[Line]] = {}
    for line in lines:
        bins.setdefault(int(line["position"]).bit_length(), []).append(line)
    edges = {k: (2 ** (k - 1) if k else 0, 2**k - 1) for k in sorted(bins)}
    return {(f"{low}-{high}" if low < high else f"{low}"): bins[k] for k, (low, high) in edges.items()}


def group_sizes(lines: Sequence[Line]) -> list[int]:
    """2, 4, 8 and so on up to the smallest group with a reward for each member, and that group's size."""
    largest = min((len(_known(line["group_returns"])) for line in lines), default=0)
    powers = [2**k for k in range(1, largest.bit_length()) if 2**k < largest]
    return [*powers, largest] if largest > 1 else []


def standard_error(lines: Sequence[Line]) -> float:
    """Of a true value: the root of the mean variance. That of a single one is itself known by few continuations."""
    known = [line["value_variance"] for line in lines if line["value_variance"] is not None]
    return float(np.sqrt(np.mean(known))) if known else float("nan")


def continuations(lines: Sequence[Line]) -> float:
    """Continuations of a true value, on average."""
    return float(np.mean([line["num_continuations"] for line in lines])) if lines else float("nan")


def _agreement(lines: Sequence[Line], found: Sequence[Found | None]) -> Agreement | None:
    known = [(line, one) for line, one in zip(lines, found, strict=True) if one is not None]
    if not known:
        return None
    counts = [len(one.estimates) for _, one in known]
    problems = [line["problem_id"] for (line, _), count in zip(known, counts, strict=True) for _ in range(count)]
    truth, noise = (np.repeat([getattr(one, name) for _, one in known], counts) for name in ("truth", "noise"))
    tokens = np.array([line.get("stands_for_tokens", 1.0) for line, _ in known])
    weight = np.repeat(tokens / tokens.mean() / np.array(counts, dtype=np.float64), counts)
    return agreement(np.concatenate([one.estimates for _, one in known]), truth, noise, problems, weight=weight)


def _value(line: Line, name: str, size: int | None) -> Found | None:
    if line["value_true"] is None:
        return None
    estimates = _critic(line["critic_value"]) if name == "critic" else _baselines(line, name, size)
    return None if estimates is None else Found(estimates, line["value_true"], line["value_variance"])


def _advantage(line: Line, name: str, size: int | None) -> Found | None:
    if line["value_true"] is None or line["q_true"] is None:
        return None
    truth = line["q_true"] - line["value_true"]
    noise = line["q_variance"] + line["value_variance"]
    own = {"critic": line["critic_advantage"], "in_force": line["advantage_in_force"]}
    if name in own:
        estimates = _critic(own[name])
    elif name == "standardised":
        estimates = _standardised(line, size)
    else:
        baselines = _baselines(line, name, size)
        estimates = None if baselines is None else line["return_to_go"] - baselines
    return None if estimates is None else Found(estimates, truth, noise)


def _critic(number: float | None) -> np.ndarray | None:
    return None if number is None else np.array([number])


def _known(returns: Sequence[float | None]) -> list[float]:
    return [value for value in returns if value is not None]


def _subgroups(line: Line, size: int | None) -> np.ndarray | None:
    """Rows of returns of the members beside the own one: the whole group's, or those of a smaller group.

    Smaller ones are runs of neighbours, one from each place on, the last followed by the first: every other member is
    in as many.
    """
    returns, member = line["group_returns"], line["member"]
    others = np.array(_known([*returns[:member], *returns[member + 1 :]]), dtype=np.float64)
    wanted = len(others) if size is None else size - 1
    if not 0 < wanted <= len(others):
        return None
    if wanted == len(others):
        return others[None]
    return others[(np.arange(len(others))[:, None] + np.arange(wanted)) % len(others)]


def _baselines(line: Line, name: str, size: int | None) -> np.ndarray | None:
    others = _subgroups(line, size)
    if others is None:
        return None
    if name == "leave_one_out":
        return others.mean(axis=1)
    own = line["group_returns"][line["member"]]
    return (others.sum(axis=1) + own) / (others.shape[1] + 1)


def _standardised(line: Line, size: int | None) -> np.ndarray | None:
    """(return to go - mean of the group) / (its standard deviation + epsilon); 0 in a group of equal returns."""
    others = _subgroups(line, size)
    if others is None:
        return None
    own = np.full((len(others), 1), line["group_returns"][line["member"]])
    group = np.concatenate([own, others], axis=1)
    mean, std = group.mean(axis=1), group.std(axis=1, ddof=1)
    alike = np.ptp(group, axis=1) <= 1e-6 * (1 + np.abs(mean))
    return np.where(alike, 0.0, (line["return_to_go"] - mean) / (std + EPSILON))
