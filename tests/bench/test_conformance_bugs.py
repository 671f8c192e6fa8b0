"""The conformance kit finds bugs: losses that are wrong in one way, and exactly the checks that see it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from bench.conformance.adapter import Implementation
from bench.conformance.checks import CHECKS, check
from bench.conformance.ours import ours
from bench.conformance.step import PairStep, Step, accumulate

GOLDEN = {"golden value", "golden gradient"}
UNSCORABLE = {"missing rewards", "infinite rewards"}
SPLITS = {"accumulation", "uneven microbatches", "two ranks"}


@pytest.fixture(autouse=True)
def _without_shape_checks() -> Iterator[None]:
    """Shapes are checked in the objectives' own tests; here they would take two thirds of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def clipped(rows: Step, low: float = 0.2, high: float = 0.28) -> Tensor:
    ratio = (rows.logp - rows.old_logp).where(rows.mask, 0.0).exp()
    advantage = rows.advantage.where(rows.mask, 0.0)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def weighted(weight: Callable[[Step, Step], Any], low: float = 0.2, high: float = 0.28) -> Callable[[Step], Tensor]:
    """A loss from a factor on each token, given the microbatch and the step."""
    return lambda step: accumulate(step, lambda rows: (clipped(rows, low, high) * weight(rows, step)).sum())


def over_tokens(rows: Step, step: Step) -> Tensor:
    return len(step.ranks) / step.mask.sum()


def num_microbatches(step: Step) -> int:
    return len(step.ranks[0])


def times_mask(step: Step) -> Tensor:
    def part(rows: Step) -> Tensor:
        ratio = (rows.logp - rows.old_logp).clamp(-20, 20).exp()
        per_token = -torch.minimum(ratio * rows.advantage, ratio.clamp(0.8, 1.28) * rows.advantage)
        return (per_token * rows.mask).sum() * over_tokens(rows, step)

    return accumulate(step, part)


def unmasked(step: Step) -> Tensor:
    """Right as long as padding holds zeros in both log-probabilities and advantages, or NaN, which it removes."""

    def part(rows: Step) -> Tensor:
        logp, old = rows.logp.nan_to_num(0, neginf=0), rows.old_logp.nan_to_num(0, neginf=0)
        ratio, advantage = (logp - old).exp(), rows.advantage.nan_to_num(0, neginf=0)
        per_token = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        return per_token.sum() * over_tokens(rows, step)

    return accumulate(step, part)


def shifted_rows(step: Step) -> Tensor:
    """Right on its own rows, but the weight falls with the row's number."""
    falling = 1 + 0.1 * torch.arange(len(step.mask), dtype=torch.float64)[:, None]
    return (clipped(step) * falling).sum() / step.mask.sum()


def divides_by_nothing(step: Step) -> Tensor:
    """A microbatch without tokens is 0 / 0; otherwise the shares are right."""

    def part(rows: Step) -> Tensor:
        own = rows.mask.sum()
        return clipped(rows).sum() / own * own * over_tokens(rows, step)

    return accumulate(step, part)


def k1_in_the_loss(step: Step) -> Tensor:
    def part(rows: Step) -> Tensor:
        difference = (rows.logp - rows.ref_logp).where(rows.mask, 0.0)
        per_token = clipped(rows, high=0.2) + 0.04 * difference
        return (per_token / rows.mask.sum(dim=1, keepdim=True).clamp(min=1)).sum() * len(step.ranks) / counted(step)

    return accumulate(step, part)


def counted(step: Step) -> Tensor:
    return step.mask.any(dim=1).sum()


def per_length(rows: Step, step: Step) -> Tensor:
    return len(step.ranks) / counted(step) / rows.mask.sum(dim=1, keepdim=True).clamp(min=1)


def padded_width(rows: Step, step: Step) -> Tensor:
    return len(step.ranks) / counted(step) / step.mask.shape[1]


def every_row(rows: Step, step: Step) -> float:
    return len(step.ranks) / len(step.mask) / step.completion_budget


def half_margin(step: PairStep) -> Tensor:
    """DPO with a beta of 0.05."""

    def side(own: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        return (own - reference).where(mask, 0.0).sum(dim=1)

    def part(rows: PairStep) -> Tensor:
        margin = side(rows.chosen_logp, rows.ref_chosen_logp, rows.chosen_mask) - side(
            rows.rejected_logp, rows.ref_rejected_logp, rows.rejected_mask
        )
        return -torch.nn.functional.logsigmoid(0.05 * margin).sum() * len(step.ranks) / len(step.chosen_mask)

    return accumulate(step, part)


def per_group(score: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def advantages(reward: Tensor, group: Tensor) -> Tensor:
        return torch.cat([score(reward[group == own]) for own in group.unique()])

    return advantages


def scored_only(score: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def of_group(reward: Tensor) -> Tensor:
        known, found = reward.isfinite(), torch.zeros_like(reward)
        if len(reward[known]) > 1 and reward[known].max() > reward[known].min():
            found[known] = score(reward[known])
        return found

    return of_group


def standardised(reward: Tensor, correction: int = 1, epsilon: float = 1e-4) -> Tensor:
    return (reward - reward.mean()) / (reward.std(correction=correction) + epsilon)


def in_float32(reward: Tensor) -> Tensor:
    """No test for equal rewards."""
    known, found = reward.isfinite(), torch.zeros_like(reward)
    if known.sum() > 1:
        found[known] = standardised(reward[known].float()).double()
    return found


def raw_when_alone(reward: Tensor) -> Tensor:
    known = reward.isfinite()
    return torch.where(known, reward, 0.0) if known.sum() == 1 else scored_only(standardised)(reward)


def missing_is_zero(reward: Tensor) -> Tensor:
    """The mean of zeros counts; nothing else about it is wrong."""
    known = torch.where(reward.isfinite(), reward, 0.0)
    alone = reward.isfinite().sum() == 1
    return torch.zeros_like(reward) if alone or known.max() == known.min() else standardised(known)


def of_the_batch(reward: Tensor, group: Tensor) -> Tensor:
    """Right for one group, and where all groups are alike."""
    return scored_only(standardised)(reward)


def infinity_is_a_number(reward: Tensor) -> Tensor:
    """NaN is left out."""
    finite = reward.nan_to_num(nan=math.nan, posinf=9.0)
    return scored_only(standardised)(finite)


def all_of_them(reward: Tensor, group: Tensor, terminated: Tensor) -> Tensor:
    return torch.ones_like(terminated)


def scored_ones(reward: Tensor, group: Tensor, terminated: Tensor) -> Tensor:
    return reward.isfinite()


def ended_ones(reward: Tensor, group: Tensor, terminated: Tensor) -> Tensor:
    return terminated


def filtered(implementation: Implementation) -> Implementation:
    """The same, claiming that truncated completions leave the loss."""
    truncation = {"kind": "mask_truncated", "in_baseline": True}
    return replace(implementation, claims={**implementation.claims, "truncation": truncation})


def weighted_kl(implementation: Implementation) -> Implementation:
    """The same, claiming a KL term that is weighted by the token's ratio."""
    penalty = {**implementation.claims["penalty"], "weight": "ratio"}
    return replace(implementation, claims={**implementation.claims, "penalty": penalty})


def kl_times_the_sequence_ratio(step: Step) -> Tensor:
    """GSPO's ratio in front of k3: right for one token, biased for more."""

    def part(rows: Step) -> Tensor:
        length = rows.mask.sum(dim=1, keepdim=True).clamp(min=1)
        ratio = ((rows.logp - rows.old_logp).where(rows.mask, 0.0).sum(dim=1, keepdim=True) / length).exp()
        difference = (rows.logp - rows.ref_logp).where(rows.mask, 0.0)
        per_token = clipped(rows, high=0.2) + 0.04 * ratio * ((-difference).exp() + difference - 1)
        return (per_token / length).sum() * len(step.ranks) / counted(step)

    return accumulate(step, part)


def leaky_gae(reward: Tensor, value: Tensor, mask: Tensor, gamma: float, lam: float, next_value: Tensor) -> Tensor:
    """Padded values are read as if they were states."""
    found, accumulated, following = [], torch.zeros_like(next_value), next_value
    for t in reversed(range(value.shape[1])):
        accumulated = reward[:, t] * mask[:, t] + gamma * following - value[:, t] + gamma * lam * accumulated
        following = value[:, t]
        found.append(accumulated)
    return torch.stack(found[::-1], dim=1)


def without_a_floor(length: int, budget: int, buffer: int) -> float:
    return 0.5 * min(0.0, (budget - buffer - length) / buffer)


def bent(name: str, **changes: Any) -> Implementation:
    return replace(ours(name), **changes)


def mean_of_means(rows: Step, step: Step) -> Tensor:
    return 1 / rows.mask.sum().clamp(min=1) / num_microbatches(step)


BUGS: dict[str, tuple[Implementation, set[str]]] = {
    "token mean of each microbatch": (
        bent("dapo", loss=weighted(mean_of_means)),
        SPLITS | {"masked microbatch"},
    ),
    "divided by the microbatches again": (
        bent("dapo", loss=weighted(lambda rows, step: over_tokens(rows, step) / num_microbatches(step))),
        SPLITS | {"masked microbatch"},
    ),
    "divided by the processes again": (
        bent("dapo", loss=weighted(lambda rows, step: 1 / step.mask.sum())),
        {"two ranks"},
    ),
    "padded width for the completion budget": (
        bent("dr_grpo", loss=weighted(padded_width, high=0.2)),
        GOLDEN | {"padding width", "values in padding", "NaN in padding", "masked completions"},
    ),
    "a sum over completions": (
        bent("dr_grpo", loss=weighted(lambda rows, step: len(step.ranks) / step.completion_budget / 8, high=0.2)),
        {"duplicated batch", "masked completions", "clip corners"},
    ),
    "times the mask": (bent("dapo", loss=times_mask), {"NaN in padding"}),
    "no mask": (bent("dapo", loss=unmasked), {"values in padding", "masked completions"}),
    "weights by row number": (
        bent("dapo", loss=shifted_rows),
        GOLDEN | {"row order", "duplicated batch", "masked completions"},
    ),
    "completions that left are counted": (
        bent("dr_grpo", loss=weighted(every_row, high=0.2)),
        {"masked completions"},
    ),
    "nothing over nothing": (bent("dapo", loss=divides_by_nothing), {"masked microbatch"}),
    "one bound for both sides": (
        bent("dapo", loss=weighted(over_tokens, high=0.2)),
        GOLDEN | {"clip corners", "masked completions"},
    ),
    "k1 for k3": (bent("grpo", loss=k1_in_the_loss), GOLDEN | {"KL gradient", "masked completions", "clip corners"}),
    "token ratios for GSPO": (
        bent("gspo", loss=weighted(per_length, low=3e-4, high=4e-4)),
        GOLDEN | {"masked completions"},
    ),
    "a mean over completions for RLOO's sum": (
        bent("rloo", loss=lambda step: ours("grpo").loss(replace(step, ref_logp=step.logp.detach()))),
        GOLDEN | {"masked completions", "on-policy identity"},
    ),
    "half of beta": (bent("dpo", loss=half_margin), GOLDEN | {"DPO closed form"}),
    "ddof 0": (
        bent("grpo", advantages=per_group(scored_only(lambda r: standardised(r, correction=0)))),
        {"golden advantages", "ddof and epsilon", *UNSCORABLE},
    ),
    "epsilon 1e-6": (
        bent("grpo", advantages=per_group(scored_only(lambda r: standardised(r, epsilon=1e-6)))),
        {"golden advantages", "ddof and epsilon", *UNSCORABLE},
    ),
    "statistics of the batch": (
        bent("grpo", advantages=of_the_batch),
        {"golden advantages", "own group", "ddof and epsilon", *UNSCORABLE},
    ),
    "equal rewards in float32": (bent("grpo", advantages=per_group(in_float32)), {"flat groups"}),
    "a lone reward as it is": (bent("grpo", advantages=per_group(raw_when_alone)), {"one scored sample"}),
    "missing is zero": (bent("grpo", advantages=per_group(missing_is_zero)), UNSCORABLE),
    "an infinite reward is a number": (bent("grpo", advantages=per_group(infinity_is_a_number)), {"infinite rewards"}),
    "everybody is trained": (filtered(bent("grpo", trained=all_of_them)), {"who is trained", "unscored completions"}),
    "truncated ones are trained": (filtered(bent("grpo", trained=scored_ones)), {"who is trained"}),
    "unscored ones are trained": (filtered(bent("grpo", trained=ended_ones)), {"unscored completions"}),
    "the KL term times the completion's ratio": (
        weighted_kl(bent("grpo", loss=kl_times_the_sequence_ratio)),
        GOLDEN | {"KL gradient", "masked completions"},
    ),
    "padded values leak": (bent("ppo", gae=leaky_gae), {"GAE"}),
    "a penalty without a floor": (bent("dapo", overlong=without_a_floor), {"length penalty"}),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_exactly_these_checks_see_it(bug: str) -> None:
    implementation, seen_by = BUGS[bug]
    assert {one.name for one, _ in check(implementation).deviations} == seen_by


def test_every_check_has_a_bug_that_it_sees() -> None:
    assert {one.name for one in CHECKS} - set().union(*(seen_by for _, seen_by in BUGS.values())) == set()


def test_a_deviation_is_told_with_both_numbers() -> None:
    """A gradient that is off by a factor is told as the factor."""
    implementation, _ = BUGS["divided by the processes again"]
    ((one, found),) = check(implementation).deviations
    assert one.name == "two ranks"
    assert found.measured == pytest.approx(0.5)
    assert found.expected == 1.0
    assert found.detail == "factor between the gradient and the expected one"


def test_an_error_on_a_lawful_step_is_a_deviation() -> None:
    def fragile(step: Step) -> Tensor:
        if not step.mask.any(dim=1).all():
            raise ZeroDivisionError("a completion without tokens")
        return weighted(over_tokens)(step)

    findings = {one.name: found for one, found in check(bent("dapo", loss=fragile)).deviations}
    assert set(findings) == {"masked completions", "masked microbatch"}
    assert findings["masked completions"].detail == "dapo raised ZeroDivisionError: a completion without tokens"
    assert findings["masked completions"].measured is None


def test_not_a_number_never_passes() -> None:
    nowhere = bent("dapo", loss=lambda step: weighted(over_tokens)(step) * math.nan)
    assert {one.name for one, _ in check(nowhere).deviations} >= GOLDEN | SPLITS
