"""Preference learning: pairs are made before a round's first update, then trained on; the reference is of that moment.

Graded samples make them (one round: offline, all from the starting policy; several: iterative, each from the policy as
it then is), or a data set holds them. The budget is an online run's: the rounds together sample as many completions,
for the same prompts, as an online objective would in the same number of updates, and each update passes as many
completions through the loss. The reference's log-probabilities are taken once a round, so no second model is held.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algorithms.axes.batch import PairBatch, PairTotals
from algorithms.axes.preference import FixedPairs, GradedPairs, Preference
from bench import kept, processes, store
from bench.adapters import as_reference
from bench.budget import completions_per_update, num_rollouts
from bench.checkpoint import weights_digest
from bench.compute import passes
from bench.config import Optimizer, Run
from bench.instruments import Instruments
from bench.kept import Kept, Maker, RoundLost
from bench.learner import Cast, Progress, backward
from bench.offline import (
    OFFLINE_TEMPERATURE,
    Traces,
    coverage,
    log_again,
    log_size,
    pass_order,
    require_scored,
    sample_rollouts,
    sampling_metrics,
    traces,
)
from bench.optimize import StepMetrics, schedule_factor, step_report, take_step
from bench.pairs import Made, Pair, graded_pairs
from bench.policy import Sequences, computed_positions, planned, token_logps
from bench.preference_tokens import encoded_pairs, fetched
from bench.rollout import Group, NothingToLearn, Sampler
from bench.sharding import is_fully_sharded, within

FOLDER = "pairs"
"""Folder of a run's directory that holds the pairs of each round."""
SUMMARY = "pairs.json"
_NO_PAIR = Pair((), (), ())


@dataclass(frozen=True)
class Round:
    """One round's pairs and the reference's log-probabilities of them."""

    number: int
    """From 0."""
    pairs: list[Pair]
    reference: Tensor
    """float32 (pairs, 2): summed over tokens, of chosen and rejected; NaN for pairs that no update comes to."""
    found: dict[str, float]
    """Metrics of its first update."""
    generated: tuple[int, int]
    """Tokens and completions sampled for it."""
    used: Sequence[int] = ()
    """The pairs that an update comes to, by number; told only of a round that was made now."""
    digest: str = ""
    left: Traces = field(default_factory=Traces)
    """What its sampling left beside it."""
    owed: str = ""
    """Of that, lines of the log that are not there: its samples were not drawn by this attempt."""

    def as_kept(self) -> Kept:
        """What is written of it: of pairs that no update comes to, perhaps most of a large set, their place alone."""
        used = set(self.used)
        pairs = [pair if i in used else _NO_PAIR for i, pair in enumerate(self.pairs)]
        texts = {name: [getattr(pair, name) for pair in pairs] for name in ("prompt_ids", "chosen", "rejected")}
        about = {"found": self.found, "generated": list(self.generated), "traces": asdict(self.left)}
        return Kept(texts, about, {"reference": self.reference})


class PairLearner:
    """Preference objectives. The reference is the policy as it was at the beginning of the round."""

    def __init__(
        self,
        run: Run,
        objective: Preference,
        cast: Cast,
        sampler: Sampler,
        instruments: Instruments,
        directory: Path | None = None,
    ) -> None:
        """
        Args:
            directory: the run's, in which each round is kept; None keeps none, so there is no resume within one.
        """
        self.run, self.objective, self.cast = run, objective, cast
        self.sampler, self.instruments = sampler, instruments
        self.directory = directory
        self.device = torch.device(run.device)
        self.round = Round(-1, [], torch.zeros((0, 2)), {}, (0, 0))

    @property
    def updates_per_advance(self) -> int:
        return 1

    @property
    def updates_per_round(self) -> int:
        return self.run.budget.updates // self.objective.pairing.rounds

    @property
    def pairs(self) -> list[Pair]:
        """The present round's."""
        return self.round.pairs

    @property
    def reference(self) -> Tensor:
        """The reference's log-probabilities of the present round's pairs."""
        return self.round.reference

    @property
    def found(self) -> dict[str, float]:
        """What is known about the present round's pairs."""
        return self.round.found

    @property
    def pairs_per_update(self) -> int:
        """As many completions an update as an online run's, two a pair; fewer where too few pairs were found, so that
        none enters an update twice."""
        return self._per_update(len(self.pairs))

    def _per_update(self, num_pairs: int) -> int:
        return min(max(1, completions_per_update(self.run.rollout) // 2), num_pairs)

    def prepare(self) -> None:
        """Enter the first round with the policy as it is, which must be the starting policy."""
        self.round = self._entered(0)

    def _entered(self, number: int) -> Round:
        """A round: the one that was kept where it is this one, made now otherwise, which only its beginning allows.

        Raises:
            RoundLost: the round has begun, and what it was made of is not there.
            NothingToLearn, PairsUnavailable: there is no pair in the first round, or no data.
        """
        progress, directory = self.cast.progress, self.directory
        begins = progress.update == number * self.updates_per_round
        maker = Maker(self.run.id, weights_digest(self.cast.policy.network) if begins else "") if directory else None
        found = processes.from_main(lambda: None if directory is None else kept.read(directory / FOLDER, number))
        if found is not None and (found[1] == maker if begins else found[0].digest == progress.material):
            restored = self._restored(number, found[0])
            self.sampler.rewarder.called.update(restored.left.called)
            return replace(restored, owed=restored.left.failures)
        if not begins:
            raise RoundLost(
                f"the checkpoint of update {progress.update} lies within round {number + 1} of the pairs, which are "
                f"missing or changed in {directory and kept.path_of(directory / FOLDER, number)}, and the policy that "
                "they came from is gone: remove the run's checkpoints to start over"
            )
        made = self._made(number)
        if maker is None or directory is None:
            return made
        record = made.as_kept()
        if processes.is_main():
            kept.write(directory / FOLDER, number, record, maker)
        processes.barrier()
        return self._restored(number, record)

    def _restored(self, number: int, record: Kept) -> Round:
        columns = [record.texts[name] for name in ("prompt_ids", "chosen", "rejected")]
        pairs = [Pair(*row) for row in zip(*columns, strict=True)]
        tokens, completions = record.about["generated"]
        reference = record.numbers["reference"].to(self.device)
        left, found = Traces(**record.about["traces"]), dict(record.about["found"])
        return Round(number, pairs, reference, found, (tokens, completions), digest=record.digest, left=left)

    def _made(self, number: int) -> Round:
        """A round's pairs by the policy as it is, and its log-probabilities of those that an update comes to."""
        logged = log_size(self.sampler)
        match self.objective.pairing:
            case GradedPairs() as pairing:
                made, generated = self._from_samples(pairing, number)
            case FixedPairs() as source:
                budget = self.run.rollout.max_completion_tokens
                made, generated = encoded_pairs(self.cast.policy, fetched(source), budget), (0, 0)
        size, per_update = len(made.pairs), self._per_update(len(made.pairs))
        order = pass_order(self.run.seed, _order_name(number), size, self.updates_per_round * per_update, 0)
        used = sorted(set(order))
        reference, found = self._reference(made.pairs, used), {"dpo/round": number + 1, **made.found}
        left = traces(self.sampler, logged)
        return Round(number, made.pairs, reference, found, generated, used, left=left)

    def _from_samples(self, pairing: GradedPairs, number: int) -> tuple[Made, tuple[int, int]]:
        """Pairs of the round's share of the prompts, and the tokens and completions that they cost.

        Without a pair in the first round nothing shows that the run can learn at all. A later one is as a rollout whose
        rewards are all equal, after which an online run goes on.
        """
        run = self.run
        share = num_rollouts(run) // pairing.rounds
        rollouts = range(number * share, (number + 1) * share)
        groups = sample_rollouts(run, self.cast, self.sampler, self.instruments, rollouts)
        if number == 0:
            require_scored(run, groups)
        made = graded_pairs(run, pairing, self.cast.policy, groups, rollouts[0] * run.rollout.prompts)
        if number == 0 and not made.pairs:
            raise NothingToLearn(_no_pair(run, pairing, groups, made.num_unlabelled))
        sampled = sampling_metrics(run.reward, groups)
        generated = int(sampled.pop("tokens/generated")), int(sampled.pop("completions/generated"))
        return Made(made.pairs, {**sampled, **made.found, **coverage(run, rollouts[-1] + 1)}), generated

    def _reference(self, pairs: list[Pair], needed: list[int]) -> Tensor:
        """float32 (pairs, 2): the present policy's log-probabilities of the pairs needed, NaN of the others."""
        memory = self.instruments.memory
        metered = memory.metering
        reference = torch.zeros((len(pairs), 2), device=self.device)
        for i, (part, counts, sides) in enumerate(self._own_parts(pairs, needed)):
            if self.cast.progress.update == 0:
                memory.metering = i == 0 and self.run.meter.every > 0
            reference_weights = as_reference(self.cast.policy.network, self.run.adapter)
            with self.instruments.phase("ref_logp"), torch.no_grad(), reference_weights:
                summed = self._scored(sides)
            if counts:
                reference[part] = summed
        memory.metering = metered
        reference = processes.total(reference)
        others = torch.ones(len(pairs), dtype=torch.bool)
        others[needed] = False
        reference[others] = torch.nan
        return reference

    def _own_parts(self, pairs: list[Pair], index: Sequence[int]) -> list[tuple[list[int], bool, Sequences]]:
        """This process's share of some pairs, given by number, a microbatch at a time: which, whether they count, and
        their completions as a pass reads them."""
        policy = self.cast.policy
        if not index:
            return []
        cut = pair_parts([pairs[i] for i in index], self.run.optimizer)
        parts = [[index[i] for i in part] for part in cut]
        costs = [sum(pairs[i].num_tokens for i in part) for part in parts]
        shared = processes.share(parts, costs, even=is_fully_sharded(policy.network))
        return [
            (part, counts, planned(policy.network, sides_of([pairs[i] for i in part], policy.pad_id, self.device)))
            for part, counts in shared
        ]

    def _scored(self, sides: Sequences) -> Tensor:
        """`summed_logps` by the policy as it is now, counted."""
        network = self.cast.policy.network
        self.instruments.clock.count(padded=computed_positions(network, sides))
        with passes(self.run.compute, self.run.device, network):
            return within(network, lambda: summed_logps(network, sides))

    def _begin(self) -> dict[str, Any]:
        """What the first update of a round does beside training; returns what its record says of the round."""
        progress, pairing = self.cast.progress, self.objective.pairing
        if isinstance(pairing, GradedPairs) and self.round.number > 0 and not pairing.keep_optimizer:
            self.cast.optimizer.state.clear()
        log_again(self.sampler, self.round.owed)
        progress.material = self.round.digest
        progress.generated_tokens += self.round.generated[0]
        progress.generated_completions += self.round.generated[1]
        if self.directory is not None and processes.is_main():
            summarise(self.directory, self.round.number, self.updates_per_round)
        return {**self.found, **_generated(progress.generated_tokens, progress.generated_completions)}

    def can_go_on(self, progress: Progress) -> bool:
        """Within a round its pairs must be there, for the policy that they came from is gone."""
        number, position = divmod(progress.update, self.updates_per_round)
        if position == 0 or self.directory is None:
            return True
        found = kept.read(self.directory / FOLDER, number)
        return found is not None and found[0].digest == progress.material

    def advance(self) -> Iterator[dict[str, Any]]:
        """One optimizer step on the next pairs; the first of a round makes the round. Of one without pairs no step is
        taken: by its momentum and its decay AdamW would move the weights all the same."""
        progress = self.cast.progress
        number = progress.update // self.updates_per_round
        begins = progress.update == number * self.updates_per_round
        if number != self.round.number or not (begins or progress.material == self.round.digest):
            self.round = self._entered(number)
        first = self._begin() if begins else {}
        step = self._step(progress.update - number * self.updates_per_round) if self.pairs else {}
        progress.update += 1
        yield {"update": progress.update, **step, "tokens/trained": progress.trained_tokens, **first}

    def _step(self, position: int) -> dict[str, Any]:
        """The optimizer step of the round's update `position`, from 0; returns its metrics."""
        cast, progress, number = self.cast, self.cast.progress, self.round.number
        order = pass_order(self.run.seed, _order_name(number), len(self.pairs), self.pairs_per_update, position)
        order.sort(key=lambda i: len(self.pairs[i].chosen))
        trained = sum(self.pairs[i].num_tokens for i in order)
        factor = schedule_factor(self.run.optimizer, progress.update + 1, self.run.budget.updates)
        totals = PairTotals(num_pairs=len(order), num_chosen_tokens=sum(len(self.pairs[i].chosen) for i in order))
        metrics = StepMetrics()
        own = self._own_parts(self.pairs, order)
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
        progress.trained_tokens += trained
        return {
            "loss": loss,
            **step_report(cast.optimizer, norm, self.run.optimizer.max_grad_norm),
            **metrics.values(),
            "dpo/passes": (position + 1) * self.pairs_per_update / len(self.pairs),
        }


def summarise(directory: Path, last: int, updates_per_round: int) -> None:
    """Write what is known about each round up to number `last`: what the record of its first update says of it."""
    told: list[dict[str, Any]] = []
    tokens, completions = 0, 0
    for number in range(last + 1):
        record = kept.read(directory / FOLDER, number)
        if record is not None:
            about = record[0].about
            tokens, completions = tokens + about["generated"][0], completions + about["generated"][1]
            update = {"update": number * updates_per_round + 1}
            told.append({**update, **about["found"], **_generated(tokens, completions)})
    store.write_json(directory / SUMMARY, told)


def _generated(tokens: int, completions: int) -> dict[str, int]:
    return {"tokens/generated": tokens, "completions/generated": completions}


def _order_name(number: int) -> str:
    """The stream of a round's order of pairs."""
    return f"pair order of round {number}" if number else "pair order"


def _no_pair(run: Run, pairing: GradedPairs, groups: Sequence[Group], unlabelled: int) -> str:
    if unlabelled:
        return f"none of the {unlabelled} preference pairs carries a label: raise reward.sparsity"
    members = [member for group in groups for member in group.members]
    right = sum(1 for m in members if m.observed)
    ended = sum(1 for m in members if m.completion.terminated)
    where = " of round 1" if pairing.rounds > 1 else ""
    return (
        f"no preference pair in the {len(groups)} prompts x {run.rollout.group_size} completions{where} ({right} "
        f"correct, {ended} ended by themselves): make the task easier or harder, give partial credit "
        "(reward.format), raise rollout.max_completion_tokens, or set objective.pairing.require_termination=false"
    )


def pair_parts(pairs: Sequence[Pair], config: Optimizer) -> list[list[int]]:
    """Indices of pairs, in order, cut into parts within the limits of `config`; a pair is two completions."""
    most = max(1, (config.microbatch_sequences or 2 * len(pairs)) // 2)
    most = min(most, max(1, -(-len(pairs) // processes.count())))  # several processes share the parts
    parts: list[list[int]] = []
    tokens = 0
    for i, pair in enumerate(pairs):
        sides = (pair.prompt_ids, pair.chosen, pair.rejected)
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
    return Sequences.of(prompts, sides, pad_id).to(device)


def summed_logps(network: PreTrainedModel, sides: Sequences) -> Tensor:
    """Summed log-probabilities of (chosen, rejected), of what `sides_of` gives: float32 (pairs, 2)."""
    return token_logps(network, sides, OFFLINE_TEMPERATURE).sum(dim=1).view(2, -1).T


def pair_batch(pairs: Sequence[Pair], own: Tensor, reference: Tensor) -> PairBatch:
    """Pairs with the policy's and the reference's `summed_logps`."""

    def lengths(sides: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([float(len(side)) for side in sides], device=own.device)

    return PairBatch(
        chosen_logp=own[:, 0],
        rejected_logp=own[:, 1],
        ref_chosen_logp=reference[:, 0],
        ref_rejected_logp=reference[:, 1],
        chosen_length=lengths([pair.chosen for pair in pairs]),
        rejected_length=lengths([pair.rejected for pair in pairs]),
    )
