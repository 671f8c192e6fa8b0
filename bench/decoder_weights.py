"""Which networks the sampler's own decode path can compute, and their weights as it wants them.

Llama (SmolLM2 among them), Qwen2, Qwen3 and Mistral, when nothing in them departs from the plain architecture:
quantised layers, hooks, sliding windows or a rotary embedding that changes with the length go through the
network's own forward pass instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from bench.adapted_weights import adapted_layers, adapter_parameters, base_layer, merged_weight

_FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_PLAIN = (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, SiLUActivation)
_DTYPES = (torch.float32, torch.bfloat16)
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles depend on the position alone."""
_STACKED_BYTES = 2**29
"""Weights are stacked, which copies them, up to this size; for larger models one product more is nothing."""

Linear = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; projections of one input stand together, stacked into one where that pays."""

    attention_norm: Tensor | None
    """Scale of the norm before the projection; None where the stacked weights have taken it in."""
    qkv: tuple[Linear, ...]
    head_norms: tuple[Tensor, Tensor] | None
    """Of queries and keys, over the size of a head (Qwen3)."""
    output: Linear
    mlp_norm: Tensor | None
    gate_up: tuple[Linear, ...]
    down: Linear


@dataclass(frozen=True)
class DecoderWeights:
    """All that the decode path reads of a network."""

    embedding: Tensor
    products: torch.dtype
    """In which matrices are multiplied, and keys and values kept; all else is in the network's own."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Linear
    rotary: nn.Module
    num_heads: int
    num_kv_heads: int
    head_size: int
    epsilon: float
    scaling: float
    """Of the attention scores."""


def decodes_natively(network: PreTrainedModel) -> bool:
    """Whether the sampler's own decode path computes what the network's forward pass would."""
    name = type(network).__name__
    if name not in _FAMILIES or type(network) is not getattr(transformers, name) or network.training:
        return False
    config = network.config
    sliding = getattr(config, "sliding_window", None) is not None
    layer_types = getattr(config, "layer_types", None) or (["sliding_attention"] if sliding else [])
    rotary: Any = network.model.rotary_emb
    head_size = network.model.layers[0].self_attn.head_dim
    # Gradient checkpointing hooks the embedding, for the backward pass only.
    harmless = {handle.id for handle in getattr(network, "_require_grads_hooks", [])}
    return (
        config.hidden_act == "silu"
        and all(kind == "full_attention" for kind in layer_types)
        and rotary.rope_type in _FIXED_ROPE
        and 2 * rotary.inv_freq.numel() == head_size
        and len({(p.dtype, p.device) for p in _base_parameters(network)}) == 1
        and network.dtype in _DTYPES
        and all(_is_plain(module, type(network).__module__, harmless) for module in _base_modules(network))
    )


def _base_parameters(network: PreTrainedModel) -> list[nn.Parameter]:
    own = {id(parameter) for parameter in adapter_parameters(network).values()}
    return [parameter for parameter in network.parameters() if id(parameter) not in own]


def _base_modules(network: PreTrainedModel) -> Iterator[nn.Module]:
    """The modules that the network would have without an adapter."""
    layers = adapted_layers(network).values()
    around = {id(part) for layer in layers for part in layer.modules()}
    yield from (module for module in network.modules() if id(module) not in around)
    yield from (base_layer(layer) for layer in layers)


def _is_plain(module: nn.Module, family: str, harmless: set[int]) -> bool:
    """Whether a module is exactly what its family or PyTorch defines: no subclass, hook or replaced forward."""
    known = type(module) in _PLAIN or type(module).__module__ == family
    hooks = {*module._forward_hooks, *module._forward_pre_hooks} - harmless
    return known and not hooks and "forward" not in vars(module)


def decoder_weights(network: PreTrainedModel, products: torch.dtype) -> DecoderWeights:
    """The weights of a network that `decodes_natively`; shared with it, except those that are stacked, rounded
    or merged with an adapter."""
    config, trunk = network.config, network.model
    first = trunk.layers[0].self_attn
    used = trunk.layers[: config.num_hidden_layers]
    stacked = sum(p.numel() for p in used.parameters()) * products.itemsize <= _STACKED_BYTES
    return DecoderWeights(
        embedding=trunk.embed_tokens.weight,
        products=products,
        layers=tuple(_layer_weights(layer, stacked, products) for layer in used),
        norm=trunk.norm.weight,
        head=_linear(network.lm_head, products),
        rotary=trunk.rotary_emb,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=first.head_dim,
        epsilon=config.rms_norm_eps,
        scaling=first.scaling,
    )


def _layer_weights(layer: Any, stacked: bool, products: torch.dtype) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [_linear(part, products) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    gate_up = [_linear(mlp.gate_proj, products), _linear(mlp.up_proj, products)]
    before_attention, before_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None
    return LayerWeights(
        attention_norm=None if stacked else before_attention,
        qkv=_stacked(qkv, before_attention) if stacked else tuple(qkv),
        head_norms=norms,
        output=_linear(attention.o_proj, products),
        mlp_norm=None if stacked else before_mlp,
        gate_up=_stacked(gate_up, before_mlp) if stacked else tuple(gate_up),
        down=_linear(mlp.down_proj, products),
    )


def _linear(module: nn.Linear, products: torch.dtype) -> Linear:
    bias = base_layer(module).bias
    return merged_weight(module).to(products), None if bias is None else bias.to(products)


def _stacked(parts: list[Linear], scale: Tensor) -> tuple[Linear, ...]:
    """Several projections of one scaled input as one; either all of them have a bias or none."""
    biases = [bias for _, bias in parts if bias is not None]
    weight = torch.cat([weight for weight, _ in parts]).mul_(scale)
    return ((weight, torch.cat(biases) if biases else None),)
