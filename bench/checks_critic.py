"""What a critic asks of its run: that there is one to train, knobs that act, and another model that reads the policy's.

Imports nothing that loads a model: `bench.critics` says the same lines of what only a loaded model can tell.
"""

from collections.abc import Iterator, Mapping

from bench.checks_models import model_files, positions_of, prompt_lengths
from bench.checks_objective import dead_knob
from bench.config import Model, Run
from bench.config_critic import HeadCritic, ModelCritic, SeparateCritic
from bench.config_models import PretrainedModel
from bench.refusals import no_critic
from bench.vocabulary import other_tokens, vocabulary_of

_QUOTED_TOKENS = 3


def critic_files(run: Run) -> Iterator[str]:
    """One line for each thing that is wrong with the path of a critic's own model."""
    if isinstance(run.critic, ModelCritic):
        yield from model_files("critic.model", run.critic.model)


def critic_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right."""
    if run.objective.needs.critic and run.critic is None:
        yield f"critic: missing, but {run.algorithm} trains one; give its learning rate, such as critic.lr=1e-5"
    if run.critic is not None and not run.objective.needs.critic:
        yield no_critic(run.algorithm)
    if run.critic is not None and run.critic.warmup_updates >= run.budget.updates:
        yield (
            f"critic.warmup_updates: {run.critic.warmup_updates} given, must be below budget.updates = "
            f"{run.budget.updates}, or the policy is never trained"
        )
    if run.critic is not None and 0 < run.optimizer.warmup_updates <= run.critic.warmup_updates:
        yield (
            f"optimizer.warmup_updates: {run.optimizer.warmup_updates} given, but critic.warmup_updates = "
            f"{run.critic.warmup_updates} updates pass before the policy moves, which would then begin at the full "
            f"learning rate; must be above {run.critic.warmup_updates}, or 0"
        )
    if isinstance(run.critic, HeadCritic) and run.critic.stop_gradient:
        why = "critic.stop_gradient keeps the value loss out of the trunk"
        yield from dead_knob(run.critic, "critic", "coefficient", why)
    if isinstance(run.critic, SeparateCritic | ModelCritic) and run.critic.adapter and run.parallel.strategy == "fsdp":
        yield (
            "parallel.strategy: fsdp given with critic.adapter, whose base would be gathered for every pass and never "
            "trained; give parallel.strategy=ddp, or critic.adapter=null"
        )
    if isinstance(run.critic, ModelCritic):
        yield from _other_model(run, run.critic.model)


def _other_model(run: Run, model: Model) -> Iterator[str]:
    """What can be told of the critic's model without loading it."""
    needed = max([1, *prompt_lengths(run)]) + run.rollout.max_completion_tokens
    line = room_mistake(positions_of(model), needed)
    if line is not None:
        yield line
    if not isinstance(model, PretrainedModel):
        return
    yield from dead_knob(model, "critic.model", "prompt_format", "a critic reads the policy's tokens")
    # Tokens that were added to a vocabulary may stand in other files too, so those of the policy wait for the loading.
    policy, own = vocabulary_of(run.model, run.alphabet, added=False), vocabulary_of(model, "", added=True)
    line = None if policy is None or own is None else vocabulary_mistake(model.path, policy, own)
    if line is not None:
        yield line


def room_mistake(positions: int | None, needed: int) -> str | None:
    """The line about a critic whose model reads too short a text; None where it does, or states no limit.

    Args:
        needed: tokens of a prompt and its completion.
    """
    if positions is None or needed <= positions:
        return None
    return (
        f"critic.model: it has {positions} positions, but a prompt and its completion take {needed} tokens; lower "
        "rollout.max_completion_tokens, or give a critic with a longer context"
    )


def vocabulary_mistake(path: str, policy: Mapping[str, int], own: Mapping[str, int]) -> str | None:
    """The line about a critic that would read other tokens than the policy wrote; None where it would not.

    Args:
        policy: ids by token, of the policy's tokenizer.
        own: the same of the critic's, which may have more.
    """
    other = other_tokens(policy, own)
    if not other:
        return None
    shown = ", ".join(
        f"{token!r} ({number}, there {own.get(token, 'missing')})" for token, number in other[:_QUOTED_TOKENS]
    )
    return (
        f'critic.model.path: "{path}" given, whose tokenizer is not the policy\'s: {len(other)} of {len(policy)} '
        f"tokens have another id there, such as {shown}; give a model of the policy's family"
    )
