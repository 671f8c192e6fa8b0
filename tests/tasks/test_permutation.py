"""Procedural splits: a true permutation, cut into three parts that share nothing and leave nothing out."""

from collections import Counter
from itertools import chain, pairwise

import pytest

from tasks.parts.permutation import permute, split_item, split_size


@pytest.mark.parametrize("size", [1, 2, 3, 16, 81, 1000])
def test_every_item_stands_at_exactly_one_position(size: int):
    assert sorted(permute(position, size, "order") for position in range(size)) == list(range(size))


def test_the_order_is_fixed_and_depends_on_the_stream():
    # Written down once: another machine or release must give the same items.
    first = [817, 948, 885, 983, 682, 674, 896, 246]
    assert [permute(position, 1000, "order") for position in range(8)] == first
    assert [permute(position, 1000, "another") for position in range(8)] != first


def test_the_order_has_no_visible_pattern():
    """Neighbours are as far apart as in a random order, |a - b| = size / 3 on average, and keep no common step."""
    items = [permute(position, 10_000, "order") for position in range(10_000)]
    steps = [after - before for before, after in pairwise(items)]
    assert abs(sum(map(abs, steps)) / len(steps) / 10_000 - 1 / 3) < 0.01
    assert max(Counter(steps).values()) < 20


@pytest.mark.parametrize("num_items", [81, 100, 729])
def test_the_splits_cover_all_items_once(num_items: int):
    splits = {
        split: [split_item(split, index, num_items, "order") for index in range(split_size(split, num_items))]
        for split in ("train", "validation", "test")
    }
    assert sorted(chain(*splits.values())) == list(range(num_items))
    assert len(splits["test"]) == -(-num_items // 10)


def test_items_beyond_64_bits():
    """16 terms of 12 digits: the network's halves are wider than a machine word."""
    num_items = (9 * 10**11) ** 16
    items = {split_item("test", index, num_items, "order") for index in range(50)}
    assert len(items) == 50
    assert all(0 <= item < num_items for item in items)
    assert max(items) > num_items // 2
