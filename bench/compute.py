"""Precision and memory of the passes through a model: autocast, and gradient checkpointing without dropout."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from bench.config_compute import Compute
from bench.models import ModelUnavailable
from bench.packing import attention_of


@contextmanager
def passes(compute: Compute, device: str, model: nn.Module) -> Iterator[None]:
    """Inside the block, forward passes of `model` are made as the run asks.

    Matrices are multiplied in autocast's precision. Passes with a gradient keep each layer's input alone where
    checkpointing is on: transformers does so for layers in train mode, so the layers get that flag and nothing inside
    them does. Dropout stays off, and outside the block the model samples with a cache as before.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)] * compute.gradient_checkpointing
    precision = torch.autocast(device, torch.bfloat16) if compute.autocast == "bfloat16" else nullcontext()
    for layer in layers:
        layer.training = True
    try:
        with precision:
            yield
    finally:
        for layer in layers:
            layer.training = False


def enable_checkpointing(network: PreTrainedModel) -> None:
    """Prepare a model of transformers for checkpointed passes.

    Raises:
        ModelUnavailable: its layers cannot be computed again, or have dropout of their own that would come with it.
    """
    where = "compute.gradient_checkpointing: true given, but"
    layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        # Read by the layer itself in train mode, where a dropout module inside it would look at its own mode.
        if any(isinstance(rate, float) and rate > 0 for name, rate in vars(layer).items() if "dropout" in name):
            raise ModelUnavailable(
                f"{where} {type(layer).__name__} has dropout: set it to 0 in the model's configuration"
            )
    if not layers:
        raise ModelUnavailable(f"{where} {type(network).__name__} has no layers that can be checkpointed")

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # By the time of the backward pass the model's own attention is back, so the present one is put there again.
        return nullcontext(), attention_of(network.config, network.config._attn_implementation)

    network.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
