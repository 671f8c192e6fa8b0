"""Where TRL 1.16 and our compositions differ on purpose, each with the same quantity measured on both sides.

Everything else agrees, see `trl_grid`; what TRL can do and no composition can, `trl_mapping` refuses with its reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algorithms.axes.baseline import degenerate
from algorithms.axes.reduction import SequenceMean, TokenMean
from algorithms.axes.surrogate import Cispo
from bench.conformance.own_losses import own_credit, own_loss
from bench.conformance.trl_compare import Online, Outcome, Settings, example_inputs, own_outcome, trl_outcome
from bench.conformance.trl_dpo import DpoSettings
from bench.conformance.trl_grpo import GrpoSettings, grpo_advantages, grpo_loss
from bench.conformance.trl_mapping import grpo_objective
from bench.conformance.trl_rloo import RlooSettings, rloo_advantages
from bench.conformance.trl_step import Graded, Step, example_mask

Run = Callable[..., Outcome]


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference."""

    name: str
    trl_does: str
    we_do: str
    quantity: str
    """What the two numbers are."""
    trl: float
    own: float


def measure() -> list[Deviation]:
    """Every deviation, measured now, with the pinned TRL."""
    parts = (_token_counts, _splits, _flat_groups, _left_out, _entropy_share, _caps, _rloo)
    return [deviation for part in parts for deviation in part()]


def _inputs(settings: Settings, name: str = "plain") -> Online:
    inputs = example_inputs(name, settings)
    assert isinstance(inputs, Online)
    return inputs


def _step(settings: GrpoSettings) -> Step:
    """The plain example with TRL's advantages."""
    inputs = _inputs(settings)
    scored = grpo_advantages(inputs.rollout, settings)
    return inputs.rollout.step(inputs.logp, scored.advantages, scored.mask, None)


def _flat(rewards: list[float], group_size: int) -> Graded:
    mask = torch.ones((len(rewards), 2), dtype=torch.bool)
    return Graded(
        rewards=torch.tensor(rewards)[:, None],
        group_size=group_size,
        mask=mask,
        terminated=mask[:, 0],
        old_logp=torch.zeros(mask.shape),
    )


def _token_counts() -> Iterator[Deviation]:
    settings = GrpoSettings(loss_type="dapo")
    whole = _step(settings)
    objective, total = grpo_objective(settings), int(whole.mask.sum())
    for name, index in (("first", range(3)), ("second", range(3, 6))):
        step = whole.rows(index)
        reference = grpo_loss(step, settings, num_items_in_batch=total, steps_per_generation=2)
        exact = own_loss(objective, step, settings.max_completion_length)
        yield Deviation(
            name=f"dapo, {name} of two steps on one rollout",
            trl_does="divides each step by the rollout's mean number of tokens a step",
            we_do="divide each step by its own tokens",
            quantity=f"gradient norm over the step's token mean's ({int(step.mask.sum())} of {total} tokens)",
            trl=float(reference.gradient.norm() / exact.gradient.norm()),
            own=1.0,
        )


def _change(run: Run, settings: Settings, of: Callable[[Outcome], Tensor | None]) -> float:
    """Largest change when the step is cut into two microbatches."""
    inputs = example_inputs("plain", settings)
    whole, cut = of(run(inputs, settings, 1)), of(run(inputs, settings, 2))
    assert whole is not None
    assert cut is not None
    return float((whole - cut).abs().max())


def _splits() -> Iterator[Deviation]:
    def gradient(outcome: Outcome) -> Tensor:
        return outcome.loss.gradient

    quantity = "largest change of the gradient when the step is cut into two microbatches"
    bnpo = GrpoSettings(loss_type="bnpo")
    yield Deviation(
        name="bnpo under gradient accumulation",
        trl_does="takes the token mean of each microbatch",
        we_do="take that of the step (TokenMean); MicrobatchTokenMean gives TRL's",
        quantity=quantity,
        trl=_change(trl_outcome, bnpo, gradient),
        own=_change(own_outcome, replace(bnpo, loss_type="dapo"), gradient),
    )
    focus = GrpoSettings(top_entropy_quantile=0.5)
    yield Deviation(
        name="top_entropy_quantile under gradient accumulation",
        trl_does="takes the threshold of each microbatch, on the entropies of the policy being updated",
        we_do="take it once over the rollout, on the entropies at rollout time",
        quantity=quantity,
        trl=_change(trl_outcome, focus, gradient),
        own=_change(own_outcome, focus, gradient),
    )
    bonus = GrpoSettings(entropy_coef=0.1)
    yield Deviation(
        name="entropy_coef under gradient accumulation",
        trl_does="takes the mean entropy of each microbatch",
        we_do="take that of the step",
        quantity="largest change of the gradient for the entropies when the step is cut into two microbatches",
        trl=_change(trl_outcome, bonus, lambda outcome: outcome.loss.entropy_gradient),
        own=_change(own_outcome, bonus, lambda outcome: outcome.loss.entropy_gradient),
    )
    likelihood = DpoSettings(loss_type=("sigmoid", "sft"))
    yield Deviation(
        name="DPO's sft term under gradient accumulation",
        trl_does="takes the mean over the microbatch's chosen tokens",
        we_do="take that over the step's",
        quantity=quantity,
        trl=_change(trl_outcome, likelihood, gradient),
        own=_change(own_outcome, likelihood, gradient),
    )


def _flat_groups() -> Iterator[Deviation]:
    settings = GrpoSettings()
    equal = _flat([0.3] * 8, group_size=8)
    scored, credit = grpo_advantages(equal, settings), own_credit(grpo_objective(settings), equal, 2)
    group = torch.arange(8) // 8
    yield Deviation(
        name="a group of eight rewards of 0.3: advantages",
        trl_does="computes in float32, where the mean's rounding leaves all members an advantage of one sign",
        we_do="compute in float64 and set the advantages of equal rewards to 0",
        quantity="largest absolute advantage",
        trl=float(scored.advantages.abs().max()),
        own=float(credit.advantage.abs().max()),
    )
    yield Deviation(
        name="a group of eight rewards of 0.3: frac_reward_zero_std",
        trl_does="asks whether the rounded standard deviation is within 1e-8 of 0",
        we_do="ask whether the largest and the smallest reward are equal up to rounding",
        quantity="share of completions in groups of equal rewards",
        trl=scored.metrics["frac_reward_zero_std"],
        own=float(degenerate(equal.rewards[:, 0].double(), group).double().mean()),
    )
    flat, batch = _flat([0.0] * 4 + [1.0] * 4, group_size=4), GrpoSettings(scale_rewards="batch")
    yield Deviation(
        name="two flat groups under scale_rewards=batch: frac_reward_zero_std",
        trl_does="reports on the standard deviation of the batch",
        we_do="report on the groups, whatever the scaling",
        quantity="share of completions in groups of equal rewards",
        trl=grpo_advantages(flat, batch).metrics["frac_reward_zero_std"],
        own=float(degenerate(flat.rewards[:, 0].double(), torch.arange(8) // 4).double().mean()),
    )


def _ratio_of_norms(settings: GrpoSettings, inputs: Online, count_masked: bool) -> float:
    objective = grpo_objective(settings)
    if isinstance(objective.reduction, SequenceMean):
        objective = replace(objective, reduction=SequenceMean(count_masked=count_masked))
    credit = own_credit(objective, inputs.rollout, settings.max_completion_length)
    step = inputs.rollout.step(inputs.logp, credit.advantage[:, 0], credit.mask, credit.weight)
    own = own_loss(objective, step, settings.max_completion_length)
    return float(trl_outcome(inputs, settings).loss.gradient.norm() / own.gradient.norm())


def _left_out() -> Iterator[Deviation]:
    for loss_type in ("grpo", "dapo"):
        settings = GrpoSettings(loss_type=loss_type)
        yield Deviation(
            name=f"{loss_type}, two of six completions without a reward",
            trl_does="gives them advantage 0 and keeps them in the denominator",
            we_do="leave them out of the denominator too",
            quantity="gradient norm over ours",
            trl=_ratio_of_norms(settings, _inputs(settings, "unscorable"), count_masked=False),
            own=1.0,
        )
    masked = GrpoSettings(loss_type="grpo", mask_truncated_completions=True)
    yield Deviation(
        name="grpo, two of six completions truncated and masked",
        trl_does="keeps them in the denominator",
        we_do="leave them out, unless the reduction says count_masked: then TRL's gradient",
        quantity="gradient norm over that of count_masked=false",
        trl=_ratio_of_norms(masked, _inputs(masked), count_masked=False),
        own=1.0,
    )


def _entropy_share() -> Iterator[Deviation]:
    # Every token whose weight is not 0 has a gradient in cispo, so kept tokens can be counted.
    settings = GrpoSettings(loss_type="cispo", epsilon_high=2.0, top_entropy_quantile=0.2)
    inputs = _inputs(settings)
    yield Deviation(
        name="top_entropy_quantile=0.2 of 26 tokens",
        trl_does="keeps what is at or above an interpolated quantile",
        we_do="keep the rounded number of tokens: 5.2 is 5",
        quantity="tokens kept",
        trl=float(trl_outcome(inputs, settings).loss.gradient.count_nonzero()),
        own=float(own_outcome(inputs, settings).loss.gradient.count_nonzero()),
    )


def _caps() -> Iterator[Deviation]:
    settings = GrpoSettings(loss_type="cispo")
    step = _step(settings)
    on_policy = replace(step, old_logp=step.logp)
    plain = grpo_loss(on_policy, GrpoSettings(loss_type="dapo")).gradient.norm()
    named = replace(grpo_objective(GrpoSettings(loss_type="dapo")), surrogate=Cispo(low=None, high=0.2))
    assert isinstance(named.reduction, TokenMean)
    yield Deviation(
        name="cispo with TRL's default epsilon_high, on-policy",
        trl_does="reads 0.2 as an absolute cap on the ratio, so that every weight is 0.2",
        we_do="cap the ratio at 1 + 0.2",
        quantity="gradient norm over that of dapo",
        trl=float(grpo_loss(on_policy, settings).gradient.norm() / plain),
        own=float(own_loss(named, on_policy, settings.max_completion_length).gradient.norm() / plain),
    )
    far = Step(
        logp=torch.zeros((1, 1)),
        old_logp=torch.full((1, 1), -25.0),
        advantage=torch.tensor([-1.0]),
        mask=example_mask((1,)),
        group_size=1,
    )
    dapo = GrpoSettings(loss_type="dapo")
    yield Deviation(
        name="a token whose log-ratio is 25, negative advantage",
        trl_does="exponentiates it",
        we_do="hold log-ratios within 20",
        quantity="loss",
        trl=grpo_loss(far, dapo).value,
        own=own_loss(grpo_objective(dapo), far, 1).value,
    )


def _rloo() -> Iterator[Deviation]:
    idle = RlooSettings(beta=0.0, mask_truncated_completions=True)
    inputs = _inputs(idle, "near")
    yield Deviation(
        name="RLOO, two of six completions truncated and masked",
        trl_does="adds minus their advantage to the reported loss, without a gradient",
        we_do="add nothing",
        quantity="loss",
        trl=trl_outcome(inputs, idle).loss.value,
        own=own_outcome(inputs, idle).loss.value,
    )
    charged = replace(idle, beta=0.05)
    yield Deviation(
        name="RLOO with a KL charge, the third of a group truncated and masked",
        trl_does="charges a masked completion no KL, so its uncharged reward enters the others' baseline",
        we_do="charge every completion for the tokens that it has",
        quantity="advantage of the group's first completion",
        trl=float(rloo_advantages(inputs.rollout, charged).advantages[0]),
        own=_advantage(own_outcome(inputs, charged)),
    )


def _advantage(outcome: Outcome) -> float:
    assert outcome.advantages is not None
    return float(outcome.advantages[0])
