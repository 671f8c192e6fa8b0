"""Preference learning: sample once from the starting policy, grade, make pairs, then train on the pairs offline.

The budget is an online run's: as many completions are sampled, for the same prompts, as an online objective would
sample in the same number of updates, and each update passes as many completions through the loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms.axes.batch import PairBatch, PairTotals
from algorithms.axes.preference import GradedPairs, Preference
from bench import processes
from bench.compute import passes
from bench.config import Optimizer, Run
from bench.instruments import Instruments
from bench.learner import Cast, backward
from bench.offline import (
    OFFLINE_TEMPERATURE,
    completions_per_update,
    coverage,
    pass_order,
    sample_all,
    sampling_metrics,
)
from bench.optimize import StepMetrics, schedule_factor, step_report, take_step
from bench.policy import Sequences, computed_positions, planned, token_logps
from bench.rollout import Graded, Group, NothingToLearn, Sampler
from bench.seeding import generator, stream_key, uniforms
from bench.sharding import is_fully_sharded, within


@dataclass(frozen=True)
class Pair:
    """Two completions of one prompt, the first preferred."""

    prompt_ids: tuple[int, ...]
    chosen: Graded
    rejected: Graded

    @property
    def num_tokens(self) -> int:
        """Tokens of both completions."""
        return len(self.chosen.completion.token_ids) + len(self.rejected.completion.token_ids)


class PairLearner:
    """Preference objectives. The reference is the starting policy; its log-probabilities are taken before the first
    update, so no second model is held."""

    def __init__(self, run: Run, objective: Preference, cast: Cast, sampler: Sampler, instruments: Instruments) -> None:
        self.run, self.objective, self.cast = run, objective, cast
        self.sampler, self.instruments = sampler, instruments
        self.device = torch.device(run.device)
        self.pairs: list[Pair] = []
        self.reference = torch.zeros((0, 2))
        self.found: dict[str, float] = {}

    @property
    def updates_per_advance(self) -> int:
        return 1

    @property
    def pairs_per_update(self) -> int:
        """As many completions an update as an online run's, two a pair; fewer where too few pairs were found, so that
        none enters an update twice."""
        return min(max(1, completions_per_update(self.run.rollout) // 2), len(self.pairs))

    def prepare(self) -> None:
        """Sample and pair with the policy as it is, which must be the starting policy; take its log-probabilities."""
        groups = sample_all(self.run, self.cast, self.sampler, self.instruments)
        memory = self.instruments.memory
        made = [all_pairs_of(self.run, self.objective.pairing, group, i) for i, group in enumerate(groups)]
        by_group = [labelled(self.run, own, i) for i, own in enumerate(made)]
        num_made = sum(map(len, made))
        self.pairs = [pair for pairs in by_group for pair in pairs]
        self._check_pairs(groups, num_made)
        reference = torch.zeros((len(self.pairs), 2), device=self.device)
        for i, (part, counts, sides) in enumerate(self._own_parts(range(len(self.pairs)))):
            memory.metering = i == 0 and self.run.meter.every > 0
            with self.instruments.phase("ref_logp"), torch.no_grad():
                summed = self._scored(sides)
            if counts:
                reference[part] = summed
        memory.metering = False
        self.reference = processes.total(reference)
        self.found = {
            "dpo/num_pairs": len(self.pairs),
            "dpo/prompts_used": sum(1 for pairs in by_group if pairs) / len(groups),
            "dpo/length_gap": self._length_gap(),
            **sampling_metrics(self.run.reward, groups),
            **({"reward/labelled_rate": len(self.pairs) / num_made} if self.run.reward.sparsity < 1 else {}),
            **coverage(self.run),
        }

    def _own_parts(self, pairs: Sequence[int]) -> list[tuple[list[int], bool, Sequences]]:
        """This process's share of some pairs, given by number, a microbatch at a time: which, whether they count, and
        their completions as a pass reads them."""
        policy = self.cast.policy
        cut = pair_parts([self.pairs[i] for i in pairs], self.run.optimizer)
        parts = [[pairs[i] for i in part] for part in cut]
        costs = [sum(self.pairs[i].num_tokens for i in part) for part in parts]
        shared = processes.share(parts, costs, even=is_fully_sharded(policy.network))
        return [
            (part, counts, planned(policy.network, sides_of([self.pairs[i] for i in part], policy.pad_id, self.device)))
            for part, counts in shared
        ]

    def _check_pairs(self, groups: Sequence[Group], num_made: int) -> None:
        if self.pairs:
            return
        if num_made:
            raise NothingToLearn(f"none of the {num_made} preference pairs carries a label: raise reward.sparsity")
        members = [member for group in groups for member in group.members]
        right = sum(1 for m in members if m.observed)
        ended = sum(1 for m in members if m.completion.terminated)
        raise NothingToLearn(
            f"no preference pair in {len(groups)} prompts x {self.run.rollout.group_size} completions ({right} "
            f"correct, {ended} ended by themselves): make the task easier or harder, give partial credit "
            "(reward.format), raise rollout.max_completion_tokens, or set objective.pairing.require_termination=false"
        )

    def _scored(self, sides: Sequences) -> Tensor:
        """`summed_logps` by the policy as it is now, counted."""
        network = self.cast.policy.network
        self.instruments.clock.count(padded=computed_positions(network, sides))
        with passes(self.run.compute, self.run.device, network):
            return within(network, lambda: summed_logps(network, sides))

    def _length_gap(self) -> float:
        gaps = [len(p.chosen.completion.token_ids) - len(p.rejected.completion.token_ids) for p in self.pairs]
        return sum(gaps) / len(gaps)

    def advance(self) -> Iterator[dict[str, Any]]:
        """One optimizer step on the next pairs."""
        cast, progress = self.cast, self.cast.progress
        order = pass_order(self.run.seed, "pair order", len(self.pairs), self.pairs_per_update, progress.update)
        order.sort(key=lambda i: len(self.pairs[i].chosen.completion.token_ids))
        trained = sum(self.pairs[i].num_tokens for i in order)
        factor = schedule_factor(self.run.optimizer, progress.update + 1, self.run.budget.updates)
        chosen_tokens = sum(len(self.pairs[i].chosen.completion.token_ids) for i in order)
        totals = PairTotals(num_pairs=len(order), num_chosen_tokens=chosen_tokens)
        metrics = StepMetrics()
        own = self._own_parts(order)
        with self.instruments.phase("policy_update"):
            for part, counts, sides in own:
                batch = pair_batch([self.pairs[j] for j in part], self._scored(sides), self.reference[part])
                parts = self.objective.loss(batch, totals)
                backward(parts.loss, counts)
                if counts:
                    metrics.add(parts)
            metrics = metrics.over_processes()
            loss = metrics.checked_loss()
            norm = take_step(cast.optimizer, self.run.optimizer.lr * factor, self.run.optimizer.max_grad_norm)
        self.instruments.clock.count(trained=trained)
        first = self.found if progress.update == 0 else {}
        progress.update += 1
        progress.trained_tokens += trained
        passes = progress.update * self.pairs_per_update / len(self.pairs)
        counters = {"tokens/trained": progress.trained_tokens, "dpo/passes": passes}
        yield {
            "update": progress.update,
            "loss": loss,
            **step_report(cast.optimizer, norm, self.run.optimizer.max_grad_norm),
            **metrics.values(),
            **counters,
            **first,
        }


def pairs_of(run: Run, pairing: GradedPairs, group: Group, index: int) -> list[Pair]:
    """Pairs of group `index` that carry a label: what training has of it."""
    return labelled(run, all_pairs_of(run, pairing, group, index), index)


def labelled(run: Run, pairs: list[Pair], index: int) -> list[Pair]:
    """The pairs of group `index` that reward.sparsity leaves a label, each drawn for itself."""
    if run.reward.sparsity == 1:
        return pairs
    (draws,) = uniforms([stream_key(run.seed, "pair label", index)], 0, len(pairs))
    return [pair for pair, draw in zip(pairs, draws, strict=True) if draw < run.reward.sparsity]


def all_pairs_of(run: Run, pairing: GradedPairs, group: Group, index: int) -> list[Pair]:
    """All pairs of group `index`: shuffle both sides, zip, cycle the shorter one; identical texts enter once."""
    seen: dict[tuple[int, ...], int] = {}
    for i, member in enumerate(group.members):
        seen.setdefault(member.completion.token_ids, i)
    unique = [group.members[i] for i in seen.values()]
    reward = torch.tensor([m.reward for m in unique], dtype=torch.float64)
    ended = torch.tensor([m.completion.terminated for m in unique])
    sides = pairing.split(reward, ended)
    if not all(sides):
        return []
    shuffle = generator(run.seed, "pairs", index)
    chosen, rejected = ([side[j] for j in shuffle.permutation(len(side))] for side in sides)
    count = min(pairing.max_pairs_per_prompt, max(len(chosen), len(rejected)))
    return [
        Pair(group.prompt_ids, unique[chosen[i % len(chosen)]], unique[rejected[i % len(rejected)]])
        for i in range(count)
    ]


def pair_parts(pairs: Sequence[Pair], config: Optimizer) -> list[list[int]]:
    """Indices of pairs, in order, cut into parts within the limits of `config`; a pair is two completions."""
    most = max(1, (config.microbatch_sequences or 2 * len(pairs)) // 2)
    most = min(most, max(1, -(-len(pairs) // processes.count())))  # several processes share the parts
    parts: list[list[int]] = []
    tokens = 0
    for i, pair in enumerate(pairs):
        sides = (pair.prompt_ids, pair.chosen.completion.token_ids, pair.rejected.completion.token_ids)
        more = sum(map(len, sides))
        if not parts or tokens + more > config.microbatch_tokens or len(parts[-1]) == most:
            parts.append([])
            tokens = 0
        parts[-1].append(i)
        tokens += more
    return parts


def sides_of(pairs: Sequence[Pair], pad_id: int, device: torch.device) -> Sequences:
    """All chosen completions, then all rejected ones."""
    sides = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    prompts = [pair.prompt_ids for pair in pairs] * 2
    return Sequences.of(prompts, [side.completion.token_ids for side in sides], pad_id).to(device)


def summed_logps(network: PreTrainedModel, sides: Sequences) -> Tensor:
    """Summed log-probabilities of (chosen, rejected), of what `sides_of` gives: float32 (pairs, 2)."""
    return token_logps(network, sides, OFFLINE_TEMPERATURE).sum(dim=1).view(2, -1).T


def pair_batch(pairs: Sequence[Pair], own: Tensor, reference: Tensor) -> PairBatch:
    """Pairs with the policy's and the reference's `summed_logps`."""

    def lengths(sides: Sequence[Graded]) -> Tensor:
        return torch.tensor([float(len(side.completion.token_ids)) for side in sides], device=own.device)

    return PairBatch(
        chosen_logp=own[:, 0],
        rejected_logp=own[:, 1],
        ref_chosen_logp=reference[:, 0],
        ref_rejected_logp=reference[:, 1],
        chosen_length=lengths([pair.chosen for pair in pairs]),
        rejected_length=lengths([pair.rejected for pair in pairs]),
    )
