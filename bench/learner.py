"""What a family of objectives brings to the training loop: advance by one rollout, and say what it is made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bench import processes
from bench.config import Optimizer
from bench.critics import Critic
from bench.models import LanguageModel
from bench.policy import Sequences
from bench.rollout import Group, Sampler
from bench.sharding import is_fully_sharded


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
    material: str = ""
    """Digest of the pairs or completions in use, where they are kept in files of the run: `bench.kept`."""


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
    sampler: Sampler

    @property
    def updates_per_advance(self) -> int:
        """Optimizer steps in one advance."""
        ...

    def prepare(self) -> None:
        """Work before the first update, such as making preference pairs; also after a resume, before its weights."""
        ...

    def can_go_on(self, progress: Progress) -> bool:
        """Whether the files that the next updates learn from are there, for a run that stood at these counters."""
        ...

    def advance(self) -> Iterator[dict[str, Any]]:
        """The next optimizer steps; yields the metrics of each when it is done, names from the glossary."""
        ...


def microbatches(rows: Sequence[int], sequences: Sequences, config: Optimizer, *, packed: bool) -> list[list[int]]:
    """Rows of one optimizer step cut into parts within the limits of `config`; a row that exceeds them is alone.

    Args:
        packed: completions of one prompt stay together, for it is computed once in each part; otherwise neighbours in
            length do, to save padding.
    """
    prompts, lengths = sequences.prompts, sequences.lengths
    first = {prompt: i for i, prompt in reversed(list(enumerate(prompts)))}
    # Several processes share the parts, so there is at least one for each.
    most = min(config.microbatch_sequences or len(rows), -(-len(rows) // processes.count()))
    parts: list[list[int]] = []
    tokens = longest = 0
    for row in sorted(rows, key=lambda row: (first[prompts[row]] if packed else lengths[row], row)):
        part = parts[-1] if parts else []
        alone = len(prompts[row]) + lengths[row]
        if packed:
            # Rows of one prompt follow each other, so it is in the part already or not at all.
            total = tokens + (lengths[row] if part and prompts[part[-1]] == prompts[row] else alone)
        else:
            total = max(longest, alone) * (len(part) + 1)
        if not part or total > config.microbatch_tokens or len(part) == most:
            parts.append([row])
            tokens = longest = alone
        else:
            part.append(row)
            tokens, longest = total, max(longest, alone)
    return parts


def own_parts(parts: Sequence[list[int]], sequences: Sequences, network: nn.Module) -> list[tuple[list[int], bool]]:
    """The parts that this process passes through the network, and whether each counts (`bench.processes.share`)."""
    costs = [sum(len(sequences.prompts[row]) + sequences.lengths[row] for row in part) for part in parts]
    return processes.share(parts, costs, even=is_fully_sharded(network))


def backward(loss: Tensor, counts: bool) -> None:
    """Add the gradient of a part's loss; of one that does not count, zeros."""
    (loss if counts else loss * 0).backward()
