"""Needs: the models and data that an objective asks of its run, derived from its components."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be provided for an objective; nothing else is loaded."""

    critic: bool
    reference: bool
    groups: bool
    """At least two completions of each prompt."""
    old_logp: bool = False
    """Log-probabilities of the policy before the rollout's first update, even where its own pass would do."""
    entropy: bool = False
    """The policy's entropy at each token when the rollout was made."""
    entropy_gradient: bool = False
    """Entropies with their gradient in every update."""
    next_value: bool = False
    """The critic's value of the state after the last token."""
    reward: bool = True
    """The run's reward; False where the verifier's verdict alone decides."""
    samples: bool = True
    """Completions sampled for training."""
    one_update: bool = False
    """Each rollout serves one optimizer step, because nothing corrects for an older policy."""
