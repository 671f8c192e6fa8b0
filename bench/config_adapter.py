"""Knobs of an adapter: a difference of low rank to weights that stay as they are, trained in their place (LoRA)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bench import fingerprint
from bench.section import Count, Positive, Section

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of a peft adapter."""
ABOUT = "base.json"
"""What the suite writes beside them: the digest of the base that it was trained on."""


class LowRank(Section):
    """What every adapter has: which layers it lies around, and how large it is."""

    kind: Literal["lora"] = "lora"
    rank: Count = 16
    """Rows of A, columns of B; at most the smaller side of every adapted layer."""
    alpha: Positive = 32.0
    """The scale is alpha / rank."""
    rslora: bool = False
    """The scale is alpha / sqrt(rank), which does not shrink as the rank grows (arXiv:2312.03732)."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Linear layers that are adapted, by their names' ends, such as [q_proj, v_proj]; null is all of the decoder's, the
    vocabulary head left out."""


class Lora(LowRank):
    """LoRA through peft (Hu et al. 2021, arXiv:2106.09685): an adapted layer computes W + scale B A, of which A and B
    are trained; without a section all weights are. There is no dropout, as nowhere in the suite."""

    path: str | None = None
    """Folder of a trained peft adapter to start from; its rank, alpha, scale and targets come with it."""
    reference: Literal["start", "base"] = "start"
    """What KL and preference pairs are measured against: the starting policy with its adapter as it then is, or the
    `base` without it. The two differ only with `path`; rounds of pairs have references of their own, and no base."""
    quantization: Literal["none", "nf4"] = "none"
    """`nf4` keeps the decoder's linear layers in four bits (QLoRA, arXiv:2305.14314), by the package bitsandbytes."""


def adapter_digest(path: str) -> str:
    """The content of a trained adapter; its path where it is not there, which the checks then say."""
    folder = Path(path).expanduser()
    files = [folder / name for name in (CONFIG, WEIGHTS)]
    about = folder / ABOUT
    there = all(file.is_file() for file in files)
    return fingerprint.files_digest(folder, [*files, *([about] if about.is_file() else [])]) if there else path
