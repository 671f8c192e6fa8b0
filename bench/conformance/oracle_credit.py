"""Golden values of what comes before the loss: advantages, GAE by its double sum, the length penalty, exact KL slopes.

Plain floats, as in `oracle`; nothing of `algorithms` is called.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Knobs = Mapping[str, Any]


def advantages(estimator: Knobs, reward: Sequence[float], group: Sequence[int]) -> list[float]:
    """The advantage of each of some one-token completions with no value, penalty or shaping (spec section 2).

    A reward that is not a number takes part in nothing and gets 0. One of 1 counts as correct.
    """
    kind = estimator["kind"]
    known = [i for i, value in enumerate(reward) if math.isfinite(value)]
    found = [0.0] * len(reward)
    if kind in ("gae", "length_adaptive_gae", "returns", "whitened_returns", "accepted"):
        own = {i: reward[i] for i in known}
    else:
        own = {i: x for members in _groups(known, group) for i, x in _of_group(estimator, reward, members, known)}
    if kind == "accepted":
        own = {i: float(reward[i] == 1) for i in known}
    elif kind == "returns" and estimator["baseline"] == "batch_mean":
        own = {i: x - _mean(own.values()) for i, x in own.items()}
    elif kind in ("whitened_returns", "group_centred_whitened") or estimator.get("whiten"):
        centre, deviation = _mean(own.values()), math.sqrt(_std(list(own.values()), 1) ** 2 + 1e-8)
        own = {i: (x - centre) / deviation for i, x in own.items()}
    for i, value in own.items():
        found[i] = value
    return found


def _groups(known: Sequence[int], group: Sequence[int]) -> list[list[int]]:
    return [[i for i in known if group[i] == own] for own in sorted({group[i] for i in known})]


def _of_group(
    estimator: Knobs, reward: Sequence[float], members: Sequence[int], known: Sequence[int]
) -> list[tuple[int, float]]:
    """Advantages of one group's scorable members."""
    kind, values = estimator["kind"], [reward[i] for i in members]
    mean, n = _mean(values), len(values)
    if max(values) - min(values) <= 1e-6 * (1 + abs(mean)):
        return [(i, 0.0) for i in members]
    if kind == "group_standardised":
        scale = _std(values, estimator["ddof"]) + estimator["epsilon"]
        return [(i, (reward[i] - mean) / scale) for i in members]
    if kind == "batch_scaled":
        scale = _std([reward[i] for i in known], estimator["ddof"]) + estimator["epsilon"]
        return [(i, (reward[i] - mean) / scale) for i in members]
    if kind == "leave_one_out":
        return [(i, reward[i] - (sum(values) - reward[i]) / (n - 1)) for i in members]
    if kind == "pass_at_k":
        return _best_of_k(estimator["k"], reward, members)
    assert kind in ("group_centred", "group_centred_whitened"), f"no golden values for an advantage of kind {kind}"
    return [(i, reward[i] - mean) for i in members]


def _best_of_k(k: int, reward: Sequence[float], members: Sequence[int]) -> list[tuple[int, float]]:
    """By drawing every subset (2508.10751): the mean of the standardised best over the subsets that hold a member."""
    best = {subset: max(reward[i] for i in subset) for subset in combinations(members, k)} if len(members) >= k else {}
    if not best or max(best.values()) == min(best.values()):
        return [(i, 0.0) for i in members]
    mean, std = _mean(best.values()), _std(list(best.values()), 0)
    return [(i, (_mean(top for subset, top in best.items() if i in subset) - mean) / std) for i in members]


def _mean(values: Any) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _std(values: Sequence[float], ddof: int) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / max(len(values) - ddof, 1))


def gae(
    reward: Sequence[float], value: Sequence[float], gamma: float, lam: float, next_value: float = 0.0
) -> list[float]:
    """sum_l (gamma lambda)^l delta_{t+l} for each token of one completion without padding (1506.02438, Eq. 16)."""
    after = [*value[1:], next_value]
    errors = [r + gamma * following - own for r, following, own in zip(reward, after, value, strict=True)]
    return [
        math.fsum((gamma * lam) ** ahead * error for ahead, error in enumerate(errors[t:])) for t in range(len(errors))
    ]


def overlong(length: int, budget: int, buffer: float, factor: float) -> float:
    """The length penalty in three pieces (2503.14476, Eq. 13); `buffer` in tokens."""
    if length <= budget - buffer:
        return 0.0
    return factor * ((budget - buffer) - length) / buffer if length <= budget else -factor


def kl_slope(penalty: Knobs, policy: Sequence[float], reference: Sequence[float]) -> list[float] | None:
    """Expected gradient of the loss's KL term in the logits of one softmax (spec section 5); None where it is biased.

    Without a weight samples are the policy's own; with one, the older policy's.
    """
    if penalty["kind"] != "loss_kl":
        return [0.0] * len(policy)
    estimator, weight = penalty["estimator"], penalty["weight"]
    if weight == "ratio" and estimator == "k2":
        return None
    divergence = math.fsum(p * math.log(p / q) for p, q in zip(policy, reference, strict=True))
    reverse = [p * (math.log(p / q) - divergence) for p, q in zip(policy, reference, strict=True)]
    forward = [p - q for p, q in zip(policy, reference, strict=True)]
    slopes = {"k1": [0.0] * len(policy), "k2": reverse, "k3": forward}
    slope = reverse if weight == "ratio" else slopes[estimator]
    return [penalty["coefficient"] * entry for entry in slope]
