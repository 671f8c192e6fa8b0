"""Weights shared out over the processes of a run (FSDP2): wrapped layer by layer, whole again where something needs it.

torch's `fully_shard` is called directly: it is what accelerate's FSDP2 plugin calls too, but that plugin wants its own
trainer-wide state and a CUDA device, and this works on a CPU with gloo as well. Gradients are summed, not averaged, as
in `bench.processes`. A pass goes through `within`, so that whatever the scoring functions call inside (the trunk alone,
the weight of the head) finds the model's own parameters gathered; layers gather theirs as they are called.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from bench.processes import count, is_sharded

Result = TypeVar("Result")


def shard(model: nn.Module, layers: nn.ModuleList) -> None:
    """Keep this rank's part of every parameter alone; each layer, and the rest of the model, is gathered by itself.

    Args:
        model: on its device, with the same weights on every rank.
        layers: its decoder layers.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(next(model.parameters()).device.type, (count(),))
    for layer in [*layers, model]:
        fully_shard(layer, mesh=mesh)
    setattr(model, "passed", lambda score: _own_tensors(score()))
    register_fsdp_forward_method(model, "passed")
    for module in _parts(model):
        module.set_gradient_divide_factor(1.0)
        # Without it a factor asks for an operation that only nccl has.
        module.set_force_sum_reduction_for_comms(True)


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules that the model has: its decoder layers, in every architecture of transformers."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    assert lists, f"{type(model).__name__} has no list of layers"
    return max(lists, key=lambda module: sum(p.numel() for p in module.parameters()))


def within(model: nn.Module, score: Callable[[], Result]) -> Result:
    """What `score` returns, called with the model's own parameters gathered where they are sharded.

    All ranks must make as many such passes, and as many backward ones; `bench.processes.share` sees to it.
    """
    return getattr(model, "passed")(score) if is_fully_sharded(model) else score()


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether `shard` was called on the model."""
    return hasattr(model, "passed")


@contextmanager
def unsharded(*models: nn.Module) -> Iterator[None]:
    """The models' whole weights on every rank, for as many forward passes as each likes and none backward.

    Parameters are plain tensors inside. `state_dict()` must not be called there: torch shards the model again for it.
    """
    parts = [(module, module is model) for model in models if is_fully_sharded(model) for module in _parts(model)]
    for module, _ in parts:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module, is_root in parts:
            module.reshard()
            # The rest of the model is needed again at once, when the backward pass begins.
            module.set_reshard_after_forward(not is_root, recurse=False)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered on every rank where it is sharded."""
    return getattr(tensor, "full_tensor")() if is_sharded(tensor) else tensor


def part(tensor: Tensor) -> Tensor:
    """What this rank holds of the tensor."""
    return getattr(tensor, "to_local")() if is_sharded(tensor) else tensor


def sharded_like(tensor: Tensor, model: Tensor) -> Tensor:
    """This rank's part of a whole tensor, cut as `model` is; the tensor itself where that is not sharded."""
    if not is_sharded(model):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(model, DTensor)
    own = tensor.detach().to(model.device)
    return distribute_tensor(own, model.device_mesh, model.placements, src_data_rank=None)


def load_whole(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put a whole state dictionary into a model that may be sharded; every rank gives the same one."""
    present = model.state_dict()
    model.load_state_dict({name: sharded_like(tensor, present[name]) for name, tensor in state.items()})


def own_class(model: nn.Module) -> Any:
    """The model's class before it was sharded, which puts one of its own in front."""
    return type(model).__mro__[2] if is_fully_sharded(model) else type(model)


def _parts(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _own_tensors(result: Any) -> Any:
    """The result with copies in place of views: the hook that gathers weights for the backward pass sits on them."""
    if isinstance(result, tuple):
        return tuple(map(_own_tensors, result))
    return result.clone() if isinstance(result, Tensor) and result._is_view() else result
