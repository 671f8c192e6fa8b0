"""Who holds the memory and when: peak bytes by role and phase, counted storage by storage as the training step runs.

`StorageMeter` sees every operation below autograd and follows each storage from the operation that returns it to its
release: exact to the byte, but for what an operation allocates and frees inside itself (the buffers of fused attention)
and for the few functions of torch that avoid in-place work under a dispatch mode (the backward of `gather`).
`MemoryMeter` adds what a training loop knows: which tensors are the policy, the critic, the optimizer's state, and
which phase is running.

A storage has one role. Tensors with an owner have the owner's role; what else a phase allocates is `rollout` in the
rollout and `activations` in every other phase. A storage made before the meter ran and given to no owner counts from
the first operation that reads it.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tasks.parts.resident import peak_resident_bytes

OWNED_ROLES = ("policy", "critic", "reference", "reward_model", "optimizer")
ROLES = (*OWNED_ROLES, "gradients", "activations", "rollout")
# The CUDA caching allocator hands out blocks of this size; on a CPU a storage takes the bytes it asked for.
CUDA_BLOCK_BYTES = 512


@dataclass(slots=True)
class _Storage:
    """A living storage: its bytes and role, when it was first seen, and the reference that tells of its end."""

    num_bytes: int
    role: str
    born: int
    end: weakref.ref[torch.UntypedStorage]


@dataclass(slots=True)
class Peak:
    """The most bytes alive at once since some moment, and whose they were then."""

    total: int
    roles: Counter[str]
    taken: int = field(compare=False)
    """How many storages had been born by then: one that is older and still lives was part of this peak."""


class StorageMeter(TorchDispatchMode):
    """Counts the bytes of living storages by role while it is entered, and keeps a peak for each open block."""

    def __init__(self, device: torch.device) -> None:
        """Storages on other types of device than that of `device` are not counted."""
        super().__init__()
        self.role = "activations"
        self.roles: Counter[str] = Counter()
        self.peaks: list[Peak] = []
        self._device_type = device.type
        self._block = CUDA_BLOCK_BYTES if device.type == "cuda" else 1
        self._storages: dict[int, _Storage] = {}
        self._births = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then count the storages it read or returned."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result

    def open_peak(self) -> Peak:
        """A peak that starts from what lives now; open blocks nest, and an inner one never lowers an outer one."""
        self.peaks.append(Peak(self.roles.total(), self.roles.copy(), self._births))
        return self.peaks[-1]

    def give(self, tensor: torch.Tensor, role: str) -> None:
        """Make `role` the owner of a tensor's storage, also in open peaks that held it under its first role."""
        storage = self._see(tensor)
        if storage is None or storage.role == role:
            return
        self._move(self.roles, storage, role)
        for peak in self.peaks:
            # A gradient is one from its allocation on, but is known to be one only once autograd has stored it.
            if storage.born <= peak.taken:
                self._move(peak.roles, storage, role)
        storage.role = role

    @staticmethod
    def _move(roles: Counter[str], storage: _Storage, role: str) -> None:
        roles[storage.role] -= storage.num_bytes
        roles[role] += storage.num_bytes

    def _see(self, tensor: torch.Tensor) -> _Storage | None:
        storage = tensor.untyped_storage()
        if storage.device.type != self._device_type:
            return None
        key = storage._cdata
        known = self._storages.get(key)
        num_bytes = -(-storage.nbytes() // self._block) * self._block
        if known is None:
            # torch keeps one Python object for each storage, which lives as long as the memory does.
            end = weakref.ref(storage, lambda _: self._release(key))
            known = self._storages[key] = _Storage(0, self.role, 0, end)
        if known.num_bytes != num_bytes:
            self._births += 1
            self.roles[known.role] += num_bytes - known.num_bytes
            known.num_bytes, known.born = num_bytes, self._births
            self._raise_peaks()
        return known

    def _raise_peaks(self) -> None:
        total = self.roles.total()
        for peak in self.peaks:
            if total > peak.total:
                peak.total, peak.roles, peak.taken = total, self.roles.copy(), self._births

    def _release(self, key: int) -> None:
        storage = self._storages.pop(key)
        self.roles[storage.role] -= storage.num_bytes


class MemoryMeter:
    """Peak bytes by role and phase over the updates in which `metering` is True; in the others it costs nothing."""

    def __init__(self, device: torch.device | str) -> None:
        """Counts memory on `device`."""
        self.metering = False
        """Set by the training loop before each update; while it is False, `measure` does nothing."""
        self._device = torch.device(device)
        self._meter = StorageMeter(self._device)
        self._tensors: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        self._optimizers: list[Optimizer] = []
        self._owned: set[str] = set()
        self._phases: dict[str, Peak] = {}
        self._cuda_peaks: tuple[int, int] | None = None
        self._earlier: dict[str, Any] | None = None

    def add(self, report: dict[str, Any]) -> None:
        """Take in what an earlier attempt of the run had measured up to the checkpoint that this one goes on from."""
        self._earlier = report

    def own(self, role: str, source: torch.nn.Module | Optimizer | Iterable[torch.Tensor]) -> None:
        """Say whose some tensors are. They are held weakly, so owning a batch does not keep it alive.

        Args:
            role: one of `ROLES`.
            source: a module stands for its parameters and buffers; an optimizer for its state, also what it makes
                later. The gradients of owned parameters have the role `gradients` by themselves.
        """
        assert role in ROLES, f"{role!r} is not one of {', '.join(ROLES)}"
        self._owned.add(role)
        if isinstance(source, Optimizer):
            self._optimizers.append(source)
            return
        tensors = [*source.parameters(), *source.buffers()] if isinstance(source, torch.nn.Module) else source
        self._tensors = [(owner, tensor) for owner, tensor in self._tensors if tensor() is not None]
        self._tensors += [(role, weakref.ref(tensor)) for tensor in tensors]

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the block under a phase, whose peak is kept if it is the highest so far, also when the block raises."""
        if not self.metering:
            yield
            return
        meter, outer_role = self._meter, self._meter.role
        with ExitStack() as stack:
            if not meter.peaks:
                stack.enter_context(self._outermost())
            meter.role = "rollout" if phase == "rollout" else "activations"
            peak = meter.open_peak()
            try:
                yield
            finally:
                meter.peaks.pop()
                meter.role = outer_role
                if phase not in self._phases or peak.total > self._phases[phase].total:
                    self._phases[phase] = peak

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        """Hand out the roles, watch for gradients and optimizer states as they are made, and count."""
        hooks: list[Any] = []
        for role, reference in self._tensors:
            if (tensor := reference()) is not None:
                self._meter.give(tensor, role)
                if tensor.is_leaf and tensor.requires_grad:
                    self._give_gradient(tensor)
                    hooks.append(tensor.register_post_accumulate_grad_hook(self._give_gradient))
        for optimizer in self._optimizers:
            self._give_state(optimizer)
            hooks.append(optimizer.register_step_post_hook(self._give_state))
        cuda = self._device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        try:
            with self._meter:
                yield
        finally:
            for hook in hooks:
                hook.remove()
            if cuda:
                now = torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)
                before = self._cuda_peaks or (0, 0)
                self._cuda_peaks = max(before[0], now[0]), max(before[1], now[1])

    def _give_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._meter.give(parameter.grad, "gradients")

    def _give_state(self, optimizer: Optimizer, *_: Any) -> None:
        for leaf in tree_leaves([*optimizer.state.values()]):
            if isinstance(leaf, torch.Tensor):
                self._meter.give(leaf, "optimizer")

    def report(self) -> dict[str, Any]:
        """What was measured, in the form of `memory.json`; None is "not known" or "this run has none", never 0.

        Of a run that was resumed it covers what this attempt measured and what those before had by the checkpoints it
        went on from: `attempts` of them, each phase and each figure from the attempt in which it was highest.

        A phase lists its roles at the moment of its own peak, so they add up to its total. The process's resident
        bytes are the operating system's high-water mark since the process started, libraries included.
        """
        phases = {name: {"total": peak.total, "roles": self._by_role(peak)} for name, peak in self._phases.items()}
        earlier: dict[str, Any] = self._earlier or {}
        for name, before in earlier.get("phases", {}).items():
            if name not in phases or before["total"] > phases[name]["total"]:
                phases[name] = before
        allocated, reserved = self._cuda_peaks or (None, None)
        peak = None
        if phases:
            name = max(phases, key=lambda name: phases[name]["total"])
            peak = {"phase": name, "allocated_bytes": phases[name]["total"], "roles": phases[name]["roles"]}
        return {
            "device": self._device.type,
            "kind": "measured",
            "phases": phases,
            "peak": peak,
            "process_rss_bytes": _highest(peak_resident_bytes(), earlier.get("process_rss_bytes")),
            "gpu_allocated_bytes": _highest(allocated, earlier.get("gpu_allocated_bytes")),
            "gpu_reserved_bytes": _highest(reserved, earlier.get("gpu_reserved_bytes")),
            "attempts": 1 + earlier.get("attempts", 0),
        }

    def _by_role(self, peak: Peak) -> dict[str, int | None]:
        return {role: None if role in OWNED_ROLES and role not in self._owned else peak.roles[role] for role in ROLES}


def _highest(*figures: int | None) -> int | None:
    return max((figure for figure in figures if figure is not None), default=None)
