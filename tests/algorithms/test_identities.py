"""Identities and invariances of whole objectives, from a rollout to the gradient of a step, however the step is cut."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from algorithms import (
    cispo,
    dapo,
    dapo_literal,
    dr_grpo,
    grpo,
    gspo,
    luspo,
    online_rft,
    ppo,
    reinforce,
    reinforce_pp,
    rloo,
    sapo,
)
from algorithms.axes.baseline import BatchScaled, GroupCentredWhitened, GroupStandardised, LeaveOneOut
from algorithms.axes.batch import Batch, LossParts, PairBatch, PairTotals, Rollout, Totals, group_tokens
from algorithms.axes.bonus import EntropyBonus
from algorithms.axes.focus import TopEntropyTokens
from algorithms.axes.imitation import GoldSolutions, Imitation
from algorithms.axes.mismatch import SequenceMask, SequenceTruncate, TokenMask, TokenTruncate
from algorithms.axes.penalty import LossKL, NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import GradedPairs, Ipo, Preference, Sigmoid, SigmoidNorm
from algorithms.axes.ratio import SequenceTokenRatio, TokenRatio
from algorithms.axes.reduction import MicrobatchTokenMean, Reduction, SequenceMean, SequenceSum
from algorithms.axes.returns import GAE, LengthAdaptiveGAE, Returns, WhitenedReturns
from algorithms.axes.shaping import MissingEos, Rescale
from algorithms.axes.surrogate import CispoMasked, Unclipped
from algorithms.axes.truncation import MaskTruncated
from bench.catalog import load_preset, names

NAN = math.nan
PRESETS = {name: load_preset(name).objective for name in names("algorithms")}
ONLINE = {name: objective for name, objective in PRESETS.items() if isinstance(objective, PolicyGradient)}
BONUS = EntropyBonus(coefficient=0.3)
CHARGED = LossKL(coefficient=0.2, estimator="k3", weight="ratio")
VARIANTS: dict[str, PolicyGradient] = {
    **{f"{name} with a bonus": replace(objective, bonus=BONUS) for name, objective in ONLINE.items()},
    **{
        f"{cls.__name__} of {'all' if flag else 'those trained on'}": replace(
            dapo.objective, reduction=cls(**({"count_masked": True} if flag else {})), truncation=MaskTruncated()
        )
        for cls in get_args(Reduction)
        for flag in ((False, True) if "count_masked" in cls.__annotations__ else (False,))
        if cls is not MicrobatchTokenMean
    },
    **{
        cls.__name__: replace(dapo_literal.objective, mismatch=cls(high=1.3, low=0.8), bonus=BONUS, penalty=CHARGED)
        for cls in (TokenTruncate, TokenMask, SequenceTruncate, SequenceMask)
    },
    **{
        f"focus, the others {'' if flag else 'not '}counted": replace(
            grpo.objective, focus=TopEntropyTokens(share=0.5, count_dropped=flag), mismatch=TokenTruncate(), bonus=BONUS
        )
        for flag in (False, True)
    },
    "truncated leave": replace(gspo.objective, truncation=MaskTruncated(in_baseline=False), shaping=Rescale(scale=2.0)),
    "GSPO-token": replace(gspo.objective, ratio=SequenceTokenRatio(), shaping=MissingEos(penalty=0.5)),
    "masked CISPO": replace(cispo.objective, surrogate=CispoMasked(low=0.5, high=0.3)),
    "whitened group": replace(reinforce_pp.objective, advantage=GroupCentredWhitened(), penalty=CHARGED),
    "VAPO": replace(
        ppo.objective,
        advantage=LengthAdaptiveGAE(gamma=0.9, alpha=0.5, whiten=False, truncation_bootstrap=True),
        bonus=BONUS,
    ),
}
LENGTHS = (3, 5, 1, 4, 2, 5, 1, 0, 5, 2, 4, 3, 2, 5, 1, 4)
REWARDS = [1, 0, 0, 1, 0, NAN, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1.0]
MOVED = torch.tensor([0.5, -0.2, 0.3], dtype=torch.float64)


@pytest.fixture
def whole(make_rollout: Callable[..., Rollout]) -> Rollout:
    """Groups of 6, 6, 2 and 2 with every field given: one unscorable completion, one without a token, some of a single
    token, three cut by the budget, one group of equal rewards, and tokens of which the sampler told nothing."""
    noise = torch.randn(6, 16, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    old_logp = noise[0] - 2
    sampled = old_logp + 0.3 * noise[1]
    sampled[1, 2] = NAN
    return make_rollout(
        REWARDS,
        mask=[[float(t < length) for t in range(5)] for length in LENGTHS],
        group=torch.tensor([0] * 6 + [1] * 6 + [2] * 2 + [3] * 2),
        terminated=torch.tensor([row not in (1, 8, 13) for row in range(16)]),
        old_logp=old_logp,
        ref_logp=old_logp + 0.4 * noise[2],
        value=noise[3],
        next_value=noise[3][:, 0] / 2,
        entropy=noise[4].abs(),
        sampler_logp=sampled,
        completion_budget=6,
    )


def step(
    objective: Any, rollout: Rollout, at: Tensor = MOVED, parts: Sequence[Sequence[int]] | None = None
) -> tuple[float, Tensor]:
    """Loss of one optimizer step and its gradient on three weights that move the policy from the rollout's, at 0.

    A token's log-probability and entropy depend on its old log-probability alone, so that a rollout may be cut, padded
    and reordered freely; what stands under the mask is NaN.
    """
    weights = at.clone().requires_grad_()
    x = torch.where(rollout.mask, rollout.old_logp, 0.0)
    moved = torch.stack([x, x**2, (3 * x).cos()], dim=-1) @ weights / 2
    logp, entropy = (torch.where(rollout.mask, values, NAN) for values in (x + moved, (1 + moved) ** 2))
    credit = objective.credit(rollout)
    parts = [range(len(rollout.mask))] if parts is None else parts
    totals = Totals.of(credit.mask, rollout.group, rollout.completion_budget, len(parts))
    tensors = {
        "logp": logp,
        "old_logp": rollout.old_logp,
        "ref_logp": rollout.ref_logp,
        "advantage": credit.advantage,
        "mask": credit.mask,
        "group_tokens": group_tokens(credit.mask, rollout.group),
        "weight": credit.weight,
        "entropy": entropy,
    }

    def part(rows: Sequence[int]) -> LossParts:
        own = {name: None if values is None else values[list(rows)] for name, values in tensors.items()}
        return objective.loss(Batch(**own), totals)  # type: ignore[arg-type]

    loss = torch.stack([part(rows).loss for rows in parts]).sum()
    return loss.item(), torch.autograd.grad(loss, weights)[0]


def change(rollout: Rollout, do: Callable[[Tensor], Tensor]) -> Rollout:
    """The rollout with every tensor changed."""
    changed: dict[str, Any] = {field.name: getattr(rollout, field.name) for field in fields(rollout)}
    for name, value in changed.items():
        changed[name] = do(value) if isinstance(value, Tensor) else value
    return Rollout(**changed)


def reordered(rollout: Rollout) -> Rollout:
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    return change(rollout, lambda values: values[order])


def wider(rollout: Rollout) -> Rollout:
    """Three more columns that hold NaN, and NaN and -inf also under the mask of the others."""
    mask = torch.cat([rollout.mask, torch.zeros(16, 3).bool()], dim=1)

    def pad(values: Tensor) -> Tensor:
        if values.dim() == 1 or values.dtype == torch.bool:
            return mask if values.dim() == 2 else values
        wide = torch.cat([values, torch.full((16, 3), -math.inf, dtype=values.dtype)], dim=1)
        hidden = torch.where(torch.arange(8) % 2 == 0, NAN, -math.inf).to(values.dtype)
        return torch.where(mask, wide, hidden)

    return change(rollout, pad)


def renamed(rollout: Rollout) -> Rollout:
    return replace(rollout, group=torch.tensor([7, -2, 90, 3])[rollout.group])


def close(found: tuple[float, Tensor], expected: tuple[float, Tensor]) -> bool:
    apart = max(abs(found[0] - expected[0]), float((found[1] - expected[1]).abs().max()))
    return apart <= 1e-12 * (1 + float(expected[1].norm()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_content_of_a_rollout_counts(variant: str, whole: Rollout) -> None:
    """Neither the order of rows, nor the width, nor what the mask hides, nor the names of the groups."""
    objective = VARIANTS[variant]
    expected = step(objective, whole)
    assert float(expected[1].norm()) > 1e-2
    for changed in (reordered, wider, renamed):
        assert close(step(objective, changed(whole)), expected), changed.__name__


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_cut_of_a_step_does_not_count(variant: str, whole: Rollout) -> None:
    """Into any number of microbatches; one of them has no token that is trained on."""
    objective = VARIANTS[variant]
    expected = step(objective, whole)
    draw = torch.Generator().manual_seed(2)
    cuts = [[[5, 7], [row for row in range(16) if row not in (5, 7)]]]
    for num_parts in (2, 5):
        belongs = torch.randint(0, num_parts, (16,), generator=draw)
        cuts.append([(belongs == part).nonzero().flatten().tolist() for part in range(num_parts)])
    for cut in cuts:
        assert close(step(objective, whole, parts=cut), expected), cut


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_rollout_given_twice_is_the_same_step(variant: str, whole: Rollout) -> None:
    """Except where a standard deviation with ddof 1 is taken over the whole rollout: it has more rewards then."""
    objective = VARIANTS[variant]
    whitened = isinstance(objective.advantage, BatchScaled | GroupCentredWhitened | WhitenedReturns)
    if whitened or getattr(objective.advantage, "whiten", False):
        return
    twice = change(whole, lambda values: torch.cat([values, values]))
    twice = replace(twice, group=torch.cat([whole.group, whole.group + 4]))
    assert close(step(objective, twice), step(objective, whole))


@pytest.fixture
def plain(whole: Rollout) -> Rollout:
    """Four groups of four, all ended and scored, with the reference at the old policy: penalties are 0 there."""
    reward = torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0], dtype=torch.float64)
    return replace(
        whole,
        reward=reward,
        correct=reward,
        group=torch.arange(16) // 4,
        terminated=torch.ones(16).bool(),
        ref_logp=whole.old_logp,
        value=torch.zeros_like(whole.old_logp),
        completion_budget=50,
    )


def free(module: Any, **parts: Any) -> PolicyGradient:
    return replace(module.objective, penalty=NoPenalty(), **parts)


ON_POLICY = {
    "RLOO is G / (G - 1) L_max Dr. GRPO": (rloo.objective, dr_grpo.objective, 4 / 3 * 50),
    "CISPO is DAPO": (cispo.objective, dapo.objective, 1),
    "GSPO is GRPO without its penalty": (gspo.objective, free(grpo), 1),
    "SAPO is GRPO without its penalty": (sapo.objective, free(grpo), 1),
    "LUSPO is GSPO with whole completions": (luspo.objective, free(grpo, reduction=SequenceSum()), 1),
    "REINFORCE is its ratio unclipped": (
        reinforce.objective,
        replace(reinforce.objective, ratio=TokenRatio(), surrogate=Unclipped()),
        1,
    ),
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_objectives_coincide_and_off_policy_they_do_not(name: str, plain: Rollout) -> None:
    """Spec section 15: gradients at the policy of the rollout; a step away from it they are apart."""
    one, other, factor = ON_POLICY[name]
    start = torch.zeros_like(MOVED)
    found, expected = step(one, plain, start)[1], factor * step(other, plain, start)[1]
    assert expected.norm() > 1e-3
    assert torch.allclose(found, expected, atol=1e-13, rtol=1e-12)
    assert not torch.allclose(step(one, plain)[1], factor * step(other, plain)[1], rtol=0.02)


@pytest.mark.parametrize("moved", [0.0, 0.001, 0.5])
def test_the_two_forms_of_gspo_are_one_objective(moved: float, plain: Rollout) -> None:
    """One advantage a completion: inside the clip, at its edge, and far outside."""
    other = replace(gspo.objective, ratio=SequenceTokenRatio())
    assert close(step(other, plain, moved * MOVED), step(gspo.objective, plain, moved * MOVED))


def test_ppo_with_a_critic_that_knows_nothing_is_reinforce_pp(plain: Rollout, whole: Rollout) -> None:
    """gamma = lambda = 1 and V = 0: the advantage is the reward to come, here with a penalty per token and whitened."""
    rollout = replace(plain, ref_logp=whole.ref_logp)
    own = replace(ppo.objective, penalty=reinforce_pp.objective.penalty)
    assert close(step(own, rollout), step(reinforce_pp.objective, rollout))
    unwhitened = replace(own, advantage=GAE(whiten=False))
    assert close(step(unwhitened, rollout), step(replace(own, advantage=Returns(), value=free(grpo).value), rollout))


def test_online_rejection_sampling_is_imitation_of_the_accepted(plain: Rollout) -> None:
    """Same gradient as maximum likelihood on the correct completions alone."""
    rows = (plain.correct == 1).nonzero().flatten()
    accepted = change(plain, lambda values: values[rows])
    imitation = Imitation(source=GoldSolutions(), reduction=SequenceMean())
    x = torch.where(accepted.mask, accepted.old_logp, 0.0)
    weights = torch.zeros_like(MOVED).requires_grad_()
    logp = x + torch.stack([x, x**2, (3 * x).cos()], dim=-1) @ weights / 2
    batch = Batch(
        logp=torch.where(accepted.mask, logp, NAN),
        old_logp=x,
        ref_logp=None,
        advantage=torch.full_like(x, NAN),
        mask=accepted.mask,
        group_tokens=torch.full((len(x),), NAN, dtype=torch.float64),
    )
    loss = imitation.loss(batch, Totals.of(accepted.mask, accepted.group, 50)).loss
    expected = torch.autograd.grad(loss, weights)[0]
    assert torch.allclose(step(online_rft.objective, plain, torch.zeros_like(MOVED))[1], expected, atol=1e-14)


def test_dapo_as_written_is_dapo_for_one_group(plain: Rollout) -> None:
    one = change(plain, lambda values: values[:4])
    assert close(
        step(replace(dapo_literal.objective, surrogate=dapo.objective.surrogate), one), step(dapo.objective, one)
    )
    assert not close(step(dapo_literal.objective, plain), step(dapo.objective, plain))


def test_preference_losses_coincide_for_one_length() -> None:
    """L tokens on both sides: a margin per token is the margin over L, so beta and IPO's target scale with L."""
    logp = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    length = torch.full((6,), 5.0, dtype=torch.float64)

    def gradient(loss_function: Any) -> Tensor:
        chosen, rejected = (values.clone().requires_grad_() for values in logp[:2])
        batch = PairBatch(
            chosen_logp=chosen,
            rejected_logp=rejected,
            ref_chosen_logp=logp[2],
            ref_rejected_logp=logp[3],
            chosen_length=length,
            rejected_length=length,
        )
        objective = Preference(loss_function=loss_function, pairing=GradedPairs())
        loss = objective.loss(batch, PairTotals(num_pairs=6, num_chosen_tokens=30)).loss
        return torch.cat(torch.autograd.grad(loss, (chosen, rejected)))

    assert torch.allclose(gradient(SigmoidNorm(beta=2.5)), gradient(Sigmoid(beta=0.5)), atol=1e-15)
    own, summed = gradient(Ipo(beta=0.5)), gradient(Ipo(beta=0.1, per_token=False))
    assert torch.allclose(own, summed / 25, atol=1e-15)


@pytest.mark.parametrize("name", ONLINE)
def test_odd_rollouts_stay_finite(name: str, whole: Rollout) -> None:
    """In float32: nothing scored, every completion ended at once, none has a token, all cut, groups of two."""
    rows = replace(whole, **{name: getattr(whole, name).float() for name in ("old_logp", "ref_logp", "value")})
    first = torch.arange(5)[None, :].expand(16, 5) == 0
    odd = {
        "unscored": replace(rows, reward=torch.full_like(rows.reward, NAN), correct=torch.full_like(rows.reward, NAN)),
        "one token": replace(rows, mask=first),
        "no token": replace(rows, mask=torch.zeros_like(first)),
        "all cut": replace(rows, terminated=torch.zeros(16).bool()),
        "pairs": replace(rows, group=torch.arange(16) // 2),
    }
    for case, rollout in odd.items():
        for truncation in (ONLINE[name].truncation, MaskTruncated()):
            objective = replace(ONLINE[name], truncation=truncation)
            credit = objective.credit(rollout)
            assert credit.advantage.isfinite().all(), case
            value, gradient = step(objective, rollout, MOVED.float())
            assert math.isfinite(value), case
            assert gradient.isfinite().all(), case
            if not credit.mask.any():
                assert (value, gradient.abs().max()) == (0, 0), case


def test_advantages_of_a_group_of_two(whole: Rollout) -> None:
    """G = 2: leave-one-out is the difference of the rewards; standardised it is 1 / sqrt 2, however far apart."""
    group = torch.tensor([0, 0, 1, 1])
    reward = torch.tensor([0.3, 0.1, -5, 2], dtype=torch.float64)
    assert LeaveOneOut().score(reward, group).tolist() == pytest.approx([0.2, -0.2, -7, 7])
    half = math.sqrt(0.5)
    assert GroupStandardised(epsilon=0.0).score(reward, group).tolist() == pytest.approx([half, -half, -half, half])
