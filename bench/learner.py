"""What a family of objectives brings to the training loop: advance by one rollout, and say what it is made of."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from bench.models import Critic, LanguageModel
from bench.rollout import Group


@dataclass
class Progress:
    """Counters that shape the future of a run; saved with every checkpoint."""

    update: int = 0
    generation_round: int = 0
    generated_tokens: int = 0
    generated_completions: int = 0
    trained_tokens: int = 0
    informative: bool = False
    """Whether any rollout so far gave the policy something to learn from."""


@dataclass(frozen=True)
class Cast:
    """The models of a run and their optimizers; None where the objective does not need them."""

    policy: LanguageModel
    optimizer: torch.optim.Optimizer
    reference: LanguageModel | None = None
    critic: Critic | None = None
    critic_optimizer: torch.optim.Optimizer | None = None
    progress: Progress = field(default_factory=Progress)
    carried: list[Group] = field(default_factory=list[Group])
    """Groups that earlier rollouts left over, trained on first in the next one; saved with every checkpoint."""


class Learner(Protocol):
    """One family's way from prompts to optimizer steps."""

    cast: Cast

    @property
    def updates_per_advance(self) -> int:
        """Optimizer steps in one advance."""
        ...

    def prepare(self) -> None:
        """Work before the first update, such as making preference pairs; also after a resume."""
        ...

    def advance(self) -> Iterator[dict[str, Any]]:
        """The next optimizer steps; yields the metrics of each when it is done, names from the glossary."""
        ...


def microbatches(rows: list[int], lengths: tuple[int, ...], size: int) -> list[list[int]]:
    """Rows of one optimizer step cut into parts of at most `size`, neighbours in length together to save padding."""
    ordered = sorted(rows, key=lambda row: (lengths[row], row))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]
