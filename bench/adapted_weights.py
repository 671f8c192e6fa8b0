"""An adapted network's weights: adapter and base apart, and both together in copies that never touch the base.

Merging in place and taking the difference out again would round the base a little each time, and let it drift. Here
what samples, is saved or is pushed to an engine reads W + scale B A as a new tensor; the base is only ever read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bench import sharding

ADAPTER = "default"
"""The one adapter's name inside a network."""
Network = TypeVar("Network", bound=nn.Module)


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a layer of peft's around one of the base's."""
    return type(module).__module__.startswith("peft.tuners.lora.")


def is_quantised(module: nn.Module) -> bool:
    """Whether a layer keeps its weight in fewer bits than it computes with."""
    return type(module).__module__.startswith("bitsandbytes.")


def adapted_layers(network: nn.Module) -> dict[str, Any]:
    """The layers with an adapter by name; none where the network is as it was loaded."""
    return {name: module for name, module in network.named_modules() if is_adapted(module)}


def adapter_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """A and B of every adapted layer, under the names that peft gives them in its files."""
    return {
        f"base_model.model.{name}.{part}.weight": getattr(layer, part)[ADAPTER].weight
        for name, layer in adapted_layers(network).items()
        for part in ("lora_A", "lora_B")
    }


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that an optimizer moves: the adapter's, or all where there is none."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def held(network: nn.Module) -> list[Tensor]:
    """Every tensor that the network keeps: parameters, buffers, and the scales of quantised weights."""
    layers: list[Any] = [module for module in network.modules() if is_quantised(module)]
    states = [layer.weight.quant_state for layer in layers]
    scales = [number for state in states for number in (state, state.state2) if number is not None]
    tensors = [tensor for scale in scales for tensor in vars(scale).values() if isinstance(tensor, Tensor)]
    return [*network.parameters(), *network.buffers(), *tensors]


def base_layer(module: nn.Module) -> Any:
    """The layer itself, without the adapter around it."""
    return module.base_layer if is_adapted(module) else module


def base_weight(module: nn.Module) -> Tensor:
    """The weight of a linear layer before its adapter, in numbers that can be added to."""
    layer = base_layer(module)
    if not is_quantised(layer):
        return layer.weight
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(layer.weight.data, layer.weight.quant_state)


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """W + scale B A of an adapted layer, rounded once; the base's own tensor where there is nothing to add."""
    weight = base_weight(layer)
    # Adding zeros would turn -0 into +0, and so another digest.
    if not is_adapted(layer) or layer.disable_adapters or not bool(layer.lora_B[ADAPTER].weight.any()):
        return weight
    return (weight.float() + layer.get_delta_weight(ADAPTER).float()).to(weight.dtype)


def named_weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the model that the network computes, under the base's names, adapted ones merged as they come;
    shared ones once, as `named_parameters` has them."""
    return _plain(network, network.named_parameters(), merged=True)


def plain_state(network: nn.Module, *, merged: bool = True) -> dict[str, Tensor]:
    """The state dictionary that the base without an adapter would have, of the same make as that of any model.

    Args:
        merged: with the adapter added, or as if it were not there.
    """
    return dict(_plain(network, network.state_dict().items(), merged=merged))


def _plain(network: nn.Module, named: Iterable[tuple[str, Tensor]], *, merged: bool) -> Iterator[tuple[str, Tensor]]:
    special = {name: m for name, m in network.named_modules() if is_adapted(m) or is_quantised(m)}
    for name, tensor in named:
        owner = next((prefix for prefix in _prefixes(name) if prefix in special), None)
        inside = "" if owner is None else name.removeprefix(f"{owner}.").removeprefix("base_layer.")
        if owner is None:
            yield name, tensor
        elif inside == "weight":
            yield f"{owner}.weight", (merged_weight if merged else base_weight)(special[owner]).detach()
        elif inside == "bias":
            yield f"{owner}.bias", tensor


def _prefixes(name: str) -> Iterator[str]:
    """The names of the modules around a parameter, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def state_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors by name: equal for two states exactly when they are equal bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(sharding.whole(tensor).detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def sharing_base(network: Network) -> Network:
    """A second network over the very same base tensors, with a copy of the adapter that is its own."""
    own = {id(parameter) for parameter in adapter_parameters(network).values()}
    shared = [tensor for tensor in (*network.parameters(), *network.buffers()) if id(tensor) not in own]
    return deepcopy(network, {id(tensor): tensor for tensor in shared})


def without_adapter(network: Network) -> Network:
    """A second network over the very same base tensors that computes without the adapter."""
    bare = sharing_base(network)
    for name, layer in adapted_layers(bare).items():
        _put(bare, name, layer.base_layer)
    return _forgotten(bare)


@torch.no_grad()
def plain_copy(network: Network) -> Network:
    """A copy with weights of its own, all of them trained, and no adapter: what it added is merged in."""
    bare = without_adapter(network)
    copied = deepcopy(bare)
    special = {name: m for name, m in network.named_modules() if is_adapted(m) or is_quantised(m)}
    for name, layer in special.items():
        if name.endswith(".base_layer"):
            continue
        present: Any = copied.get_submodule(name)
        if is_quantised(present):
            bias, present = (
                present.bias,
                nn.Linear(present.in_features, present.out_features, bias=False, device="meta"),
            )
            present.bias = bias
            _put(copied, name, present)
        present.weight = nn.Parameter(merged_weight(layer).detach().clone())
    return copied.requires_grad_(True)


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, module)


def _forgotten(network: Network) -> Network:
    """The network without peft's note of what it carries."""
    if "peft_config" in vars(network):
        delattr(network, "peft_config")
    return network
