"""The steps that every loss is tried on: fixed numbers, ragged lengths, ratios on both sides of every bound."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.conformance import oracle
from bench.conformance.step import AnyStep, Outcome, PairStep, Step

LENGTHS = (3, 5, 2, 7, 4, 6, 1, 8)
"""Tokens of the eight completions; the step's halves have 17 and 19, the whole has 36."""
BUDGET = 12
MASKED = (2, 5)
"""Rows that leave the loss where a check says so."""
ADVANTAGES = (1.3, -0.7, 0.4, -1.0, 0.9, -1.2, 0.0, 1.1)

RATIOS = {(0, 1): 1.25, (3, 2): 0.75, (5, 2): 3.5, (7, 3): 6.0}
"""Tokens whose ratio lies between the bounds of one preset and of another: clip-higher, the dual clip, CISPO's cap."""
MEANS = {0: -0.05, 1: 0.04, 2: 0.1, 3: -0.06, 4: -0.08}
"""Mean log-ratios, so that a completion's ratio is cut in some rows and kept in others, for either sign."""


def example(claims: Mapping[str, Any]) -> AnyStep:
    """The step for a claim: eight completions in two groups, or four pairs."""
    return _pairs() if claims["kind"] == "preference" else _completions(claims)


def masked_example(claims: Mapping[str, Any]) -> Step:
    """The step of completions, two of which had no reward and have left the loss."""
    step = _completions(claims)
    mask, reward = step.mask.clone(), step.reward.clone()
    mask[list(MASKED)] = False
    reward[list(MASKED)] = torch.nan
    return replace(step, mask=mask, reward=reward)


def independent_tokens(
    logp: Sequence[float], old_logp: Sequence[float], ref_logp: Sequence[float], advantage: float
) -> Step:
    """A step of one completion that fills its budget: with one token, every reduction has weight 1."""

    def row(values: Sequence[float]) -> Tensor:
        return torch.tensor([list(values)], dtype=torch.float64)

    return Step(
        logp=row(logp),
        old_logp=row(old_logp),
        ref_logp=row(ref_logp),
        advantage=row([advantage] * len(logp)),
        mask=torch.ones((1, len(logp)), dtype=torch.bool),
        reward=torch.ones(1, dtype=torch.float64),
        group=torch.zeros(1, dtype=torch.int64),
        terminated=torch.ones(1, dtype=torch.bool),
        completion_budget=len(logp),
        ranks=(((0,),),),
    )


def _numbers(rows: int, tokens: int, low: float, high: float, seed: int) -> Tensor:
    source = random.Random(seed)
    values = [[round(source.uniform(low, high), 6) for _ in range(tokens)] for _ in range(rows)]
    return torch.tensor(values, dtype=torch.float64)


def _mask(lengths: Sequence[int], width: int) -> Tensor:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def _completions(claims: Mapping[str, Any]) -> Step:
    rows, width = len(LENGTHS), max(LENGTHS)
    mask, logp = _mask(LENGTHS, width), _numbers(rows, width, -3.0, -0.1, seed=1)
    advantage = torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None].expand(rows, width).clone()
    if claims.get("advantage", {}).get("kind", "").endswith("gae"):
        advantage = advantage + _numbers(rows, width, -0.5, 0.5, seed=4)
    log_ratio = _numbers(rows, width, -0.5, 0.5, seed=2)
    for (row, token), ratio in RATIOS.items():
        log_ratio[row, token] = math.log(ratio)
    for row, mean in MEANS.items():
        log_ratio[row, 0] += LENGTHS[row] * mean - log_ratio[row, : LENGTHS[row]].sum()
    step = Step(
        logp=logp,
        old_logp=logp - log_ratio,
        ref_logp=logp + _numbers(rows, width, -0.8, 0.8, seed=3),
        advantage=advantage,
        mask=mask,
        reward=torch.tensor([1.0, 0, 0.5, 0, 1, 0, 0.4, 1], dtype=torch.float64),
        group=torch.arange(rows) // 4,
        terminated=torch.ones(rows, dtype=torch.bool),
        completion_budget=BUDGET,
        ranks=((tuple(range(rows)),),),
    )
    return step.map(
        lambda values: (
            torch.where(mask, values, 0.0) if values.shape == mask.shape and values.is_floating_point() else values
        )
    )


def _pairs() -> PairStep:
    chosen_lengths, rejected_lengths, width = (3, 7, 1, 5), (6, 2, 7, 4), 7
    chosen_mask, rejected_mask = _mask(chosen_lengths, width), _mask(rejected_lengths, width)
    chosen, rejected = _numbers(4, width, -3.0, -0.1, seed=5), _numbers(4, width, -3.0, -0.1, seed=6)
    ref_chosen, ref_rejected = chosen + _numbers(4, width, -0.8, 0.8, 7), rejected + _numbers(4, width, -0.8, 0.8, 8)
    return PairStep(
        chosen_logp=torch.where(chosen_mask, chosen, 0.0),
        rejected_logp=torch.where(rejected_mask, rejected, 0.0),
        ref_chosen_logp=torch.where(chosen_mask, ref_chosen, 0.0),
        ref_rejected_logp=torch.where(rejected_mask, ref_rejected, 0.0),
        chosen_mask=chosen_mask,
        rejected_mask=rejected_mask,
        ranks=((tuple(range(4)),),),
    )


def as_rows(step: Step) -> oracle.Rows:
    """A step of completions as plain lists."""
    microbatch = [0] * len(step.mask)
    for number, rows in enumerate(rows for rank in step.ranks for rows in rank):
        for row in rows:
            microbatch[row] = number
    return oracle.Rows(
        logp=step.logp.tolist(),
        old_logp=step.old_logp.tolist(),
        ref_logp=step.ref_logp.tolist(),
        advantage=step.advantage.tolist(),
        mask=step.mask.tolist(),
        group=step.group.tolist(),
        microbatch=microbatch,
        budget=step.completion_budget,
    )


def as_pairs(step: PairStep) -> list[oracle.Pair]:
    """A step of pairs as plain sums and lengths."""

    def sums(values: Tensor, mask: Tensor) -> list[float]:
        return [
            sum(x for x, used in zip(row, own, strict=True) if used)
            for row, own in zip(values.tolist(), mask.tolist(), strict=True)
        ]

    sides = (
        sums(step.chosen_logp, step.chosen_mask),
        sums(step.rejected_logp, step.rejected_mask),
        sums(step.ref_chosen_logp, step.chosen_mask),
        sums(step.ref_rejected_logp, step.rejected_mask),
        step.chosen_mask.sum(dim=1).tolist(),
        step.rejected_mask.sum(dim=1).tolist(),
    )
    names = ("chosen", "rejected", "ref_chosen", "ref_rejected", "chosen_length", "rejected_length")
    return [oracle.Pair(**dict(zip(names, values, strict=True))) for values in zip(*sides, strict=True)]


def golden(claims: Mapping[str, Any], step: AnyStep) -> Outcome:
    """What the claim's formula gives for a step."""
    if isinstance(step, Step):
        value, gradient = oracle.loss(claims, as_rows(step))
        return Outcome(value, torch.tensor(gradient, dtype=torch.float64))
    value, slopes = oracle.pair_loss(claims, as_pairs(step))
    chosen, rejected = torch.tensor(slopes, dtype=torch.float64).unbind(dim=1)
    sides = [
        torch.where(step.chosen_mask, chosen[:, None], 0.0),
        torch.where(step.rejected_mask, rejected[:, None], 0.0),
    ]
    return Outcome(value, torch.cat(sides, dim=1))
