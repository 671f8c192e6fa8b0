"""Contributions: what each prompt of one frozen rollout adds to an objective's loss, for every family of objectives."""

from collections.abc import Callable, Sequence

import torch

from algorithms.axes.batch import LossParts, PairTotals, Totals, group_tokens
from algorithms.axes.imitation import AcceptedSamples, GoldSolutions, Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import FixedPairs, Preference
from bench.adapters import as_reference
from bench.config import Run
from bench.instruments import Instruments
from bench.learn_imitation import accepted_samples, imitation_batch, worked_solutions
from bench.learn_pairs import pair_batch, pair_parts, sides_of, summed_logps
from bench.learner import Cast, microbatches
from bench.pairs import Pair, gold_of, pairs_of
from bench.policy import Sequences, reads_packed
from bench.rewards import Rewarder
from bench.rollout import Group, Judge, NothingToLearn, judged, rewarded, sequences_of
from bench.scoring import Scorer

Share = Callable[[], LossParts]
"""A forward pass over some rows of one prompt, at the policy's present weights: their share of the rollout's loss."""
Contributions = Sequence[Sequence[Share]]
"""The shares of each prompt, none where a prompt gives the objective nothing. Over all prompts they are the loss."""


def contributions(
    run: Run, cast: Cast, groups: Sequence[Group], instruments: Instruments, judge: Judge | None = None
) -> Contributions:
    """Everything that the objective needs is taken from the models now; only the policy is read again in a share.

    Denominators count the whole rollout, so shares add up to the loss and to its gradient.

    Args:
        groups: the rollout; rewards are made anew with the run's weights, and no selection is applied.
        judge: the run's reward model, where it has one.

    Raises:
        NothingToLearn: the rollout holds no pair, or nothing to imitate; the message says why.
    """
    rewarder = Rewarder(run)
    groups = rewarded(rewarder, judged(judge, rewarder, groups))
    match run.objective:
        case PolicyGradient() as objective:
            return _online(run, objective, cast, groups, instruments)
        case Preference() as objective:
            return _on_pairs(run, objective, cast, groups)
        case Imitation() as objective:
            return _imitated(run, objective, cast, groups)


def _online(
    run: Run, objective: PolicyGradient, cast: Cast, groups: Sequence[Group], instruments: Instruments
) -> Contributions:
    size, packed = run.rollout.group_size, reads_packed(cast.policy.network)
    sequences = sequences_of(groups, cast.policy.pad_id).to(run.device)
    rows = [list(range(i * size, (i + 1) * size)) for i in range(len(groups))]
    by_prompt = [microbatches(own, sequences, run.optimizer, packed=packed) for own in rows]
    parts = [part for own in by_prompt for part in own]
    # The frozen policy is the old one also after a drift, so its log-probabilities are always taken beforehand.
    scorer = Scorer(run, objective, cast, instruments, first_pass_is_old=False)
    rollout = scorer.rollout(groups, sequences, parts)
    credit = objective.credit(rollout)
    totals = Totals.of(credit.mask, rollout.group, rollout.completion_budget, len(parts))
    tokens = group_tokens(credit.mask, rollout.group)

    def share(part: list[int]) -> Share:
        return lambda: objective.loss(scorer.batch(part, sequences, rollout, credit, tokens)[0], totals)

    return [[share(part) for part in own] for own in by_prompt]


def _on_pairs(run: Run, objective: Preference, cast: Cast, groups: Sequence[Group]) -> Contributions:
    """Pairs of the rollout's own groups; the reference is the policy that sampled them, or its base where the adapter
    asks for that, as it is in training."""
    device, pairing = torch.device(run.device), objective.pairing
    if isinstance(pairing, FixedPairs):
        raise NothingToLearn(f"{run.algorithm} learns from the pairs of {pairing.path}, not from a rollout's")
    by_prompt = [
        pairs_of(run, pairing, group, i, gold_of(run, pairing, cast.policy, group)) for i, group in enumerate(groups)
    ]
    pairs = [pair for own in by_prompt for pair in own]
    if not pairs:
        raise NothingToLearn("no group holds both a better and a worse completion that may form a pair")
    totals = PairTotals(num_pairs=len(pairs), num_chosen_tokens=sum(len(pair.chosen) for pair in pairs))

    def share(own: list[Pair]) -> Share:
        network, sides = cast.policy.network, sides_of(own, cast.policy.pad_id, device)
        with torch.no_grad(), as_reference(network, run.adapter):
            reference = summed_logps(network, sides)
        return lambda: objective.loss(pair_batch(own, summed_logps(network, sides), reference), totals)

    return [[share([own[i] for i in part]) for part in pair_parts(own, run.optimizer)] for own in by_prompt]


def _imitated(run: Run, objective: Imitation, cast: Cast, groups: Sequence[Group]) -> Contributions:
    match objective.source:
        case GoldSolutions():
            material = worked_solutions(run, cast.policy, [group.problem for group in groups])
        case AcceptedSamples() as source:
            material = accepted_samples(run, source, groups)
    examples = material.examples
    sequences = Sequences.of([e.prompt_ids for e in examples], [e.token_ids for e in examples], cast.policy.pad_id)
    sequences, packed = sequences.to(run.device), reads_packed(cast.policy.network)
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, example in enumerate(examples):
        rows.setdefault(example.prompt_ids, []).append(row)
    # A prompt that came twice has its examples once, with the first of its groups.
    by_prompt = [
        microbatches(rows.pop(group.prompt_ids, []), sequences, run.optimizer, packed=packed) for group in groups
    ]
    index = torch.arange(len(examples), device=sequences.completion_ids.device)
    totals = Totals.of(sequences.mask, index, run.rollout.max_completion_tokens, sum(map(len, by_prompt)))

    def share(part: list[int]) -> Share:
        return lambda: objective.loss(imitation_batch(cast.policy, sequences.rows(part)), totals)

    return [[share(part) for part in own] for own in by_prompt]
