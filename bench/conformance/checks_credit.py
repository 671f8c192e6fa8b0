"""Checks of what comes before the loss: advantages, completions that leave the loss, GAE, the length penalty."""

import math
from collections.abc import Callable, Sequence
from functools import wraps

import torch

from bench.conformance import oracle_credit
from bench.conformance.adapter import Implementation, Mistake, call, call_for_tensor
from bench.conformance.findings import PASS, Finding, compare_gradients, compare_numbers, deviates, not_applicable

NAN = math.nan
GROUPED = ("group_standardised", "group_centred", "leave_one_out", "batch_scaled", "pass_at_k")
"""Estimators that end with a group's baseline: equal rewards give exactly 0."""
OF_THE_GROUP = ("group_standardised", "group_centred", "leave_one_out", "pass_at_k")
CONSTANTS = (0.0, 1.0, 0.1, 0.3, 0.7, 1 / 3, 3.0, -17.25, 0.35)


def _of_advantages(only: Sequence[str] | None = None) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """A check that needs the function `advantages`, and one of some claimed estimators."""

    def decorate(check: Callable[[Implementation], Finding]) -> Callable[[Implementation], Finding]:
        @wraps(check)
        def guarded(implementation: Implementation) -> Finding:
            if implementation.family != "policy_gradient":
                return not_applicable("the claimed family has no advantages")
            if only is not None and implementation.claims["advantage"]["kind"] not in only:
                return not_applicable("the claimed advantage has no baseline of this kind")
            if implementation.advantages is None:
                return not_applicable("no function `advantages` is offered")
            return check(implementation)

        return guarded

    return decorate


def _scores(implementation: Implementation, reward: Sequence[float], group: Sequence[int]) -> list[float]:
    assert implementation.advantages is not None
    given = torch.tensor(reward, dtype=torch.float64), torch.tensor(group)
    return call_for_tensor("advantages", implementation.advantages, (len(reward),), *given).tolist()


def _against_oracle(implementation: Implementation, reward: Sequence[float], group: Sequence[int]) -> Finding:
    expected = oracle_credit.advantages(implementation.claims["advantage"], reward, group)
    names = [f"advantage of completion {i} for rewards {_shown(reward)}" for i in range(len(reward))]
    return compare_numbers(_scores(implementation, reward, group), expected, names)


def _shown(reward: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in reward) + "]"


def _first_deviation(findings: Sequence[Finding]) -> Finding:
    return next((finding for finding in findings if finding.status != "pass"), PASS)


@_of_advantages()
def golden_advantages(implementation: Implementation) -> Finding:
    reward = [1, 0, 0.35, 0.35, 0.2, 1, 0.35, 0.35, 0.35, 0.35, 0.35, 0.0]
    return _against_oracle(implementation, reward, [0] * 6 + [1] * 6)


@_of_advantages(("group_standardised", "batch_scaled"))
def deviation_and_epsilon(implementation: Implementation) -> Finding:
    """Two members tell ddof apart by a factor of root 2; rewards that are close tell epsilon."""
    wide = _against_oracle(implementation, [1, 0, 1, 0], [0, 0, 1, 1])
    return _first_deviation([wide, _against_oracle(implementation, [1e-3, 0, 1e-3, 0], [0, 0, 1, 1])])


@_of_advantages(OF_THE_GROUP)
def own_group(implementation: Implementation) -> Finding:
    """OBJ-12: what another group's rewards are does not matter."""
    near, far = [1.0, 1, 1, 1, 0, 0, 0, 0], [10.0, 10, 10, 10, 0, 0, 0, 0]
    group = [0] * 8 + [1] * 8
    alone = _scores(implementation, near + near, group)[:8]
    beside = _scores(implementation, near + far, group)[:8]
    return compare_numbers(
        beside, alone, [f"advantage of completion {i} beside a group of larger rewards" for i in range(8)]
    )


@_of_advantages(GROUPED)
def flat_groups(implementation: Implementation) -> Finding:
    worst = max(CONSTANTS, key=lambda value: _largest(_scores(implementation, [value] * 8, [0] * 8)))
    size = _largest(_scores(implementation, [worst] * 8, [0] * 8))
    return PASS if size == 0 else deviates(size, 0.0, f"largest advantage in a group of eight rewards of {worst:.4g}")


def _largest(values: Sequence[float]) -> float:
    return max(math.inf if math.isnan(value) else abs(value) for value in values)


@_of_advantages(GROUPED)
def one_scored_sample(implementation: Implementation) -> Finding:
    size = _largest(_scores(implementation, [NAN, NAN, NAN, 1.0], [0] * 4))
    return PASS if size == 0 else deviates(size, 0.0, "largest advantage for rewards [nan, nan, nan, 1]")


@_of_advantages()
def missing_rewards(implementation: Implementation) -> Finding:
    return _against_oracle(implementation, [1.0, NAN, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0], [0] * 4 + [1] * 4)


@_of_advantages()
def infinite_rewards(implementation: Implementation) -> Finding:
    return _against_oracle(implementation, [1.0, math.inf, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0], [0] * 4 + [1] * 4)


def who_is_trained(implementation: Implementation) -> Finding:
    """OBJ-18: truncated completions leave the loss where that is claimed."""
    terminated = [True, True, False, True, True, False, True, True]
    return _trained(implementation, [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.0], terminated)


def unscored_completions(implementation: Implementation) -> Finding:
    """OBJ-14: completions without a reward leave the loss and its denominator."""
    return _trained(implementation, [1.0, NAN, 0.0, 0.0, 1.0, 1.0, NAN, 0.0], [True] * 8)


def _trained(implementation: Implementation, reward: Sequence[float], terminated: Sequence[bool]) -> Finding:
    if implementation.family != "policy_gradient":
        return not_applicable("the claimed family is given its completions")
    if implementation.trained is None:
        return not_applicable("no function `trained` is offered")
    accepted = implementation.claims["advantage"]["kind"] == "accepted"
    filtered = implementation.claims["truncation"]["kind"] == "mask_truncated"
    expected = [
        float(math.isfinite(own) and (own == 1 or not accepted) and (ended or not filtered))
        for own, ended in zip(reward, terminated, strict=True)
    ]
    group = torch.arange(8) // 4
    given = torch.tensor(reward, dtype=torch.float64), group, torch.tensor(terminated)
    found = call_for_tensor("trained", implementation.trained, (8,), *given)
    endings = [(own, "" if ended else ", truncated") for own, ended in zip(reward, terminated, strict=True)]
    names = [f"whether completion {i} (reward {own:g}{ending}) counts" for i, (own, ending) in enumerate(endings)]
    return compare_numbers(found.tolist(), expected, names)


def gae_by_double_sum(implementation: Implementation) -> Finding:
    if not implementation.claims.get("advantage", {}).get("kind", "").endswith("gae"):
        return not_applicable("no critic is claimed")
    if implementation.gae is None:
        return not_applicable("no function `gae` is offered")
    reward = torch.tensor([[0.0, 1.0, 9.0, 9.0], [0.1, -0.2, 0.0, 1.0], [0.5, 9.0, 9.0, 9.0]], dtype=torch.float64)
    value = torch.tensor(
        [[0.0, 0.0, 100.0, 100.0], [0.2, 0.4, -0.3, 0.6], [0.7, 50.0, 50.0, 50.0]], dtype=torch.float64
    )
    lengths, after = (2, 4, 1), torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
    mask = torch.arange(4)[None, :] < torch.tensor(lengths)[:, None]
    for gamma, lam in ((1.0, 0.95), (1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.0, 1.0)):
        expected = torch.zeros_like(reward)
        for i, length in enumerate(lengths):
            own, estimates = reward[i, :length].tolist(), value[i, :length].tolist()
            expected[i, :length] = torch.tensor(oracle_credit.gae(own, estimates, gamma, lam, float(after[i])))
        found = call_for_tensor("gae", implementation.gae, (3, 4), reward, value, mask, gamma, lam, after)
        found = torch.where(mask, found, 0.0)
        finding = compare_gradients(found, expected, f"advantage at gamma {gamma:g}, lambda {lam:g}")
        if finding.status != "pass":
            return finding
    return PASS


def overlong_table(implementation: Implementation) -> Finding:
    """OBJ-44: a budget of 100 tokens, the last fifth of it punished."""
    shaping = implementation.claims.get("shaping", {})
    if shaping.get("kind") != "soft_overlong":
        return not_applicable("no length penalty is claimed")
    if implementation.overlong is None:
        return not_applicable("no function `overlong` is offered")
    lengths, buffer = (80, 85, 90, 100, 101), round(shaping["buffer"] * 100)
    measured: list[float] = []
    for length in lengths:
        found = call("overlong", implementation.overlong, length, 100, buffer)
        if not isinstance(found, int | float):
            raise Mistake(f"overlong returned {type(found).__name__}, must be a number")
        measured.append(float(found))
    expected = [oracle_credit.overlong(length, 100, buffer, shaping["factor"]) for length in lengths]
    return compare_numbers(measured, expected, [f"penalty of {length} tokens of 100" for length in lengths])
