"""A run's health: questions that its metrics answer when it has ended, each with a number and a threshold.

A pure function over the records of `metrics.jsonl`. A question is never left out: where no number can answer it, that
is the answer, with the reason. Nothing here needs torch; `docs/health.md` explains each question under its name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.health_learned import chosen_ground, critic, pairs_told_apart
from bench.health_series import Change, Series, change, change_of_shares, number, series, update_of
from bench.health_told import Answer, Seen, Told, against_noise, another_objective, short
from bench.thresholds import at

PAGE = "docs/health.md"


@dataclass(frozen=True)
class Question:
    """One thing to know about a run, and how its metric answers it."""

    name: str
    question: str
    metric: str
    missing: str
    """Why a run may lack the metric."""
    judge: Callable[[Series, Seen], Told]
    """Answers from a series that is long enough."""
    meaning: str
    advice: str
    only_with: str | None = None
    """A metric that a record must have as well; leaves out updates in which the policy did not move."""


@dataclass(frozen=True)
class Finding:
    """A question of one run with its answer."""

    name: str
    question: str
    answer: Answer
    look: bool
    metric: str
    value: float | None
    threshold: float | None
    numbers: str
    text: str
    meaning: str
    advice: str
    page: str


def _reward(own: Series, seen: Seen) -> Told:
    """By validation where the reward is its verdict and nothing else, by the training reward otherwise.

    The problems of validation are always the same ones, so it tells more; but of another reward it tells nothing.
    """
    name, samples = "validation/pass@1", _validation_samples(seen.run)
    validation = series(seen.records, name)
    if len(validation) < 2 or not samples:
        return short(own, seen) or _risen(change(own), "reward/mean")
    found = change_of_shares(validation.values[0], validation.values[-1], samples)
    told = _risen(found, name, (f" at update {validation.updates[0]}", f" at update {validation.updates[-1]}"))
    told = _fell_back(told, validation, samples)
    if not _is_verdict(seen.records):
        if too_short := short(own, seen):
            return replace(too_short, numbers=f"{too_short.numbers}; {name} {against_noise(found)}", text=told.text)
        trained = _risen(change(own), "reward/mean")
        return replace(trained, text=f"{trained.text}; {told.text}")
    if found.noise > at("wide_noise") and not (found.rose or found.fell):
        told = Told("cannot be told", f"{against_noise(found)} of {samples} samples", metric=name)
        return _risen(change(own), "reward/mean") if own.long_enough else told
    trained = change(own) if own.long_enough else None
    ends = f"{trained.start:.3g} in the first eighth, {trained.end:.3g} in the last quarter" if trained else ""
    also = f"; training reward {ends}" if trained else ""
    return replace(told, text=told.text + also, metric=name)


def _fell_back(told: Told, validation: Series, samples: int) -> Told:
    """The same of a rise that was once far higher; of several measurements the best is lucky, so twice the noise."""
    best = max(validation.values)
    lost = change_of_shares(best, validation.values[-1], samples)
    if told.answer != "yes" or -lost.size <= at("fell_back") * lost.noise:
        return told
    text = f"{told.text}; it was {best:.3g} at update {validation.updates[validation.values.index(best)]}"
    advice = "lower the learning rate, or keep the best weights (validation.select=validation)"
    return replace(told, text=text, look=True, advice=advice)


def _is_verdict(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the reward is the verdict wherever both are known; also where a run has no reward, as on fixed pairs."""
    both = [(number(record, "reward/mean"), number(record, "reward/accuracy")) for record in records]
    return all(reward is None or reward == accuracy for reward, accuracy in both)


def _validation_samples(run: Mapping[str, Any]) -> int:
    """Completions behind each validation; 0 where run.yaml does not say."""
    config = run.get("validation")
    if not isinstance(config, Mapping):
        return 0
    problems, samples = (number(config, name) for name in ("problems", "samples"))
    return int((problems or 0) * (samples or 0))


def _risen(
    found: Change, metric: str, where: tuple[str, str] = (" in the first eighth", " in the last quarter")
) -> Told:
    """Whether a change is a rise; a fall is said in words."""
    kind = "rose" if found.rose else "fell" if found.fell else "stayed within its noise"
    text = f"{metric} {kind}: {found.start:.3g}{where[0]}, {found.end:.3g}{where[1]}"
    advice = "lower the learning rate, and look at what is rewarded or preferred" if found.fell else None
    answer = "yes" if found.rose else "no"
    numbers = against_noise(found)
    return Told(answer, numbers, text, found.size, found.noise, look=not found.rose, advice=advice)


def _verdict(own: Series, seen: Seen) -> Told:
    """Reward and verdict side by side: the first may rise without the second."""
    reward = series(seen.records, "reward/mean")
    if reward.values == own.values:
        return Told("not measured", "the reward is the verdict")
    if not reward.long_enough:
        return short(reward, seen) or Told("cannot be told", "")
    told, true = change(reward), change(own)
    parted = told.rose and not true.rose
    text = (
        f"reward {told.start:.3g} to {told.end:.3g}, true accuracy {true.start:.3g} to {true.end:.3g}, first eighth to "
        "last quarter"
    )
    return Told("yes" if parted else "no", against_noise(true), text, true.size, true.noise, look=parted)


def _all_right(own: Series, seen: Seen) -> Told:
    """Groups that are all right are success where the true accuracy says so."""
    told, limit = _share_of_groups(own, "all right"), at("solved")
    if told.answer == "no":
        return told
    accuracy = series(seen.records, "reward/accuracy")
    level = accuracy.last_quarter if accuracy.long_enough else None
    solved = level is not None and level >= limit
    known = "true accuracy is not known" if level is None else f"true accuracy {level:.3g}"
    why = f"{known}: success, not collapse" if solved else f"{known}, {limit:g} would be success"
    return Told("yes", told.numbers, f"{told.text}; {why}", told.value, told.threshold, look=not solved)


def _all_wrong(own: Series, seen: Seen) -> Told:
    return _share_of_groups(own, "all wrong")


def _tied(own: Series, seen: Seen) -> Told:
    """What is left of the flat groups: all with one reward, and neither all right nor all wrong."""
    names = ("groups/frac_zero_std", "groups/zero_std_all_correct", "groups/zero_std_all_wrong")
    rest: list[dict[str, Any]] = []
    for record in seen.records:
        flat, right, wrong = (number(record, name) for name in names)
        if flat is not None and right is not None and wrong is not None:
            rest.append({"update": update_of(record), "tied": flat - right - wrong})
    left = series(rest, "tied")
    return short(left, seen) or _share_of_groups(left, "tied for another reason")


def _share_of_groups(own: Series, kind: str) -> Told:
    share, limit = own.last_quarter, at("flat_groups")
    text = f"{share:.0%} of the groups of the last quarter were {kind}"
    return Told(
        "yes" if share > limit else "no", f"{share:.0%} of groups, max {limit:.0%}", text, share, limit, share > limit
    )


def _entropy(own: Series, seen: Seen) -> Told:
    first, limit = own.values[0], at("entropy_collapse")
    if first <= 0:
        return Told("cannot be told", "entropy starts at 0")
    ratio = own.last_quarter / first
    text = f"entropy {first:.3g} nats at first, {own.last_quarter:.3g} in the last quarter"
    return Told(
        "yes" if ratio < limit else "no", f"{ratio:.2g} x first, min {limit:g}", text, ratio, limit, ratio < limit
    )


def _kl(own: Series, seen: Seen) -> Told:
    """Far away, or on the way there faster and faster."""
    level, before = own.last_quarter, own.quarter_before
    far, growing = level > at("kl_far"), before > 0 and level > at("kl_near") and level / before > at("kl_growing")
    text = f"KL to the reference {before:.3g} nats a token in the third quarter, {level:.3g} in the last"
    if growing and not far:
        growth, limit = level / before, at("kl_growing")
        return Told("yes", f"{growth:.2g} x quarter before, max {limit:g}", text, growth, limit, look=True)
    limit = at("kl_far")
    return Told("yes" if far else "no", f"{level:.2g} nats, max {limit:g}", text, level, limit, look=far)


def _longer(own: Series, seen: Seen) -> Told:
    """Longer by more than noise and a factor, and nothing bought with it."""
    found, limit = change(own), at("length_climb")
    if found.start <= 0:
        return Told("cannot be told", "lengths start at 0")
    factor = found.end / found.start
    numbers, text = f"{factor:.2f} x first, max {limit:g}", f"mean length {found.start:.3g} to {found.end:.3g} tokens"
    if not (found.rose and factor > limit):
        return Told("no", numbers, text, factor, limit)
    if seen.reward is None or seen.reward.answer not in ("yes", "no"):
        text += "; whether the reward rose cannot be told"
        return Told("cannot be told", f"{numbers}, reward unknown", text, factor, limit)
    if seen.reward.answer == "yes":
        late = own.last_quarter / own.quarter_before if own.quarter_before > 0 else 1.0
        if late > limit and _levelled_off(seen):
            text += f", {late:.2f} x in the last quarter alone, in which the reward rose no more"
            return Told("yes", f"{late:.2f} x quarter before, max {limit:g}", text, late, limit, look=True)
        return Told("no", numbers, f"{text}, and the reward rose", factor, limit)
    return Told("yes", numbers, f"{text}, and the reward did not rise", factor, limit, look=True)


def _levelled_off(seen: Seen) -> bool:
    """Whether the last quarter brought next to nothing of what the reward gained."""
    reward = series(seen.records, "reward/mean")
    if not reward.long_enough:
        return False
    gained, late = reward.last_quarter - reward.stretches[0], reward.last_quarter - reward.quarter_before
    return late <= at("levelled_off") * gained


def _imitation(own: Series, seen: Seen) -> Told:
    return _risen(change(own), "imitation/logp")


QUESTIONS: tuple[Question, ...] = (
    Question(
        "reward", "Did the reward rise?", "reward/mean", "no reward recorded", _reward,
        "change of validation/pass@1, first to last; of reward/mean, first eighth to last quarter, where there is no "
        "validation or the reward is not its verdict",
        "look at the other answers first; raise the learning rate or the budget, or make the task easier",
    ),
    Question(
        "verdict", "Did reward rise, verdict not?", "reward/accuracy", "no verdict recorded", _verdict,
        "change of the true accuracy, where the reward is more than the verdict and rose",
        "read completions: what is rewarded is not what is right. Weigh the verifier more, or penalise the distance",
    ),
    Question(
        "all_right", "Are most groups all right?", "groups/zero_std_all_correct", "no rollouts", _all_right,
        "share of groups in which every completion is right, last quarter",
        "make the task harder, or select groups (drop_uniform_groups)",
    ),
    Question(
        "all_wrong", "Are most groups all wrong?", "groups/zero_std_all_wrong", "no rollouts", _all_wrong,
        "share of groups in which every completion is wrong, last quarter",
        "make the task easier, enlarge rollout.group_size, start from a better model, or give partial credit",
    ),
    Question(
        "tied", "Are most groups tied otherwise?", "groups/frac_zero_std", "no rollouts", _tied,
        "share of groups with one reward that are neither all right nor all wrong, last quarter",
        "look at the reward: it does not tell completions apart that the verdict does",
    ),
    Question(
        "entropy", "Did entropy collapse?", "entropy", "no entropy recorded", _entropy,
        "entropy of the last quarter over its first value",
        "lower the learning rate, raise the clip's upper bound, add an entropy bonus or a penalty to the reference",
    ),
    Question(
        "kl", "Did KL run away?", "kl/ref_k3", "no reference", _kl,
        "k3 estimate of KL(policy || reference) per token, last quarter, or its growth over the quarter before",
        "lower the learning rate or raise the penalty's coefficient",
    ),
    Question(
        "longer_wrong", "Wrong answers longer for nothing?", "len/incorrect", "no rollouts", _longer,
        "mean length of wrong completions, last quarter over first eighth, where the reward did not rise",
        "use a reduction without a bias towards length (token_mean, constant_length), or shape the reward",
    ),
    Question(
        "longer_right", "Right answers longer for nothing?", "len/correct", "no rollouts", _longer,
        "mean length of right completions, last quarter over first eighth, where the reward did not rise",
        "shape the reward (soft_overlong), or lower rollout.max_completion_tokens",
    ),
    Question(
        "critic", "Does the critic explain anything?", "value/explained_variance", "no critic", critic,
        "variance of the returns that the critic explains, last quarter, without its warm-up",
        "raise critic.lr, critic.warmup_updates or the budget; near 0 it is a constant baseline, below it adds noise",
        only_with="grad_norm",
    ),
    Question(
        "pairs", "Are pairs told apart?", "dpo/accuracy", "no pairs", pairs_told_apart,
        "share of pairs that the policy orders right, last quarter",
        "raise the learning rate or the budget, or look at how the pairs are made",
    ),
    Question(
        "chosen", "Did chosen answers lose ground?", "dpo/chosen_reward", "no pairs", chosen_ground,
        "change of beta x log-ratio of the chosen side to the reference, first eighth to last quarter",
        "lower the learning rate, raise beta, or hold the chosen side up (objective.likelihood)",
    ),
    Question(
        "imitation", "Is what is imitated likelier?", "imitation/logp", "nothing to imitate", _imitation,
        "change of the mean log-probability of imitated tokens, first eighth to last quarter",
        "raise the learning rate or the budget",
    ),
)  # fmt: skip


def health_of(records: Iterable[Mapping[str, Any]], run: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """The answers to all questions, in their order.

    Args:
        records: the lines of `metrics.jsonl`.
        run: the content of `run.yaml`, which says how many completions a validation has and how large groups are.
    """
    seen = Seen(tuple(records), run or {})
    findings: list[Finding] = []
    for question in QUESTIONS:
        told = _told(question, series(seen.records, question.metric, question.only_with), seen)
        if question.name == "reward":
            seen = Seen(seen.records, seen.run, told)
        findings.append(
            Finding(
                question.name, question.question, told.answer, told.look, told.metric or question.metric, told.value,
                told.threshold, told.numbers, told.text, question.meaning, told.advice or question.advice,
                f"{PAGE}#{question.name}",
            )
        )  # fmt: skip
    return tuple(findings)


def _told(question: Question, own: Series, seen: Seen) -> Told:
    """The answer, or why there is none."""
    if not any(update_of(record) > 0 for record in seen.records):
        return Told("cannot be told", "no update recorded")
    if question.judge is _reward:  # it has another metric to turn to
        return _reward(own, seen)
    if own.recorded and question.metric.startswith("groups/") and _group_size(seen.run) == 1:
        return Told("not measured", "groups of one")
    if not own.recorded:
        return Told("not measured", another_objective(seen) or question.missing)
    return short(own, seen) or question.judge(own, seen)


def _group_size(run: Mapping[str, Any]) -> Any:
    rollout = run.get("rollout")
    return rollout.get("group_size") if isinstance(rollout, Mapping) else None


def as_record(findings: Sequence[Finding], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of `health.json`."""
    last = max(map(update_of, records), default=None)
    looks = [finding.name for finding in findings if finding.look]
    return {"through_update": last, "look": looks, "findings": [asdict(finding) for finding in findings]}
