"""Golden values: the papers' losses and their gradients in plain floats, one token after the other, without torch.

Written a second time on purpose: nothing of `algorithms` is called, only the names and values of a claim's knobs are
read. Gradients are derived by hand; `frozen` holds what a stop-gradient holds, so that differences can check them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Knobs = Mapping[str, Any]
Table = Sequence[Sequence[float]]
Terms = tuple[float, float, float]
"""A token's loss, its slope in the token's ratio, and its slope in the token's own log-probability."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of one optimizer step as lists."""

    logp: Table
    old_logp: Table
    ref_logp: Table
    advantage: Table
    mask: Sequence[Sequence[bool]]
    group: Sequence[int]
    microbatch: Sequence[int]
    """Of each row, which microbatch of the step it is in."""
    budget: int


def loss(claims: Knobs, rows: Rows, frozen: Table | None = None) -> tuple[float, list[list[float]]]:
    """Value and gradient of sum_i w_i sum_t l_it / Z, with respect to each log-probability.

    Args:
        claims: axes and their knobs, as plain data.
        rows: the step.
        frozen: log-probabilities at which stop-gradients stand; those of `rows` by default.
    """
    weights = _weights(claims["reduction"], rows)
    value, gradient = 0.0, [[0.0] * len(row) for row in rows.logp]
    for i, weight in enumerate(weights):
        places = [t for t, used in enumerate(rows.mask[i]) if used]
        if not places:
            continue
        logp, old = [rows.logp[i][t] for t in places], [rows.old_logp[i][t] for t in places]
        held = logp if frozen is None else [frozen[i][t] for t in places]
        ratio = claims.get("ratio", {"kind": "no_ratio"})["kind"]
        ratios, slopes = _ratios(ratio, logp, old, held)
        held_ratios, _ = _ratios(ratio, held, old, held)
        for n, t in enumerate(places):
            terms = [_surrogate(claims, ratios[n], held_ratios[n], rows.advantage[i][t], logp[n])]
            terms.append(_penalty(claims, ratios[n], held_ratios[n], logp[n] - rows.ref_logp[i][t]))
            value += weight * sum(term[0] for term in terms)
            gradient[i][t] += weight * sum(term[2] for term in terms)
            for u, place in enumerate(places):
                gradient[i][place] += weight * slopes[n][u] * sum(term[1] for term in terms)
    return value, gradient


def _weights(reduction: Knobs, rows: Rows) -> list[float]:
    """w_i / Z of each row (spec section 4)."""
    kind, lengths = reduction["kind"], [sum(row) for row in rows.mask]
    tokens, sequences = sum(lengths), sum(length > 0 for length in lengths)
    counted = len(lengths) if reduction.get("count_masked") else sequences
    if kind == "sequence_mean":
        return [1 / (max(length, 1) * counted) for length in lengths]
    if kind == "token_mean":
        return [1 / tokens for _ in lengths]
    if kind == "constant_length":
        return [1 / (rows.budget * counted) for _ in lengths]
    if kind == "sequence_sum":
        return [1 / counted for _ in lengths]
    parts = rows.group if kind == "group_token_mean" else rows.microbatch
    sums = {part: sum(n for n, own in zip(lengths, parts, strict=True) if own == part) for part in set(parts)}
    count = sum(number > 0 for number in sums.values()) if kind == "group_token_mean" else len(sums)
    return [1 / (max(sums[part], 1) * count) for part in parts]


def _ratios(
    kind: str, logp: Sequence[float], old: Sequence[float], held: Sequence[float]
) -> tuple[list[float], list[list[float]]]:
    """The ratio of each token of a completion, and the slope of each in each log-probability (spec section 3)."""
    n, moved = len(logp), [a - b for a, b in zip(logp, old, strict=True)]
    still = [a - b for a, b in zip(held, old, strict=True)]
    if kind == "token_ratio":
        values = [math.exp(d) for d in moved]
        return values, _diagonal(values)
    if kind == "sequence_ratio":
        whole = math.exp(sum(moved) / n)
        return [whole] * n, [[whole / n] * n for _ in logp]
    if kind == "sequence_product_ratio":
        whole = math.exp(sum(moved))
        return [whole] * n, [[whole] * n for _ in logp]
    if kind == "sequence_token_ratio":
        values = [math.exp(sum(still) / n + a - b) for a, b in zip(logp, held, strict=True)]
        return values, _diagonal(values)
    assert kind == "no_ratio", f"no golden values for a ratio of kind {kind}"
    return [math.exp(d) for d in still], [[0.0] * n for _ in logp]


def _diagonal(values: Sequence[float]) -> list[list[float]]:
    return [[value if n == u else 0.0 for u in range(len(values))] for n, value in enumerate(values)]


def _surrogate(claims: Knobs, rho: float, held: float, advantage: float, logp: float) -> Terms:
    """A token's surrogate (spec section 3)."""
    spec = claims.get("surrogate", {"kind": "likelihood"})
    kind = spec["kind"]
    if kind == "likelihood":
        return -logp, 0.0, -1.0
    if kind == "reinforce":
        return -advantage * logp, 0.0, -advantage
    if kind == "unclipped":
        return -rho * advantage, -advantage, 0.0
    if kind == "sapo":
        tau = spec["temperature_positive"] if advantage > 0 else spec["temperature_negative"]
        gate = 1 / (1 + math.exp(-tau * (rho - 1)))
        return -4 / tau * gate * advantage, -4 * gate * (1 - gate) * advantage, 0.0
    if kind in ("cispo", "cispo_masked"):
        weight = min(held, 1 + spec["high"])
        weight = weight if spec["low"] is None else max(weight, 1 - spec["low"])
        if kind == "cispo_masked":
            above = advantage > 0 and held > 1 + spec["mask_high"]
            below = advantage < 0 and held < 1 - spec["mask_low"]
            weight = 0.0 if above or below else weight
        return -weight * advantage * logp, 0.0, -weight * advantage
    assert kind in ("clip", "dual_clip"), f"no golden values for a surrogate of kind {kind}"
    objective, slope = rho * advantage, advantage
    bounded = min(max(rho, 1 - spec["low"]), 1 + spec["high"]) * advantage
    if bounded < objective:
        objective, slope = bounded, 0.0
    if kind == "dual_clip" and advantage < 0 and spec["cap"] * advantage > objective:
        objective, slope = spec["cap"] * advantage, 0.0
    return -objective, -slope, 0.0


def _penalty(claims: Knobs, rho: float, held: float, difference: float) -> Terms:
    """A token's KL term in the loss (spec section 5)."""
    spec = claims.get("penalty", {"kind": "no_penalty"})
    if spec["kind"] != "loss_kl":
        return 0.0, 0.0, 0.0
    estimate, slope = {
        "k1": (difference, 1.0),
        "k2": (difference**2 / 2, difference),
        "k3": (math.exp(-difference) + difference - 1, 1 - math.exp(-difference)),
    }[spec["estimator"]]
    estimate, slope = spec["coefficient"] * estimate, spec["coefficient"] * slope
    if spec["weight"] == "ratio":
        return rho * estimate, estimate, rho * slope
    weight = held if spec["weight"] == "detached_ratio" else 1.0
    return weight * estimate, 0.0, weight * slope


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Summed log-probabilities and lengths of both sides of a pair."""

    chosen: float
    rejected: float
    ref_chosen: float
    ref_rejected: float
    chosen_length: int
    rejected_length: int


def pair_loss(claims: Knobs, pairs: Sequence[Pair]) -> tuple[float, list[tuple[float, float]]]:
    """Value of the mean over pairs, and each pair's slopes in the log-probability of either side (spec section 11)."""
    spec, likelihood = claims["loss_function"], claims["likelihood"]
    kind, beta, count = spec["kind"], spec["beta"], len(pairs)
    tokens = sum(pair.chosen_length for pair in pairs)
    value, gradient = 0.0, []
    for pair in pairs:
        per_token = kind == "sigmoid_norm" or (kind == "ipo" and spec["per_token"])
        chosen_scale = 1 / max(pair.chosen_length, 1) if per_token else 1.0
        rejected_scale = 1 / max(pair.rejected_length, 1) if per_token else 1.0
        margin = (pair.chosen - pair.ref_chosen) * chosen_scale - (pair.rejected - pair.ref_rejected) * rejected_scale
        if kind == "ipo":
            loss, slope = (margin - 1 / (2 * beta)) ** 2, 2 * (margin - 1 / (2 * beta))
        else:
            loss, slope = math.log1p(math.exp(-beta * margin)), -beta / (1 + math.exp(beta * margin))
        value += loss / count
        chosen = slope * chosen_scale / count
        if likelihood["kind"] == "chosen_likelihood":
            own = tokens if likelihood["normalise"] == "token" else count * max(pair.chosen_length, 1)
            value -= likelihood["coefficient"] * pair.chosen / own
            chosen -= likelihood["coefficient"] / own
        gradient.append((chosen, -slope * rejected_scale / count))
    return value, gradient
