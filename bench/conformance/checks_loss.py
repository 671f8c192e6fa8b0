"""Checks of the loss: the claimed formula's value and gradient, and that nothing but the formula decides them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from bench.conformance import oracle_credit
from bench.conformance.adapter import Implementation, call_for_tensor, evaluate
from bench.conformance.examples import BUDGET, as_rows, example, golden, independent_tokens, masked_example
from bench.conformance.findings import (
    PASS,
    Finding,
    compare_gradients,
    compare_numbers,
    compare_outcomes,
    compare_values,
    deviates,
    not_applicable,
)
from bench.conformance.oracle import loss as golden_loss
from bench.conformance.step import AnyStep, PairStep, Step

GAP = 5
"""Columns that the padding checks add."""
POLICY, OLDER, REFERENCE = (0.5, 0.3, 0.15, 0.05), (0.3, 0.3, 0.2, 0.2), (0.2, 0.4, 0.3, 0.1)
"""Probabilities of one softmax with four tokens, for the KL term's gradient by enumeration."""
POSITIONS = 2
"""Tokens of the completions that are enumerated: with one, the ratio of a token and of a completion are the same."""


def golden_value(implementation: Implementation) -> Finding:
    step = example(implementation.claims)
    return compare_values(evaluate(implementation, step), golden(implementation.claims, step))


def golden_gradient(implementation: Implementation) -> Finding:
    step = example(implementation.claims)
    expected, found = golden(implementation.claims, step), evaluate(implementation, step)
    return compare_gradients(found.gradient, expected.gradient, "gradient")


def _same_gradient(implementation: Implementation, step: AnyStep, variants: Sequence[AnyStep]) -> Finding:
    """The worst of some steps that must have the gradient of `step`."""
    whole = evaluate(implementation, step).gradient
    found = [compare_gradients(evaluate(implementation, one).gradient, whole, "gradient") for one in variants]
    return next((finding for finding in found if finding.status != "pass"), PASS)


def _depends_on_split(implementation: Implementation) -> bool:
    return implementation.claims.get("reduction", {}).get("kind") == "microbatch_token_mean"


_BY_CLAIM = "the claimed reduction is taken in each microbatch"


def accumulation(implementation: Implementation) -> Finding:
    if _depends_on_split(implementation):
        return not_applicable(_BY_CLAIM)
    step = example(implementation.claims)
    rows = range(len(step.used))
    sizes = [size for size in (1, 2, 4) if size < len(rows)]
    splits = [[list(rows)[start : start + size] for start in rows[::size]] for size in sizes]
    return _same_gradient(implementation, step, [step.split(split) for split in splits])


def uneven_microbatches(implementation: Implementation) -> Finding:
    if _depends_on_split(implementation):
        return not_applicable(_BY_CLAIM)
    step = example(implementation.claims)
    last = len(step.used) - 1
    splits = [[[last], list(range(last))], [list(range(0, last + 1, 3)), [i for i in range(last + 1) if i % 3]]]
    return _same_gradient(implementation, step, [step.split(split) for split in splits])


def two_ranks(implementation: Implementation) -> Finding:
    if _depends_on_split(implementation):
        return not_applicable(_BY_CLAIM)
    step = example(implementation.claims)
    even, odd = list(range(0, len(step.used), 2)), list(range(1, len(step.used), 2))
    halves = [[rows[: len(rows) // 2], rows[len(rows) // 2 :]] for rows in (even, odd)]
    return _same_gradient(implementation, step, [step.split([even], [odd]), step.split(*halves)])


def padding_width(implementation: Implementation) -> Finding:
    return _with_filler(implementation, [0.0])


def values_in_padding(implementation: Implementation) -> Finding:
    return _with_filler(implementation, [7.0, -30.0])


def nan_in_padding(implementation: Implementation) -> Finding:
    return _with_filler(implementation, [math.nan, -math.inf])


def _with_filler(implementation: Implementation, fillers: Sequence[float]) -> Finding:
    """Wider padding that holds anything: the same gradient under the mask's ones, exactly 0 elsewhere."""
    step = example(implementation.claims)
    whole = evaluate(implementation, step)
    for filler in fillers:
        wide = step.padded(GAP, filler)
        outcome = evaluate(implementation, wide)
        found, gradient = compare_outcomes(outcome, whole, wide.used, step.used), outcome.gradient
        if found.status != "pass":
            return found
        idle = gradient[~wide.used]
        if bool((idle != 0).any()):
            worst = float(idle[idle != 0][0])
            return deviates(worst, 0.0, f"gradient of padding that holds {filler:g}")
    return PASS


def row_order(implementation: Implementation) -> Finding:
    step = example(implementation.claims)
    order = [5, 2, 7, 0, 1, 6, 4, 3] if len(step.used) == 8 else [2, 0, 3, 1]
    whole, moved = evaluate(implementation, step), evaluate(implementation, step.rows(order))
    return compare_gradients(moved.gradient, whole.gradient[order], "gradient")


def duplicated_batch(implementation: Implementation) -> Finding:
    step = example(implementation.claims)
    rows = len(step.used)
    double = step.map(lambda values: torch.cat([values, values])).split([list(range(2 * rows))])
    if isinstance(double, Step) and isinstance(step, Step):
        group = torch.cat([step.group, step.group + 1 + step.group.max()])
        double = replace(double, group=group)
    once, twice = evaluate(implementation, step).gradient, evaluate(implementation, double).gradient
    return compare_gradients(twice[:rows] + twice[rows:], once, "gradient")


def masked_completions(implementation: Implementation) -> Finding:
    if implementation.family == "preference":
        return not_applicable("pairs are dropped before the loss")
    step = masked_example(implementation.claims)
    expected, found = golden(implementation.claims, step), evaluate(implementation, step)
    return compare_gradients(found.gradient, expected.gradient, "gradient")


def masked_microbatch(implementation: Implementation) -> Finding:
    if implementation.family == "preference":
        return not_applicable("pairs are dropped before the loss")
    step = masked_example(implementation.claims)
    alone = step.split([[row] for row in range(len(step.used))])
    found = evaluate(implementation, alone)
    if _depends_on_split(implementation):
        return compare_gradients(found.gradient, golden(implementation.claims, alone).gradient, "gradient")
    return compare_outcomes(found, evaluate(implementation, step), step.used, step.used)


def clip_corners(implementation: Implementation) -> Finding:
    surrogate = implementation.claims.get("surrogate", {})
    if surrogate.get("kind") not in ("clip", "dual_clip", "cispo", "cispo_masked"):
        return not_applicable("the claimed surrogate has no bounds")
    high = 1 + surrogate["high"] * 15 / 14
    low = 1 - (surrogate["low"] or 0.2) * 1.5
    corners = [(max(low, 0.05), 1.0), (max(low, 0.05), -1.0), (high, 1.0), (high, -1.0)]
    if "cap" in surrogate:
        corners.append((surrogate["cap"] * 1.2, -1.0))
    measured, expected, names = [], [], []
    for ratio, advantage in corners:
        logp = -1.0
        step = independent_tokens([logp], [logp - math.log(ratio)], [logp], advantage)
        found, wanted = evaluate(implementation, step), golden(implementation.claims, step)
        measured += [found.value, float(found.gradient)]
        expected += [wanted.value, float(wanted.gradient)]
        names += [f"{what} at ratio {ratio:.6g}, advantage {advantage:+g}" for what in ("loss", "gradient")]
    return compare_numbers(measured, expected, names)


def kl_gradient(implementation: Implementation) -> Finding:
    """Every completion of two tokens that do not depend on each other, weighted by how likely the sampler makes it."""
    if implementation.family != "policy_gradient":
        return not_applicable("no policy gradient is claimed")
    penalty, ratio = implementation.claims["penalty"], implementation.claims["ratio"]["kind"]
    sampled_before = penalty.get("weight", "none") != "none"
    slope = oracle_credit.kl_slope(penalty, POLICY, REFERENCE)
    if slope is None or (sampled_before and ratio in ("sequence_ratio", "sequence_token_ratio")):
        return not_applicable("the claimed estimator, weight and ratio give the gradient of no divergence")
    sampler = OLDER if sampled_before else POLICY
    measured = [[0.0] * len(POLICY) for _ in range(POSITIONS)]
    for tokens in product(range(len(POLICY)), repeat=POSITIONS):
        logp, old, reference = ([math.log(of[token]) for token in tokens] for of in (POLICY, sampler, REFERENCE))
        gradient = evaluate(implementation, independent_tokens(logp, old, reference, advantage=0.0)).gradient[0]
        for place, token in enumerate(tokens):
            weight = math.prod(sampler[one] for one in tokens) * float(gradient[place])
            for other, own in enumerate(POLICY):
                measured[place][other] += weight * ((other == token) - own)
    share = 1.0 if implementation.claims["reduction"]["kind"] == "sequence_sum" else 1 / POSITIONS
    places = [(place, token) for place in range(POSITIONS) for token in range(len(POLICY))]
    names = [f"expected gradient in the logit of token {token} at position {place}" for place, token in places]
    return compare_numbers([measured[i][j] for i, j in places], [share * slope[j] for _, j in places], names)


def on_policy_identity(implementation: Implementation) -> Finding:
    """From rewards to the gradient: the claim's on-policy twin, computed by the oracle with the twin's advantages."""
    twin = _twin(implementation)
    if twin is None:
        return not_applicable("the claim is its own twin")
    claims, factor, name = twin
    step = example(implementation.claims)
    assert isinstance(step, Step)
    reward = torch.tensor([1.0, 0, 0.5, 0, 1, 0, 0.25, 1], dtype=torch.float64)
    hook = implementation.advantages
    own = implementation.claims["advantage"]
    score = (
        torch.tensor(oracle_credit.advantages(own, reward.tolist(), step.group.tolist()))
        if hook is None
        else call_for_tensor("advantages", hook, (len(reward),), reward, step.group)
    )
    there = torch.tensor(oracle_credit.advantages(claims["advantage"], reward.tolist(), step.group.tolist()))

    def on_policy(scores: torch.Tensor) -> Step:
        spread = scores.double()[:, None].expand(step.mask.shape)
        return replace(step, old_logp=step.logp, ref_logp=step.logp, advantage=torch.where(step.mask, spread, 0.0))

    gradient = torch.tensor(golden_loss(claims, as_rows(on_policy(there)))[1], dtype=torch.float64)
    found = evaluate(implementation, on_policy(score)).gradient
    return compare_gradients(found, factor * gradient, f"gradient against {name}'s")


def _twin(implementation: Implementation) -> tuple[dict[str, Any], float, str] | None:
    claims = dict(implementation.claims)
    if implementation.family != "policy_gradient" or claims["advantage"]["kind"].endswith("gae"):
        return None
    ratio, surrogate, reduction = claims["ratio"]["kind"], claims["surrogate"]["kind"], claims["reduction"]["kind"]
    clip = {"kind": "clip", "low": 0.2, "high": 0.28}
    plain = claims | {"ratio": {"kind": "token_ratio"}, "penalty": {"kind": "no_penalty"}}
    if (
        claims["advantage"]["kind"] == "leave_one_out"
        and ratio == "sequence_product_ratio"
        and reduction == "sequence_mean"
    ):
        constant = {"kind": "constant_length", "count_masked": claims["reduction"]["count_masked"]}
        centred = plain | {"surrogate": clip, "advantage": {"kind": "group_centred"}, "reduction": constant}
        return centred, 4 / 3 * BUDGET, "G / (G - 1) L_max Dr. GRPO"
    if surrogate.startswith("cispo"):
        return plain | {"surrogate": clip}, 1.0, "DAPO"
    if ratio in ("sequence_ratio", "sequence_token_ratio"):
        return plain, 1.0, "GRPO" if reduction == "sequence_mean" else "the token ratio"
    if surrogate == "sapo":
        return plain | {"surrogate": clip}, 1.0, "the clip"
    return None


def closed_form_of_pairs(implementation: Implementation) -> Finding:
    """OBJ-40: log-probabilities -10 and -12, reference -11 and -11, four tokens a side."""
    if implementation.family != "preference":
        return not_applicable("no preference loss is claimed")

    def side(total: float) -> torch.Tensor:
        return torch.full((1, 4), total / 4, dtype=torch.float64)

    mask = torch.ones((1, 4), dtype=torch.bool)
    step = PairStep(
        chosen_logp=side(-10.0),
        rejected_logp=side(-12.0),
        ref_chosen_logp=side(-11.0),
        ref_rejected_logp=side(-11.0),
        chosen_mask=mask,
        rejected_mask=mask,
        ranks=(((0,),),),
    )
    return compare_values(evaluate(implementation, step), golden(implementation.claims, step))
