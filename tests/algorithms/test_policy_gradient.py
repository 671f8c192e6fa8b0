"""The policy-gradient family: what holds for every preset, whatever its axes, from credit to the optimizer step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms import dapo, dr_grpo, grpo, ppo
from algorithms.axes.baseline import GroupCentred, GroupStandardised, degenerate
from algorithms.axes.batch import Batch, LossParts, Rollout, Totals, ValueBatch, group_tokens
from algorithms.axes.penalty import NoPenalty, RewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.returns import GAE
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping, SoftOverlong
from algorithms.axes.surrogate import Clip, DualClip
from algorithms.axes.value import NoCritic, ValueLoss

NAN = math.nan
MakeRollout = Callable[..., Rollout]
SPLITS = [
    [range(4), range(4, 8)],
    [range(0, 8, 2), range(1, 8, 2)],
    [[i] for i in range(8)],
    [[3, 0, 6], [7, 1, 2, 4, 5]],
]
PLAIN: dict[str, Any] = {
    "shaping": NoShaping(),
    "selection": KeepAll(),
    "advantage": GroupCentred(),
    "surrogate": Clip(),
    "penalty": NoPenalty(),
    "reduction": TokenMean(),
    "value": NoCritic(),
}


def loss_of(objective: PolicyGradient) -> Callable[[Batch, Totals], Tensor]:
    return lambda batch, totals: objective.loss(batch, totals).loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_split_into_microbatches_gives_the_same_loss_and_gradient(
    online: PolicyGradient, dtype: torch.dtype, ragged: Any, value_and_gradient: Any
) -> None:
    example, loss = ragged(dtype), loss_of(online)
    value, gradient = value_and_gradient(loss, example.batch, example.totals)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    for split in SPLITS:
        parts = [value_and_gradient(loss, example.rows(rows), example.totals) for rows in split]
        assert sum(part for part, _ in parts) == pytest.approx(value, abs=tolerance)
        joined = torch.zeros_like(gradient)
        for rows, (_, piece) in zip(split, parts, strict=True):
            joined[list(rows)] = piece
        assert torch.allclose(joined, gradient, atol=tolerance, rtol=0)


def test_metrics_of_microbatches_add_up_to_those_of_the_step(online: PolicyGradient, ragged: Any) -> None:
    example = ragged()
    whole = online.loss(example.batch, example.totals)
    parts = [online.loss(example.rows(rows), example.totals) for rows in SPLITS[1]]
    for name, mean in whole.means.items():
        assert parts[0].means[name].plus(parts[1].means[name]).value() == pytest.approx(mean.value(), abs=1e-12)
    assert max(float(part.maxima["ratio/max"]) for part in parts) == float(whole.maxima["ratio/max"])


@pytest.mark.parametrize("filler", [0.0, 7.0, NAN, -math.inf])
def test_what_is_masked_never_matters(
    online: PolicyGradient, filler: float, ragged: Any, value_and_gradient: Any
) -> None:
    """Wider padding that holds anything, NaN and -inf too, in every tensor: the same loss, gradient and metrics."""
    example, loss = ragged(), loss_of(online)
    value, gradient = value_and_gradient(loss, example.batch, example.totals)
    padded, wide = value_and_gradient(loss, example.padded(5, filler), example.totals)
    assert padded == pytest.approx(value, abs=1e-15)
    assert torch.allclose(wide[:, :-5], gradient, atol=1e-16, rtol=0)
    assert torch.equal(wide[:, -5:], torch.zeros(8, 5, dtype=torch.float64))
    plain, odd = (online.loss(batch, example.totals) for batch in (example.batch, example.padded(5, filler)))
    for name, mean in plain.means.items():
        assert odd.means[name].value() == pytest.approx(mean.value(), abs=1e-14)
    assert torch.equal(odd.maxima["ratio/max"], plain.maxima["ratio/max"])


def test_the_order_of_rows_does_not_matter(online: PolicyGradient, ragged: Any, value_and_gradient: Any) -> None:
    example, order = ragged(), [5, 2, 7, 0, 1, 6, 4, 3]
    value, gradient = value_and_gradient(loss_of(online), example.batch, example.totals)
    permuted, moved = value_and_gradient(loss_of(online), example.rows(order), example.totals)
    assert permuted == pytest.approx(value, abs=1e-15)
    assert torch.allclose(moved, gradient[order], atol=1e-16, rtol=0)


def test_the_gradient_flows_through_the_policy_alone(online: PolicyGradient, ragged: Any) -> None:
    """Old and reference log-probabilities and advantages are data, even if they were handed over with a graph."""
    example = ragged()
    leaves = {
        name: getattr(example.batch, name).clone().requires_grad_()
        for name in ("logp", "old_logp", "ref_logp", "advantage")
    }
    online.loss(replace(example.batch, **leaves), example.totals).loss.backward()
    assert leaves["logp"].grad is not None
    assert all(leaves[name].grad is None for name in ("old_logp", "ref_logp", "advantage"))


def test_the_first_step_after_a_rollout(online: PolicyGradient, make_batch: Any, value_and_gradient: Any) -> None:
    """OBJ-26: equal lengths, advantages +-1, on-policy: ratio 1, nothing cut, a loss of about 0 and a gradient that is
    not."""
    logp = torch.tensor([[-1.0, -2.0, -0.1], [-3.0, -0.7, -0.2]], dtype=torch.float64)
    advantage = [[1.0] * 3, [-1.0] * 3]
    batch, totals = make_batch(logp, advantage=advantage, ref_logp=logp)
    parts = online.loss(batch, totals)
    metrics = {name: mean.value() for name, mean in parts.means.items()}
    assert metrics.pop("ratio/mean") == 1
    shares = {name: value for name, value in metrics.items() if not name.startswith("ess/")}
    assert set(shares.values()) == {0.0}
    assert metrics.keys() - shares.keys() == {"ess/update_token", "ess/update_seq"}
    assert all(metrics[name] == 1 for name in metrics.keys() - shares.keys())
    assert float(parts.maxima["ratio/max"]) == 1
    value, gradient = value_and_gradient(loss_of(online), batch, totals)
    if isinstance(online.surrogate, Clip | DualClip):  # the values of the others contain log pi, or their two slopes
        assert value == pytest.approx(0, abs=1e-12)
    assert gradient.norm() > 0.1


def test_on_policy_the_gradient_is_minus_advantage_times_the_reductions_weight(
    make_batch: Any, value_and_gradient: Any
) -> None:
    """Lengths 3 and 1, budget 10, one group; w/Z is 1/4 a token for DAPO, 1/(2 L) for GRPO (no KL at the reference),
    1/(2 x 10) for Dr. GRPO, and 1/4 again for PPO."""
    advantage = torch.tensor([[2.0, 2, 2], [-1, 0, 0]], dtype=torch.float64)
    mask = [[1, 1, 1], [1, 0, 0]]
    batch, totals = make_batch(
        [[-1.0, -2, -3], [-1, 0, 0]], advantage=advantage, mask=mask, ref_logp=[[-1.0, -2, -3], [-1, 0, 0]]
    )
    weights = {
        dapo: [[1 / 4] * 3] * 2,
        grpo: [[1 / 6] * 3, [1 / 2] * 3],
        dr_grpo: [[1 / 20] * 3] * 2,
        ppo: [[1 / 4] * 3] * 2,
    }
    for module, weight in weights.items():
        _, gradient = value_and_gradient(loss_of(module.objective), batch, totals)
        assert torch.allclose(gradient, -advantage * torch.tensor(weight, dtype=torch.float64), atol=1e-15, rtol=0)


def test_with_equal_lengths_the_reductions_are_one_up_to_a_constant(make_batch: Any, value_and_gradient: Any) -> None:
    """L tokens each: 1/(N L) for all but Dr. GRPO, which is L / budget of it. Only lengths and groups tell them
    apart."""
    logp = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch, totals = make_batch(logp, ref_logp=logp, advantage=torch.sign(logp), budget=20)
    gradients = [
        value_and_gradient(loss_of(module.objective), batch, totals)[1] for module in (dapo, grpo, ppo, dr_grpo)
    ]
    assert torch.allclose(gradients[0], gradients[1], atol=1e-15, rtol=0)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-15, rtol=0)
    assert torch.allclose(gradients[0] * 5 / 20, gradients[3], atol=1e-15, rtol=0)


def test_a_penalty_in_the_loss_by_hand(make_batch: Any) -> None:
    """On-policy with A = 0 only beta k3 is left: d = log 2 and 0, k3 = log 2 - 1/2 and 0, two tokens, beta = 0.04."""
    batch, totals = make_batch([[math.log(0.5), -1.0]], ref_logp=[[math.log(0.25), -1.0]], advantage=[[0.0, 0.0]])
    assert float(grpo.objective.loss(batch, totals).loss) == pytest.approx(0.04 * (math.log(2) - 0.5) / 2, abs=1e-12)
    assert float(dapo.objective.loss(batch, totals).loss) == 0


def test_divergence_from_the_old_policy_by_hand(make_batch: Any) -> None:
    """KL(old || new) from old samples: pi_old = 1/2, pi = 1/4: k1 = log 2, k3 = rho - 1 - log rho = 1/2 - 1 + log 2."""
    batch, totals = make_batch([[math.log(0.25)]], old_logp=[[math.log(0.5)]])
    means = dapo.objective.loss(batch, totals).means
    assert means["kl/old_k1"].value() == pytest.approx(math.log(2), abs=1e-12)
    assert means["kl/old_k3"].value() == pytest.approx(math.log(2) - 0.5, abs=1e-12)
    assert means["ratio/mean"].value() == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("reward", [0.0, 1.0, 3.0, -17.25, 0.1, 1 / 3])
def test_uniform_groups_move_nothing(reward: float, make_rollout: MakeRollout, value_and_gradient: Any) -> None:
    """OBJ-09: eight equal rewards: advantages, loss and gradient exactly 0 without a penalty, every group
    degenerate."""
    rollout = make_rollout([reward] * 8)
    assert degenerate(rollout.reward, rollout.group).double().mean() == 1
    for ddof in (0, 1):
        for advantage in (GroupCentred(), GroupStandardised(ddof=ddof, epsilon=1e-4)):
            value, gradient = step(PolicyGradient(**PLAIN | {"advantage": advantage}), rollout, value_and_gradient)
            assert value == 0
            assert gradient.abs().max() == 0


def step(objective: PolicyGradient, rollout: Rollout, value_and_gradient: Any) -> tuple[float, Tensor]:
    """Credit for a rollout, then the loss of all of it as one optimizer step, a little off-policy."""
    credit = objective.credit(rollout)
    batch = Batch(
        logp=rollout.old_logp - 0.01,
        old_logp=rollout.old_logp,
        ref_logp=rollout.ref_logp,
        advantage=credit.advantage,
        mask=credit.mask,
        group_tokens=group_tokens(credit.mask, rollout.group),
        weight=credit.weight,
    )
    totals = Totals.of(credit.mask, rollout.group, rollout.completion_budget)
    return value_and_gradient(loss_of(objective), batch, totals)


def test_an_unscorable_completion_leaves_no_trace(
    online: PolicyGradient, make_rollout: MakeRollout, value_and_gradient: Any
) -> None:
    """NaN reward: statistics, loss, gradient and denominators are those of the rollout without it."""
    generator = torch.Generator().manual_seed(2)
    tensors = {name: torch.randn(6, 4, generator=generator) for name in ("old_logp", "ref_logp", "value")}
    mask = torch.arange(4)[None, :] < torch.tensor([4, 2, 3, 1, 4, 2])[:, None]
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    rewards, kept = [1.0, NAN, 0.0, 1.0, 0.5, 0.0], [0, 2, 3, 4, 5]
    whole = make_rollout(rewards, mask=mask.int().tolist(), group=group, **tensors)
    rest = {field.name: getattr(whole, field.name) for field in fields(whole)}
    rest = {name: values[kept] if isinstance(values, Tensor) else values for name, values in rest.items()}
    value, gradient = step(online, whole, value_and_gradient)
    expected, piece = step(online, Rollout(**rest), value_and_gradient)
    assert value == pytest.approx(expected, abs=1e-7)
    assert torch.allclose(gradient[kept], piece, atol=1e-7, rtol=0)
    assert torch.equal(gradient[1], torch.zeros(4))


def test_shaping_comes_before_the_baseline(make_rollout: MakeRollout) -> None:
    """Budget 4, buffer 2: lengths 2 and 4 cost 0 and 1, so two rewards of 1 become 1 and 0, and their mean 1/2."""
    rollout = make_rollout([1.0, 1.0], mask=[[1, 1, 0, 0], [1, 1, 1, 1]], completion_budget=4)
    credit = PolicyGradient(**PLAIN | {"shaping": SoftOverlong(buffer=0.5, factor=1.0)}).credit(rollout)
    assert credit.advantage.tolist() == [[0.5, 0.5, 0, 0], [-0.5, -0.5, -0.5, -0.5]]


def test_a_penalty_in_the_reward_comes_before_the_advantage(make_rollout: MakeRollout) -> None:
    """beta = 0.5, k1 = 0.2 and 0.4, R = 1, V = 0, gamma = lambda = 1: returns 1 - 0.1 - 0.2 = 0.7 and 1 - 0.2 = 0.8."""
    rollout = make_rollout([1.0], old_logp=torch.tensor([[-1.0, -1.0]]), ref_logp=torch.tensor([[-1.2, -1.4]]))
    parts = {"advantage": GAE(), "value": ValueLoss(), "penalty": RewardKL(coefficient=0.5)}
    credit = PolicyGradient(**PLAIN | parts).credit(rollout)
    assert credit.returns is not None
    assert credit.returns.tolist() == [pytest.approx([0.7, 0.8])]


def test_one_verifiers_rewards_serve_every_objective(online: PolicyGradient, make_rollout: MakeRollout) -> None:
    """OBJ-38 (its part here): plain numbers go in, none is changed, and each objective turns them into finite
    credit."""
    rewards = [float(text == "4") for text in ("4", "5", "6", "", "4 ", "5")]
    rollout = make_rollout(rewards)
    credit = online.credit(rollout)
    assert rollout.reward.tolist() == rewards
    assert credit.advantage.isfinite().all()
    assert (credit.advantage[0] > 0).all()
    assert (credit.advantage[1] < 0).all() or not credit.mask[1].any()


def accumulate(losses: Sequence[Callable[[], LossParts]], model: nn.Module) -> list[Tensor]:
    """The change of every parameter by one step of plain SGD at rate 1 on the sum of the parts."""
    model.zero_grad()
    for loss in losses:
        loss().loss.backward()
    return [-parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_accumulation_changes_no_parameter_update(online: PolicyGradient, make_rollout: MakeRollout) -> None:
    """OBJ-05: one SGD step on six samples, in one part and in six: the policy's and the critic's updates are the
    same."""
    torch.manual_seed(0)
    ids, mask = torch.randint(0, 7, (6, 5)), torch.arange(5)[None, :] < torch.tensor([5, 1, 3, 2, 1, 4])[:, None]
    policy, critic = (nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, width)) for width in (7, 1))

    def logp(rows: Any) -> Tensor:
        return torch.log_softmax(policy(ids[rows]), dim=-1).gather(-1, ids[rows].roll(-1, 1)[..., None])[..., 0]

    old_logp = logp(slice(None)).detach() + 0.1 * torch.randn(6, 5)
    value = critic(ids)[..., 0].detach() + 0.1
    rollout = make_rollout(
        [1.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        mask=mask.int().tolist(),
        old_logp=old_logp,
        ref_logp=old_logp - 0.2,
        value=value,
    )
    credit = online.credit(rollout)
    mask = credit.mask
    totals, tokens = Totals.of(mask, rollout.group, 10), group_tokens(mask, rollout.group)

    def policy_loss(rows: list[int]) -> LossParts:
        assert rollout.ref_logp is not None
        tensors = {
            "old_logp": old_logp,
            "ref_logp": rollout.ref_logp,
            "advantage": credit.advantage,
            "mask": mask,
            "group_tokens": tokens,
        }
        return online.loss(Batch(logp=logp(rows), **{name: values[rows] for name, values in tensors.items()}), totals)

    def value_loss(rows: list[int]) -> LossParts:
        assert isinstance(online.value, ValueLoss)
        assert credit.returns is not None
        estimate = critic(ids[rows])[..., 0]
        return online.value(
            ValueBatch(value=estimate, old_value=value[rows], returns=credit.returns[rows], mask=mask[rows]), totals
        )

    for model, loss in ((policy, policy_loss), (critic, value_loss)):
        if model is critic and isinstance(online.value, NoCritic):
            continue
        whole = accumulate([lambda loss=loss: loss(list(range(6)))], model)
        parts = accumulate([lambda loss=loss, row=row: loss([row]) for row in range(6)], model)
        for one, four in zip(whole, parts, strict=True):
            assert one.norm() > 1e-3
            assert float((one - four).norm() / one.norm()) <= 1e-5


class NoLookAtData(TorchDispatchMode):
    """Fails on any operation whose result, or the shape of it, can only be known from values of tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags), func
        return func(*args, **(kwargs or {}))


def test_a_step_never_looks_at_data(online: PolicyGradient, ragged: Any) -> None:
    """No `.item()` and no shape that depends on values in the measured step: its memory can be predicted without
    data."""
    example = ragged()
    logp, value = (example.batch.logp.clone().requires_grad_() for _ in range(2))
    data = ValueBatch(value=value, old_value=-value.detach(), returns=value.detach() + 1, mask=example.batch.mask)
    with NoLookAtData():
        online.loss(replace(example.batch, logp=logp), example.totals).loss.backward()
        if isinstance(online.value, ValueLoss):
            online.value(data, example.totals).loss.backward()
    assert logp.grad is not None
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoLookAtData():
        float(logp.detach().sum())


def test_the_formula_in_force_has_a_line_for_every_axis(online: PolicyGradient) -> None:
    lines = online.formula()
    assert list(lines) == [field.name for field in fields(online) if field.name != "kind"]  # type: ignore[arg-type]
    assert all(lines.values())


def test_shapes_are_checked_in_tests(make_batch: Any) -> None:
    """The annotations on public functions are contracts: a per-completion advantage is not a per-token one."""
    batch, _ = make_batch([[-1.0, -2.0]])
    with pytest.raises(Exception, match="advantage"):
        replace(batch, advantage=torch.ones(1))
