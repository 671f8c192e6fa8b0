"""Preference pairs of token ids: made of a group's graded samples, with a count of everything that was left out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from algorithms.axes.preference import GradedPairs
from bench.config import Run
from bench.models import LanguageModel
from bench.rollout import Group
from bench.seeding import generator, stream_key, uniforms


@dataclass(frozen=True)
class Pair:
    """Two completions of one prompt, the first preferred, as token ids with their end token where there is one."""

    prompt_ids: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of both completions."""
        return len(self.chosen) + len(self.rejected)


@dataclass(frozen=True)
class Offer:
    """What a group has for either side of a pair, and how many of its completions are on neither."""

    chosen: tuple[tuple[int, ...], ...]
    rejected: tuple[tuple[int, ...], ...]
    identical: int
    """Left out because another completion has the same tokens."""
    truncated: int
    """Left out because the budget cut them."""
    tied: int
    """Left out because their reward is their group's mean, as all are where all are right or all are wrong."""
    gold: bool = False
    """The chosen side is the worked solution."""


@dataclass(frozen=True)
class Made:
    """The pairs of a round of sampling, and what is known about them."""

    pairs: list[Pair]
    found: dict[str, float]
    """Metrics, names from the glossary."""
    num_unlabelled: int = 0
    """Pairs that reward.sparsity took the label from."""


def offer_of(pairing: GradedPairs, group: Group, gold: tuple[int, ...] | None = None) -> Offer:
    """Both sides of a group, in the order of its members; identical texts enter once.

    Args:
        gold: the worked solution, where it may stand in for samples that are all wrong.
    """
    seen: dict[tuple[int, ...], int] = {}
    for i, member in enumerate(group.members):
        seen.setdefault(member.completion.token_ids, i)
    unique = [group.members[i] for i in seen.values()]
    texts = list(seen)
    reward = torch.tensor([m.reward for m in unique], dtype=torch.float64)
    ended = torch.tensor([m.completion.terminated for m in unique])
    chosen, rejected = pairing.split(reward, ended)
    fit = [i for i, m in enumerate(unique) if m.scorable and (bool(ended[i]) or not pairing.require_termination)]
    truncated = sum(1 for m in unique if pairing.require_termination and not m.completion.terminated)
    identical = len(group.members) - len(unique)
    if gold is not None and group.verdict == "wrong":
        wrong = tuple(texts[i] for i in fit if texts[i] != gold)
        return Offer((gold,), wrong, identical, truncated, tied=0, gold=bool(wrong))
    return Offer(
        chosen=tuple(texts[i] for i in chosen),
        rejected=tuple(texts[i] for i in rejected),
        identical=identical,
        truncated=truncated,
        tied=len(fit) - len(chosen) - len(rejected),
    )


def gold_of(run: Run, pairing: GradedPairs, model: LanguageModel, group: Group) -> tuple[int, ...] | None:
    """The group's worked solution as a completion; None where none is asked for, there is none, or it is too long."""
    if not pairing.gold_solution or group.problem.solution is None:
        return None
    ids = tuple(model.encode_completion(group.problem.solution))
    return ids if len(ids) <= run.rollout.max_completion_tokens else None


def paired(run: Run, pairing: GradedPairs, prompt_ids: tuple[int, ...], offer: Offer, index: int) -> list[Pair]:
    """All pairs of an offer, that of group `index`: both sides shuffled, then coupled as the pairing says."""
    if not (offer.chosen and offer.rejected):
        return []
    shuffle = generator(run.seed, "pairs", index)
    chosen, rejected = ([side[j] for j in shuffle.permutation(len(side))] for side in (offer.chosen, offer.rejected))
    couples = pairing.couples([len(ids) for ids in chosen], [len(ids) for ids in rejected])
    return [Pair(prompt_ids, chosen[i], rejected[j]) for i, j in couples]


def labelled(run: Run, pairs: list[Pair], index: int) -> list[Pair]:
    """The pairs of group `index` that reward.sparsity leaves a label, each drawn for itself."""
    if run.reward.sparsity == 1:
        return pairs
    (draws,) = uniforms([stream_key(run.seed, "pair label", index)], 0, len(pairs))
    return [pair for pair, draw in zip(pairs, draws, strict=True) if draw < run.reward.sparsity]


def all_pairs_of(
    run: Run, pairing: GradedPairs, group: Group, index: int, gold: tuple[int, ...] | None = None
) -> list[Pair]:
    """All pairs of group `index`, those without a label among them."""
    return paired(run, pairing, group.prompt_ids, offer_of(pairing, group, gold), index)


def pairs_of(
    run: Run, pairing: GradedPairs, group: Group, index: int, gold: tuple[int, ...] | None = None
) -> list[Pair]:
    """Pairs of group `index` that carry a label: what training has of it."""
    return labelled(run, all_pairs_of(run, pairing, group, index, gold), index)


def graded_pairs(run: Run, pairing: GradedPairs, model: LanguageModel, groups: Sequence[Group], first: int) -> Made:
    """The pairs of a round of sampling with their statistics.

    Args:
        first: number of the first of the groups among all that the run samples.
    """
    offers = [offer_of(pairing, group, gold_of(run, pairing, model, group)) for group in groups]
    made = [
        paired(run, pairing, group.prompt_ids, offer, first + i)
        for i, (group, offer) in enumerate(zip(groups, offers, strict=True))
    ]
    kept = [labelled(run, own, first + i) for i, own in enumerate(made)]
    pairs, num_made = [pair for own in kept for pair in own], sum(map(len, made))
    verdicts = [group.verdict for group in groups]
    gold = sum(len(own) for own, offer in zip(kept, offers, strict=True) if offer.gold)
    found = {
        **lengths_of(pairs),
        "dpo/prompts_sampled": len(groups),
        "dpo/prompts_used": sum(1 for own in kept if own) / len(groups),
        "dpo/prompts_all_right": verdicts.count("right") / len(groups),
        "dpo/prompts_all_wrong": verdicts.count("wrong") / len(groups),
        "dpo/ties_dropped": sum(offer.tied for offer in offers),
        "dpo/identical_dropped": sum(offer.identical for offer in offers),
        "dpo/truncated_dropped": sum(offer.truncated for offer in offers),
        **({"dpo/gold_pairs": gold} if pairing.gold_solution else {}),
        **({"reward/labelled_rate": len(pairs) / num_made} if run.reward.sparsity < 1 and num_made else {}),
    }
    return Made(pairs, found, num_made - len(pairs))


def lengths_of(pairs: Sequence[Pair]) -> dict[str, float]:
    """How many pairs there are and how long their sides are, as metrics; the number alone where there is none."""
    if not pairs:
        return {"dpo/num_pairs": 0}
    chosen, rejected = (
        sum(map(len, side)) / len(pairs) for side in ([p.chosen for p in pairs], [p.rejected for p in pairs])
    )
    return {
        "dpo/num_pairs": len(pairs),
        "dpo/chosen_length": chosen,
        "dpo/rejected_length": rejected,
        "dpo/length_gap": sum(len(p.chosen) - len(p.rejected) for p in pairs) / len(pairs),
    }
