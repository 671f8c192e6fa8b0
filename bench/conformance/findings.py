"""What a check finds: the claim holds, it does not (by how much), or the check does not apply (why).

A fourth word, `differs`, is for a row that is a convention of ours: what others do there is told, and no deviation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bench.conformance.adapter import Implementation
from bench.conformance.step import Outcome

Status = Literal["pass", "deviates", "differs", "not applicable"]
RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""Agreement asked for: enough for a loss that computes in float32, and far below any difference of formulas."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cell of the table."""

    status: Status
    measured: float | None = None
    """The number that is furthest off."""
    expected: float | None = None
    detail: str = ""
    """What the two numbers are, or why the check does not apply."""


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    shows: str
    """What passing means, in one sentence."""
    source: str
    run: Callable[[Implementation], Finding]
    ours: bool = False
    """Whether it is a convention of ours that no paper states: others may differ from it without deviating."""


PASS = Finding(status="pass")


def not_applicable(why: str) -> Finding:
    return Finding(status="not applicable", detail=why)


def deviates(measured: float, expected: float, detail: str) -> Finding:
    return Finding(status="deviates", measured=measured, expected=expected, detail=detail)


def close(measured: float, expected: float, scale: float) -> bool:
    """Whether two numbers agree, given the size of the largest number around them. NaN agrees with nothing."""
    return abs(measured - expected) <= RELATIVE * scale + ABSOLUTE


def compare_numbers(measured: Sequence[float], expected: Sequence[float], names: Sequence[str]) -> Finding:
    """Pass if all agree; otherwise the pair that is furthest apart, by its name."""
    scale = max((abs(value) for value in expected), default=0.0)
    wrong = [
        (measured[i], expected[i], names[i]) for i in range(len(expected)) if not close(measured[i], expected[i], scale)
    ]
    if not wrong:
        return PASS
    return deviates(*max(wrong, key=lambda one: float("inf") if one[0] != one[0] else abs(one[0] - one[1])))


def compare_gradients(measured: Tensor, expected: Tensor, what: str, mask: Tensor | None = None) -> Finding:
    """Pass if two gradients agree; otherwise the entry that is furthest apart, and their ratio where they are parallel.

    Args:
        measured: (rows, tokens), the implementation's.
        expected: (rows, tokens).
        what: what the numbers are, such as `gradient`.
        mask: (rows, tokens) bool, if both are given as vectors of the entries where it is True.
    """
    places = (torch.ones_like(expected, dtype=torch.bool) if mask is None else mask).nonzero().tolist()
    names = [f"{what}, row {i}, token {t}" for i, t in places]
    found = compare_numbers(measured.flatten().tolist(), expected.flatten().tolist(), names)
    if found.status == "pass" or not bool(torch.cat([measured, expected]).isfinite().all()):
        return found
    factor = float((measured * expected).sum() / (expected * expected).sum())
    size = float(expected.abs().max())
    if torch.allclose(measured, factor * expected, rtol=0, atol=RELATIVE * size + ABSOLUTE):
        return Finding(
            status="deviates", measured=factor, expected=1.0, detail=f"factor between the {what} and the expected one"
        )
    return found


def compare_outcomes(measured: Outcome, expected: Outcome, mask: Tensor, expected_mask: Tensor) -> Finding:
    """Pass if gradients agree under their masks, and values too: a loss of NaN with a clean gradient is no pass."""
    own, wanted = measured.gradient[mask], expected.gradient[expected_mask]
    found = compare_gradients(own, wanted, "gradient", expected_mask)
    return found if found.status != "pass" else compare_values(measured, expected)


def compare_values(measured: Outcome, expected: Outcome) -> Finding:
    """Pass if two losses agree; a loss is a sum whose terms cancel, so the gradient gives the size of the numbers."""
    if close(measured.value, expected.value, max(abs(expected.value), float(expected.gradient.abs().sum()))):
        return PASS
    return deviates(measured.value, expected.value, "loss")
