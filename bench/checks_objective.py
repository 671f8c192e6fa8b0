"""What an objective asks of its run: groups, updates per rollout, and no knob that this objective could not read."""

from collections.abc import Iterator

from algorithms.axes.baseline import PassAtK
from algorithms.axes.imitation import Imitation
from algorithms.axes.knobs import kind_of, knobs_of
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.value import ValueLoss
from bench.catalog import load_preset
from bench.config import Run, Section


def objective_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right."""
    yield from _groups(run)
    if isinstance(run.objective, PolicyGradient):
        yield from _updates(run, run.objective)
        yield from _inert(run, run.objective)
        yield from _inert_beside_the_ratio(run, run.objective)
        yield from _old_policy(run, run.objective)
    else:
        # updates_per_rollout and epochs act: they set how many completions an online run would sample in this budget.
        yield from dead_knob(run.rollout, "rollout", "old_logp", f"{run.algorithm} has no importance ratio")
    if not run.objective.needs.reward:
        read = "the verifier's verdict" if run.objective.needs.samples else _material(run)
        for knob in ("correct", "wrong", "format"):
            why = f"{run.algorithm} reads {read}, not the reward"
            yield from dead_knob(run.reward, "reward", knob, why)


def _material(run: Run) -> str:
    """What an objective that samples nothing for training learns from."""
    return "worked solutions" if isinstance(run.objective, Imitation) else "pairs of a data set"


def dead_knob(section: Section, path: str, knob: str, why: str) -> Iterator[str]:
    """A line if a knob that cannot act was moved from its default."""
    value, default = getattr(section, knob), type(section).model_fields[knob].default
    if value != default:
        yield f"{path}.{knob}: {value} given, but {why}, so it could not act; leave it out"


def _groups(run: Run) -> Iterator[str]:
    size = run.rollout.group_size
    if run.objective.needs.groups and size < 2:
        yield (
            f"rollout.group_size: {size} given, {run.algorithm} compares completions of one prompt, "
            "so it needs at least 2, such as 8"
        )
    advantage = run.objective.advantage if isinstance(run.objective, PolicyGradient) else None
    if isinstance(advantage, PassAtK) and advantage.k >= size > 1:
        yield (
            f"objective.advantage.k: {advantage.k} given, must be below rollout.group_size = {size}: the best of the "
            "whole group is one number, so nothing could be told apart"
        )


def _updates(run: Run, objective: PolicyGradient) -> Iterator[str]:
    """Without an importance ratio a rollout is fit for one update."""
    rollout = run.rollout
    updates = rollout.updates_per_rollout * rollout.epochs
    if objective.needs.one_update and updates > 1:
        yield (
            f"objective.surrogate.kind: {kind_of(objective.surrogate)} has no importance ratio, so a rollout is fit "
            f"for one update and not for {updates} (updates_per_rollout {rollout.updates_per_rollout} x epochs "
            f"{rollout.epochs}); give both as 1, or objective.surrogate.kind=unclipped and "
            "objective.ratio.kind=token_ratio"
        )


def _inert(run: Run, objective: PolicyGradient) -> Iterator[str]:
    """With one update a rollout the ratio is exactly 1, so bounds on it change nothing."""
    rollout = run.rollout
    if rollout.updates_per_rollout * rollout.epochs > 1 or rollout.old_logp != "recomputed":
        return
    preset = load_preset(run.algorithm).objective
    if not isinstance(preset, PolicyGradient) or kind_of(preset.surrogate) != kind_of(objective.surrogate):
        return
    before = knobs_of(preset.surrogate)
    for knob, value in knobs_of(objective.surrogate).items():
        if value != before[knob]:
            yield (
                f"objective.surrogate.{knob}: {value} given, but with one update a rollout the ratio is exactly 1, so "
                "it could not act; give rollout.updates_per_rollout or rollout.epochs above 1"
            )


def _inert_beside_the_ratio(run: Run, objective: PolicyGradient) -> Iterator[str]:
    """With one update a rollout a value is the one that it is held to, and a weight without a gradient is 1."""
    preset = load_preset(run.algorithm).objective
    if run.rollout.updates_per_rollout * run.rollout.epochs > 1 or not isinstance(preset, PolicyGradient):
        return
    why = "so it could not act; give rollout.updates_per_rollout or rollout.epochs above 1"
    before, value = preset.value, objective.value
    # Without a clip the formula says what happens anyway.
    if isinstance(before, ValueLoss) and isinstance(value, ValueLoss) and value.clip not in (before.clip, None):
        yield (
            f"objective.value.clip: {value.clip} given, but with one update a rollout a value is its value at rollout "
            f"time, {why}"
        )
    detached = getattr(objective.penalty, "weight", None) == "detached_ratio" and run.rollout.old_logp == "recomputed"
    if detached and getattr(preset.penalty, "weight", None) != "detached_ratio":
        yield (
            "objective.penalty.weight: detached_ratio given, but with one update a rollout the ratio is exactly 1, "
            f"{why}"
        )


def _old_policy(run: Run, objective: PolicyGradient) -> Iterator[str]:
    from_sampler = run.rollout.old_logp == "sampler"
    if objective.mismatch.needs_old_logp and from_sampler:
        yield (
            f"objective.mismatch.kind: {kind_of(objective.mismatch)} given, but with rollout.old_logp=sampler there is "
            "no second set of log-probabilities to compare with, so it could not act; give rollout.old_logp=recomputed"
        )
    carries = objective.selection.surplus == "carry_over"
    if carries and objective.needs.one_update:
        yield (
            "objective.selection.surplus: carry_over given, which trains on samples of an older policy, and "
            f"objective.surrogate.kind={kind_of(objective.surrogate)} has no importance ratio to correct for that: "
            "give surplus=discard"
        )
    elif carries and objective.focus.needs_entropy:
        yield (
            f"objective.focus.kind: {kind_of(objective.focus)} given, which reads the sampling policy's entropies, and "
            "groups that are carried over do not keep theirs: give objective.selection.surplus=discard"
        )
    elif carries and not from_sampler:
        yield (
            "objective.selection.surplus: carry_over given, which trains on samples of an older policy, whose "
            "log-probabilities only the sampler has: give rollout.old_logp=sampler, or surplus=discard"
        )
