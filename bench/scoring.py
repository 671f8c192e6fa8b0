"""Scoring: sampled groups become the tensors that a policy-gradient objective reads, and rows of them a fresh batch."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from algorithms.axes.batch import Batch, Credit, Rollout
from algorithms.axes.policy_gradient import PolicyGradient
from bench import processes
from bench.compute import passes
from bench.config import Run
from bench.critics import Critic, check_room
from bench.instruments import Instruments
from bench.learner import Cast, own_parts
from bench.models import base_of
from bench.policy import (
    Sequences,
    computed_positions,
    predictor_states,
    token_logps,
    token_scores,
    token_values,
    values_after,
    values_of,
)
from bench.rollout import Group, sampler_logps
from bench.sharding import within


@dataclass(frozen=True)
class Scorer:
    """The models of a run as an objective uses them: each where it needs one, in the shapes of the update."""

    run: Run
    objective: PolicyGradient
    cast: Cast
    instruments: Instruments
    first_pass_is_old: bool
    """Whether the update's own pass is the old policy, so that no other pass is made for it."""

    def rollout(self, groups: Sequence[Group], sequences: Sequences, parts: Sequence[list[int]]) -> Rollout:
        """Score completions with every model the objective reads.

        Args:
            groups: all of the rollout, in the order of the rows.
            sequences: their completions, on the run's device.
            parts: rows that pass through a model together, as they will in the update.
        """
        config, cast, device = self.run.rollout, self.cast, torch.device(self.run.device)
        sampled = sampler_logps(groups, sequences.width).to(device)

        def scored(model: nn.Module, score: Callable[[Sequences], Tensor]) -> Tensor:
            with self._passes(model):
                return by_parts(model, score, sequences, parts)

        if cast.critic is not None and cast.critic.trunk is not None:
            check_room(cast.critic.trunk, max(map(sum, zip(sequences.prompt_lengths, sequences.lengths, strict=True))))
        old_logp, entropy, value = self._old_policy(sampled, sequences, parts)
        reference, critic, ref_logp, next_value = cast.reference, cast.critic, None, None
        if reference is not None:
            with self.instruments.phase("ref_logp"):
                frozen = reference.network
                ref_logp = scored(frozen, partial(_logps, frozen, config.temperature))
        if critic is not None and (value is None or self.objective.needs.next_value):
            model, trunk = self._read_by(critic)
            with self.instruments.phase("values"):
                if value is None:
                    value = scored(model, partial(token_values, critic, trunk))
                if self.objective.needs.next_value:
                    next_value = scored(model, lambda part: values_after(critic, trunk, part)[:, None])[:, 0]
        members = [member for group in groups for member in group.members]
        bits = [bit for group in groups for bit in group.correct]
        return Rollout(
            reward=torch.tensor([m.reward for m in members], dtype=torch.float64, device=device),
            group=torch.arange(len(groups), device=device).repeat_interleave(config.group_size),
            mask=sequences.mask,
            terminated=torch.tensor([m.completion.terminated for m in members], device=device),
            old_logp=old_logp,
            ref_logp=ref_logp,
            value=value,
            completion_budget=config.max_completion_tokens,
            correct=torch.tensor(bits, dtype=torch.float64, device=device),
            sampler_logp=sampled,
            entropy=entropy,
            next_value=next_value,
        )

    def _passes(self, model: nn.Module) -> AbstractContextManager[None]:
        return passes(self.run.compute, self.run.device, model)

    def _read_by(self, critic: Critic) -> tuple[nn.Module, PreTrainedModel]:
        """The model through which a pass for values goes, and the trunk in it whose states the critic reads."""
        if critic.trunk is not None:
            return critic, critic.trunk
        network = self.cast.policy.network
        return network, base_of(network)

    @property
    def _in_policy(self) -> Critic | None:
        """The critic, where it reads the policy's states, so that one pass serves both; None where it does not."""
        critic = self.cast.critic
        return critic if critic is not None and critic.trunk is None else None

    def values(self, piece: Sequences) -> Tensor:
        """The critic's values of a microbatch, with the gradient of its own parameters and of no others."""
        critic = self.cast.critic
        assert critic is not None, "only an objective with a critic asks for its values"
        model, trunk = self._read_by(critic)
        with self._passes(model):
            if critic.trunk is not None:
                return within(model, partial(token_values, critic, trunk, piece))
            with torch.no_grad():
                states = within(model, partial(predictor_states, trunk, piece))
        return values_of(critic, states, piece)

    def _old_policy(
        self, sampled: Tensor, sequences: Sequences, parts: Sequence[list[int]]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities before the first update, entropies where they are read, and the values of a critic that
        reads the policy's states; one pass gives all, and None is what no pass was made for."""
        network, temperature = self.cast.policy.network, self.run.rollout.temperature
        # Filled by the update's own pass where that is the old policy; what is never filled is unknown, not equal.
        known = torch.full_like(sampled, torch.nan) if self.first_pass_is_old else sampled.clone()
        recomputed = self.run.rollout.old_logp == "recomputed" and not self.first_pass_is_old
        needs_entropy, critic = self.objective.needs.entropy, self._in_policy
        if not recomputed and not needs_entropy:
            return known, None, None
        with self.instruments.phase("old_logp"), self._passes(network):
            if not needs_entropy and critic is None:
                return by_parts(network, partial(_logps, network, temperature), sequences, parts), None, None

            def all_of(part: Sequences) -> Tensor:
                found = token_scores(network, part, temperature, critic=critic)
                return torch.stack([numbers for numbers in found if numbers is not None], dim=-1)

            own, entropy, *value = by_parts(network, all_of, sequences, parts).unbind(-1)
        return own if recomputed else known, entropy if needs_entropy else None, value[0] if value else None

    def batch(
        self, part: list[int], sequences: Sequences, rollout: Rollout, credit: Credit, tokens: Tensor
    ) -> tuple[Batch, Tensor, Tensor | None]:
        """Rows of the rollout with the policy's fresh log-probabilities, their entropies without a gradient, and the
        values, with theirs, of a critic that reads the policy's states.

        Args:
            part: the rows.
            tokens: float64 (all rows,): tokens that each row's group has in the optimizer step.
        """
        rows = torch.tensor(part, device=rollout.mask.device)
        piece = sequences.rows(part)
        width = piece.width
        with_gradient = self.objective.needs.entropy_gradient
        network, temperature = self.cast.policy.network, self.run.rollout.temperature
        with self._passes(network):
            score = partial(token_scores, network, piece, temperature, with_gradient, self._in_policy)
            logp, entropy, value = within(network, score)
        if self.first_pass_is_old:
            rollout.old_logp[rows, :width] = logp.detach()
        self.instruments.clock.count(padded=computed_positions(network, piece))
        batch = Batch(
            logp=logp,
            old_logp=rollout.old_logp[rows, :width],
            ref_logp=None if rollout.ref_logp is None else rollout.ref_logp[rows, :width],
            advantage=credit.advantage[rows, :width],
            mask=credit.mask[rows, :width],
            group_tokens=tokens[rows],
            weight=None if credit.weight is None else credit.weight[rows, :width],
            entropy=entropy if with_gradient else None,
        )
        return batch, entropy.detach(), value

    def share_old_logp(self, rollout: Rollout) -> None:
        """Where the update's own pass fills the old policy in, give every process what the others have filled in."""
        if self.first_pass_is_old and processes.count() > 1:
            rollout.old_logp.copy_(processes.filled(rollout.old_logp))


def _logps(network: PreTrainedModel, temperature: float, part: Sequences) -> Tensor:
    return token_logps(network, part, temperature)


@torch.no_grad()
def by_parts(
    model: nn.Module, score: Callable[[Sequences], Tensor], sequences: Sequences, parts: Sequence[list[int]]
) -> Tensor:
    """float32 (rows, completion width, ...): numbers of each token, scored part by part; 0 where there is none.

    Each process passes its share of the parts through the model, and every process gets all numbers.
    """
    scored = [
        (part, counts, within(model, partial(score, sequences.rows(part))))
        for part, counts in own_parts(parts, sequences, model)
    ]
    device = sequences.device
    shape = (len(sequences), sequences.width, *scored[0][2].shape[2:])
    result = torch.zeros(shape, dtype=torch.float32, device=device)
    for part, counts, values in scored:
        if counts:
            result[torch.tensor(part, device=device), : values.shape[1]] = values
    return processes.total(result)
