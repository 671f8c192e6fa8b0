"""Adapters (LoRA): put around a network's linear layers in place, and begun from the run's seed or a trained folder.

peft's layers are put in one by one, so that the network keeps its class and its packed passes. The start is drawn by
name from streams of the run's seed, as peft would draw it, but not from the process's generator: two runs of one seed
begin with the same numbers, whatever the algorithm.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bench.adapted_weights import (
    ADAPTER,
    adapted_layers,
    adapter_parameters,
    plain_copy,
    plain_state,
    sharing_base,
    state_digest,
    without_adapter,
)
from bench.adapter_files import BASE, Trained, folder_mistakes, load_adapter, read_adapter
from bench.config import Model, PretrainedModel, Run, TinyModel, local_path
from bench.config_adapter import Lora
from bench.config_critic import ModelCritic, SeparateCritic
from bench.models import ModelUnavailable, create_tiny
from bench.seeding import generator
from bench.sharding import decoder_layers

Network = TypeVar("Network", bound=PreTrainedModel)
_SHOWN = 12


def adapted(network: Network, lora: Lora, seed: int, name: str, precision: torch.dtype = torch.float32) -> Network:
    """The network with an adapter in place; the adapter alone asks for gradients.

    Args:
        network: a model of transformers, or its trunk, without an adapter; changed in place.
        name: whose adapter it is, such as `policy` or `critic`: each has draws of its own.
        precision: in which layers of four bits are multiplied.

    Raises:
        ModelUnavailable: the adapter does not fit this network; one line.
    """
    assert not adapted_layers(network), "one adapter a network"
    trained = None if lora.path is None else _trained(lora.path)
    lines = unfit(network, lora, trained)
    base = state_digest(plain_state(network))
    if trained is not None and trained.base not in (None, base):
        lines.append(
            f'adapter.path: "{lora.path}" given, which was trained on other weights than this base has (digest '
            f"{str(trained.base)[:12]}, here {base[:12]}); give the model or the warm start that it was trained on"
        )
    if lines:
        raise ModelUnavailable("; ".join(lines))
    if lora.quantization == "nf4":
        from bench.quantise import quantise

        quantise(network, linear_layers(network), precision)
    _inject(network, lora, trained)
    if trained is None:
        _begin(network, seed, name)
    else:
        load_adapter(network, trained.tensors)
    setattr(network, BASE, base)
    return network


def _trained(path: str) -> Trained:
    lines = list(folder_mistakes(path))
    if lines:
        raise ModelUnavailable("; ".join(lines))
    return read_adapter(Path(path).expanduser())


def linear_layers(network: PreTrainedModel, everywhere: bool = False) -> dict[str, nn.Module]:
    """The linear layers of the decoder by name; `everywhere`: of the whole network, its vocabulary head left out."""
    head, decoder = network.get_output_embeddings(), decoder_layers(network)
    (prefix,) = [name for name, module in network.named_modules() if module is decoder]
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
        if everywhere or name.startswith(f"{prefix}.")
    }


def targeted(network: PreTrainedModel, lora: Lora) -> dict[str, nn.Module]:
    """The layers that `lora.targets` names."""
    if lora.targets is None:
        return linear_layers(network)
    ends = tuple(f".{target}" for target in lora.targets)
    return {name: m for name, m in linear_layers(network, True).items() if f".{name}".endswith(ends)}


def unfit(network: PreTrainedModel, lora: Lora, trained: Trained | None) -> list[str]:
    """One line for each reason why an adapter cannot be put into this network; its weights may be on no device."""
    shapes = {name: _shape(module) for name, module in linear_layers(network, True).items()}
    if lora.quantization == "nf4" and any(isinstance(m, Conv1D) for m in linear_layers(network).values()):
        return [f"adapter.quantization: nf4 given, but {type(network).__name__} has no layers that it could quantise"]
    if trained is not None:
        return _misplaced(str(lora.path), trained, shapes, type(network).__name__)
    kinds = sorted({name.rpartition(".")[2] for name in shapes})
    lines = [
        f"adapter.targets: {target} given, but no linear layer has a name that ends so; it has {', '.join(kinds)}"
        for target in lora.targets or ()
        if not any(f".{name}".endswith(f".{target}") for name in shapes)
    ]
    sizes = {name: min(shapes[name]) for name in targeted(network, lora)}
    if sizes and lora.rank > min(sizes.values()):
        smallest = min(sizes, key=lambda name: sizes[name])
        lines.append(
            f"adapter.rank: {lora.rank} given, but {smallest} has {shapes[smallest][0]} inputs and "
            f"{shapes[smallest][1]} outputs; must be at most {sizes[smallest]}"
        )
    return lines


def _misplaced(path: str, trained: Trained, shapes: Mapping[str, tuple[int, int]], base: str) -> list[str]:
    given = f'adapter.path: "{path}" given, which was trained on another base'
    for name, (_, inputs, outputs) in trained.layers.items():
        if name not in shapes:
            return [f"{given}: {base} here has no linear layer {name}"]
        if shapes[name] != (inputs, outputs):
            here = " to ".join(map(str, shapes[name]))
            return [f"{given}: its {name} goes from {inputs} to {outputs} numbers, this model's from {here}"]
    return []


def _shape(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    inputs, outputs = module.weight.shape if isinstance(module, Conv1D) else (module.in_features, module.out_features)
    return inputs, outputs


def _inject(network: PreTrainedModel, lora: Lora, trained: Trained | None) -> None:
    from peft import LoraConfig
    from peft.mapping import inject_adapter_in_model

    if trained is None:
        chosen = targeted(network, lora)
        own: dict[str, Any] = {"r": lora.rank, "lora_alpha": _number(lora.alpha), "use_rslora": lora.rslora}
        own |= {"target_modules": _names(network, chosen)}
    else:
        chosen = {name: module for name, module in linear_layers(network, True).items() if name in trained.layers}
        own = {**trained.config}
    own["fan_in_fan_out"] = any(isinstance(module, Conv1D) for module in chosen.values())
    base = network.name_or_path or None
    if base is not None and Path(base).exists():
        base = str(Path(base).absolute())  # wherever the adapter is opened from
    config = LoraConfig(**own, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", base_model_name_or_path=base)
    with torch.random.fork_rng(devices=[]):  # peft draws a start, from the process's generator
        inject_adapter_in_model(config, network, ADAPTER)
    network.requires_grad_(False).eval()
    for parameter in adapter_parameters(network).values():
        parameter.data = parameter.data.float()
        parameter.requires_grad_(True)
    if trained is not None:
        made = {name: parameter.shape for name, parameter in adapter_parameters(network).items()}
        other = sorted(made.items() ^ {name: tensor.shape for name, tensor in trained.tensors.items()}.items())
        if other:
            raise ModelUnavailable(
                f'adapter.path: "{lora.path}" given, whose adapter_config.json and weights are not of one adapter: '
                f"they differ about {other[0][0]}"
            )


def _number(alpha: float) -> float:
    return int(alpha) if alpha.is_integer() else alpha


def _names(network: PreTrainedModel, chosen: Mapping[str, nn.Module]) -> list[str]:
    """Targets in peft's words: ends of names where those say exactly which layers, as others read them best."""
    ends = sorted({name.rpartition(".")[2] for name in chosen})
    matched = {name for name, _ in network.named_modules() if name.rpartition(".")[2] in ends}
    return ends if matched == chosen.keys() else sorted(chosen)


@torch.no_grad()
def _begin(network: PreTrainedModel, seed: int, name: str) -> None:
    """B is 0, so the network computes what its base does; A is uniform in +-1 / sqrt(inputs) (He et al. 2015, a^2 = 5),
    drawn for each layer by its name."""
    for own, layer in adapted_layers(network).items():
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        bound = a.shape[1] ** -0.5
        a.copy_(torch.from_numpy(generator(seed, "adapter", name, own).uniform(-bound, bound, tuple(a.shape))))
        b.zero_()


def num_trained(network: PreTrainedModel, lora: Lora) -> tuple[int, int]:
    """Layers that an adapter which fits would have, and its parameters."""
    if lora.path is not None:
        trained = _trained(lora.path)
        return len(trained.layers), sum(tensor.numel() for tensor in trained.tensors.values())
    sizes = [sum(_shape(module)) for module in targeted(network, lora).values()]
    return len(sizes), lora.rank * sum(sizes)


def reference_of(network: Network, lora: Lora) -> Network:
    """The frozen reference over the policy's own base weights: with a copy of the adapter as it is now, or without."""
    if lora.reference == "base":
        return without_adapter(network)
    return sharing_base(network).requires_grad_(False)


def adapted_copy(network: Network, lora: Lora, seed: int, name: str) -> Network:
    """A second network that computes what the first does, with an adapter of its own that is trained, such as a
    critic's trunk. Where the first has an adapter that adds nothing yet, both lie over the same base weights, which
    neither trains; otherwise the second has a base of its own, with what the first's adapter adds merged in.

    Args:
        lora: the second adapter's knobs, which need not be the first's.
        name: whose adapter it is; its draws are others than those of the first.
    """
    adds = any(bool(layer.lora_B[ADAPTER].weight.any()) for layer in adapted_layers(network).values())
    if adds:
        base = plain_copy(network).requires_grad_(False)
    else:
        base = without_adapter(network) if adapted_layers(network) else deepcopy(network)
    return adapted(base, lora, seed, name)


@contextmanager
def as_reference(network: PreTrainedModel, lora: Lora | None) -> Iterator[None]:
    """Inside, a network that has not been trained yet computes as its reference: without its adapter, if the run asks
    for the base."""
    layers = adapted_layers(network).values() if lora is not None and lora.reference == "base" else ()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def adapter_record(network: PreTrainedModel) -> dict[str, Any] | None:
    """What an adapter is and how it begins, for provenance; None where there is none."""
    layers = adapted_layers(network)
    if not layers:
        return None
    parameters = adapter_parameters(network)
    return {
        "layers": len(layers),
        "ranks": sorted({layer.r[ADAPTER] for layer in layers.values()}),
        "scales": sorted({layer.scaling[ADAPTER] for layer in layers.values()}),
        "parameters": sum(parameter.numel() for parameter in parameters.values()),
        "start_sha256": state_digest(parameters),
        "base_sha256": getattr(network, BASE),
    }


def misfits(run: Run) -> list[str]:
    """One line for each reason why the run's adapters would not fit their models, before a model is loaded; none where
    its shapes cannot be told without that."""
    lines: list[str] = []
    if run.adapter is not None and (network := _skeleton(run.model, run)) is not None:
        trained = None if run.adapter.path is None else _trained(run.adapter.path)
        lines = unfit(network, run.adapter, trained)
        lines = lines if lines or trained is None else _odd(network, run.adapter, trained)
    critic = run.critic
    if isinstance(critic, SeparateCritic | ModelCritic) and critic.adapter is not None:
        network = _skeleton(critic.model if isinstance(critic, ModelCritic) else run.model, run)
        knobs = Lora(**critic.adapter.model_dump())
        lines += [] if network is None else [f"critic.{line}" for line in unfit(network, knobs, None)]
    return lines


def _odd(network: PreTrainedModel, lora: Lora, trained: Trained) -> list[str]:
    """What is wrong with the values of a trained adapter whose shapes fit; puts it into the network."""
    given = f'adapter.path: "{lora.path}" given, whose'
    broken = next((name for name, tensor in trained.tensors.items() if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        return [f"{given} {broken} has values that are no numbers"]
    try:
        _inject(network, lora, trained)
    except ModelUnavailable as error:
        return [str(error)]
    except Exception as error:  # peft reads what the file says, whatever it is
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return [f"{given} adapter_config.json is not right: {reason}"]
    return []


def _skeleton(model: Model, run: Run) -> PreTrainedModel | None:
    """A network without its weights; None where its configuration is not at hand."""
    return create_tiny(model, run.alphabet, run.seed).network if isinstance(model, TinyModel) else _skeleton_of(model)


def _skeleton_of(model: PretrainedModel) -> PreTrainedModel | None:
    from transformers import AutoConfig, AutoModelForCausalLM

    source = {"revision": model.revision} if model.revision else {}
    source |= {"gguf_file": model.gguf_file} if model.gguf_file else {}
    try:
        config = AutoConfig.from_pretrained(local_path(model) or model.path, **source)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except Exception:  # whatever is wrong with the model, loading it will say
        return None
