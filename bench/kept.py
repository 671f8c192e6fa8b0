"""What a learner on fixed completions trains on, kept in the run's directory: a resume finds the very same again.

One safetensors file a round, written whole or not at all. It says which run and which weights it was made by, and holds
a digest of its own content, so that a file of another run, of other weights or with a changed byte is never taken.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bench import store

FORMAT = 2
_HEADER = "kept"

Texts = Sequence[tuple[int, ...]]


class RoundLost(RuntimeError):
    """A checkpoint lies within a round that is not there any more; the message says what to do."""


@dataclass(frozen=True)
class Kept:
    """Completions as token ids, what was computed of them, and what is known about them."""

    texts: Mapping[str, Texts]
    """Lists of token ids by name, such as prompts; those of one name may differ in length."""
    about: Mapping[str, Any]
    """Plain data, such as metrics."""
    numbers: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def digest(self) -> str:
        """SHA-256 of everything in it."""
        return _digest(self.tensors(), json.dumps(self.about))

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors by name: lists of one name flat, with their lengths beside them."""
        tensors = {f"numbers/{name}": tensor.cpu().contiguous() for name, tensor in self.numbers.items()}
        for name, texts in self.texts.items():
            tensors[f"texts/{name}"] = torch.tensor([token for ids in texts for token in ids], dtype=torch.int32)
            tensors[f"lengths/{name}"] = torch.tensor([len(ids) for ids in texts], dtype=torch.int32)
        return tensors


@dataclass(frozen=True)
class Maker:
    """What a round was made by; the same maker makes the same round."""

    run: str
    """The run's id: everything that its configuration says."""
    weights: str
    """SHA-256 of the policy's weights."""


def path_of(folder: Path, number: int) -> Path:
    """The file of round `number`, from 0."""
    return folder / f"round_{number + 1:04d}.safetensors"


def write(folder: Path, number: int, kept: Kept, maker: Maker) -> None:
    """Keep a round.

    Raises:
        OSError: the disk is full, read-only or not there; the message names the file and the reason.
    """
    header = {"format": FORMAT, "made_by": vars(maker), "digest": kept.digest, "about": json.dumps(kept.about)}
    # Under one name, for the library writes several in any order, and equal rounds are equal files.
    store.write_bytes(path_of(folder, number), save(kept.tensors(), {_HEADER: json.dumps(header)}))


def read(folder: Path, number: int) -> tuple[Kept, Maker] | None:
    """A round that was kept and what it was made by; None where it is not there, or is not what was written."""
    try:
        with safe_open(str(path_of(folder, number)), framework="pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.offset_keys()}
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    if header.get("format") != FORMAT or header.get("digest") != _digest(tensors, header.get("about", "")):
        return None
    texts = {
        name.removeprefix("texts/"): _ragged(tensors[name], tensors[name.replace("texts/", "lengths/", 1)])
        for name in tensors
        if name.startswith("texts/")
    }
    numbers = {name.removeprefix("numbers/"): t for name, t in tensors.items() if name.startswith("numbers/")}
    return Kept(texts, json.loads(header["about"]), numbers), Maker(**header["made_by"])


def _ragged(flat: Tensor, lengths: Tensor) -> list[tuple[int, ...]]:
    parts = flat.split(lengths.tolist()) if len(lengths) else ()
    return [tuple(part.tolist()) for part in parts]


def _digest(tensors: Mapping[str, Tensor], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
