"""Learning: every preset teaches a table of logits to repeat the prompt's symbol, in a second, twice the same."""

from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from algorithms.axes.batch import Batch, Credit, PairBatch, PairTotals, Rollout, Totals, ValueBatch, group_tokens
from algorithms.axes.imitation import AcceptedSamples, Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from algorithms.axes.value import ValueLoss
from bench.catalog import load_preset, names

SYMBOLS, END, BUDGET, MEMBERS = 4, 4, 3, 8
"""Four prompts, one a symbol; a fifth token ends a completion of at most three; eight completions a prompt."""
PRESETS = {name: load_preset(name).objective for name in names("algorithms")}
ONLINE = [name for name, objective in PRESETS.items() if isinstance(objective, PolicyGradient)]
FIXED = [name for name in PRESETS if name not in ONLINE]
START = 0.2


class Toy:
    """A policy and a critic that are tables: prompt x position x token, and prompt x position."""

    def __init__(self, seed: int) -> None:
        self.logits = torch.zeros(SYMBOLS, BUDGET, 5, requires_grad=True)
        self.values = torch.zeros(SYMBOLS, BUDGET + 1, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits, self.values], lr=0.1)
        self.draw = torch.Generator().manual_seed(seed)

    @property
    def accuracy(self) -> float:
        """Exact expected reward: the probability that the first token is the prompt's symbol."""
        return float(self.logits[:, 0].softmax(-1).detach()[range(SYMBOLS), range(SYMBOLS)].mean())

    def logp(self, prompt: Tensor, ids: Tensor) -> Tensor:
        return self.logits.log_softmax(-1)[prompt].gather(-1, ids[..., None])[..., 0]

    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        """Prompt, tokens and mask of eight completions a prompt; the end token is part of its completion."""
        prompt = torch.arange(SYMBOLS).repeat_interleave(MEMBERS)
        every = self.logits.detach().softmax(-1)[prompt].reshape(-1, 5)
        ids = torch.multinomial(every, 1, generator=self.draw).view(-1, BUDGET)
        ended = (ids == END).int().cumsum(dim=1)
        return prompt, ids, ended - (ids == END).int() == 0

    def move(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def graded(toy: Toy, prompt: Tensor, ids: Tensor, mask: Tensor) -> Rollout:
    """The start, where all logits are 0, is the reference; the sampler's own log-probabilities are a little off."""
    correct = (ids[:, 0] == prompt).double()
    with torch.no_grad():
        old_logp, log = toy.logp(prompt, ids), toy.logits.log_softmax(-1)[prompt]
        return Rollout(
            reward=correct,
            group=prompt,
            mask=mask,
            terminated=((ids == END) & mask).any(dim=1),
            old_logp=old_logp,
            ref_logp=torch.full_like(old_logp, START).log(),
            value=toy.values[prompt, :BUDGET].clone(),
            completion_budget=BUDGET,
            correct=correct,
            sampler_logp=old_logp + 0.1 * (ids - 2),
            entropy=-(log.exp() * log).sum(dim=-1),
            next_value=toy.values[prompt, mask.sum(dim=1)].clone(),
        )


def learn_online(objective: PolicyGradient, rollouts: int = 15) -> tuple[Toy, list[dict[str, float]]]:
    """Rollouts used twice, in two halves; or three times as many used once, where the objective allows one update."""
    toy, metrics, once = Toy(0), [], objective.needs.one_update
    for _ in range(3 * rollouts if once else rollouts):
        prompt, ids, mask = toy.sample()
        correct = (ids[:, 0] == prompt).double()
        rows = objective.selection.keep(correct.view(SYMBOLS, MEMBERS)).repeat_interleave(MEMBERS).nonzero().flatten()
        if not len(rows):
            continue
        rows = rows[torch.randperm(len(rows), generator=toy.draw)]
        rollout = graded(toy, prompt[rows], ids[rows], mask[rows])
        credit = objective.credit(rollout)
        every = torch.arange(len(rows))
        for step in [every] if once else [*every.chunk(2), *every.chunk(2)]:
            logp = toy.logp(prompt[rows][step], ids[rows][step])
            metrics.append(update(objective, toy, rollout, credit, step, logp))
    return toy, metrics


def update(
    objective: PolicyGradient, toy: Toy, rollout: Rollout, credit: Credit, step: Tensor, logp: Tensor
) -> dict[str, float]:
    """One optimizer step on some rows of a rollout, of the policy and of the critic where there is one."""
    assert rollout.ref_logp is not None
    mask, group = credit.mask[step], rollout.group[step]
    totals = Totals.of(mask, group, BUDGET)
    batch = Batch(
        logp=logp,
        old_logp=rollout.old_logp[step],
        ref_logp=rollout.ref_logp[step],
        advantage=credit.advantage[step],
        mask=mask,
        group_tokens=group_tokens(mask, group),
        weight=None if credit.weight is None else credit.weight[step],
    )
    parts = objective.loss(batch, totals)
    loss = parts.loss
    if isinstance(objective.value, ValueLoss):
        assert credit.returns is not None
        assert rollout.value is not None
        value, returns = toy.values[group, :BUDGET], credit.returns[step]
        fitted = objective.value(
            ValueBatch(value=value, old_value=rollout.value[step], returns=returns, mask=mask), totals
        )
        loss = loss + fitted.loss
    toy.move(loss)
    return {name: mean.value() for name, mean in parts.means.items()}


def learn_fixed(objective: Preference | Imitation, seed: int = 1) -> Toy:
    """Fifty passes over pairs or completions that the starting policy gave, or over the solutions themselves."""
    toy = Toy(seed)
    prompt, ids, mask = toy.sample()
    loss = pair_loss if isinstance(objective, Preference) else likelihood_loss
    for _ in range(50):
        toy.move(loss(objective, toy, prompt, ids, mask))
    return toy


def pair_loss(objective: Any, toy: Toy, prompt: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    sides: tuple[list[int], list[int]] = ([], [])
    for symbol in range(SYMBOLS):
        rows = (prompt == symbol).nonzero().flatten()
        ended = torch.ones(MEMBERS).bool()
        found = objective.pairing.split((ids[rows, 0] == symbol).double(), ended)
        for chosen, rejected in zip(*found, strict=False):
            sides[0].append(int(rows[chosen]))
            sides[1].append(int(rows[rejected]))
    assert sides[0]
    whole, length = (toy.logp(prompt, ids) * mask).sum(dim=1), mask.sum(dim=1).float()
    reference = torch.full(ids.shape, START).log().mul(mask).sum(dim=1)
    batch = PairBatch(
        chosen_logp=whole[sides[0]],
        rejected_logp=whole[sides[1]],
        ref_chosen_logp=reference[sides[0]],
        ref_rejected_logp=reference[sides[1]],
        chosen_length=length[sides[0]],
        rejected_length=length[sides[1]],
    )
    counted = PairTotals(num_pairs=len(sides[0]), num_chosen_tokens=int(length[sides[0]].sum()))
    return objective.loss(batch, counted).loss


def likelihood_loss(objective: Any, toy: Toy, prompt: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    if isinstance(objective.source, AcceptedSamples):
        rows: list[int] = []
        for symbol in range(SYMBOLS):
            own = (prompt == symbol).nonzero().flatten()
            texts = tuple(tuple(ids[row][mask[row]].tolist()) for row in own)
            rows += own[objective.source.accepted((ids[own, 0] == symbol).double(), texts)].tolist()
        prompt, ids, mask = prompt[rows], ids[rows], mask[rows]
    else:
        prompt = torch.arange(SYMBOLS)
        ids = torch.stack([prompt, torch.full_like(prompt, END), torch.zeros_like(prompt)], dim=1)
        mask = torch.tensor([True, True, False]).expand(SYMBOLS, 3)
    logp = toy.logp(prompt, ids)
    batch = Batch(
        logp=logp,
        old_logp=logp.detach(),
        ref_logp=None,
        advantage=torch.zeros_like(logp),
        mask=mask,
        group_tokens=group_tokens(mask, prompt),
    )
    return objective.loss(batch, Totals.of(mask, prompt, BUDGET)).loss


@pytest.fixture(autouse=True, scope="module")
def unchecked_shapes() -> Iterator[None]:
    """The other tests of this folder check shapes; here, in thousands of calls, that would be most of the seconds."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", ONLINE)
def test_every_online_preset_learns_and_twice_the_same(name: str) -> None:
    """From 1 in 5 to more than 3 in 4; a wrong sign would end below the start. Beyond the first step of a rollout the
    policy has moved, and a clip cuts some tokens."""
    objective = PRESETS[name]
    assert isinstance(objective, PolicyGradient)
    toy, metrics = learn_online(objective)
    assert Toy(0).accuracy == pytest.approx(START)
    assert toy.accuracy > 0.75
    moved = max(line["kl/old_k3"] for line in metrics)
    assert (moved < 1e-6) == objective.needs.one_update
    assert all(line["clip/region"] == 0 for line in metrics[:1] if "clip/region" in line)
    assert max(line.get("clip/region", 1) for line in metrics) > 0
    _, repeated = learn_online(objective, rollouts=5)
    assert repeated == metrics[: len(repeated)]


@pytest.mark.parametrize("name", FIXED)
def test_every_preset_on_fixed_samples_learns_and_twice_the_same(name: str) -> None:
    objective = PRESETS[name]
    assert isinstance(objective, Preference | Imitation)
    toy = learn_fixed(objective)
    assert toy.accuracy > 0.45
    assert torch.equal(learn_fixed(objective).logits, toy.logits)
