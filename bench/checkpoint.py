"""Checkpoints: everything that shapes a run's future, in a folder that counts only once its marker is written, last."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter
from safetensors.torch import load_file, save_file
from torch import nn

from bench import processes, sharding
from bench.adapted_weights import adapted_layers, plain_state, state_digest
from bench.adapter_files import BASE, SUBFOLDER, adapter_folder, load_adapter, read_adapter, save_adapter
from bench.learner import Cast, Progress
from bench.models import LanguageModel, ModelUnavailable, save_folder
from bench.rollout import Group
from bench.store import write_json

MARKER = "complete.json"
CARRIED = "carried.json"
FORMAT = 1
# A reward or log-probability may be NaN, which JSON has no number for.
_GROUPS = TypeAdapter(list[Group], config=ConfigDict(ser_json_inf_nan="strings"))


def weights_digest(network: nn.Module) -> str:
    """SHA-256 of all parameters by name: equal for two models exactly when their weights are equal bit for bit. An
    adapter counts as merged, so that a model has the digest of the folder that it is saved as."""
    return state_digest(plain_state(network))


def save(directory: Path, cast: Cast, *, keep: int, extra: dict[str, Any]) -> Path:
    """Write `step_NNNNNN` for the present update, then remove all but the newest `keep` whole ones.

    Every process of the run calls it, for what is sharded is gathered from all of them; the main one writes.

    Args:
        directory: the run's `checkpoints` folder.
        extra: plain values of the training loop that a resume needs.
    """
    final = directory / f"step_{cast.progress.update:06d}"
    states = _states(cast)
    if not processes.is_main():
        return final
    partial = directory / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        policy = states.pop("policy")
        if adapted_layers(cast.policy.network):
            save_adapter(cast.policy.network, partial / "policy")
        else:
            save_folder(cast.policy, partial / "policy", policy)
        for name, state in states.items():
            save_file(_owned(state), partial / f"{name}.safetensors")
        if cast.carried:
            (partial / CARRIED).write_bytes(_GROUPS.dump_json(cast.carried))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # half a checkpoint would keep a full disk full
        raise
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    write_json(final / MARKER, {"format": FORMAT, "progress": asdict(cast.progress), "extra": extra})
    for old in complete(directory)[:-keep]:
        shutil.rmtree(old)
    return final


def save_model(model: LanguageModel, folder: Path) -> None:
    """Write an ordinary Hugging Face folder, by the main process, whole where the weights are sharded; an adapter is
    merged into it, and lies in a folder of its own beside."""
    state = _whole(plain_state(model.network))
    if processes.is_main():
        save_folder(model, folder, state)
        if adapted_layers(model.network):
            save_adapter(model.network, folder / SUBFOLDER)


def complete(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first by number; folders without a readable marker are passed over."""
    found: list[tuple[int, Path]] = []
    for folder in directory.glob("step_[0-9]*[0-9]"):
        try:
            marker = json.loads((folder / MARKER).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(marker, dict) and marker.get("format") == FORMAT and {"progress", "extra"} <= marker.keys():
            found.append((step_of(folder), folder))
    return [folder for _, folder in sorted(found)]


def step_of(folder: Path) -> int:
    """The update that a checkpoint's folder is named after."""
    return int(folder.name.removeprefix("step_"))


def restore(folder: Path, cast: Cast) -> dict[str, Any]:
    """Put a checkpoint's state into the cast's models and optimizers; returns what `save` was given as `extra`."""
    load_weights(cast.policy, folder / "policy")
    _load_optimizer(cast.optimizer, folder / "optimizer.safetensors")
    if cast.critic is not None and cast.critic_optimizer is not None:
        sharding.load_whole(cast.critic, load_file(folder / "critic.safetensors"))
        _load_optimizer(cast.critic_optimizer, folder / "critic_optimizer.safetensors")
    carried = folder / CARRIED
    cast.carried[:] = _GROUPS.validate_json(carried.read_bytes()) if carried.exists() else []
    marker = json.loads((folder / MARKER).read_text())
    for name, value in asdict(Progress(**marker["progress"])).items():
        setattr(cast.progress, name, value)
    return marker["extra"]


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


def _owned(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share no memory with each other, as safetensors wants them."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


def _states(cast: Cast) -> dict[str, dict[str, torch.Tensor]]:
    """The policy's weights and what else is saved beside them, by the name of its file; whole where it is sharded."""
    # An adapter is saved alone: its base is the start's, and the start is there again when the run goes on.
    policy = {} if adapted_layers(cast.policy.network) else cast.policy.network.state_dict()
    states = {"policy": policy, "optimizer": _flat(cast.optimizer)}
    if cast.critic is not None and cast.critic_optimizer is not None:
        states |= {"critic": cast.critic.state_dict(), "critic_optimizer": _flat(cast.critic_optimizer)}
    return {name: _whole(state) for name, state in states.items()}


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
        state.setdefault(int(index), {})[name] = tensor if is_count else sharding.sharded_like(tensor, parameter)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
