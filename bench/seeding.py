"""Named random streams derived by hash from one seed: a draw depends on what it is for, never on what came before."""

import hashlib
from collections.abc import Sequence

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(seed: int, *names: str | int) -> int:
    """64-bit key of the stream `names` under `seed`; the same on every machine.

    Each part enters with its type and length, so that ("a", "bc") and ("ab", "c") or 1 and "1" are different streams.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *names):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little")


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator of its own for the stream `names`, for shuffles and other draws of unknown number."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, *names)))


def uniforms(keys: Sequence[int], start: int, count: int) -> np.ndarray:
    """Counter-based uniform numbers in [0, 1): draws `start` to `start + count` of each key.

    Returns float64 of shape (len(keys), count). Row i depends on keys[i] and the draw's index alone. SplitMix64
    (Steele, Lea, Flood 2014): the finaliser of key + index * golden ratio, upper 53 bits.
    """
    index = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = np.asarray(keys, dtype=np.uint64)[:, None] + index[None, :] * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
