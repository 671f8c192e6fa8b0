"""Online learning: sample with the present policy, assign credit once, take the rollout's optimizer steps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algorithms.axes.advantage import degenerate
from algorithms.axes.batch import Batch, Credit, Rollout, Totals, ValueBatch, group_tokens
from algorithms.axes.masked import masked, masked_mean
from algorithms.axes.penalty import kl_estimate
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.value import NoCritic, explained_variance
from bench.config import Run
from bench.instruments import Instruments
from bench.learner import Cast, microbatches
from bench.optimize import StepMetrics, schedule_factor, take_step
from bench.policy import Sequences, token_logps, token_logps_and_entropy, token_values
from bench.rollout import Collected, Group, NothingToLearn, PromptStream, Sampler, sampler_logps, sequences_of
from bench.seeding import generator

PATIENCE = 10
"""Rollouts without one informative group, from the start, after which a run ends with a sentence that says so."""


LARGEST_MISMATCH = 1e-3
"""Nats; float32 on one machine stays below 1e-4 for every architecture that the sampler can batch."""


class EngineMismatch(RuntimeError):
    """Sampler and trainer disagree about the same model: samples are not from the policy that is trained."""


@dataclass(frozen=True)
class Step:
    """The plan of one optimizer step: its rows and how they are cut; fixed before anything is measured."""

    epoch: int
    rows: list[int]
    parts: list[list[int]]


class OnlineLearner:
    """Policy-gradient objectives, with a critic and a reference exactly where the objective needs them."""

    def __init__(
        self, run: Run, objective: PolicyGradient, cast: Cast, sampler: Sampler, instruments: Instruments
    ) -> None:
        self.run, self.objective, self.cast = run, objective, cast
        self.sampler, self.instruments = sampler, instruments
        self.stream = PromptStream(run.task, run.seed, run.rollout.prompts)
        self.device = torch.device(run.device)

    @property
    def _first_pass_is_old(self) -> bool:
        """With one update a rollout, the update's own pass is the old policy: its ratio is exactly 1, and another pass
        would only repeat it. A penalty in the reward needs the log-probabilities before, for the advantage."""
        once = self.updates_per_advance == 1 and self.run.rollout.old_logp == "recomputed"
        return once and not self.objective.penalty.needs_token_credit

    def prepare(self) -> None:
        """Nothing comes before the first rollout."""

    @property
    def updates_per_advance(self) -> int:
        return self.run.rollout.updates_per_rollout * self.run.rollout.epochs

    def advance(self) -> Iterator[dict[str, Any]]:
        """One rollout and its optimizer steps; yields each step's metrics, names from the glossary."""
        progress = self.cast.progress
        collected = self.sampler.collect(
            self.cast.policy, self.stream, progress.generation_round, self.objective.selection
        )
        progress.generation_round += collected.rounds
        sequences = sequences_of(collected.groups, self.cast.policy.pad_id).to(self.device)
        plan = self._plan(collected, sequences)
        rollout = self._rollout(collected, sequences, plan)
        with self.instruments.phase("advantage"):
            credit = self.objective.credit(rollout)
        self._check_informative(credit)
        for i, step in enumerate(plan):
            record = self._update(step, sequences, rollout, credit)
            yield record | (self._rollout_metrics(collected, rollout, credit) if i == 0 else {})

    def _plan(self, collected: Collected, sequences: Sequences) -> list[Step]:
        """Minibatches of whole groups for every epoch, cut into microbatches."""
        config = self.run.rollout
        size = config.group_size
        steps: list[Step] = []
        for epoch in range(config.epochs):
            order = generator(self.run.seed, "minibatches", self.cast.progress.update, epoch).permutation(
                len(collected.groups)
            )
            for own in torch.tensor_split(torch.from_numpy(order), config.updates_per_rollout):
                rows = [group * size + member for group in own.tolist() for member in range(size)]
                parts = microbatches(rows, sequences.lengths, self.run.optimizer.microbatch_sequences)
                steps.append(Step(epoch, rows, parts))
        # A partial rollout may leave minibatches empty; whatever comes, the budget of updates is not exceeded.
        return [step for step in steps if step.rows][: self.run.budget.updates - self.cast.progress.update]

    def _rollout(self, collected: Collected, sequences: Sequences, plan: Sequence[Step]) -> Rollout:
        """Score the completions with every model the objective reads, in the update's own shapes."""
        config, cast = self.run.rollout, self.cast
        parts = [part for step in plan if step.epoch == 0 for part in step.parts]
        width = sequences.completion_ids.shape[1]
        sampled = sampler_logps(collected.groups, width).to(self.device)

        def scored(score: Any) -> Tensor:
            return self._by_parts(score, sequences, parts)

        old_logp = sampled.clone()
        if config.old_logp == "recomputed" and not self._first_pass_is_old:
            with self.instruments.phase("old_logp"):
                old_logp = scored(lambda part: token_logps(cast.policy.network, part, config.temperature))
        reference, critic, ref_logp, value = cast.reference, cast.critic, None, None
        if reference is not None:
            with self.instruments.phase("ref_logp"):
                ref_logp = scored(lambda part: token_logps(reference.network, part, config.temperature))
        if critic is not None:
            with self.instruments.phase("values"):
                value = scored(lambda part: token_values(critic, part))
        members = [member for group in collected.groups for member in group.members]
        return Rollout(
            reward=torch.tensor([m.reward for m in members], dtype=torch.float64, device=self.device),
            group=torch.arange(len(collected.groups), device=self.device).repeat_interleave(config.group_size),
            mask=sequences.mask,
            terminated=torch.tensor([m.completion.terminated for m in members], device=self.device),
            old_logp=old_logp,
            ref_logp=ref_logp,
            value=value,
            completion_budget=config.max_completion_tokens,
        )

    @torch.no_grad()
    def _by_parts(self, score: Any, sequences: Sequences, parts: list[list[int]]) -> Tensor:
        result = torch.zeros(sequences.completion_ids.shape, dtype=torch.float32, device=self.device)
        for part in parts:
            values = score(sequences.rows(part))
            result[torch.tensor(part, device=self.device), : values.shape[1]] = values
        return result

    def _check_informative(self, credit: Credit) -> None:
        progress = self.cast.progress
        progress.informative = progress.informative or bool((credit.advantage != 0).any())
        rollouts = progress.update // self.updates_per_advance + 1
        planned = self.run.budget.updates // self.updates_per_advance
        if not progress.informative and rollouts >= min(PATIENCE, planned):
            raise NothingToLearn(
                f"no informative group in the first {rollouts} rollouts: every advantage was zero or unscorable, so no "
                "update could move the policy. Make the task easier, enlarge rollout.group_size, or give partial "
                "credit (reward.format)"
            )

    def _update(self, step: Step, sequences: Sequences, rollout: Rollout, credit: Credit) -> dict[str, Any]:
        """One optimizer step of the critic, where there is one, and of the policy."""
        cast, progress = self.cast, self.cast.progress
        rows = torch.tensor(step.rows, device=self.device)
        totals = Totals.of(credit.mask[rows], rollout.group[rows], rollout.completion_budget)
        tokens = torch.zeros(len(sequences), dtype=torch.float64, device=self.device)
        tokens[rows] = group_tokens(credit.mask[rows], rollout.group[rows])
        factor = schedule_factor(self.run.optimizer, progress.update + 1, self.run.budget.updates)
        record: dict[str, Any] = {"update": progress.update + 1}
        if not totals.num_tokens:
            # Nothing could be scored. AdamW would move the weights all the same, by its momentum and its decay.
            progress.update += 1
            return record | {"tokens/trained": progress.trained_tokens}
        if cast.critic is not None:
            with self.instruments.phase("critic_update"):
                record |= self._critic_step(step, sequences, rollout, credit, totals, factor)
        with self.instruments.phase("policy_update"):
            metrics = StepMetrics()
            for batch, entropy in self._batches(step, sequences, rollout, credit, tokens):
                parts = self.objective.loss(batch, totals)
                parts.loss.backward()
                metrics.add(parts)
                metrics.add_mean("entropy", masked_mean(entropy, batch.mask))
            loss = metrics.checked_loss()
            norm = take_step(cast.optimizer, self.run.optimizer.lr * factor, self.run.optimizer.max_grad_norm)
        self.instruments.clock.count(trained=totals.num_tokens)
        progress.update += 1
        progress.trained_tokens += totals.num_tokens
        lr = cast.optimizer.param_groups[0]["lr"]
        counters = {"tokens/trained": progress.trained_tokens}
        return record | {"loss": loss, "grad_norm": norm, "lr": lr, **metrics.values(), **counters}

    def _batches(
        self, step: Step, sequences: Sequences, rollout: Rollout, credit: Credit, tokens: Tensor
    ) -> Iterator[tuple[Batch, Tensor]]:
        """The step's microbatches with the policy's fresh log-probabilities, and their entropies."""
        for part in step.parts:
            rows = torch.tensor(part, device=self.device)
            piece = sequences.rows(part)
            width = piece.completion_ids.shape[1]
            logp, entropy = token_logps_and_entropy(self.cast.policy.network, piece, self.run.rollout.temperature)
            if self._first_pass_is_old:
                rollout.old_logp[rows, :width] = logp.detach()
            self.instruments.clock.count(padded=len(part) * (piece.prompt_ids.shape[1] + width))
            batch = Batch(
                logp=logp,
                old_logp=rollout.old_logp[rows, :width],
                ref_logp=None if rollout.ref_logp is None else rollout.ref_logp[rows, :width],
                advantage=credit.advantage[rows, :width],
                mask=credit.mask[rows, :width],
                group_tokens=tokens[rows],
            )
            yield batch, entropy

    def _critic_step(
        self, step: Step, sequences: Sequences, rollout: Rollout, credit: Credit, totals: Totals, factor: float
    ) -> dict[str, float]:
        cast, config = self.cast, self.run.critic
        value_loss, old_value, returns = self.objective.value, rollout.value, credit.returns
        assert not isinstance(value_loss, NoCritic)
        assert cast.critic is not None
        assert cast.critic_optimizer is not None
        assert config is not None
        assert old_value is not None
        assert returns is not None
        metrics = StepMetrics()
        for part in step.parts:
            rows = torch.tensor(part, device=self.device)
            piece = sequences.rows(part)
            width = piece.completion_ids.shape[1]
            batch = ValueBatch(
                value=token_values(cast.critic, piece),
                old_value=old_value[rows, :width],
                returns=returns[rows, :width],
                mask=credit.mask[rows, :width],
            )
            parts = value_loss(batch, totals)
            parts.loss.backward()
            metrics.add(parts)
        metrics.checked_loss()
        norm = take_step(cast.critic_optimizer, config.lr * factor, config.max_grad_norm)
        return metrics.values() | {"value/grad_norm": norm}

    def _rollout_metrics(self, collected: Collected, rollout: Rollout, credit: Credit) -> dict[str, float]:
        """What is known once per rollout, for its first update's record; rewards and lengths are before selection."""
        progress = self.cast.progress
        lengths = [len(m.completion.token_ids) for group in collected.sampled for m in group.members]
        progress.generated_completions += len(lengths)
        progress.generated_tokens += sum(lengths)
        mask = rollout.mask
        sampled = sampler_logps(collected.groups, mask.shape[1]).to(self.device)
        gap = masked((rollout.old_logp - sampled).abs(), mask)
        if self.run.device == "cpu" and float(gap.max()) > LARGEST_MISMATCH:
            raise EngineMismatch(
                f"model.path: the sampler's and the trainer's log-probabilities differ by up to {float(gap.max()):.2g} "
                "nats, where float32 allows 1e-3: this model's state does not live in the cache that is batched"
            )
        advantage = credit.advantage[credit.mask].double()
        metrics = {
            **reward_metrics(collected.sampled),
            "groups/kept_frac": len(collected.groups) / len(collected.sampled),
            "groups/rounds": collected.rounds,
            **length_metrics(collected.sampled),
            "adv/mean": float(advantage.mean()),
            "adv/std": float(advantage.std()) if len(advantage) > 1 else math.nan,
            "mismatch/absdiff_mean": float(gap.sum() / mask.sum()),
            "mismatch/absdiff_max": float(gap.max()),
            "tokens/generated": progress.generated_tokens,
            "completions/generated": progress.generated_completions,
        }
        if rollout.ref_logp is not None:
            for estimator in ("k1", "k3"):
                estimate = kl_estimate(rollout.old_logp, rollout.ref_logp, estimator)
                metrics[f"kl/ref_{estimator}"] = masked_mean(estimate, mask).value()
        if rollout.value is not None and credit.returns is not None:
            valid = credit.mask
            metrics["value/explained_variance"] = explained_variance(rollout.value[valid], credit.returns[valid])
        return metrics


def reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards and verdicts of sampled groups. Unscorable completions enter no mean."""
    rewards = torch.tensor([[m.reward for m in group.members] for group in groups], dtype=torch.float64)
    bits = torch.tensor([group.correct for group in groups], dtype=torch.float64)
    scorable = rewards.isfinite()
    known = rewards[scorable]
    index = torch.arange(len(groups))[:, None].expand_as(rewards)
    flat = degenerate(rewards.flatten(), index.flatten()).view_as(rewards)[:, 0]
    spreads = [own[mask].std() for own, mask in zip(rewards, scorable, strict=True) if mask.sum() > 1]
    return {
        "reward/mean": float(known.mean()),
        "reward/std": float(known.std()) if len(known) > 1 else math.nan,
        "reward/within_group_std": float(torch.stack(spreads).mean()) if spreads else math.nan,
        "reward/accuracy": float(bits.nanmean()),
        "reward/unscorable": float((~scorable).double().mean()),
        "groups/frac_zero_std": float(flat.double().mean()),
        "groups/all_correct": float((bits == 1).all(dim=1).double().mean()),
        "groups/all_wrong": float((bits == 0).all(dim=1).double().mean()),
    }


def length_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Completion lengths in tokens, overall and by verdict; NaN where no completion is of the kind."""
    members = [member for group in groups for member in group.members]

    def mean(lengths: list[int]) -> float:
        return sum(lengths) / len(lengths) if lengths else math.nan

    lengths = [len(m.completion.token_ids) for m in members]
    return {
        "len/mean": mean(lengths),
        "len/min": min(lengths),
        "len/max": max(lengths),
        "len/clipped_frac": mean([int(not m.completion.terminated) for m in members]),
        "len/correct": mean([len(m.completion.token_ids) for m in members if m.grade.correct is True]),
        "len/incorrect": mean([len(m.completion.token_ids) for m in members if m.grade.correct is False]),
    }
