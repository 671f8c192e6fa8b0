"""Rollout metrics: by hand on small groups, and against plain loops over tokens that know nothing of tensors."""

import math
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from algorithms.axes.batch import Credit, Rollout
from algorithms.axes.mismatch import (
    Mismatch,
    NoCorrection,
    SequenceMask,
    SequenceTruncate,
    TokenMask,
    TokenTruncate,
)
from algorithms.axes.returns import GAE
from bench.config import Reward
from bench.generate import Completion
from bench.glossary import METRICS
from bench.rollout import Graded, Group
from bench.rollout_metrics import (
    credit_metrics,
    critic_metrics,
    effective_share,
    imperfection_metrics,
    largest_gap,
    length_metrics,
    mismatch_metrics,
    reference_metrics,
    reward_metrics,
)
from tasks.chain_sum import ChainSum
from tasks.parts.problem import Grade

NAN = float("nan")


def member(reward: float, correct: bool | None, length: int = 2, terminated: bool = True) -> Graded:
    grade = Grade(correct=correct, answer_key=None, method="none", parsed=True, truncated=not terminated)
    return Graded(Completion((5,) * length, terminated, (-1.0,) * length), "", grade, reward, correct)


def groups(*rows: list[Graded]) -> list[Group]:
    return [Group(ChainSum().generate("train", i), (4,), tuple(row)) for i, row in enumerate(rows)]


def test_rewards_and_the_reasons_of_ties_by_hand() -> None:
    """Of five groups one differs; the ties are all right, all wrong but for an unscorable one, mixed verdicts with
    equal rewards; the fifth, of which nothing is known, is no tie."""
    right, wrong, unknown = member(1, True), member(0, False), member(NAN, None)
    found = reward_metrics(
        groups([right, wrong], [right, right], [wrong, unknown], [member(0.5, True), member(0.5, False)], [unknown] * 2)
    )
    known = [1, 0, 1, 1, 0, 0.5, 0.5]
    assert found == pytest.approx(
        {
            "reward/mean": fmean(known),
            "reward/std": stdev(known),
            "reward/within_group_std": fmean([stdev([1, 0]), 0, 0]),
            "reward/accuracy": 4 / 7,
            "reward/num_timed_out": 0,
            "reward/unscorable": 3 / 10,
            "reward/num_unscorable": 3,
            "groups/frac_zero_std": 3 / 4,
            "groups/zero_std_all_correct": 1 / 4,
            "groups/zero_std_all_wrong": 1 / 4,
            "groups/all_correct": 1 / 5,
            "groups/all_wrong": 0,
        }
    )


def test_where_a_model_alone_rewards_right_and_wrong_are_the_verifiers() -> None:
    """In a tied group no score is above the others, so the learner is told of no right completion; they all are."""
    right = replace(member(2.0, True), observed=False)
    wrong, unknown = member(2.0, False), replace(member(NAN, True), observed=None)
    told = groups([right, right], [wrong, wrong], [right, wrong], [right, unknown])
    found = reward_metrics(told, "model")
    assert found["groups/frac_zero_std"] == 1
    assert (found["groups/zero_std_all_correct"], found["groups/zero_std_all_wrong"]) == (2 / 4, 1 / 4)
    assert (found["groups/all_correct"], found["groups/all_wrong"]) == (1 / 4, 1 / 4)
    assert reward_metrics(told, "random")["groups/zero_std_all_wrong"] == 1, "as the learner is told"
    told_apart = {"reward/observed_accuracy", "reward/false_positives", "reward/false_negatives", "reward/flip_rate"}
    assert imperfection_metrics(Reward(source="model"), told) == {}
    assert set(imperfection_metrics(Reward(source="random"), told)) == told_apart


def test_a_correct_group_whose_rewards_differ_is_no_tie() -> None:
    """Partial credit for the form tells correct completions apart: the group is all correct and teaches something."""
    found = reward_metrics(groups([member(1.0, True), member(1.5, True)]))
    assert (found["groups/all_correct"], found["groups/zero_std_all_correct"], found["groups/frac_zero_std"]) == (
        1,
        0,
        0,
    )


def test_lengths_by_ending_and_by_verdict_by_hand() -> None:
    own = [member(1, True, 3), member(1, True, 5), member(0, False, 8, terminated=False), member(NAN, None, 6)]
    found = length_metrics(groups(own))
    expected = {"": (22 / 4, 3, 8), "terminated": (14 / 3, 3, 6), "truncated": (8, 8, 8), "correct": (4, 3, 5)}
    expected["incorrect"] = (8, 8, 8)
    for kind, extent in expected.items():
        names = (f"len/{kind}", f"len/{kind}_min", f"len/{kind}_max") if kind else ("len/mean", "len/min", "len/max")
        assert tuple(found[name] for name in names) == pytest.approx(extent), kind
    assert found["len/clipped_frac"] == 1 / 4


def test_a_kind_without_a_completion_has_no_length() -> None:
    found = length_metrics(groups([member(1, True, 3)]))
    assert all(math.isnan(found[f"len/{kind}{end}"]) for kind in ("truncated", "incorrect") for end in ("", "_max"))
    assert found["len/clipped_frac"] == 0


LENGTHS = (4, 1, 3)


def rollout(**changes: Any) -> Rollout:
    """Three completions of 4, 1 and 3 tokens; what stands beyond them is no number. Mu is missing for one token."""
    draw = torch.Generator().manual_seed(2)
    mask = torch.arange(4)[None, :] < torch.tensor(LENGTHS)[:, None]
    beyond = torch.full((3, 4), NAN)
    old, sampled, reference, value = (
        torch.where(mask, -2 * torch.rand(3, 4, generator=draw), beyond) for _ in range(4)
    )
    sampled[0, 2] = NAN
    made = Rollout(
        reward=torch.tensor([1.0, 0.0, NAN], dtype=torch.float64),
        group=torch.zeros(3, dtype=torch.long),
        mask=mask,
        terminated=torch.tensor([True, True, False]),
        old_logp=old,
        ref_logp=reference,
        value=value,
        completion_budget=4,
        sampler_logp=sampled,
    )
    return replace(made, **changes)


def tokens(values: torch.Tensor) -> list[list[float]]:
    return [values[i, :length].tolist() for i, length in enumerate(LENGTHS)]


def share(weights: list[float]) -> float:
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


def test_the_gap_between_the_engines_equals_loops_over_tokens() -> None:
    given = rollout()
    assert given.sampler_logp is not None
    rows = [
        list(zip(*both, strict=True)) for both in zip(tokens(given.old_logp), tokens(given.sampler_logp), strict=True)
    ]
    known = [(o, s) for row in rows for o, s in row if not math.isnan(s)]
    gaps = [[0.0 if math.isnan(s) else o - s for o, s in row] for row in rows]
    products = [math.exp(sum(row)) for row in gaps]
    weights = [math.exp(d) for row in gaps for d in row]
    pairs = torch.tensor(known, dtype=torch.float64).exp().T
    expected = {
        "mismatch/absdiff_mean": fmean(abs(o - s) for o, s in known),
        "mismatch/absdiff_max": max(abs(o - s) for o, s in known),
        "mismatch/pearson": float(torch.corrcoef(pairs)[0, 1]),
        "mismatch/kl_k1": fmean(s - o for o, s in known),
        "mismatch/kl_k3": fmean(math.exp(o - s) - 1 - (o - s) for o, s in known),
        "mismatch/chi2_token": fmean(math.exp(o - s) ** 2 for o, s in known) - 1,
        "mismatch/chi2_seq": fmean(p * p for p in products) - 1,
        "mismatch/ppl_ratio": fmean(math.exp(-sum(row) / n) for row, n in zip(gaps, (3, 1, 3), strict=True)),
        "ess/mismatch_token": share(weights),
        "ess/mismatch_seq": share(products),
        "is_weight/min": min(weights),
        "is_weight/mean": fmean(weights),
        "is_weight/max": max(weights),
        "is_weight/frac_bounded": 0.0,
    }
    assert mismatch_metrics(given, NoCorrection()) == pytest.approx(expected, rel=1e-5)
    assert largest_gap(given) == pytest.approx(expected["mismatch/absdiff_max"], rel=1e-6)
    assert largest_gap(given, first_row=1) == pytest.approx(max(abs(d) for row in gaps[1:] for d in row), rel=1e-6)


@pytest.mark.parametrize(
    ("correction", "per_completion", "masks"),
    [
        (TokenTruncate(low=0.8, high=1.5), False, False),
        (TokenMask(low=0.8, high=1.5), False, True),
        (SequenceTruncate(high=1.5), True, False),
        (SequenceMask(high=1.5), True, True),
    ],
)
def test_the_weights_are_the_ones_of_the_correction_in_force(
    correction: Mismatch, per_completion: bool, masks: bool
) -> None:
    given = rollout()
    assert given.sampler_logp is not None
    gaps = [
        [0.0 if math.isnan(s) else o - s for o, s in zip(*both, strict=True)]
        for both in zip(tokens(given.old_logp), tokens(given.sampler_logp), strict=True)
    ]
    raw = [math.exp(sum(row) if per_completion else d) for row in gaps for d in row]
    low = 0.0 if per_completion else 0.8
    inside = [low <= w <= 1.5 for w in raw]
    held = [w if fits else 0.0 if masks else min(max(w, low), 1.5) for w, fits in zip(raw, inside, strict=True)]
    found = mismatch_metrics(given, correction)
    assert 0 < sum(inside) < len(inside), "the example must have weights on both sides of the bounds"
    assert found["is_weight/min"] == pytest.approx(min(held), rel=1e-5)
    assert found["is_weight/mean"] == pytest.approx(fmean(held), rel=1e-5)
    assert found["is_weight/max"] == pytest.approx(max(held), rel=1e-5)
    assert found["is_weight/frac_bounded"] == pytest.approx(1 - fmean(inside))
    plain = mismatch_metrics(given, NoCorrection())
    assert found["ess/mismatch_seq"] == plain["ess/mismatch_seq"], "effective sample sizes are of raw weights"


def test_equal_engines_are_exact_and_an_unknown_trainer_is_no_zero() -> None:
    given = rollout()
    same = mismatch_metrics(replace(given, sampler_logp=given.old_logp.clone()), NoCorrection())
    ones = {"mismatch/pearson", "mismatch/ppl_ratio", "ess/mismatch_token", "ess/mismatch_seq"}
    ones |= {"is_weight/min", "is_weight/mean", "is_weight/max"}
    assert same == pytest.approx({name: float(name in ones) for name in same}, abs=1e-12)
    unknown = mismatch_metrics(replace(given, old_logp=torch.full((3, 4), NAN)), NoCorrection())
    assert {name for name, value in unknown.items() if not math.isnan(value)} == {"is_weight/frac_bounded"}
    assert largest_gap(replace(given, old_logp=torch.full((3, 4), NAN))) == 0


def test_the_effective_share_by_hand() -> None:
    assert effective_share(torch.tensor([1.0, 1.0, 1.0, 1.0])) == 1
    assert effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert effective_share(torch.tensor([3.0, 1.0], dtype=torch.float64)) == 16 / 20
    assert math.isnan(effective_share(torch.tensor([])))


def test_divergence_from_the_reference_a_token_and_a_completion() -> None:
    given = rollout()
    assert given.ref_logp is not None
    rows = [
        [o - r for o, r in zip(*both, strict=True)]
        for both in zip(tokens(given.old_logp), tokens(given.ref_logp), strict=True)
    ]
    k1, k3 = sum(map(sum, rows)), sum(math.exp(-d) - 1 + d for row in rows for d in row)
    expected = {"kl/ref_k1": k1 / 8, "kl/ref_k3": k3 / 8, "kl/ref_k1_seq": k1 / 3, "kl/ref_k3_seq": k3 / 3}
    assert reference_metrics(given) == pytest.approx(expected, rel=1e-5)
    assert reference_metrics(replace(given, ref_logp=None)) == {}


def credit(given: Rollout, reward: list[float], returns: bool = False) -> Credit:
    """The unscorable third row leaves the loss; advantages are 2, -1, 0, 3 in the first row and -4 in the second."""
    mask = given.mask & given.scorable[:, None]
    advantage = torch.tensor([[2.0, -1.0, 0.0, 3.0], [-4.0, NAN, NAN, NAN], [NAN] * 4])
    targets = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, NAN, NAN, NAN], [9.0] * 4]) if returns else None
    return Credit(
        advantage=advantage,
        returns=targets,
        mask=mask,
        reward=torch.tensor(reward, dtype=torch.float64),
        weight=None,
        monte_carlo=torch.tensor([[1.0] * 4, [0.0, NAN, NAN, NAN], [NAN] * 4]) if returns else None,
    )


def test_advantages_and_shaping_by_hand() -> None:
    given = rollout()
    found = credit_metrics(given, credit(given, [0.75, -0.5, NAN]))
    own = [2, -1, 0, 3, -4]
    assert found == pytest.approx(
        {
            "adv/mean": 0,
            "adv/std": stdev(own),
            "adv/absmax": 4,
            "adv/frac_pos": 2 / 5,
            "reward/shaped_mean": 0.125,
            "reward/shaping": -0.375,
        }
    )


def test_nothing_to_train_on_is_no_zero() -> None:
    given = rollout(reward=torch.full((3,), NAN, dtype=torch.float64))
    found = credit_metrics(given, credit(given, [NAN, NAN, NAN]))
    assert all(math.isnan(value) for value in found.values())


def test_the_critic_by_hand() -> None:
    given = rollout(value=torch.tensor([[1.0, 2.0, 2.0, 5.0], [1.0, NAN, NAN, NAN], [NAN] * 4]))
    found = critic_metrics(given, credit(given, [1, 0, NAN], returns=True))
    returns, residual = [1, 2, 3, 4, 0], [0, 0, 1, -1, -1]
    assert found == pytest.approx(
        {
            "value/mean": 11 / 5,
            "value/explained_variance": 1 - stdev(residual) ** 2 / (stdev(returns) ** 2 + 1e-5),
            "value/explained_variance_mc": 1 - stdev([0, 1, 1, 4, 1]) ** 2 / (stdev([1, 1, 1, 1, 0]) ** 2 + 1e-5),
            "returns/mean": 2,
            "returns/std": stdev(returns),
            "returns/mc_std": stdev([1, 1, 1, 1, 0]),
        }
    )
    assert critic_metrics(given, credit(given, [1, 0, NAN])) == {}


def test_a_critic_that_knows_nothing_explains_its_own_targets_but_no_reward_to_come() -> None:
    """Its values are noise. With lambda below 1 they stand in the targets, and so seem to explain these."""
    rng = torch.Generator().manual_seed(0)
    mask, reward = torch.ones(64, 10, dtype=torch.bool), (torch.rand(64, generator=rng) < 0.5).double()
    value = torch.rand(64, 1, generator=rng).expand(64, 10)
    given = Rollout(
        reward=reward,
        group=torch.arange(64),
        mask=mask,
        terminated=mask[:, 0],
        old_logp=torch.zeros(64, 10),
        ref_logp=None,
        value=value,
        completion_budget=10,
    )
    token = GAE(lam=0.5)(reward, torch.zeros(64, 10), given)
    own = Credit(
        advantage=token.advantage,
        returns=token.returns,
        mask=mask,
        reward=reward,
        weight=None,
        monte_carlo=token.monte_carlo,
    )
    found = critic_metrics(given, own)
    assert found["value/explained_variance"] > 0.5
    assert found["value/explained_variance_mc"] < 0
    assert token.monte_carlo is not None
    assert torch.equal(token.monte_carlo, reward[:, None].expand(64, 10).to(value.dtype))


def test_every_name_is_explained() -> None:
    given = rollout()
    own = credit(given, [1, 0, NAN], returns=True)
    found = {
        **reward_metrics(groups([member(1, True)])),
        **length_metrics(groups([member(1, True)])),
        **credit_metrics(given, own),
        **critic_metrics(given, own),
        **reference_metrics(given),
        **mismatch_metrics(given, NoCorrection()),
    }
    assert set(found) <= set(METRICS)
