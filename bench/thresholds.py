"""The one table of thresholds: what alarms hold single records against, and a run's health the means of its stretches.

Each is a proposal of this program with its reason; a source is named where there is one. None stops a run.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Threshold:
    """A number with its reason."""

    value: float
    read_by: Literal["alarms", "health", "both"]
    """Alarms hold one record against it, the account of health the mean of a stretch."""
    reason: str


THRESHOLDS: dict[str, Threshold] = {
    "entropy_collapse": Threshold(0.25, "both", "x the first value: whatever the vocabulary, little is tried any more"),
    "entropy_explosion": Threshold(3.0, "alarms", "x the first value: learning sharpens a policy, it does not blur it"),
    "policy_moved_far": Threshold(0.1, "alarms", "nats a token within one rollout, whose samples then say little"),
    "much_clipped": Threshold(0.3, "alarms", "of the tokens: a clip is meant for the few that moved furthest"),
    "few_effective_tokens": Threshold(0.9, "alarms", "of the tokens: single ones hardly move in a step"),
    "few_effective_completions": Threshold(0.5, "alarms", "of the completions: half of what was paid for counts"),
    "engines_differ": Threshold(0.05, "alarms", "nats a token: float32 differs by 1e-5, bfloat16 by some 1e-2"),
    "many_truncated": Threshold(0.3, "alarms", "of the completions: their reward is mostly the budget's"),
    "few_informative_groups": Threshold(0.8, "alarms", "of one rollout's groups, of which there are few"),
    "no_reward_spread": Threshold(1e-6, "alarms", "what rounding leaves of equal rewards"),
    "unscorable_completions": Threshold(0.0, "alarms", "one is enough to look at its grader and its gold answer"),
    "critic_worse_than_a_constant": Threshold(-0.05, "alarms", "of the returns' variance: 0 is a constant's, or so"),
    "gradient_spike": Threshold(10.0, "alarms", "x the median of earlier norms, which vary by a factor of 2 or 3"),
    "chosen_unlearned": Threshold(2.0, "alarms", "x the first value: some fall is usual, to twice the size is not"),
    "noise": Threshold(0.05, "health", "chance that independent noise is called a rise; as much, a fall"),
    "stretches": Threshold(8, "health", "stretches that a series is cut into: the values that it needs"),
    "wide_noise": Threshold(0.2, "health", "of an accuracy between two validations: a plain rise could hide in it"),
    "fell_back": Threshold(2.0, "health", "x the noise of two validations: the best of several is partly luck"),
    "flat_groups": Threshold(0.5, "health", "of the last quarter's groups: most samples teach nothing"),
    "solved": Threshold(0.9, "health", "true accuracy from which groups that are all right are success, not collapse"),
    "kl_far": Threshold(0.5, "health", "nats a token: twice the 6 nats on 24 tokens that 1909.08593's code steers to"),
    "kl_growing": Threshold(2.0, "health", "x the quarter before: it does not level off"),
    "kl_near": Threshold(0.1, "health", "nats a token up to which growth is no matter; the quickstart reaches .13"),
    "length_climb": Threshold(1.25, "health", "x the first stretch: a quarter more tokens that bought no reward"),
    "levelled_off": Threshold(0.1, "health", "of the whole gain: the last quarter of a line has a third of it"),
    "returns_vary": Threshold(0.01, "both", "standard deviation of returns up to which there is nothing to explain"),
    "critic_explains": Threshold(0.05, "health", "of the returns' variance: less is a constant, give or take"),
    "pairs_told_apart": Threshold(0.6, "health", "of the pairs: guessing orders half of them"),
}  # fmt: skip


def at(name: str) -> float:
    """A threshold's value."""
    return THRESHOLDS[name].value
