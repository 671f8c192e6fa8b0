"""Alarms: what a run's metrics say while it goes wrong, as a table of rules and a pure function over records.

An alarm never stops a run. The thresholds (`bench.thresholds`) are this program's proposal, to be read as "look here",
not as proof; `bench.health` summarises a whole run. A value that was not recorded, or is null, raises none. Nothing
here needs torch.
"""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bench.health_series import number
from bench.thresholds import at

Test = Literal["above", "below", "above_first", "below_first", "above_median"]
EARLIER = 5
"""Values that a running median needs before anything is held against it."""


@dataclass(frozen=True)
class Rule:
    """One threshold. The metric is held against `limit` itself, or `limit` times what the run itself has shown."""

    name: str
    metric: str
    test: Test
    limit: float
    meaning: str
    advice: str
    only_with: str | None = None
    """A metric that a record must also have; leaves out the updates in which the policy did not move."""
    only_above: tuple[str, float] | None = None
    """A metric, and what it must exceed where a record has it; leaves out shares of what is nearly nothing."""

    @property
    def condition(self) -> str:
        """The rule in words."""
        side = "<" if self.test.startswith("below") else ">"
        of = {"first": " x its first value", "median": " x the median of all earlier values"}
        where = f" where {self.only_above[0]} > {self.only_above[1]:g}" if self.only_above else ""
        return f"{self.metric} {side} {self.limit:g}{of.get(self.test.partition('_')[2], '')}{where}"

    def applies(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is one of those that the rule is about."""
        if self.only_with and number(record, self.only_with) is None:
            return False
        level = number(record, self.only_above[0]) if self.only_above else None
        return level is None or self.only_above is None or level > self.only_above[1]


RULES: tuple[Rule, ...] = (
    Rule(
        "entropy_collapse", "entropy", "below_first", at("entropy_collapse"),
        "the policy has become nearly deterministic, so samples of a prompt hardly differ",
        "lower the learning rate, raise the clip's upper bound, add an entropy bonus or a penalty to the reference",
    ),
    Rule(
        "entropy_explosion", "entropy", "above_first", at("entropy_explosion"),
        "the policy is turning into noise",
        "lower the learning rate; remove or shrink the entropy bonus; compare sampler and trainer (mismatch/*)",
    ),
    Rule(
        "policy_moved_far", "kl/old_k3", "above", at("policy_moved_far"),
        "an update's policy is far from the one that made the rollout, so its samples say little about it",
        "lower the learning rate, or take fewer updates and epochs per rollout",
    ),
    Rule(
        "much_clipped", "clip/region", "above", at("much_clipped"),
        "the clip cuts the gradient of a large share of the tokens",
        "lower the learning rate, take fewer updates per rollout, or widen the bounds",
    ),
    Rule(
        "few_effective_tokens", "ess/update_token", "below", at("few_effective_tokens"),
        "importance weights of tokens are uneven: few of them carry the update",
        "lower the learning rate, or take fewer updates per rollout",
    ),
    Rule(
        "few_effective_completions", "ess/update_seq", "below", at("few_effective_completions"),
        "importance weights of whole completions are uneven: few of them stand for the present policy",
        "lower the learning rate, take fewer updates per rollout, or keep to a ratio per token",
    ),
    Rule(
        "engines_differ", "mismatch/absdiff_mean", "above", at("engines_differ"),
        "sampler and trainer disagree about the same tokens, so samples are off-policy from the start",
        "check precision, chat template and temperature on both sides; correct with objective.mismatch",
    ),
    Rule(
        "few_effective_sampled_tokens", "ess/mismatch_token", "below", at("few_effective_tokens"),
        "the trainer weighs the sampler's tokens unevenly",
        "as for engines_differ; groups carried over are older, objective.selection.surplus=discard does without them",
    ),
    Rule(
        "few_effective_sampled_completions", "ess/mismatch_seq", "below", at("few_effective_completions"),
        "the trainer weighs the sampler's completions unevenly",
        "as for engines_differ; groups carried over are older, objective.selection.surplus=discard does without them",
    ),
    Rule(
        "many_truncated", "len/clipped_frac", "above", at("many_truncated"),
        "the budget cuts many completions, whose reward then says little about them",
        "raise rollout.max_completion_tokens, shape the reward (soft_overlong), or mask truncated completions",
    ),
    Rule(
        "few_informative_groups", "groups/frac_zero_std", "above", at("few_informative_groups"),
        "most groups have equal rewards and teach nothing to an objective that compares within groups",
        "make the task easier (groups/zero_std_all_wrong) or harder (groups/zero_std_all_correct), enlarge "
        "rollout.group_size, or select groups (drop_uniform_groups)",
    ),
    Rule(
        "no_reward_spread", "reward/std", "below", at("no_reward_spread"),
        "every completion of the rollout has the same reward: there is nothing to learn from",
        "make the task easier or harder, give partial credit (reward.format), and look at the verdicts",
    ),
    Rule(
        "unscorable_completions", "reward/unscorable", "above", at("unscorable_completions"),
        "the reward of some completions could not be told, so they take part in nothing",
        "look at the grader and at the gold answers of the problems that training named on stderr",
    ),
    Rule(
        "critic_worse_than_a_constant", "value/explained_variance", "below", at("critic_worse_than_a_constant"),
        "the critic's values follow the returns worse than a constant would",
        "raise critic.lr or critic.warmup_updates, or loosen the value clip",
        only_with="grad_norm",
        only_above=("returns/std", at("returns_vary")),
    ),
    Rule(
        "gradient_spike", "grad_norm", "above_median", at("gradient_spike"),
        "one gradient is far larger than usual; the limit scales it down but its direction remains",
        "look at that update's advantages and lengths; lower optimizer.max_grad_norm or the learning rate",
    ),
    Rule(
        "chosen_unlearned", "dpo/chosen_logp", "below_first", at("chosen_unlearned"),
        "the log-probability of preferred completions has doubled in size: both sides are being pushed down",
        "lower the learning rate, raise beta, or hold the chosen side up (objective.likelihood)",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Alarm:
    """A rule that held in a run: when, how often, and what stood against which threshold when it first did."""

    name: str
    metric: str
    first: int
    """Update at which it was first seen."""
    last: int
    count: int
    """Records in which it held, of `checked` that could be checked so far."""
    checked: int
    value: float
    threshold: float
    """Already multiplied by the first value or the median, where the rule is relative."""
    condition: str
    meaning: str
    advice: str

    @property
    def sentence(self) -> str:
        """One line for a terminal."""
        against = f"{self.value:.3g} against {self.threshold:.3g}"
        return f"alarm {self.name} at update {self.first}: {self.condition} ({against}): {self.meaning}. {self.advice}"


class Watch:
    """Goes through the records of a run in order and keeps each rule's alarm."""

    def __init__(self) -> None:
        self.alarms: dict[str, Alarm] = {}
        self._checked: dict[str, int] = {}
        self._first: dict[str, float] = {}
        self._ordered: dict[str, list[float]] = {}

    def see(self, record: Mapping[str, Any]) -> list[Alarm]:
        """Take in the next record of `metrics.jsonl`; returns the alarms that it raised for the first time."""
        new = [alarm for rule in RULES if (alarm := self._check(rule, record))]
        for rule in RULES:
            value = number(record, rule.metric)
            if value is not None and rule.test.endswith("_first"):
                self._first.setdefault(rule.metric, value)
            if value is not None and rule.test.endswith("_median"):
                bisect.insort(self._ordered.setdefault(rule.metric, []), value)
        return new

    def _check(self, rule: Rule, record: Mapping[str, Any]) -> Alarm | None:
        """The rule's alarm if this record is the first to raise it."""
        value, threshold = number(record, rule.metric), self._threshold(rule)
        if value is None or threshold is None or not rule.applies(record):
            return None
        self._checked[rule.name] = self._checked.get(rule.name, 0) + 1
        holds = value < threshold if rule.test.startswith("below") else value > threshold
        before, update = self.alarms.get(rule.name), int(record.get("update", 0))
        if before is not None:
            count, last = before.count + holds, update if holds else before.last
            self.alarms[rule.name] = replace(before, count=count, last=last, checked=self._checked[rule.name])
        elif holds:
            alarm = Alarm(
                name=rule.name,
                metric=rule.metric,
                first=update,
                last=update,
                count=1,
                checked=self._checked[rule.name],
                value=value,
                threshold=threshold,
                condition=rule.condition,
                meaning=rule.meaning,
                advice=rule.advice,
            )
            self.alarms[rule.name] = alarm
            return alarm
        return None

    def _threshold(self, rule: Rule) -> float | None:
        """What the rule's metric is held against now; None where the run has not yet shown what it is relative to."""
        if rule.test in ("above", "below"):
            return rule.limit
        if rule.test.endswith("_first"):
            usual = self._first.get(rule.metric)
        else:
            earlier = self._ordered.get(rule.metric, [])
            usual = _median(earlier) if len(earlier) >= EARLIER else None
        # Many times nothing is nothing: the first gradient after a stretch of flat groups is no spike.
        return rule.limit * usual if usual else None


def _median(ordered: Sequence[float]) -> float:
    size = len(ordered)
    return (ordered[(size - 1) // 2] + ordered[size // 2]) / 2


def alarms_of(records: Iterable[Mapping[str, Any]]) -> list[Alarm]:
    """The alarms of a run's `metrics.jsonl`, in the order of the rules."""
    watch = Watch()
    for record in records:
        watch.see(record)
    return [watch.alarms[rule.name] for rule in RULES if rule.name in watch.alarms]


def as_records(alarms: Iterable[Alarm]) -> list[dict[str, Any]]:
    """The content of `alarms.json`."""
    return [asdict(alarm) for alarm in alarms]
