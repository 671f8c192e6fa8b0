"""Streams: stable over machines, independent by name, and counter-based draws that ignore their neighbours."""

import numpy as np

from bench.seeding import generator, stream_key, uniforms


def test_keys_are_pinned() -> None:
    """A changed hash would silently change every run: these values must never move."""
    assert stream_key(0, "rollout", 0, "chain_sum/train/0", 0) == 1094303658701022677
    assert stream_key(1) == 6732346328585571479


def test_keys_depend_on_every_part_and_on_its_type() -> None:
    parts = [(0, "ab", "c"), (0, "a", "bc"), (0, "abc"), (0, 1), (0, "1"), (1, "ab", "c"), (10,), (1, 0)]
    keys = {stream_key(seed, *names) for seed, *names in parts}
    assert len(keys) == len(parts)


def test_neighbouring_seeds_share_no_stream() -> None:
    """`seed + i` gives seeds 1 and 2 nearly all items in common; named streams give none."""
    first, second = ({stream_key(seed, "prompts", i) for i in range(500)} for seed in (1, 2))
    assert not first & second


def test_uniforms_do_not_depend_on_the_batch_or_the_window() -> None:
    keys = [stream_key(0, "x", i) for i in range(5)]
    whole = uniforms(keys, 0, 8)
    np.testing.assert_array_equal(uniforms(keys[3:4], 2, 4), whole[3:4, 2:6])


def test_uniforms_are_uniform() -> None:
    """Mean, variance, lag-1 correlation and a chi-square over 64 cells, of 10^6 draws, within five standard errors."""
    draws = uniforms([stream_key(0, "x", i) for i in range(1000)], 0, 1000)
    count = draws.size
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5
    assert abs(draws.var() - 1 / 12) < 5 * (1 / 180 / count) ** 0.5
    for left, right in ((draws[:, :-1], draws[:, 1:]), (draws[:-1], draws[1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 5 / count**0.5
    cells = np.bincount((draws * 64).astype(int).ravel(), minlength=64)
    chi_square = ((cells - count / 64) ** 2 / (count / 64)).sum()
    assert abs(chi_square - 63) < 5 * (2 * 63) ** 0.5


def test_generators_of_one_name_repeat_and_of_two_differ() -> None:
    assert generator(0, "order", 1).permutation(50).tolist() == generator(0, "order", 1).permutation(50).tolist()
    assert generator(0, "order", 1).permutation(50).tolist() != generator(0, "order", 2).permutation(50).tolist()
