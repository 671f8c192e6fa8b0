"""Four bits a weight (QLoRA, arXiv:2305.14314): a base's linear layers as bitsandbytes keeps them, for an adapter."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def quantise(network: PreTrainedModel, layers: Mapping[str, nn.Module], precision: torch.dtype) -> None:
    """Replace linear layers by ones of the NF4 data type, with the scales quantised too.

    Args:
        network: on its device.
        precision: in which the layers compute.
    """
    # By name: what it says of its types is not right, where it is installed at all.
    bitsandbytes: Any = import_module("bitsandbytes")
    for name, layer in layers.items():
        assert isinstance(layer, nn.Linear), "the adapter's checks have looked"
        device, bias = layer.weight.device, layer.bias
        packed = bitsandbytes.nn.Linear4bit(
            layer.in_features, layer.out_features, bias is not None, precision, quant_type="nf4", device="meta"
        )
        weight = layer.weight.detach().cpu()
        packed.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=packed)
        packed.bias = bias
        # Without gradients some CPUs would repack the weights in place, for a product that has no backward pass.
        packed.support_avx512bf16_for_cpu = False
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, packed.to(device))
    setattr(network, "is_loaded_in_4bit", True)  # peft asks this before it looks at a layer
