"""Imitation: maximum likelihood on completions fixed before the first update: worked solutions, or accepted samples.

The budget is an online run's: the same prompts, and as many completions through the loss in each update. Samples, where
there are any, are as many as an online run draws in the same number of updates, and are charged to the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from algorithms.axes.batch import Batch, Totals
from algorithms.axes.imitation import AcceptedSamples, GoldSolutions, Imitation
from bench import kept, processes
from bench.budget import completions_per_update
from bench.checkpoint import weights_digest
from bench.compute import passes
from bench.config import Run
from bench.instruments import Instruments
from bench.kept import Kept, Maker
from bench.learner import Cast, Progress, backward, microbatches, own_parts
from bench.models import LanguageModel
from bench.offline import (
    OFFLINE_TEMPERATURE,
    Traces,
    coverage,
    log_again,
    log_size,
    pass_order,
    rounds,
    sample_all,
    sampling_metrics,
    traces,
)
from bench.optimize import StepMetrics, schedule_factor, step_report, take_step
from bench.policy import Sequences, computed_positions, planned, reads_packed, token_logps
from bench.prompting import encode_prompts
from bench.rollout import Graded, Group, NothingToLearn, Sampler
from bench.sharding import within
from tasks.parts.problem import Problem

FOLDER = "samples"
"""Folder of a run's directory that holds the accepted samples."""


@dataclass(frozen=True)
class Example:
    """One completion that is imitated."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """End token included, where there is one."""


@dataclass(frozen=True)
class Material:
    """All that is imitated, without repeats, and what is known about it."""

    examples: list[Example]
    found: dict[str, float]
    """Metrics of the first update's record."""


class ImitationLearner:
    """Objectives that imitate given completions; the policy is the only model in memory."""

    def __init__(
        self,
        run: Run,
        objective: Imitation,
        cast: Cast,
        sampler: Sampler,
        instruments: Instruments,
        directory: Path | None = None,
    ) -> None:
        """
        Args:
            directory: the run's, in which accepted samples are kept, so that no resume samples again; None keeps none.
        """
        self.run, self.objective, self.cast = run, objective, cast
        self.sampler, self.instruments = sampler, instruments
        self.directory = directory
        self.device = torch.device(run.device)
        self.examples: list[Example] = []
        self.found: dict[str, float] = {}
        self.owed = ""
        """Lines of the log of the user's reward functions that were written with the samples, by an earlier attempt."""

    @property
    def updates_per_advance(self) -> int:
        return 1

    @property
    def examples_per_update(self) -> int:
        """As many completions an update as an online run's; fewer where there are not so many distinct ones."""
        return min(completions_per_update(self.run.rollout), len(self.examples))

    def prepare(self) -> None:
        """Gather the completions; where they are sampled, the policy must be the starting policy."""
        match self.objective.source:
            case GoldSolutions():
                problems = [problem for own in rounds(self.run) for problem in own]
                material = worked_solutions(self.run, self.cast.policy, problems)
            case AcceptedSamples() as source:
                material = self._accepted(source)
        self.examples, self.found = material.examples, {**material.found, **coverage(self.run)}

    def _accepted(self, source: AcceptedSamples) -> Material:
        """The accepted samples: those that an earlier attempt kept, where run and policy are the same."""
        folder = None if self.directory is None else self.directory / FOLDER
        maker = None if folder is None else Maker(self.run.id, weights_digest(self.cast.policy.network))
        found = processes.from_main(lambda: None if folder is None else kept.read(folder, 0))
        if found is not None and found[1] == maker:
            record = found[0]
            columns = (record.texts["prompt_ids"], record.texts["token_ids"])
            left = Traces(**record.about["traces"])
            self.sampler.rewarder.called.update(left.called)
            self.owed = left.failures
            return Material([Example(*row) for row in zip(*columns, strict=True)], dict(record.about["found"]))
        logged = log_size(self.sampler)
        groups = sample_all(self.run, self.cast, self.sampler, self.instruments)
        left = traces(self.sampler, logged)
        material = accepted_samples(self.run, source, groups)
        if folder is not None and maker is not None:
            names = ("prompt_ids", "token_ids")
            texts = {name: [getattr(example, name) for example in material.examples] for name in names}
            if processes.is_main():
                kept.write(folder, 0, Kept(texts, {"found": material.found, "traces": asdict(left)}), maker)
            processes.barrier()
        return material

    def can_go_on(self, progress: Progress) -> bool:
        """All is gathered before the first update, by the starting policy, which can do it again."""
        return True

    def advance(self) -> Iterator[dict[str, Any]]:
        """One optimizer step on the next completions."""
        cast, progress, config = self.cast, self.cast.progress, self.run.optimizer
        size = self.examples_per_update
        order = pass_order(self.run.seed, "imitation order", len(self.examples), size, progress.update)
        examples = [self.examples[i] for i in order]
        sequences = Sequences.of(
            [e.prompt_ids for e in examples], [e.token_ids for e in examples], cast.policy.pad_id
        ).to(self.device)
        parts = microbatches(range(size), sequences, config, packed=reads_packed(cast.policy.network))
        rows = torch.arange(size, device=self.device)
        totals = Totals.of(sequences.mask, rows, self.run.rollout.max_completion_tokens, len(parts))
        factor = schedule_factor(config, progress.update + 1, self.run.budget.updates)
        metrics = StepMetrics()
        for part in parts:
            planned(cast.policy.network, sequences.rows(part))
        with self.instruments.phase("policy_update"):
            for part, counts in own_parts(parts, sequences, cast.policy.network):
                piece = sequences.rows(part)
                with passes(self.run.compute, self.run.device, cast.policy.network):
                    batch = imitation_batch(cast.policy, piece)
                step = self.objective.loss(batch, totals)
                self.instruments.clock.count(padded=computed_positions(cast.policy.network, piece))
                backward(step.loss, counts)
                if counts:
                    metrics.add(step)
            metrics = metrics.over_processes()
            loss = metrics.checked_loss()
            norm = take_step(cast.optimizer, config.lr * factor, config.max_grad_norm)
        self.instruments.clock.count(trained=totals.num_tokens)
        first = self.found if progress.update == 0 else {}
        if progress.update == 0:
            log_again(self.sampler, self.owed)
        progress.update += 1
        progress.trained_tokens += totals.num_tokens
        yield {
            "update": progress.update,
            "loss": loss,
            **step_report(cast.optimizer, norm, config.max_grad_norm),
            **metrics.values(),
            "tokens/trained": progress.trained_tokens,
            "imitation/passes": progress.update * size / len(self.examples),
            **first,
        }


def imitation_batch(policy: LanguageModel, piece: Sequences) -> Batch:
    """A microbatch with fresh log-probabilities; nothing is weighed, so there is no ratio and no advantage."""
    logp = within(policy.network, lambda: token_logps(policy.network, piece, OFFLINE_TEMPERATURE))
    mask = piece.mask
    return Batch(
        logp=logp,
        old_logp=logp.detach(),
        ref_logp=None,
        advantage=torch.ones_like(logp),
        mask=mask,
        group_tokens=mask.sum(dim=1).double(),
    )


def worked_solutions(run: Run, model: LanguageModel, problems: Sequence[Problem]) -> Material:
    """The solutions of these problems, each once; those that a completion's budget could not hold are left out.

    Raises:
        NothingToLearn: no prompt has a solution that fits.
    """
    budget = run.rollout.max_completion_tokens
    encoded = [tuple(ids) for ids in encode_prompts(model, run.task, problems, run.prompt)]
    solved = {
        Example(ids, tuple(model.encode_completion(problem.solution))): None
        for ids, problem in zip(encoded, problems, strict=True)
        if problem.solution is not None
    }
    examples = [example for example in solved if len(example.token_ids) <= budget]
    if not solved:
        raise NothingToLearn(
            f"none of the run's {len(problems)} prompts of {run.task.name} has a worked solution: give another task, "
            "or objective.source.kind=accepted_samples, which learns from the model's own correct samples"
        )
    if not examples:
        shortest = min(len(example.token_ids) for example in solved)
        raise NothingToLearn(
            f"none of {len(solved)} worked solutions fits into rollout.max_completion_tokens = {budget}, end token "
            f"included: the shortest takes {shortest}"
        )
    found = {
        "imitation/num_completions": len(examples),
        "imitation/prompts_used": len({example.prompt_ids for example in examples}) / len(set(encoded)),
        "imitation/too_long": 1 - len(examples) / len(solved),
        "tokens/generated": 0,
        "completions/generated": 0,
    }
    return Material(examples, found)


def accepted_samples(run: Run, source: AcceptedSamples, groups: Sequence[Group]) -> Material:
    """The samples of each prompt that are correct as the learner is told; a prompt may have come in several rounds.

    Raises:
        NothingToLearn: no sample is correct.
    """
    by_prompt: dict[tuple[int, ...], list[Graded]] = {}
    for group in groups:
        by_prompt.setdefault(group.prompt_ids, []).extend(group.members)
    examples: list[Example] = []
    for prompt, members in by_prompt.items():
        correct = torch.tensor([float(member.observed is True) for member in members])
        texts = tuple(member.completion.token_ids for member in members)
        examples += [Example(prompt, texts[i]) for i in source.accepted(correct, texts)]
    if not examples:
        members = [member for group in groups for member in group.members]
        ended = sum(1 for m in members if m.completion.terminated)
        raise NothingToLearn(
            f"the starting policy has no correct sample in {len(groups)} prompts x {run.rollout.group_size} "
            f"completions ({ended} ended by themselves): make the task easier, warm-start the model, enlarge "
            "rollout.group_size, or raise rollout.max_completion_tokens"
        )
    found = {
        "imitation/num_completions": len(examples),
        "imitation/prompts_used": len({example.prompt_ids for example in examples}) / len(by_prompt),
        **sampling_metrics(run.reward, groups),
    }
    return Material(examples, found)
