"""Optimizer steps: what a step reports about itself, and sums of microbatch metrics of both kinds."""

import pytest
import torch
from torch import nn

from algorithms.axes.batch import LossParts
from algorithms.axes.masked import Mean, masked_mean, masked_moments
from bench.config import Optimizer
from bench.optimize import StepMetrics, adamw, relative_update_norm, step_report, take_step


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_relative_update_norm_is_that_of_the_parameters_difference(decay: float) -> None:
    """Taken from the optimizer's moments, over several steps of different sizes, with and without weight decay."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(7) * 10)]
    optimizer = adamw(parameters, 1e-3, Optimizer(lr=1e-3, weight_decay=decay, microbatch_sequences=1))
    for step in range(4):
        before = torch.cat([p.detach().flatten() for p in parameters])
        for p in parameters:
            p.grad = torch.randn_like(p) * 10**step
        take_step(optimizer, 1e-3 * 3**step, max_grad_norm=1e9)
        after = torch.cat([p.detach().flatten() for p in parameters])
        expected = float((after - before).norm() / after.norm())
        assert expected > 1e-5
        assert relative_update_norm(optimizer) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("limit", "clipped"), [(4.9, 1.0), (5.1, 0.0)])
def test_a_step_says_whether_its_gradient_was_clipped(limit: float, clipped: float) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = adamw([parameter], 1.0, Optimizer(lr=1.0, microbatch_sequences=1))
    parameter.grad = torch.tensor([3.0, 4.0])
    report = step_report(optimizer, take_step(optimizer, 0.25, limit), limit)
    assert (report["grad_norm"], report["grad_clip_frac"], report["lr"]) == (5.0, clipped, 0.25)


def test_microbatches_add_up_by_tokens() -> None:
    """Three tokens of 1 and one of 5: mean 2 and variance 3, where averages of two parts' means would be 3."""
    metrics = StepMetrics()
    for values in (torch.tensor([1.0, 1.0, 1.0]), torch.tensor([5.0])):
        mask = torch.ones(len(values), dtype=torch.bool)
        means = {"mean": masked_mean(values, mask), "variance": masked_moments(values, mask, "variance")}
        metrics.add(LossParts(loss=values.sum() / 4, means=means, maxima={"max": values.max()}))
    assert metrics.values() == {"mean": 2.0, "variance": 3.0, "max": 5.0}
    assert metrics.checked_loss() == 2.0
    with pytest.raises(AssertionError, match="in one microbatch only"):
        metrics.add_mean("variance", Mean(torch.tensor(1.0), torch.tensor(1.0)))
