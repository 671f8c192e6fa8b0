"""Our PPO gives the rewards, advantages, returns, losses and gradients that TRL 1.12 gave when stored; needs no TRL.

TRL counts one position more than a completion has tokens (`padding_mask_p1`): its critic has a value there, and the
score lies on it where it fits. The comparisons hand our code that longer mask; it has no such mode.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import ppo
from algorithms.axes.advantage import GAE, Returns
from algorithms.axes.batch import Batch, Credit, LossParts, Rollout, Totals, ValueBatch, group_tokens
from algorithms.axes.masked import Mean, whiten
from algorithms.axes.penalty import RewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import SequenceMean
from algorithms.axes.shaping import MissingEos, NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import ValueLoss

TOLERANCE, CLEAR, PAD, EOS = 1e-6, 1e-3, 0, 1
WHOLE = ("responses", "sequence_lengths", "padding_mask", "padding_mask_p1", "micro_batch_inds")


@dataclass(frozen=True)
class Stored:
    """One update of TRL's trainer: its settings, its rollout, and its microbatches, each one optimizer step."""

    settings: dict[str, Any]
    rollout: dict[str, Tensor]
    microbatches: list[dict[str, Tensor]]

    @property
    def mask(self) -> Tensor:
        """The completions' own tokens."""
        return ~self.rollout["padding_mask"]

    @property
    def longer_mask(self) -> Tensor:
        """One position more, where there is one."""
        return ~self.rollout["padding_mask_p1"]

    def objective(self, **changed: Any) -> PolicyGradient:
        """Our composition of TRL's settings; whitening is apart, because TRL's is over another mask than its GAE."""
        knobs = self.settings | changed
        penalty = knobs["missing_eos_penalty"]
        return replace(
            ppo.objective,
            shaping=NoShaping() if penalty is None else MissingEos(penalty=penalty),
            advantage=GAE(gamma=knobs["gamma"], lam=knobs["lam"], whiten=False),
            surrogate=Clip(low=knobs["cliprange"], high=knobs["cliprange"]),
            penalty=RewardKL(coefficient=knobs["kl_coef"], estimator=knobs["kl_estimator"]),
            value=ValueLoss(clip=knobs["cliprange_value"]),
        )

    def graded(self, mask: Tensor) -> Rollout:
        """The rollout as our code takes it. An end-of-sequence token counts as an end even behind a sampled pad."""
        seen = self.rollout
        return Rollout(
            reward=seen["raw_scores"].double(),
            group=torch.arange(len(mask)),
            mask=mask,
            terminated=(seen["responses"] == EOS).any(dim=1),
            old_logp=seen["logprobs"],
            ref_logp=seen["ref_logprobs"],
            value=seen["values"],
            completion_budget=mask.shape[1],
        )

    def credit(self, **changed: Any) -> Credit:
        """Ours, on TRL's longer mask."""
        return self.objective(**changed).credit(self.graded(self.longer_mask))

    def policy_loss(self, part: dict[str, Tensor], objective: PolicyGradient) -> tuple[LossParts, Tensor]:
        """Ours of a microbatch, and its gradient."""
        rows, logp = part["micro_batch_inds"], part["new_logprobs"].clone().requires_grad_()
        mask = self.mask[rows]
        batch = Batch(
            logp=logp,
            old_logp=self.rollout["logprobs"][rows],
            ref_logp=None,
            advantage=self.rollout["advantages"][rows],
            mask=mask,
            group_tokens=group_tokens(mask, rows),
        )
        parts = objective.loss(batch, Totals.of(mask, rows, mask.shape[1]))
        return parts, torch.autograd.grad(parts.loss, logp)[0]

    def value_loss(self, part: dict[str, Tensor], loss: ValueLoss) -> tuple[LossParts, Tensor]:
        """Ours of a microbatch, on the longer mask, and its gradient."""
        rows, value = part["micro_batch_inds"], part["vpred"].clone().requires_grad_()
        mask, old_value, returns = self.longer_mask[rows], self.rollout["values"][rows], self.rollout["returns"][rows]
        batch = ValueBatch(value=value, old_value=old_value, returns=returns, mask=mask)
        parts = loss(batch, Totals.of(mask, rows, mask.shape[1]))
        return parts, torch.autograd.grad(parts.loss, value)[0]


def read() -> dict[str, Stored]:
    """The golden file; its name carries TRL's version."""

    def tensors(values: dict[str, Any]) -> dict[str, Tensor]:
        kinds = {name: torch.int64 if name in WHOLE else torch.float32 for name in values}
        read = {name: torch.tensor(values[name], dtype=kinds[name]) for name in values}
        return {name: value.bool() if name.startswith("padding") else value for name, value in read.items()}

    content = json.loads((Path(__file__).parent / "golden" / "ppo_trl_1_12.json").read_text(encoding="utf-8"))
    apart = ("name", "settings", "microbatches")
    return {
        row["name"]: Stored(
            row["settings"],
            tensors({name: value for name, value in row.items() if name not in apart}),
            [tensors(part) for part in row["microbatches"]],
        )
        for row in content["updates"]
    }


STORED = read()


@pytest.fixture(params=list(STORED))
def stored(request: pytest.FixtureRequest) -> Stored:
    """Each stored update."""
    return STORED[request.param]


def apart(one: Tensor, other: Tensor) -> float:
    """Largest difference; infinite where one is NaN."""
    return float((one.double() - other.double()).abs().nan_to_num(nan=math.inf).max())


def share(parts: LossParts, name: str) -> Tensor:
    found = parts.means[name]
    assert isinstance(found, Mean)
    return torch.tensor(found.value())


def test_rewards_equal_trl(stored: Stored) -> None:
    """The penalty of a missing end, k1 or k3 of each token, and the score's place: with gamma = 0 a return is a reward.

    The score goes to the last place of the mask, also where a pad sampled first leaves no token but that place.
    """
    objective, rollout = stored.objective(), stored.graded(stored.longer_mask)
    shaped = objective.shaping(rollout)
    assert apart(shaped, stored.rollout["scores"]) <= TOLERANCE
    rewards = Returns(gamma=0.0)(shaped, objective.penalty.token_reward(rollout), rollout).advantage
    assert apart(rewards, stored.rollout["rewards"]) <= TOLERANCE


def test_advantages_and_returns_equal_trl(stored: Stored) -> None:
    credit = stored.credit()
    assert credit.returns is not None
    assert apart(credit.advantage, stored.rollout["raw_advantages"]) <= TOLERANCE
    assert apart(credit.returns, stored.rollout["returns"]) <= TOLERANCE


def test_whitening_equals_trl(stored: Stored) -> None:
    """Over the completions' own tokens only, although the advantages were taken one position further."""
    given = whiten(stored.rollout["raw_advantages"], stored.mask, ddof=1, epsilon=1e-8)
    assert apart(given, stored.rollout["advantages"]) <= TOLERANCE
    whole = whiten(stored.credit().advantage, stored.mask, ddof=1, epsilon=1e-8)
    assert apart(whole, stored.rollout["advantages"]) <= TOLERANCE
    over_more = whiten(stored.rollout["raw_advantages"], stored.longer_mask, ddof=1, epsilon=1e-8)
    assert apart(over_more[stored.mask], stored.rollout["advantages"][stored.mask]) > CLEAR


def test_policy_loss_equals_trl(stored: Stored) -> None:
    """Value, gradient and share of clipped tokens of every optimizer step."""
    for part in stored.microbatches:
        parts, gradient = stored.policy_loss(part, stored.objective())
        assert apart(parts.loss.detach(), part["pg_loss"]) <= TOLERANCE
        assert apart(gradient, part["new_logprobs_gradient"]) <= TOLERANCE
        assert apart(share(parts, "clip/region"), part["pg_clipfrac"]) <= TOLERANCE


def test_value_loss_equals_trl(stored: Stored) -> None:
    """Value, gradient and share of clipped values; TRL's gradient is of `vf_coef` times this loss."""
    for part in stored.microbatches:
        loss = stored.objective().value
        assert isinstance(loss, ValueLoss)
        parts, gradient = stored.value_loss(part, loss)
        assert apart(parts.loss.detach(), part["vf_loss"]) <= TOLERANCE
        assert apart(stored.settings["vf_coef"] * gradient, part["vpred_gradient"]) <= TOLERANCE
        assert apart(share(parts, "value/clip_frac"), part["vf_clipfrac"]) <= TOLERANCE


def test_the_fixture_has_every_kind_of_row_and_step() -> None:
    """Agreement on rows that all end alike, or on steps that never leave the trust region, would say little."""
    lengths = torch.cat([stored.rollout["sequence_lengths"] for stored in STORED.values()]).unique().tolist()
    assert lengths == list(range(-1, 7))
    for stored in STORED.values():
        first = stored.microbatches[0]
        # No step was taken yet, so recomputing the log-probabilities gives those that generation left.
        assert apart(first["new_logprobs"], stored.rollout["logprobs"][first["micro_batch_inds"]]) <= 1e-5
        assert max(float(part["pg_clipfrac"]) for part in stored.microbatches) > 0.2
        assert max(float(part["vf_clipfrac"]) for part in stored.microbatches) > 0.01
    cut = STORED["discounted-0"].rollout
    assert (cut["scores"] - cut["raw_scores"]).unique().tolist() == [-1.5, 0.0]


@pytest.mark.parametrize("changed", [{"gamma": 0.95}, {"lam": 0.9}, {"kl_estimator": "k2"}, {"kl_coef": 0.01}])
def test_another_credit_is_told_apart(stored: Stored, changed: dict[str, Any]) -> None:
    assert apart(stored.credit(**changed).advantage, stored.rollout["raw_advantages"]) > CLEAR


def test_another_loss_is_told_apart(stored: Stored) -> None:
    """Other bounds, no bound on the value, another reduction."""
    objective, parts = stored.objective(), stored.microbatches
    others = [replace(objective, surrogate=Clip(low=0.3, high=0.3)), replace(objective, reduction=SequenceMean())]
    for other in others:
        found = [stored.policy_loss(part, other)[0].loss.detach() for part in parts]
        assert max(apart(loss, part["pg_loss"]) for loss, part in zip(found, parts, strict=True)) > CLEAR
    for clip in (None, 0.05):
        found = [stored.value_loss(part, ValueLoss(clip=clip))[0].loss.detach() for part in parts]
        assert max(apart(loss, part["vf_loss"]) for loss, part in zip(found, parts, strict=True)) > CLEAR


def test_what_the_extra_position_does(stored: Stored) -> None:
    """Where TRL puts the score R behind the end, at value V', the last token has another advantage than ours:
    (gamma lambda - 1) R + gamma (1 - lambda) V' more. At gamma = lambda = 1 that is nothing, on any token."""
    gamma, lam = stored.settings["gamma"], stored.settings["lam"]
    ours = stored.objective().credit(stored.graded(stored.mask)).advantage
    theirs, score = stored.rollout["raw_advantages"], stored.rollout["scores"]
    lengths = stored.rollout["sequence_lengths"]
    inside = ((lengths >= 0) & (lengths < ours.shape[1] - 1)).nonzero().flatten()
    end = lengths[inside]
    more = (gamma * lam - 1) * score[inside] + gamma * (1 - lam) * stored.rollout["values"][inside, end + 1]
    assert apart(theirs[inside, end] - ours[inside, end], more) <= TOLERANCE
    difference = apart(theirs[stored.mask], ours[stored.mask])
    assert difference <= TOLERANCE if gamma * lam == 1 else difference > CLEAR


def test_a_sampled_pad_ends_a_completion_in_trl(stored: Stored) -> None:
    """Its last token is the one before the first pad, at -1 where the pad comes first: no token, but a value."""
    for row, length in zip(stored.rollout["responses"].tolist(), stored.rollout["sequence_lengths"], strict=True):
        assert int(length) == (row.index(PAD) if PAD in row else len(row)) - 1
    none = stored.rollout["sequence_lengths"] == -1
    assert (stored.mask.sum(dim=1)[none] == 0).all()
    assert (stored.longer_mask.sum(dim=1)[none] == 1).all()
