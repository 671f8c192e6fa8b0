"""Continuations of prefixes: sampled by the run's engine, graded by the run's reward, worth what the objective says."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from algorithms.axes.batch import Rollout
from algorithms.axes.policy_gradient import PolicyGradient
from bench import processes
from bench.baseline_quality.returns import returns_to_go
from bench.compute import passes
from bench.config import Run
from bench.generate import Completion
from bench.learner import Cast, microbatches
from bench.models import LanguageModel
from bench.policy import Sequences, reads_packed, token_logps
from bench.rewards import Rewarder
from bench.rollout import Group, Sampler, judged, samples_of
from bench.scoring import by_parts
from bench.seeding import stream_key
from bench.sharding import unsharded

_MOST_COMPLETIONS = 4096
"""Continuations that are sampled, graded and scored at once."""
_SPAN = 8
"""Prefixes are continued together whose lengths differ by less than this part of the completion budget."""


@dataclass(frozen=True)
class Prefix:
    """The beginning of a completion of one of a rollout's groups."""

    group: Group
    tokens: tuple[int, ...]
    logps: tuple[float, ...]
    """The sampler's, one a token."""

    @property
    def state(self) -> tuple[int, ...]:
        """What tells it from the other prefixes of a rollout: its group's place and its tokens."""
        return (self.group.round, self.group.position, *self.tokens)


@dataclass(frozen=True)
class Continuer:
    """Continues prefixes by the policy that made them; its streams are its own, told apart by `key`."""

    run: Run
    objective: PolicyGradient
    cast: Cast
    sampler: Sampler
    rewarder: Rewarder
    key: int
    """Of the measurement; a continuation's stream is that of its prefix and of its number."""
    spent: Counter[tuple[int, ...]] = field(default_factory=Counter[tuple[int, ...]])
    """Tokens sampled so far from each state."""

    def returns(self, wanted: Sequence[tuple[Prefix, int]], size: int) -> list[np.ndarray]:
        """The return from the end of each prefix on, of `size` continuations: block `number` of that prefix.

        NaN where a continuation could not be scored.
        """
        found: dict[int, np.ndarray] = {}
        model, budget = self.cast.policy, self.run.rollout.max_completion_tokens
        for batch in batches([prefix for prefix, _ in wanted], size, budget, model.context):
            own = [wanted[i] for i in batch]
            found |= dict(zip(batch, self._returns(model, own, size), strict=True))
        return [found[i] for i in range(len(wanted))]

    def _returns(self, model: LanguageModel, batch: Sequence[tuple[Prefix, int]], size: int) -> list[np.ndarray]:
        keys = [self._keys(prefix, number, size) for prefix, number in batch]
        own, own_keys = processes.mine(batch), processes.mine(keys)
        graded = processes.gather_items(self._graded(model, own, own_keys))
        groups = judged(self.sampler.judge, self.rewarder, graded)
        samples = samples_of(groups, keys)
        for (prefix, _), group in zip(batch, groups, strict=True):
            lengths = [len(member.completion.token_ids) - len(prefix.tokens) for member in group.members]
            self.spent[prefix.state] += sum(lengths)
        worths = processes.from_main(lambda: self.rewarder.worths(samples))
        rollout = self._rollout(groups, [worth.reward for worth in worths], [worth.observed for worth in worths])
        starts = torch.tensor([len(prefix.tokens) for prefix, _ in batch], device=rollout.mask.device)
        to_go = returns_to_go(self.objective, rollout)
        picked = to_go.gather(1, starts.repeat_interleave(size)[:, None]).reshape(len(batch), size)
        return list(picked.cpu().numpy())

    def _keys(self, prefix: Prefix, number: int, size: int) -> list[int]:
        state = stream_key(self.key, prefix.group.problem.id, *prefix.state)
        return [stream_key(state, number * size + k) for k in range(size)]

    def _graded(
        self, model: LanguageModel, batch: Sequence[tuple[Prefix, int]], keys: Sequence[Sequence[int]]
    ) -> list[Group]:
        """A group of whole completions for each prefix: it and what was sampled after it."""
        if not batch:
            return []
        budget = self.run.rollout.max_completion_tokens
        prompts = [[*prefix.group.prompt_ids, *prefix.tokens] for prefix, _ in batch]
        left = budget - min(len(prefix.tokens) for prefix, _ in batch)
        how = {"max_tokens": left, "temperature": self.run.rollout.temperature}
        with unsharded(model.network):
            sampled = self.sampler.generate(model, prompts, keys, **how)
        problems = [prefix.group.problem for prefix, _ in batch]
        whole = [[joined(prefix, one, budget) for one in own] for (prefix, _), own in zip(batch, sampled, strict=True)]
        members = iter(self.sampler.graded(model, problems, whole))
        return [
            Group(
                prefix.group.problem,
                prefix.group.prompt_ids,
                tuple(next(members) for _ in own),
                prefix.group.round,
                prefix.group.position,
            )
            for (prefix, _), own in zip(batch, sampled, strict=True)
        ]

    def _rollout(self, groups: Sequence[Group], reward: list[float], observed: list[bool | None]) -> Rollout:
        """The whole completions as the objective reads them, scored by the models that its returns depend on."""
        device = torch.device(self.run.device)
        completions = [member.completion for group in groups for member in group.members]
        prompts = [group.prompt_ids for group in groups for _ in group.members]
        sequences = Sequences.of(prompts, [one.token_ids for one in completions], self.cast.policy.pad_id).to(device)
        bits = [math.nan if bit is None else float(bit) for bit in observed]
        old_logp, ref_logp = self._logps(completions, sequences)
        return Rollout(
            reward=torch.tensor(reward, dtype=torch.float64, device=device),
            group=torch.arange(len(groups), device=device).repeat_interleave(len(groups[0].members)),
            mask=sequences.mask,
            terminated=torch.tensor([one.terminated for one in completions], device=device),
            old_logp=old_logp,
            ref_logp=ref_logp,
            value=None,
            completion_budget=self.run.rollout.max_completion_tokens,
            correct=torch.tensor(bits, dtype=torch.float64, device=device),
        )

    def _logps(self, completions: Sequence[Completion], sequences: Sequences) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the policy and of the reference where a penalty is charged in the reward; they cost a
        pass each, and are nothing elsewhere."""
        width, device = sequences.width, sequences.device
        if not self.objective.penalty.in_reward:
            return torch.zeros(len(completions), width, device=device), None
        reference = self.cast.reference
        assert reference is not None, "a penalty in the reward reads the reference"
        if self.run.rollout.old_logp == "sampler":
            rows = [[*one.logps, *[0.0] * (width - len(one.logps))] for one in completions]
            old = torch.tensor(rows, dtype=torch.float32, device=device)
        else:
            old = self._scored(self.cast.policy, sequences)
        return old, self._scored(reference, sequences)

    def _scored(self, model: LanguageModel, sequences: Sequences) -> Tensor:
        network, temperature = model.network, self.run.rollout.temperature
        parts = microbatches(range(len(sequences)), sequences, self.run.optimizer, packed=reads_packed(network))
        with passes(self.run.compute, self.run.device, network):
            return by_parts(network, lambda part: token_logps(network, part, temperature), sequences, parts)


def batches(prefixes: Sequence[Prefix], size: int, budget: int, context: int | None) -> Iterator[list[int]]:
    """Indices of prefixes of nearly the same length, which are continued together.

    All of a batch may take as many tokens as its shortest has left, which the longest must have positions for.

    Args:
        size: continuations of each.
        budget: most tokens of a whole completion.
        context: positions of the model; None where it has no end.
    """
    batch: list[int] = []
    for i in sorted(range(len(prefixes)), key=lambda i: (len(prefixes[i].tokens), i)):
        ahead = len(prefixes[i].tokens) - len(prefixes[batch[0]].tokens) if batch else 0
        longest = max(len(prefixes[j].group.prompt_ids) for j in [*batch, i]) + budget + ahead
        too_far = ahead and (ahead * _SPAN >= budget or (context is not None and longest > context))
        if batch and (too_far or (len(batch) + 1) * size > _MOST_COMPLETIONS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def joined(prefix: Prefix, continuation: Completion, budget: int) -> Completion:
    """The whole completion, cut where the budget cuts: a continuation may have gone on for longer, among others."""
    left = budget - len(prefix.tokens)
    return Completion(
        token_ids=(*prefix.tokens, *continuation.token_ids[:left]),
        terminated=continuation.terminated and len(continuation.token_ids) <= left,
        logps=(*prefix.logps, *continuation.logps[:left]),
    )
