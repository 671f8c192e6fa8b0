"""What is wrong with a diagnostic of the baselines: nothing to measure, too much asked for, no truth to be had."""

from collections.abc import Iterator

from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.returns import GAE, LengthAdaptiveGAE
from bench.config import Run


def quality_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right."""
    config, rollout = run.baseline_quality, run.rollout
    if config is None:
        return
    if not (isinstance(run.objective, PolicyGradient) and run.objective.needs.reward):
        yield (
            f"baseline_quality: given, but {run.algorithm} makes no advantage of a reward to measure; leave it out, or "
            "in a sweep give it to the other algorithms, under per_algorithm"
        )
        return
    advantage = run.objective.advantage
    if isinstance(advantage, GAE | LengthAdaptiveGAE) and advantage.truncation_bootstrap:
        yield (
            "baseline_quality: given, but with objective.advantage.truncation_bootstrap=true the critic's targets "
            "count on beyond the budget, where no continuation goes, so there is no true value to compare with; leave "
            "one of them out"
        )
    for knob, there, of in (
        ("problems", rollout.prompts, "rollout.prompts"),
        ("completions", rollout.group_size, "rollout.group_size"),
        ("every", run.budget.updates, "budget.updates"),
    ):
        given = getattr(config, knob)
        if given is not None and given > there:
            yield f"baseline_quality.{knob}: {given} given, must be at most {of} = {there}"
    if config.max_continuations < config.continuations:
        yield (
            f"baseline_quality.max_continuations: {config.max_continuations} given, must be at least "
            f"baseline_quality.continuations = {config.continuations}"
        )
