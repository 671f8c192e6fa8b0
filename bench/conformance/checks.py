"""The list of checks: their names, what each one shows, and where the right answer comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.conformance import checks_credit, checks_loss
from bench.conformance.adapter import Implementation, Mistake
from bench.conformance.findings import Check, Finding, not_applicable

CHECKS: Sequence[Check] = (
    Check(
        "golden value", "The loss of a ragged, off-policy step is the claimed formula's.",
        "the papers' equations", checks_loss.golden_value,
    ),
    Check(
        "golden gradient", "So is its gradient, token by token: the only thing that an optimizer sees.",
        "the papers' equations", checks_loss.golden_gradient,
    ),
    Check(
        "accumulation", "Microbatches of one size, of 1, 2 or 4 rows, give the gradient of the whole step.",
        "trl#5619, verl#5625, ms-swift#10117", checks_loss.accumulation,
    ),
    Check(
        "uneven microbatches", "So do microbatches of different sizes.",
        "SkyRL#925", checks_loss.uneven_microbatches,
    ),
    Check(
        "two ranks", "So do two processes whose completions differ in length, their gradients averaged.",
        "verl#5798", checks_loss.two_ranks,
    ),
    Check(
        "padding width", "Wider padding changes nothing.",
        "verl#3741", checks_loss.padding_width,
    ),
    Check(
        "values in padding", "Padding may hold any finite number.",
        "trl#4970", checks_loss.values_in_padding,
    ),
    Check(
        "NaN in padding", "Padding may hold NaN and -inf.",
        "ROLL#447", checks_loss.nan_in_padding,
    ),
    Check(
        "row order", "The order of rows does not matter.",
        "a sum has no order", checks_loss.row_order,
    ),
    Check(
        "duplicated batch", "Every row twice is the same step: a mean, not a sum.",
        "verl#3741", checks_loss.duplicated_batch,
    ),
    Check(
        "masked completions", "Completions that left the loss count in the denominator only where that is claimed.",
        "trl#6369", checks_loss.masked_completions,
    ),
    Check(
        "masked microbatch", "A microbatch without a token adds nothing.",
        "flash-linear-attention#189", checks_loss.masked_microbatch,
    ),
    Check(
        "clip corners", "Both bounds of the ratio, for both signs of the advantage: loss and gradient of one token.",
        "1707.06347, Eq. 7; OpenRLHF#1091", checks_loss.clip_corners,
    ),
    Check(
        "KL gradient",
        "The expected gradient of the KL term is the claimed divergence's, by enumeration of two independent tokens.",
        "Schulman 2020; 2512.21852", checks_loss.kl_gradient,
    ),
    Check(
        "on-policy identity",
        "From rewards: RLOO is G/(G-1) L_max Dr. GRPO, CISPO is DAPO, GSPO is GRPO, SAPO is the clip.",
        "2402.14740; 2506.13585; 2507.18071", checks_loss.on_policy_identity,
    ),
    Check(
        "DPO closed form", "One pair whose loss is known: 0.598139 for the sigmoid at beta 0.1.",
        "2305.18290, Eq. 7; trl#2733", checks_loss.closed_form_of_pairs,
    ),
    Check(
        "golden advantages", "Advantages of two groups are the claimed formula's.",
        "the papers' equations; NeMo-RL#4161", checks_credit.golden_advantages,
    ),
    Check(
        "ddof and epsilon", "The standard deviation has the claimed degrees of freedom and the claimed constant.",
        "the preset's knobs: papers state neither", checks_credit.deviation_and_epsilon,
    ),
    Check(
        "own group", "Statistics are the group's own.",
        "grpo-flat#2", checks_credit.own_group,
    ),
    Check(
        "flat groups", "Eight equal rewards give advantages of exactly 0, also where rounding has its say.",
        "trl#3857, NeMo-RL#4161", checks_credit.flat_groups,
    ),
    Check(
        "one scored sample", "A group with one scored completion gives 0, not NaN and not the raw reward.",
        "trl#5773", checks_credit.one_scored_sample,
    ),
    Check(
        "missing rewards", "A reward of NaN (TRL's None) enters no statistic, and its completion gets 0.",
        "trl#5902, ms-swift#8123", checks_credit.missing_rewards,
    ),
    Check(
        "infinite rewards", "So does an infinite reward: it counts as missing.",
        "no paper", checks_credit.infinite_rewards, ours=True,
    ),
    Check(
        "who is trained", "Truncated completions leave the loss where that is claimed, and only there.",
        "trl#6369; 2503.14476, section 3.4", checks_credit.who_is_trained,
    ),
    Check(
        "unscored completions", "Completions without a reward leave the loss, and its denominator too.",
        "no paper; trl#5902 gives them advantage 0", checks_credit.unscored_completions, ours=True,
    ),
    Check(
        "GAE", "The recursion is the double sum of the paper, and padding never leaks in.",
        "1506.02438, Eq. 16; ROLL#447, trl#1536", checks_credit.gae_by_double_sum,
    ),
    Check(
        "length penalty", "The soft overlong punishment in its three pieces.",
        "2503.14476, Eq. 13; OpenRLHF#1091", checks_credit.overlong_table,
    ),
)  # fmt: skip

_NOT_FED = {"mismatch": "no_correction", "focus": "all_tokens", "bonus": "no_bonus"}
"""Axes whose inputs a step does not hold, and the kind under which they read none."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One implementation and what every check found, in the order of `CHECKS`."""

    implementation: Implementation
    findings: tuple[Finding, ...]

    @property
    def deviations(self) -> list[tuple[Check, Finding]]:
        """The checks that found something, and what."""
        return [
            (check, found) for check, found in zip(CHECKS, self.findings, strict=True) if found.status == "deviates"
        ]


def check(implementation: Implementation) -> Column:
    """Run every check on one implementation."""
    return Column(implementation=implementation, findings=tuple(_run(one, implementation) for one in CHECKS))


def _run(one: Check, implementation: Implementation) -> Finding:
    for axis, off in _NOT_FED.items():
        if implementation.claims.get(axis, {}).get("kind", off) != off:
            return not_applicable(f"the kit gives no data for the claimed {axis}")
    why = (implementation.out_of_reach or {}).get(one.name)
    if why is not None:
        return not_applicable(why)
    try:
        found = one.run(implementation)
    except Mistake as error:  # its own code failed on a step that the contract allows
        found = Finding(status="deviates", detail=str(error))
    if found.status == "deviates" and one.ours and not implementation.own:
        return replace(found, status="differs")
    return found
