"""Scoring: sampled groups become the tensors that a policy-gradient objective reads, and rows of them a fresh batch."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithms.axes.batch import Batch, Credit, Rollout
from algorithms.axes.policy_gradient import PolicyGradient
from bench.compute import passes
from bench.config import Run
from bench.instruments import Instruments
from bench.learner import Cast
from bench.policy import Sequences, computed_positions, token_logps, token_logps_and_entropy, token_values, values_after
from bench.rollout import Group, sampler_logps


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
        sampled = sampler_logps(groups, sequences.completion_ids.shape[1]).to(device)

        def scored(model: nn.Module, score: Callable[[Sequences], Tensor]) -> Tensor:
            with self._passes(model):
                return by_parts(score, sequences, parts)

        old_logp, entropy = self._old_policy(sampled, sequences, parts)
        reference, critic, ref_logp, value, next_value = cast.reference, cast.critic, None, None, None
        if reference is not None:
            with self.instruments.phase("ref_logp"):
                ref_logp = scored(
                    reference.network, lambda part: token_logps(reference.network, part, config.temperature)
                )
        if critic is not None:
            with self.instruments.phase("values"):
                value = scored(critic, lambda part: token_values(critic, part))
                if self.objective.needs.next_value:
                    next_value = scored(critic, lambda part: values_after(critic, part)[:, None])[:, 0]
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

    def values(self, piece: Sequences) -> Tensor:
        """The critic's values of a microbatch, with their gradient."""
        assert self.cast.critic is not None, "only an objective with a critic asks for its values"
        with self._passes(self.cast.critic):
            return token_values(self.cast.critic, piece)

    def _old_policy(
        self, sampled: Tensor, sequences: Sequences, parts: Sequence[list[int]]
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities before the first update, and entropies where they are read; one pass gives both."""
        network, temperature = self.cast.policy.network, self.run.rollout.temperature
        # Filled by the update's own pass where that is the old policy; what is never filled is unknown, not equal.
        known = torch.full_like(sampled, torch.nan) if self.first_pass_is_old else sampled.clone()
        recomputed = self.run.rollout.old_logp == "recomputed" and not self.first_pass_is_old
        if not recomputed and not self.objective.needs.entropy:
            return known, None
        with self.instruments.phase("old_logp"), self._passes(network):
            if not self.objective.needs.entropy:
                return by_parts(lambda part: token_logps(network, part, temperature), sequences, parts), None

            def both(part: Sequences) -> Tensor:
                return torch.stack(token_logps_and_entropy(network, part, temperature), dim=-1)

            own, entropy = by_parts(both, sequences, parts).unbind(-1)
        return own if recomputed else known, entropy

    def batch(
        self, part: list[int], sequences: Sequences, rollout: Rollout, credit: Credit, tokens: Tensor
    ) -> tuple[Batch, Tensor]:
        """Rows of the rollout with the policy's fresh log-probabilities, and their entropies without a gradient.

        Args:
            part: the rows.
            tokens: float64 (all rows,): tokens that each row's group has in the optimizer step.
        """
        rows = torch.tensor(part, device=rollout.mask.device)
        piece = sequences.rows(part)
        width = piece.completion_ids.shape[1]
        with_gradient = self.objective.needs.entropy_gradient
        network = self.cast.policy.network
        with self._passes(network):
            logp, entropy = token_logps_and_entropy(network, piece, self.run.rollout.temperature, with_gradient)
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
        return batch, entropy.detach()


@torch.no_grad()
def by_parts(score: Callable[[Sequences], Tensor], sequences: Sequences, parts: Sequence[list[int]]) -> Tensor:
    """float32 (rows, completion width, ...): numbers of each token, scored part by part; 0 where there is none."""
    ids = sequences.completion_ids
    scored = [score(sequences.rows(part)) for part in parts]
    result = torch.zeros((*ids.shape, *scored[0].shape[2:]), dtype=torch.float32, device=ids.device)
    for part, values in zip(parts, scored, strict=True):
        result[torch.tensor(part, device=ids.device), : values.shape[1]] = values
    return result
