"""The vocabulary head by chunks: equal to the full form, in values and gradients, whatever the chunk."""

import pytest
import torch
from torch import Tensor, nn

from bench import token_head
from bench.token_head import logp_and_entropy


def full_form(states: Tensor, head: nn.Linear, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logp = (head(states) / temperature).log_softmax(-1)
    return logp.gather(-1, targets[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)


def example(bias: bool, dtype: torch.dtype = torch.float32) -> tuple[Tensor, nn.Linear, Tensor]:
    torch.manual_seed(0)
    states = torch.randn(13, 8, dtype=dtype, requires_grad=True)
    return states, nn.Linear(8, 21, bias=bias, dtype=dtype), torch.randint(21, (13,))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("logits", [1, 21 * 5, 2**24])
def test_chunks_are_the_full_form(bias: bool, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token a chunk, five (the last chunk is smaller), and all at once."""
    monkeypatch.setattr(token_head, "CHUNK_LOGITS", logits)
    states, head, targets = example(bias)
    weight = torch.randn(2, 13)
    results = []
    for form in (lambda *a: logp_and_entropy(*a, entropy_gradient=True), full_form):
        states.grad = None
        head.zero_grad()
        logp, entropy = form(states, head, targets, 0.6)
        (logp * weight[0] + entropy * weight[1]).sum().backward()
        results.append((logp, entropy, states.grad, *(p.grad for p in head.parameters())))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


def test_the_entropy_is_the_full_forms_and_has_no_gradient_unless_asked() -> None:
    states, head, targets = example(bias=False)
    logp, entropy = logp_and_entropy(states, head, targets, 1.0)
    assert logp.requires_grad
    assert not entropy.requires_grad
    torch.testing.assert_close(entropy, full_form(states, head, targets, 1.0)[1].detach())


def test_a_masked_token_has_no_probability_and_no_gradient() -> None:
    states, head, targets = example(bias=True)
    with torch.no_grad():
        head.bias[3] = -torch.inf
    targets = targets.where(targets != 3, 4)
    logp, entropy = logp_and_entropy(states, head, targets, 1.0, entropy_gradient=True)
    (logp + entropy).sum().backward()
    assert bool(logp.isfinite().all() and entropy.isfinite().all() and states.grad.isfinite().all())
    assert torch.count_nonzero(head.weight.grad[3]) == 0
    kept = [i for i in range(21) if i != 3]
    other = (states @ head.weight[kept].T + head.bias[kept]).log_softmax(-1)
    torch.testing.assert_close(entropy, -(other.exp() * other).sum(-1))


def test_obj_52_log_probabilities_of_bfloat16_products_are_taken_in_float32() -> None:
    """32k tokens of vocabulary: 1e-4 to a float64 reference of the same logits."""
    torch.manual_seed(1)
    head = nn.Linear(32, 32_000, bias=False, dtype=torch.bfloat16)
    nn.init.normal_(head.weight, std=0.5)
    states, targets = torch.randn(9, 32, dtype=torch.bfloat16), torch.randint(32_000, (9,))
    logp, entropy = (numbers.detach() for numbers in logp_and_entropy(states, head, targets, 1.0))
    exact = head(states).detach().double().log_softmax(-1)
    assert logp.dtype == torch.float32
    assert float((logp - exact.gather(-1, targets[:, None]).squeeze(-1)).abs().max()) <= 1e-4
    assert float((entropy + (exact.exp() * exact).sum(-1)).abs().max()) <= 1e-4


def test_under_autocast_the_products_are_bfloat16_and_the_gradients_float32() -> None:
    states, head, targets = example(bias=True)
    with torch.autocast("cpu", torch.bfloat16):
        logp, _ = logp_and_entropy(states, head, targets, 1.0)
    logp.sum().backward()
    rounded = nn.functional.linear(states.bfloat16(), head.weight.bfloat16(), head.bias.bfloat16()).float()
    torch.testing.assert_close(logp, rounded.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1))
    assert states.grad.dtype == head.weight.grad.dtype == torch.float32
    exact = full_form(states, head, targets, 1.0)[0].detach()
    assert 1e-5 < float((logp.detach() - exact).abs().max()) < 0.05
