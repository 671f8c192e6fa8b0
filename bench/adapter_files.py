"""Adapters on disk: peft's folder of two files, read with care, and written so that peft loads it on the base."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bench.adapted_weights import ADAPTER, adapter_parameters
from bench.config_adapter import ABOUT, CONFIG, WEIGHTS
from bench.store import write_json

BASE = "base_sha256"
"""Names the digest of the base's weights: in a file of our own beside peft's, and on the network that carries the
adapter."""
SUBFOLDER = "adapter"
"""Beside a model's merged weights."""
_PREFIX = "base_model.model."
# What a plain adapter may say of itself; all else either changes nothing here or makes it another kind of adapter.
READ = (
    *("r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern", "fan_in_fan_out"),
)
_OTHER_KINDS = (
    *("use_dora", "lora_bias", "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters"),
    *("alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "velora_config", "monteclora_config"),
    *("kasa_config", "megatron_config"),
)
_OWN_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga", "mica")
"""Ways to begin an adapter that change the base's weights too."""


@dataclass(frozen=True)
class Trained:
    """A trained adapter as its folder has it."""

    config: Mapping[str, Any]
    """The entries of its configuration that are `READ`."""
    tensors: Mapping[str, Tensor]
    """By peft's names, such as `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`."""
    base: str | None
    """Digest of the base's weights; known of adapters that this suite wrote."""

    @property
    def layers(self) -> dict[str, tuple[int, int, int]]:
        """Rank, inputs and outputs of each adapted layer, by the layer's name in the network."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self.tensors.items():
            layer, _, part = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
            found.setdefault(layer, {})[part] = tensor
        return {n: (len(p["lora_A"]), p["lora_A"].shape[1], len(p["lora_B"])) for n, p in found.items()}


def folder_mistakes(path: str) -> Iterator[str]:
    """One line for each reason why a folder holds no plain LoRA adapter; reads no weights."""
    folder, given = Path(path).expanduser(), f'adapter.path: "{path}" given'
    if not folder.is_dir():
        yield f"{given}, but there is no such folder here (looked in {Path.cwd()})"
        return
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        yield f"{given}, but it holds no {' and no '.join(missing)}: a peft adapter has both"
        return
    try:
        said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(said, dict):
            raise ValueError(f"{CONFIG} holds no settings")
        kind = said.get("peft_type")
        shapes = _shapes(folder)
        _base(folder)
    except (ValueError, KeyError, TypeError, OSError, AttributeError, SafetensorError) as error:
        yield f"{given}, but it cannot be read: {' '.join(str(error).split())[:200]}"
        return
    alpha = said.get("lora_alpha")
    if kind == "LORA" and not (isinstance(alpha, int | float) and math.isfinite(alpha) and alpha > 0):
        yield f"{given}, whose lora_alpha is {alpha}; must be a number above 0, or it adds nothing"
        return
    if kind != "LORA":
        yield f"{given}, which is an adapter of kind {kind}; must be LORA"
        return
    begun = str(said.get("init_lora_weights", True)).lower()
    known = {*_OTHER_KINDS, *_known()}
    others = [name for name in _OTHER_KINDS if said.get(name)]
    others += [name for name in said if said[name] and name not in known]
    others += ["bias"] if said.get("bias", "none") != "none" else []
    others += [f"init_lora_weights={begun}"] if begun.startswith(_OWN_BASE) else []
    strange = [name for name in shapes if not name.endswith((".lora_A.weight", ".lora_B.weight"))]
    if others or strange or not shapes:
        what = f"sets {', '.join(others)}" if others else f"holds {strange[0]}" if strange else "holds no weights"
        yield f"{given}, which is not plain LoRA: it {what}; must be A and B of linear layers alone"
    elif broken := [name for name in shapes if not _is_pair(name, shapes)]:
        yield f"{given}, but {broken[0]} has no counterpart that it could be multiplied with: the adapter is not whole"


def _known() -> set[str]:
    """What the installed peft knows of an adapter's settings: one of a newer peft is not passed over."""
    from peft import LoraConfig

    return {field.name for field in fields(LoraConfig)}


def _shapes(folder: Path) -> dict[str, list[int]]:
    with safe_open(folder / WEIGHTS, framework="np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118, it is no mapping


def _is_pair(name: str, shapes: Mapping[str, list[int]]) -> bool:
    """Whether A and B of this layer are both there, as matrices of one rank."""
    a, b = (shapes.get(f"{name.removesuffix('.weight')[:-1]}{part}.weight", []) for part in "AB")
    return len(a) == len(b) == 2 and a[0] == b[1]


def read_adapter(folder: Path) -> Trained:
    """A trained adapter; the folder is one that `folder_mistakes` has nothing against."""
    said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    return Trained({name: said[name] for name in READ if said.get(name) is not None}, tensors, _base(folder))


def _base(folder: Path) -> str | None:
    about = folder / ABOUT
    return json.loads(about.read_text(encoding="utf-8"))[BASE] if about.is_file() else None


def base_name(path: str) -> str | None:
    """The name of the base that an adapter was trained on, as it says itself."""
    said = json.loads((Path(path).expanduser() / CONFIG).read_text(encoding="utf-8"))
    return said.get("base_model_name_or_path") or None


def save_adapter(network: nn.Module, folder: Path) -> None:
    """Write a network's adapter as a folder that peft loads on the base."""
    folder.mkdir(parents=True, exist_ok=True)
    config = getattr(network, "peft_config")[ADAPTER].to_dict()
    # peft keeps some lists as sets, whose order would change from one run to the next.
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    write_json(folder / CONFIG, {**plain, "inference_mode": True})
    tensors = {name: p.detach().cpu().contiguous() for name, p in adapter_parameters(network).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / ABOUT, {BASE: getattr(network, BASE)})


@torch.no_grad()
def load_adapter(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved numbers into a network's adapter; both have the same layers."""
    own = adapter_parameters(network)
    assert own.keys() == tensors.keys(), "an adapter is put back where it came from"
    for name, parameter in own.items():
        parameter.copy_(tensors[name])


def adapter_folder(folder: Path) -> Path:
    """Where a checkpoint's folder keeps its adapter: beside merged weights, or as the folder itself."""
    return folder if (folder / CONFIG).is_file() else folder / SUBFOLDER
