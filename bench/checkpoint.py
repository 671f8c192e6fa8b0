"""Checkpoints: everything that shapes a run's future, as named tensors and plain values in folders that are whole."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter
from safetensors.torch import load_file, save_file
from torch import nn

from bench import checkpoint_folder, processes, sharding
from bench.adapted_weights import adapted_layers, plain_state, state_digest
from bench.adapter_files import BASE, SUBFOLDER, adapter_folder, load_adapter, read_adapter, save_adapter
from bench.checkpoint_folder import FORMAT, MARKER, complete, step_of
from bench.learner import Cast, Progress
from bench.models import LanguageModel, ModelUnavailable, save_folder
from bench.rollout import Group

__all__ = ["CARRIED", "FORMAT", "MARKER", "complete", "step_of"]

CARRIED = "carried.json"
FINAL = "final"
# A reward or log-probability may be NaN, which JSON has no number for.
_GROUPS = TypeAdapter(list[Group], config=ConfigDict(ser_json_inf_nan="strings"))


def weights_digest(network: nn.Module) -> str:
    """SHA-256 of all parameters by name: equal for two models exactly when their weights are equal bit for bit. An
    adapter counts as merged, so that a model has the digest of the folder that it is saved as."""
    return state_digest(plain_state(network))


# Writing


def save(
    directory: Path,
    cast: Cast,
    *,
    keep: int,
    extra: Mapping[str, Any],
    origin: Mapping[str, Any] | None = None,
    needs: tuple[str, ...] = (),
    stays: bool = False,
) -> Path:
    """Write `step_NNNNNN` for the present update, then remove what is no longer kept.

    Every process of the run calls it, for what is sharded is gathered from all of them; the main one writes.

    Args:
        directory: the run's `checkpoints` folder.
        extra: plain values of the training loop that a resume needs.
        origin: which run it belongs to and what wrote it (`bench.origin`).
        needs: names of folders in `directory` that it is not whole without.
        stays: keep it when newer ones have come.

    Raises:
        NoRoom: the disk has not the bytes free that it takes.
    """
    final = directory / f"step_{cast.progress.update:06d}"
    states = _states(cast)
    if not processes.is_main():
        return final
    carried = _GROUPS.dump_json(cast.carried) if cast.carried else b""
    room = _num_bytes(states) + len(carried)
    checkpoint_folder.require_room(directory, room, f"the checkpoint of update {cast.progress.update}")
    record = {**(origin or {}), "progress": asdict(cast.progress), "extra": dict(extra)}
    with checkpoint_folder.whole_folder(final, {**record, "needs": list(needs), "stays": stays}) as partial:
        policy = states.pop("policy")
        if adapted_layers(cast.policy.network):
            save_adapter(cast.policy.network, partial / "policy")
        else:
            save_folder(cast.policy, partial / "policy", policy)
        for name, state in states.items():
            save_file(_owned(state), partial / f"{name}.safetensors")
        if carried:
            (partial / CARRIED).write_bytes(carried)
    checkpoint_folder.prune(directory, keep, needs)
    return final


def save_model(model: LanguageModel, folder: Path, record: Mapping[str, Any] | None = None) -> None:
    """Write an ordinary Hugging Face folder with a marker, by the main process, whole where the weights are sharded; an
    adapter is merged into it, and lies in a folder of its own beside.

    Raises:
        NoRoom: the disk has not the bytes free that it takes.
    """
    state = _whole(plain_state(model.network))
    if processes.is_main():
        checkpoint_folder.require_room(folder.parent, _num_bytes({"policy": state}), f"the model {folder.name}")
        with checkpoint_folder.whole_folder(folder, record or {}) as partial:
            save_folder(model, partial, state)
            if adapted_layers(model.network):
                save_adapter(model.network, partial / SUBFOLDER)


# Reading


def restore(folder: Path, cast: Cast) -> dict[str, Any]:
    """Put a checkpoint's state into the cast's models and optimizers; returns what `save` was given as `extra`."""
    load_weights(cast.policy, folder / "policy")
    _load_optimizer(cast.optimizer, folder / "optimizer.safetensors")
    if cast.critic is not None and cast.critic_optimizer is not None:
        sharding.load_whole(cast.critic, load_file(folder / "critic.safetensors"))
        _load_optimizer(cast.critic_optimizer, folder / "critic_optimizer.safetensors")
    carried = folder / CARRIED
    cast.carried[:] = _GROUPS.validate_json(carried.read_bytes()) if carried.exists() else []
    return set_progress(cast, folder)["extra"]


def set_progress(cast: Cast, folder: Path) -> dict[str, Any]:
    """Set all counters of a run to those that a folder's marker has; returns the marker."""
    marker = marker_of(folder)
    for name, value in asdict(Progress(**marker["progress"])).items():
        setattr(cast.progress, name, value)
    return marker


def progress_of(folder: Path) -> Progress:
    """The counters that a folder's marker has."""
    return Progress(**marker_of(folder)["progress"])


def marker_of(folder: Path) -> dict[str, Any]:
    """The marker of a folder that was chosen for being whole."""
    marker = checkpoint_folder.marker_of(folder)
    assert not isinstance(marker, str), "a whole one was chosen"
    return marker


def load_weights(model: LanguageModel, folder: Path) -> None:
    """Replace a model's weights by those of a saved folder of the same architecture; where it has an adapter, the
    adapter's alone, whose base must be the same."""
    processes.barrier()  # the main process may still be writing it
    if adapted_layers(model.network):
        saved = read_adapter(adapter_folder(folder))
        if saved.base != getattr(model.network, BASE):
            raise ModelUnavailable(f"{folder}: its adapter was trained on another base than the run starts from now")
        load_adapter(model.network, saved.tensors)
        return
    saved = sharding.own_class(model.network).from_pretrained(folder, dtype=torch.float32)
    sharding.load_whole(model.network, saved.state_dict())


# The parts


def _states(cast: Cast) -> dict[str, dict[str, torch.Tensor]]:
    """The policy's weights and what else is saved beside them, by the name of its file; whole where it is sharded."""
    # An adapter is saved alone: its base is the start's, and the start is there again when the run goes on.
    policy = {} if adapted_layers(cast.policy.network) else cast.policy.network.state_dict()
    states = {"policy": policy, "optimizer": _flat(cast.optimizer)}
    if cast.critic is not None and cast.critic_optimizer is not None:
        states |= {"critic": cast.critic.state_dict(), "critic_optimizer": _flat(cast.critic_optimizer)}
    return {name: _whole(state) for name, state in states.items()}


def predicted_bytes(cast: Cast) -> tuple[int, int]:
    """Bytes of a checkpoint, which is what is trained with AdamW's two moments of it, and of the whole policy."""
    optimizers = [one for one in (cast.optimizer, cast.critic_optimizer) if one is not None]
    trained = [p for one in optimizers for group in one.param_groups for p in group["params"] if p.requires_grad]
    return 3 * sum(p.nbytes for p in trained), _num_bytes({"policy": cast.policy.network.state_dict()})


def _num_bytes(states: Mapping[str, Mapping[str, torch.Tensor]]) -> int:
    return sum(tensor.nbytes for state in states.values() for tensor in state.values())


def _owned(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share no memory with each other, as safetensors wants them; copied only where they do.

    A copy of all would take the memory of an optimizer's state once more, on its device: more than an update leaves.
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        own = tensor.detach().contiguous()
        place = own.untyped_storage().data_ptr()
        found[name] = own.clone() if place in seen else own
        seen.add(place)
    return found


def _whole(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors gathered where they are sharded: on the CPU, and by the main process alone."""
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if not sharding.is_sharded(tensor):
            whole[name] = tensor
        else:
            gathered = sharding.whole(tensor)  # by all together, one at a time
            if processes.is_main():
                whole[name] = gathered.cpu()
    return whole


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": value for index, values in state.items() for name, value in values.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, file: Path) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(file).items():
        index, name = key.split("/")
        parameter = parameters[int(index)]
        is_count = tensor.shape != parameter.shape  # the number of steps, which nobody cuts
        # A copy: what is read from a file is aligned as the file is, on which the last bits of a sum may depend.
        own = tensor.clone() if is_count else sharding.sharded_like(tensor.clone(), parameter)
        state.setdefault(int(index), {})[name] = own
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
