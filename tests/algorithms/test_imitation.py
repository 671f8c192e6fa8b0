"""The imitation family: likelihood of given completions, and which samples are accepted."""

import math

import pytest
import torch

from algorithms.axes.batch import Batch, Totals, group_tokens
from algorithms.axes.imitation import AcceptedSamples, GoldSolutions, Imitation
from algorithms.axes.reduction import SequenceMean, TokenMean

NAN = math.nan


@pytest.mark.parametrize(
    ("reduction", "loss", "weights"),
    [(SequenceMean(), (2 + 3) / 2, [1 / 4, 1 / 4, 1 / 2]), (TokenMean(), 7 / 3, [1 / 3] * 3)],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_likelihood_by_hand(reduction: SequenceMean | TokenMean, loss: float, weights: list[float]) -> None:
    """Log-probabilities -1, -3 | -3: a step up raises each by its weight in the mean."""
    logp = torch.tensor([[-1.0, -3.0], [-3.0, NAN]], dtype=torch.float64, requires_grad=True)
    mask, group = torch.tensor([[True, True], [True, False]]), torch.tensor([0, 1])
    nothing = torch.full_like(mask, True).double() * NAN
    batch = Batch(
        logp=logp,
        old_logp=nothing,
        ref_logp=None,
        advantage=nothing,
        mask=mask,
        group_tokens=group_tokens(mask, group),
    )
    parts = Imitation(source=GoldSolutions(), reduction=reduction).loss(batch, Totals.of(mask, group, 2))
    assert parts.loss.item() == pytest.approx(loss)
    assert (-torch.autograd.grad(parts.loss, logp)[0])[mask].tolist() == pytest.approx(weights)
    assert parts.means["imitation/logp"].value() == pytest.approx(-7 / 3)


def test_the_first_of_each_distinct_correct_sample_is_accepted() -> None:
    """Wrong and undecided samples are out; of a repeat the first member stands, in the order of sampling."""
    correct = torch.tensor([0.0, 1.0, NAN, 1.0, 1.0, 1.0], dtype=torch.float64)
    texts = ((1,), (2,), (3,), (4, 5), (2,), (6,))
    assert AcceptedSamples().accepted(correct, texts) == [1, 3, 5]
    assert AcceptedSamples(max_per_prompt=2).accepted(correct, texts) == [1, 3]
    assert AcceptedSamples().accepted(torch.zeros(2), ((1,), (2,))) == []
