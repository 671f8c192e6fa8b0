"""What the tests of objectives share: batches and rollouts from plain lists, and a ragged example for identities."""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.axes.batch import Batch, Rollout, Totals, group_tokens
from algorithms.axes.policy_gradient import PolicyGradient
from bench.catalog import names

Rows = Sequence[Sequence[float]]
Reduce = Callable[[Batch, Totals], Tensor]

PRESETS = {name: importlib.import_module(f"algorithms.{name}") for name in names("algorithms")}
ONLINE = [name for name, module in PRESETS.items() if isinstance(module.objective, PolicyGradient)]


@dataclass(frozen=True)
class Example:
    """The rows of one optimizer step, and what must be known to cut them into microbatches."""

    batch: Batch
    group: Tensor
    totals: Totals

    def rows(self, index: Sequence[int]) -> Batch:
        """A microbatch: some of the rows, with the group counts of the whole step."""
        return self.map(lambda values: values[list(index)])

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed."""
        tensors = {field.name: getattr(self.batch, field.name) for field in fields(self.batch)}
        return Batch(**{name: None if values is None else change(values) for name, values in tensors.items()})

    def padded(self, width: int, filler: float = 0.0) -> Batch:
        """The batch with `width` more columns on the right that hold `filler` and are masked out."""

        def pad(values: Tensor) -> Tensor:
            if values.dim() == 1:
                return values
            columns = torch.full((len(values), width), filler).to(values.dtype)
            return torch.cat([values, torch.zeros_like(columns) if values.dtype == torch.bool else columns], dim=1)

        return self.map(pad)


@pytest.fixture
def make_batch() -> Callable[..., tuple[Batch, Totals]]:
    """A whole optimizer step from lists: by default on-policy, advantage 1, every token valid, one group."""

    def make(
        logp: Tensor | Rows,
        *,
        old_logp: Tensor | Rows | None = None,
        advantage: Tensor | Rows | None = None,
        ref_logp: Tensor | Rows | None = None,
        mask: Rows | None = None,
        group: Sequence[int] | None = None,
        budget: int = 10,
    ) -> tuple[Batch, Totals]:
        logp = torch.as_tensor(logp, dtype=torch.float64)
        valid = torch.ones(logp.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
        groups = torch.zeros(len(logp), dtype=torch.int64) if group is None else torch.tensor(group)

        def given(values: Any, default: Tensor | None) -> Any:
            return default if values is None else torch.as_tensor(values, dtype=torch.float64)

        batch = Batch(
            logp=logp,
            old_logp=given(old_logp, logp.detach()),
            ref_logp=given(ref_logp, None),
            advantage=given(advantage, torch.ones_like(logp)),
            mask=valid,
            group_tokens=group_tokens(valid, groups),
        )
        return batch, Totals.of(valid, groups, budget)

    return make


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    """Graded completions from rewards: by default groups of the size given, two tokens each, all ended by themselves,
    correct from a reward of 1 on."""

    def make(
        reward: Sequence[float], *, group_size: int | None = None, mask: Rows | None = None, **given: Any
    ) -> Rollout:
        rows = len(reward)
        valid = torch.ones((rows, 2), dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
        size = rows if group_size is None else group_size
        plain = Rollout(
            reward=torch.tensor(reward, dtype=torch.float64),
            group=torch.arange(rows) // size,
            mask=valid,
            terminated=torch.ones(rows, dtype=torch.bool),
            old_logp=torch.zeros(valid.shape),
            ref_logp=torch.zeros(valid.shape),
            value=torch.zeros(valid.shape),
            completion_budget=10,
            correct=torch.tensor([value if math.isnan(value) else float(value >= 1) for value in reward]).double(),
        )
        return replace(plain, **given)

    return make


@pytest.fixture
def ragged() -> Callable[..., Example]:
    """Eight completions of unequal length in three groups, off-policy, with a reference."""

    def make(dtype: torch.dtype = torch.float64, lengths: Sequence[int] = (3, 5, 2, 7, 4, 6, 1, 8)) -> Example:
        generator = torch.Generator().manual_seed(0)
        shape = (len(lengths), max(lengths))

        def noise(scale: float) -> Tensor:
            return scale * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        mask = torch.arange(shape[1])[None, :] < torch.tensor(lengths)[:, None]
        group = torch.arange(len(lengths)) * 3 // len(lengths)
        logp = noise(1.0) - 3
        batch = Batch(
            logp=logp,
            old_logp=logp + noise(0.3),
            ref_logp=logp + noise(0.5),
            advantage=noise(1.0)[:, :1].expand(shape).clone(),
            mask=mask,
            group_tokens=group_tokens(mask, group),
        )
        return Example(batch, group, Totals.of(mask, group, completion_budget=12))

    return make


@pytest.fixture
def value_and_gradient() -> Callable[[Reduce, Batch, Totals], tuple[float, Tensor]]:
    """The loss of a batch and its gradient with respect to the log-probabilities."""

    def evaluate(reduce: Reduce, batch: Batch, totals: Totals) -> tuple[float, Tensor]:
        logp = batch.logp.detach().clone().requires_grad_()
        loss = reduce(replace(batch, logp=logp), totals)
        return loss.item(), torch.autograd.grad(loss, logp)[0]

    return evaluate


@pytest.fixture(params=list(PRESETS))
def preset(request: pytest.FixtureRequest) -> ModuleType:
    """The module of each published algorithm."""
    return PRESETS[request.param]


@pytest.fixture(params=ONLINE)
def online(request: pytest.FixtureRequest) -> PolicyGradient:
    """The objective of each published policy-gradient algorithm."""
    objective = PRESETS[request.param].objective
    assert isinstance(objective, PolicyGradient)
    return objective
