"""Random draws that are a function of the data: the same on every machine, in every numpy, in any order of problems.

Three things make them so. The generator is seeded with SHA-256 of the values in whole units of 1e-9 of the largest,
which absorbs the last bits in which two machines differ. Only raw words of PCG64 are used: numpy promises those, not
what its Generator makes of them. And sums are taken over whole numbers, which no order of addition changes.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

UNITS = 1e9
"""Whole units in the largest absolute value: sums over a million problems stay exact in a float64."""

_BLOCK_NUMBERS = 2**21
"""Random numbers held at once."""


def in_units(values: Float[np.ndarray, "*shape"]) -> tuple[Int[np.ndarray, "*shape"], float]:
    """The values as whole numbers, and what one unit is worth (1 if all are 0); the values must be finite."""
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    return np.rint(values / largest * UNITS).astype(np.int64), largest / UNITS


def generator(*contents: Int[np.ndarray, "*shape"]) -> np.random.PCG64:
    """A stream of words seeded with the contents of arrays of whole numbers.

    An order that should not matter (of problems, of seeds) is the caller's to remove, by sorting first.
    """
    digest = hashlib.sha256()
    for content in contents:
        digest.update(np.ascontiguousarray(content, dtype="<i8").tobytes())
    return np.random.PCG64(int.from_bytes(digest.digest(), "little"))


def canonical(units: Int[np.ndarray, "seeds problems *values"]) -> Int[np.ndarray, "seeds problems *values"]:
    """The same table with its seeds and its problems in an order that depends on their contents only."""
    flat = units.reshape(*units.shape[:2], -1)
    keys = [_row_digest(flat[seed]) for seed in range(len(flat))]
    units, flat = (table[sorted(range(len(flat)), key=keys.__getitem__)] for table in (units, flat))
    by_problem = np.swapaxes(flat, 0, 1).reshape(flat.shape[1], -1)
    return units[:, np.lexsort(by_problem.T[::-1])]


def signs(words: np.random.PCG64, count: int, width: int) -> Iterator[Int[np.ndarray, "rows width"]]:
    """`count` rows of fair signs, as 0 and 1 (bytes), in blocks."""
    rows = max(1, min(500, _BLOCK_NUMBERS // max(width, 1)))
    for start in range(0, count, rows):
        shape = (min(rows, count - start), width)
        raw = words.random_raw(-(-shape[0] * shape[1] // 64)).astype("<u8")
        yield np.unpackbits(raw.view(np.uint8), count=shape[0] * shape[1]).reshape(shape)


def draw_counts(words: np.random.PCG64, count: int, size: int) -> Iterator[Int[np.ndarray, "rows size"]]:
    """`count` bootstrap draws of `size` from `size`, as how often each is drawn, in blocks.

    The upper 32 bits of a word times `size`, so that no index is more likely than another by over size / 2**32.
    """
    rows = max(1, _BLOCK_NUMBERS // max(size, 1))
    for start in range(0, count, rows):
        block = min(rows, count - start)
        upper = words.random_raw(block * size) >> np.uint64(32)
        chosen = ((upper * np.uint64(size)) >> np.uint64(32)).astype(np.int64).reshape(block, size)
        flat = chosen + size * np.arange(block)[:, None]
        yield np.bincount(flat.ravel(), minlength=block * size).reshape(block, size)


def quantile_above(values: Float[np.ndarray, " draws"], level: float) -> float:
    """The smallest draw with at least `level` of (draws + 1) at or below it: no interpolation, so no rounding."""
    ordered = np.sort(values)
    position = int(np.ceil(level * (len(values) + 1))) - 1
    return float(ordered[min(position, len(values) - 1)])


def _row_digest(rows: Int[np.ndarray, "problems values"]) -> bytes:
    """The same for any order of the problems."""
    ordered = rows[np.lexsort(rows.T[::-1])]
    return hashlib.sha256(np.ascontiguousarray(ordered, dtype="<i8").tobytes()).digest()
