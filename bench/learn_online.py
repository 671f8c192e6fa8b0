"""Online learning: sample with the present policy, assign credit once, take the rollout's optimizer steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from algorithms.axes.batch import Credit, LossParts, Rollout, Totals, ValueBatch, group_tokens
from algorithms.axes.masked import masked_mean
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.value import NoCritic
from bench import processes
from bench.baseline_quality.measure import Quality
from bench.config import Run
from bench.config_compute import VllmEngine
from bench.engines import EngineMismatch, mismatch_sentence
from bench.instruments import Instruments
from bench.learner import Cast, Progress, backward, microbatches, own_parts
from bench.optimize import StepMetrics, schedule_factor, step_report, take_step
from bench.policy import Sequences, planned, reads_packed
from bench.rollout import Collected, NothingToLearn, PromptStream, Sampler, sequences_of
from bench.rollout_metrics import (
    credit_metrics,
    critic_metrics,
    imperfection_metrics,
    largest_gap,
    length_metrics,
    mean_gap,
    mismatch_metrics,
    reference_metrics,
    reward_metrics,
)
from bench.scoring import Scorer
from bench.seeding import generator

PATIENCE = 10
"""Rollouts without one informative group, from the start, after which a run ends with a sentence that says so."""


LARGEST_MISMATCH = 1e-3
"""Nats; float32 on one machine stays below 1e-4 for every architecture that the sampler can batch."""


@dataclass(frozen=True)
class Step:
    """The plan of one optimizer step: its rows and how they are cut; fixed before anything is measured."""

    epoch: int
    rows: list[int]
    parts: list[list[int]]


@dataclass(frozen=True)
class Due:
    """An optimizer step about to be taken: its plan, what it reads, and what divides its losses."""

    step: Step
    sequences: Sequences
    rollout: Rollout
    credit: Credit
    totals: Totals
    tokens: torch.Tensor
    """float64 (rows,): tokens that each row's group has in this step."""
    factor: float
    """Of the learning rates, by the schedule."""


class OnlineLearner:
    """Policy-gradient objectives, with a critic and a reference exactly where the objective needs them."""

    def __init__(
        self,
        run: Run,
        objective: PolicyGradient,
        cast: Cast,
        sampler: Sampler,
        instruments: Instruments,
        directory: Path | None = None,
    ) -> None:
        """`directory` takes what is measured beside training; without it nothing is."""
        self.run, self.objective, self.cast = run, objective, cast
        self.sampler, self.instruments = sampler, instruments
        self.stream = PromptStream(run.task, run.seed, run.rollout.prompts)
        self.device = torch.device(run.device)
        self.scorer = Scorer(run, objective, cast, instruments, self._first_pass_is_old)
        self.quality: Quality | None = None
        if run.baseline_quality is not None and directory is not None:
            self.quality = Quality(run, run.baseline_quality, objective, cast, sampler, directory)

    @property
    def _first_pass_is_old(self) -> bool:
        """With one update a rollout, the update's own pass is the old policy: its ratio is exactly 1, and another pass
        would only repeat it. Credit that reads log-probabilities, such as KL in the reward, needs them before."""
        once = self.updates_per_advance == 1 and self.run.rollout.old_logp == "recomputed"
        return once and not self.objective.needs.old_logp

    def prepare(self) -> None:
        """Nothing comes before the first rollout."""

    def can_go_on(self, progress: Progress) -> bool:
        """Everything is sampled anew."""
        return True

    @property
    def updates_per_advance(self) -> int:
        return self.run.rollout.updates_per_rollout * self.run.rollout.epochs

    def advance(self) -> Iterator[dict[str, Any]]:
        """One rollout and its optimizer steps; yields each step's metrics, names from the glossary."""
        progress = self.cast.progress
        collected = self.sampler.collect(
            self.cast.policy, self.stream, progress.generation_round, self.objective.selection, self.cast.carried
        )
        progress.generation_round += collected.rounds
        self.cast.carried[:] = collected.surplus
        sequences = sequences_of(collected.groups, self.cast.policy.pad_id).to(self.device)
        plan = self._plan(collected, sequences)
        rollout = self._rollout(collected, sequences, plan)
        with self.instruments.phase("advantage"):
            credit = self.objective.credit(rollout)
        self._check_informative(collected, credit)
        if self.quality is not None and self.quality.is_due(progress.update, self.updates_per_advance):
            # Its memory is not the training step's, so only its seconds are counted.
            with self.instruments.clock.phase("baseline_quality"):
                self.quality.measure(collected.groups, rollout, credit, collected.carried)
        compared = rollout
        for i, step in enumerate(plan):
            # The rollout's own log-probabilities, or those of the first pass where the engine's stand in for them.
            first = rollout.old_logp.clone().fill_(torch.nan) if i == 0 and self._engine_is_old else None
            record = self._update(step, sequences, rollout, credit, first)
            if first is not None:
                compared = self._compared(collected, rollout, first)
            if i == 0:
                record |= self._rollout_metrics(collected, rollout, credit, compared)
                record |= {"groups/carried": collected.carried, **self.stream.coverage(progress.generation_round)}
            yield record
            if i == 0:
                self._check_drift(collected, compared)

    @property
    def _engine_is_old(self) -> bool:
        return self.run.rollout.old_logp == "sampler"

    def _compared(self, collected: Collected, rollout: Rollout, first: torch.Tensor) -> Rollout:
        """The rollout as the trainer saw it in its first step: those rows alone, without an older policy's samples."""
        seen = processes.filled(first)
        mask = rollout.mask & seen.isfinite()
        mask[: collected.carried * self.run.rollout.group_size] = False
        return replace(rollout, old_logp=seen, mask=mask)

    def _plan(self, collected: Collected, sequences: Sequences) -> list[Step]:
        """Minibatches of whole groups for every epoch, cut into microbatches."""
        config = self.run.rollout
        size, packed = config.group_size, reads_packed(self.cast.policy.network)
        steps: list[Step] = []
        for epoch in range(config.epochs):
            order = generator(self.run.seed, "minibatches", self.cast.progress.update, epoch).permutation(
                len(collected.groups)
            )
            for own in torch.tensor_split(torch.from_numpy(order), config.updates_per_rollout):
                rows = [group * size + member for group in own.tolist() for member in range(size)]
                parts = microbatches(rows, sequences, self.run.optimizer, packed=packed)
                steps.append(Step(epoch, rows, parts))
                for part in parts:
                    planned(self.cast.policy.network, sequences.rows(part))
        # A partial rollout may leave minibatches empty; whatever comes, the budget of updates is not exceeded.
        return [step for step in steps if step.rows][: self.run.budget.updates - self.cast.progress.update]

    def _rollout(self, collected: Collected, sequences: Sequences, plan: Sequence[Step]) -> Rollout:
        """Score the completions with every model the objective reads, in the update's own shapes."""
        parts = [part for step in plan if step.epoch == 0 for part in step.parts]
        return self.scorer.rollout(collected.groups, sequences, parts)

    def _check_informative(self, collected: Collected, credit: Credit) -> None:
        progress = self.cast.progress
        progress.informative = progress.informative or bool((credit.advantage != 0).any())
        rollouts = progress.update // self.updates_per_advance + 1
        planned = self.run.budget.updates // self.updates_per_advance
        if not progress.informative and rollouts >= min(PATIENCE, planned):
            if not (progress.trained_tokens or any(group.labelled for group in collected.sampled)):
                raise NothingToLearn(
                    f"no prompt of the first {rollouts} rollouts carries a label: raise reward.sparsity = "
                    f"{self.run.reward.sparsity:g}"
                )
            scored = any(member.scorable for group in collected.sampled for member in group.members)
            # Tokens are trained on as soon as one completion can be scored, informative or not.
            if not (scored or progress.trained_tokens):
                raise NothingToLearn(
                    f"nothing could be scored in the first {rollouts} rollouts: every completion was unscorable, so no "
                    "update could move the policy. Look at the grader and the gold answers"
                )
            raise NothingToLearn(
                f"no informative group in the first {rollouts} rollouts: every advantage was zero or unscorable, so no "
                "update could move the policy. Make the task easier, enlarge rollout.group_size, or give partial "
                "credit (reward.format)"
            )

    def _update(
        self, step: Step, sequences: Sequences, rollout: Rollout, credit: Credit, first: torch.Tensor | None
    ) -> dict[str, Any]:
        """One optimizer step of the critic, where there is one, and of the policy.

        Args:
            first: is told the policy's log-probabilities in this step, if it is the rollout's first.
        """
        progress, critic = self.cast.progress, self.cast.critic
        rows = torch.tensor(step.rows, device=self.device)
        totals = Totals.of(credit.mask[rows], rollout.group[rows], rollout.completion_budget, len(step.parts))
        tokens = torch.zeros(len(sequences), dtype=torch.float64, device=self.device)
        tokens[rows] = group_tokens(credit.mask[rows], rollout.group[rows])
        factor = schedule_factor(self.run.optimizer, progress.update + 1, self.run.budget.updates)
        due = Due(step, sequences, rollout, credit, totals, tokens, factor)
        record: dict[str, Any] = {"update": progress.update + 1}
        # Where nothing could be scored AdamW would move the weights all the same, by its momentum and its decay.
        learns = totals.num_tokens > 0
        warms_up = self.run.critic is not None and progress.update < self.run.critic.warmup_updates
        # One that reads the policy's states is fitted in the policy's own pass.
        if learns and critic is not None and (warms_up or critic.trunk is not None):
            with self.instruments.phase("critic_update"):
                record |= self._critic_step(due)
        if learns and not warms_up:
            with self.instruments.phase("policy_update"):
                record |= self._policy_step(due, first)
            self.instruments.clock.count(trained=totals.num_tokens)
            progress.trained_tokens += totals.num_tokens
        progress.update += 1
        return record | {"tokens/trained": progress.trained_tokens}

    def _critic_step(self, due: Due) -> dict[str, float]:
        """One step of the critic alone."""
        critic = self.cast.critic
        assert critic is not None
        network = critic if critic.trunk is not None else self.cast.policy.network
        fitted = StepMetrics()
        for part, counts in own_parts(due.step.parts, due.sequences, network):
            parts = self._value_loss(due, part, self.scorer.values(due.sequences.rows(part)))
            backward(parts.loss, counts)
            if counts:
                fitted.add(parts)
        return self._fit(due, fitted.over_processes())

    def _policy_step(self, due: Due, first: torch.Tensor | None) -> dict[str, Any]:
        """One step of the policy, and of a critic that reads its states: one pass and one backward pass for both."""
        cast, config = self.cast, self.run.optimizer
        metrics, fitted = StepMetrics(), StepMetrics()
        for part, counts in own_parts(due.step.parts, due.sequences, cast.policy.network):
            batch, entropy, value = self.scorer.batch(part, due.sequences, due.rollout, due.credit, due.tokens)
            parts = self.objective.loss(batch, due.totals)
            fit = None if value is None else self._value_loss(due, part, value)
            backward(parts.loss if fit is None else parts.loss + fit.loss, counts)
            if counts:
                metrics.add(parts)
                metrics.add_mean("entropy", masked_mean(entropy, batch.mask))
                if fit is not None:
                    fitted.add(fit)
                if first is not None:
                    first[torch.tensor(part, device=self.device), : batch.logp.shape[1]] = batch.logp.detach()
        self.scorer.share_old_logp(due.rollout)
        metrics = metrics.over_processes()
        loss = metrics.checked_loss()
        reads_states = cast.critic is not None and cast.critic.trunk is None
        record = self._fit(due, fitted.over_processes()) if reads_states else {}
        norm = take_step(cast.optimizer, config.lr * due.factor, config.max_grad_norm)
        report = step_report(cast.optimizer, norm, config.max_grad_norm)
        return record | {"loss": loss, **report, **metrics.values()}

    def _value_loss(self, due: Due, part: list[int], value: torch.Tensor) -> LossParts:
        """The critic's share of the step's loss for some rows, given its values of them."""
        value_loss, old_value, returns = self.objective.value, due.rollout.value, due.credit.returns
        assert not isinstance(value_loss, NoCritic)
        assert old_value is not None
        assert returns is not None
        rows, width = torch.tensor(part, device=self.device), value.shape[1]
        batch = ValueBatch(
            value=value,
            old_value=old_value[rows, :width],
            returns=returns[rows, :width],
            mask=due.credit.mask[rows, :width],
        )
        return value_loss(batch, due.totals)

    def _fit(self, due: Due, fitted: StepMetrics) -> dict[str, float]:
        """The step of the critic's own parameters, once their gradients are there."""
        config, optimizer = self.run.critic, self.cast.critic_optimizer
        assert config is not None
        assert optimizer is not None
        fitted.checked_loss()
        norm = take_step(optimizer, config.lr * due.factor, config.max_grad_norm)
        return fitted.values() | {"value/grad_norm": norm}

    def _rollout_metrics(
        self, collected: Collected, rollout: Rollout, credit: Credit, compared: Rollout
    ) -> dict[str, float]:
        """What is known once per rollout, for its first update's record; rewards and lengths are before selection.

        Args:
            compared: the rollout with the trainer's own log-probabilities where they are known.
        """
        progress = self.cast.progress
        lengths = [len(m.completion.token_ids) for group in collected.sampled for m in group.members]
        progress.generated_completions += len(lengths)
        progress.generated_tokens += sum(lengths)
        gap = largest_gap(rollout, first_row=collected.carried * self.run.rollout.group_size)
        exact = not isinstance(self.run.engine, VllmEngine) and self.run.compute.autocast == "none"
        if exact and self.run.device == "cpu" and gap > LARGEST_MISMATCH:
            raise EngineMismatch(
                f"model.path: the sampler's and the trainer's log-probabilities differ by up to {gap:.2g} nats, where "
                "float32 allows 1e-3: this model's state does not live in the cache that is batched"
            )
        return {
            **reward_metrics(collected.sampled, self.run.reward.source),
            **imperfection_metrics(self.run.reward, collected.sampled),
            "groups/kept_frac": len(collected.groups) / len(collected.sampled),
            "groups/rounds": collected.rounds,
            **length_metrics(collected.sampled),
            **credit_metrics(rollout, credit),
            **critic_metrics(rollout, credit),
            **reference_metrics(rollout),
            **(mismatch_metrics(compared, self.objective.mismatch) if bool(compared.mask.any()) else {}),
            "tokens/generated": progress.generated_tokens,
            "completions/generated": progress.generated_completions,
        }

    def _check_drift(self, collected: Collected, rollout: Rollout) -> None:
        """Raises EngineMismatch where an engine outside the trainer is further from it than the run allows.

        Told after the update's record is written, which then shows what happened.
        """
        engine = self.run.engine
        if not isinstance(engine, VllmEngine):
            return
        mean = mean_gap(rollout, first_row=collected.carried * self.run.rollout.group_size)
        if mean > engine.max_mismatch:
            raise EngineMismatch(mismatch_sentence(mean, engine.max_mismatch))
