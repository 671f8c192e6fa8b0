"""GAE is the sum that defines it, in every form it is offered: against a pure Python oracle, and by identities."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from algorithms import ppo
from algorithms.axes.advantage import GAE, LengthAdaptiveGAE, Returns
from algorithms.axes.batch import Rollout, Totals, ValueBatch
from algorithms.axes.penalty import RewardKL
from algorithms.axes.value import ValueLoss

TOLERANCE, CLEAR = 1e-6, 1e-3


def apart(one: Tensor, other: Tensor) -> float:
    """Largest difference; infinite where one is NaN."""
    return float((one.double() - other.double()).abs().nan_to_num(nan=math.inf).max())


def oracle(
    reward: Sequence[float], value: Sequence[float], mask: Sequence[bool], gamma: float, lam: float, after: float = 0.0
) -> list[float]:
    """A_t = sum over k of (gamma lambda)^k delta_{t+k}, over the valid positions of one row; 0 elsewhere."""
    valid = [t for t, kept in enumerate(mask) if kept]
    following = [*(value[t] for t in valid[1:]), after] if valid else []
    delta = [reward[t] + gamma * later - value[t] for t, later in zip(valid, following, strict=True)]
    result = [0.0] * len(mask)
    for i, t in enumerate(valid):
        result[t] = sum((gamma * lam) ** k * error for k, error in enumerate(delta[i:]))
    return result


def test_trl_agrees_with_the_definition() -> None:
    """The stored advantages of TRL 1.12, before whitening, which ours are compared with elsewhere."""
    content = json.loads((Path(__file__).parent / "golden" / "ppo_trl_1_12.json").read_text(encoding="utf-8"))
    names = ("rewards", "values", "padding_mask_p1", "raw_advantages")
    for update in content["updates"]:
        gamma, lam = update["settings"]["gamma"], update["settings"]["lam"]
        for reward, value, beyond, given in zip(*(update[name] for name in names), strict=True):
            expected = oracle(reward, value, [not hidden for hidden in beyond], gamma, lam)
            assert given == pytest.approx(expected, abs=TOLERANCE, rel=0)


def random_rollout() -> Rollout:
    """Twelve rows of up to nine tokens in float64: with gaps, one without a token, one full, half cut by the budget."""
    generator = torch.Generator().manual_seed(11)
    mask = torch.rand(12, 9, generator=generator) < torch.linspace(0, 1.1, 12)[:, None]
    old_logp, ref_logp, value = (torch.randn(12, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    reward, next_value = (torch.randn(12, generator=generator, dtype=torch.float64) for _ in range(2))
    return Rollout(
        reward=reward,
        group=torch.arange(12),
        mask=mask,
        terminated=torch.arange(12) % 2 == 0,
        old_logp=old_logp,
        ref_logp=ref_logp,
        value=value,
        completion_budget=9,
        next_value=next_value,
    )


def expected_advantages(rollout: Rollout, gamma: float, lam: Sequence[float], bootstrap: bool) -> Tensor:
    """From the definition, row by row: -0.1 * k1 on each token and the reward on the last; `lam` of each row."""
    assert rollout.ref_logp is not None
    assert rollout.value is not None
    assert rollout.next_value is not None
    rewards: list[list[float]] = (-0.1 * (rollout.old_logp - rollout.ref_logp)).tolist()
    result: list[list[float]] = []
    for row, mask in enumerate(rollout.mask.tolist()):
        last = max((t for t, kept in enumerate(mask) if kept), default=0)
        rewards[row][last] += float(rollout.reward[row])
        cut = bootstrap and not rollout.terminated[row]
        after = float(rollout.next_value[row]) if cut else 0.0
        result.append(oracle(rewards[row], rollout.value[row].tolist(), mask, gamma, lam[row], after))
    return torch.tensor(result, dtype=torch.float64)


def credited(advantage: GAE | LengthAdaptiveGAE, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Advantages and returns of ours with -0.1 * k1 on each token."""
    credit = advantage(rollout.reward, RewardKL(coefficient=0.1).token_reward(rollout), rollout)
    assert credit.returns is not None
    return credit.advantage, credit.returns


def assert_defined(
    found: tuple[Tensor, Tensor], rollout: Rollout, gamma: float, lams: tuple[Sequence[float], ...], bootstrap: bool
) -> None:
    """`found` is A(lambda) and A(lambda of the returns) + V from the definition, the latter under the mask."""
    assert rollout.value is not None
    advantage, targets = (expected_advantages(rollout, gamma, lam, bootstrap) for lam in lams)
    assert apart(found[0], advantage) <= 1e-12
    assert apart(found[1], torch.where(rollout.mask, targets + rollout.value, 0.0)) <= 1e-12


CASES = list(product((1.0, 0.9, 0.0), (1.0, 0.95, 0.0), (None, 1.0, 0.3, 0.0), (False, True)))


@pytest.mark.parametrize(("gamma", "lam", "lam_returns", "bootstrap"), CASES)
def test_gae_is_its_definition(gamma: float, lam: float, lam_returns: float | None, bootstrap: bool) -> None:
    """Across gaps, with one lambda for the policy and one for the critic, and counting on behind the budget's cut."""
    rollout = random_rollout()
    knob = GAE(gamma=gamma, lam=lam, lam_returns=lam_returns, whiten=False, truncation_bootstrap=bootstrap)
    lams = ([lam] * 12, [lam if lam_returns is None else lam_returns] * 12)
    assert_defined(credited(knob, rollout), rollout, gamma, lams, bootstrap)


@pytest.mark.parametrize(("gamma", "lam_returns", "bootstrap"), list(product((1.0, 0.9), (1.0, 0.3), (False, True))))
def test_length_adaptive_gae_is_its_definition(gamma: float, lam_returns: float, bootstrap: bool) -> None:
    """alpha = 1/6: lambda is 1 - 6 / L of the tokens that count, and 0 for six tokens or fewer."""
    rollout = random_rollout()
    lengths = [sum(mask) for mask in rollout.mask.tolist()]
    lam = [1 - 6 / length if length > 6 else 0.0 for length in lengths]
    assert len(set(lam)) >= 3
    # Where the formula is negative and there is more than one error to weigh, so that 0 in its place is seen.
    assert any(1 < length < 6 for length in lengths)
    knob = LengthAdaptiveGAE(
        gamma=gamma, alpha=1 / 6, lam_returns=lam_returns, whiten=False, truncation_bootstrap=bootstrap
    )
    assert_defined(credited(knob, rollout), rollout, gamma, (lam, [lam_returns] * 12), bootstrap)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_bootstrapping_changes_the_cut_rows_only(gamma: float) -> None:
    """At lambda = 1 by gamma^(tokens left) V(after); not at all where the completion ended by itself."""
    rollout = random_rollout()
    assert rollout.next_value is not None
    plain, counted = (
        credited(GAE(gamma=gamma, whiten=False, truncation_bootstrap=flag), rollout)[0] for flag in (False, True)
    )
    left = rollout.mask.flip(1).cumsum(dim=1).flip(1).double()
    more = torch.where(rollout.mask & ~rollout.terminated[:, None], gamma**left * rollout.next_value[:, None], 0.0)
    assert apart(counted - plain, more) <= 1e-12
    assert more.abs().max() > CLEAR


def test_whitening_is_of_the_policys_lambda_only() -> None:
    """With lambdas apart: mean and variance (ddof 1) over the valid tokens; the critic's targets stay as they are."""
    rollout = random_rollout()
    plain = credited(GAE(lam=0.5, lam_returns=1.0, whiten=False), rollout)
    whitened = credited(GAE(lam=0.5, lam_returns=1.0, whiten=True), rollout)
    values = plain[0][rollout.mask].tolist()
    mean, scale = statistics.fmean(values), math.sqrt(statistics.variance(values) + 1e-8)
    expected = torch.tensor([(value - mean) / scale for value in values], dtype=torch.float64)
    assert apart(whitened[0][rollout.mask], expected) <= 1e-12
    assert whitened[0][~rollout.mask].abs().max() == 0
    assert torch.equal(whitened[1], plain[1])


def test_without_values_and_penalty_the_advantage_is_the_reward() -> None:
    """gamma = lambda = 1, V = 0 and the policy its own reference: A = R on every token of PPO's preset, across gaps."""
    rollout = random_rollout()
    rollout = replace(rollout, ref_logp=rollout.old_logp, value=torch.zeros(12, 9, dtype=torch.float64))
    credit = replace(ppo.objective, advantage=GAE(gamma=1.0, lam=1.0, whiten=False)).credit(rollout)
    expected = torch.where(rollout.mask, rollout.reward[:, None], 0.0)
    assert torch.equal(credit.advantage, expected)
    assert credit.returns is not None
    assert torch.equal(credit.returns, expected)


def test_at_lambda_1_targets_do_not_depend_on_the_critic() -> None:
    """The values telescope: A + V is the discounted reward to come, whatever V is."""
    rollout = random_rollout()
    token_reward = RewardKL(coefficient=0.1).token_reward(rollout)
    to_come = Returns(gamma=0.9)(rollout.reward, token_reward, rollout).advantage
    for lam in (1.0, 0.2):
        _, returns = credited(GAE(gamma=0.9, lam=lam, lam_returns=1.0, whiten=False), rollout)
        assert apart(returns, to_come) <= 1e-12


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -1e30])
@pytest.mark.parametrize(
    "advantage",
    [
        GAE(gamma=0.9, lam=0.8, lam_returns=1.0, truncation_bootstrap=True),
        LengthAdaptiveGAE(gamma=0.9, alpha=0.25, truncation_bootstrap=True),
    ],
)
def test_what_the_mask_hides_never_leaks(advantage: GAE | LengthAdaptiveGAE, hidden: float) -> None:
    """Bit for bit the same: values and log-probabilities in gaps and pads, and values behind an end that is one."""
    rollout = random_rollout()
    assert rollout.ref_logp is not None
    assert rollout.value is not None
    assert rollout.next_value is not None
    mask, objective = rollout.mask, replace(ppo.objective, advantage=advantage)
    filled = replace(
        rollout,
        old_logp=torch.where(mask, rollout.old_logp, hidden),
        ref_logp=torch.where(mask, rollout.ref_logp, hidden),
        value=torch.where(mask, rollout.value, hidden),
        next_value=torch.where(rollout.terminated, hidden, rollout.next_value),
    )
    before, after = objective.credit(rollout), objective.credit(filled)
    assert before.returns is not None
    assert after.returns is not None
    assert torch.equal(before.advantage, after.advantage)
    assert torch.equal(before.returns, after.returns)

    losses: list[Tensor] = []
    for value in (rollout.value, torch.where(mask, rollout.value, hidden)):
        fitted = value.clone().requires_grad_()
        batch = ValueBatch(value=fitted, old_value=value + 0.5, returns=after.returns, mask=mask)
        loss = ValueLoss(clip=0.2)(batch, Totals.of(mask, rollout.group, 9)).loss
        losses += [loss.detach(), torch.autograd.grad(loss, fitted)[0]]
    assert torch.equal(losses[0], losses[2])
    assert torch.equal(losses[1], losses[3])
    assert losses[1][~mask].abs().max() == 0
