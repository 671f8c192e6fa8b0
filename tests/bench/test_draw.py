"""Drawing tokens: against the exact distribution and a naive float64 search, in small and large vocabularies."""

import pytest
import torch

from bench.draw import draw, greedy

SIZES = (7, 4095, 4096, 5000, 32_000, 49_152)
LAST = 1 - 2.0**-53
"""The largest uniform number there is."""


def peaked(rows: int, vocabulary: int) -> torch.Tensor:
    """Logits that spread over some 20 nats."""
    return 4 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary))


def numbers(rows: int) -> torch.Tensor:
    return torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("vocabulary", SIZES)
def test_a_token_is_where_the_cumulative_distribution_first_exceeds_the_number(vocabulary: int) -> None:
    logits, uniform = peaked(60, vocabulary), numbers(60)
    token, logp = draw(logits, uniform)
    exact = logits.double().log_softmax(dim=-1)
    assert token.tolist() == (exact.exp().cumsum(dim=-1) <= uniform[:, None]).sum(dim=-1).tolist()
    picked = exact.gather(1, token[:, None]).squeeze(1)
    torch.testing.assert_close(logp.double(), picked, atol=1e-5, rtol=0)
    alone, its_logp = draw(logits[7:8], uniform[7:8])
    assert (alone, its_logp) == (token[7], logp[7])


@pytest.mark.parametrize("vocabulary", [5, 4500])
def test_shares_are_the_probabilities(vocabulary: int) -> None:
    """Over evenly spaced numbers each of the likely tokens comes as often as its probability says, to one draw."""
    count = 4000
    logits = torch.full((vocabulary,), -30.0)
    logits[[0, 2, vocabulary - 1]] = torch.tensor([0.5, 0.3, 0.2]).log()
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    shares = [draw(logits.expand(500, -1), part)[0] for part in uniform.split(500)]
    counts = torch.cat(shares).bincount(minlength=vocabulary)
    assert counts[[0, 2, vocabulary - 1]].sub(torch.tensor([2000, 1200, 800])).abs().max() <= 1
    assert counts.sum() == count


@pytest.mark.parametrize("vocabulary", SIZES)
def test_what_has_no_probability_is_never_drawn(vocabulary: int) -> None:
    """Two tokens are possible, at either side of blocks without any: the extreme numbers give the first and the last.

    The others are masked, or so unlikely that their float32 probability is 0.
    """
    for impossible in (-torch.inf, -200.0):
        logits = torch.full((5, vocabulary), impossible)
        first, last = vocabulary // 3, vocabulary - 1 - vocabulary // 4
        logits[:, [first, last]] = torch.tensor([0.1, 0.0])
        token, logp = draw(logits, torch.tensor([0.0, 0.3, 0.7, LAST, LAST], dtype=torch.float64))
        assert token.tolist() == [first, first, last, last, last]
        assert logp.isfinite().all()
    random = peaked(200, vocabulary).masked_fill_(numbers(vocabulary) < 0.9, -torch.inf)
    random[:, vocabulary // 2] = 0.0
    token, _ = draw(random, torch.full((200,), LAST, dtype=torch.float64))
    assert random.gather(1, token[:, None]).isfinite().all()


def test_obj_52_log_probabilities_of_bf16_logits_over_32_000_tokens_are_those_of_float64() -> None:
    logits = peaked(64, 32_000).bfloat16()
    exact = logits.double().log_softmax(dim=-1)
    for token, logp in (draw(logits.float(), numbers(64)), greedy(logits.float())):
        assert (logp.double() - exact.gather(1, token[:, None]).squeeze(1)).abs().max() <= 1e-5


def test_greedy_takes_the_first_of_equals() -> None:
    token, logp = greedy(torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, 0.0]]))
    assert token.tolist() == [1, 0]
    assert logp[0].item() == pytest.approx(-0.717735, abs=1e-5)  # -log(2 + e^-3)


@pytest.mark.parametrize("vocabulary", [40, 4500])
def test_a_nucleus_is_the_smallest_set_of_most_likely_tokens(vocabulary: int) -> None:
    """Every token drawn with top_p is among those before which less than top_p is held; the likeliest is always one."""
    logits, uniform = peaked(1, vocabulary).expand(300, -1), torch.linspace(0, LAST, 300, dtype=torch.float64)
    exact, order = logits[0].double().softmax(dim=-1).sort(descending=True)
    for top_p in (1e-9, 0.4, 0.9):
        kept = order[exact.cumsum(0) - exact < top_p].tolist()
        token, logp = draw(logits, uniform, top_p)
        assert set(token.tolist()) <= set(kept)
        assert order[0] in token
        torch.testing.assert_close(logp, logits[0].log_softmax(-1)[token], atol=1e-5, rtol=0)
        expected = (exact[0] / exact[: len(kept)].sum()).item()
        assert (token == order[0]).double().mean().item() == pytest.approx(expected, abs=5e-3)
