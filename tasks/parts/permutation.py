"""Procedural splits: item numbers are shuffled by a permutation, so splits are disjoint as items and never repeat one.

Position p of a shuffled list of all items belongs to test if p mod 10 is 0, to validation if it is 1, else to train.
The list is never built: a Feistel network gives the item at a position at once, and being a permutation it cannot give
the same item for two positions.
"""

from hashlib import blake2b

from tasks.parts.problem import Split

_PARTS = 10
_RESIDUES: dict[Split, tuple[int, ...]] = {"test": (0,), "validation": (1,), "train": tuple(range(2, _PARTS))}
_ROUNDS = 6


def split_size(split: Split, num_items: int) -> int:
    """How many of `num_items` items belong to a split."""
    return sum((num_items - residue + _PARTS - 1) // _PARTS for residue in _RESIDUES[split])


def split_item(split: Split, index: int, num_items: int, stream: str) -> int:
    """Item number in [0, num_items) of member `index` of a split; `index` is below `split_size`.

    Args:
        stream: names the permutation; another stream is another order and other splits.
    """
    assert 0 <= index < split_size(split, num_items)
    residues = _RESIDUES[split]
    block, member = divmod(index, len(residues))
    return permute(_PARTS * block + residues[member], num_items, stream)


def permute(position: int, size: int, stream: str) -> int:
    """A permutation of range(size), named by `stream`: a Feistel network, walked until it lands inside the range."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = position >> half_bits, position & mask
        for round_number in range(_ROUNDS):
            message = f"{stream}|{round_number}|{right}".encode()
            digest = blake2b(message, digest_size=(half_bits + 7) // 8).digest()
            left, right = right, left ^ (int.from_bytes(digest) & mask)
        position = left << half_bits | right
        if position < size:
            return position
