"""Several processes that share one run: who we are among them, and the sums, gathers and broadcasts between them.

The only file that knows torch.distributed's collectives and accelerate. accelerate's state joins the processes (gloo on
a CPU, nccl on CUDA). With one process nothing is joined, and every function here returns what it was given.

Work is split by whole things (groups to sample, microbatches to pass), and gradients are summed after a rank's last
backward pass, never averaged: the loss is divided by counts of the whole optimizer step beforehand. So no wrapper such
as DistributedDataParallel is put around the model: it would average, would want as many passes from every rank, and a
rank may have nothing to do.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(hours=1)
"""How long a rank waits for the others, for one of them may be grading; that one is gone is noticed at once."""
_BUCKET_ELEMENTS = 2**24
# What gloo, nccl and the store that they meet in say of a rank that is gone.
_PEER_IS_GONE = (
    *("connection closed by peer", "connection reset", "connection refused", "broken pipe", "likely closed"),
    *("remote process exited", "communicator was aborted"),
)


class ProcessesDisagree(RuntimeError):
    """The ranks of a run no longer hold the same numbers: its result would depend on which of them is asked."""


@contextmanager
def joined(processes: int, device: str) -> Iterator[None]:
    """Be one of the processes of a run, as RANK and WORLD_SIZE of the environment say; nothing where there is one, or
    where they have joined already."""
    if processes == 1 or count() > 1:
        yield
        return
    from accelerate import PartialState

    assert int(os.environ["WORLD_SIZE"]) == processes, "the command line has seen to it"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # accelerate warns without it; the run sets its own number
    os.environ.pop("ACCELERATE_USE_FSDP", None)  # transformers would load the weights in one process alone
    PartialState(cpu=device == "cpu", timeout=LONGEST_WAIT)
    yield
    # Not after a failure: the others may be in the middle of a sum, and leaving without a word ends their wait.
    PartialState._reset_state()
    dist.destroy_process_group()


def count() -> int:
    """How many processes share the run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if count() > 1 else 0


def is_main() -> bool:
    """Whether this process writes the run's files; known before they have joined too."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def barrier() -> None:
    """Wait until every process is here."""
    gather(None)


def mine(items: Sequence[Item]) -> Sequence[Item]:
    """Every `count()`-th item, from the own rank on."""
    return items[rank() :: count()]


def gather(value: Item) -> list[Item]:
    """Each rank's value, in the order of the ranks; any plain data, tensors on the CPU."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def gather_items(own: Sequence[Item]) -> list[Item]:
    """All items in their order, from what each rank made of the items that were `mine`."""
    parts = gather(list(own))
    every: list[Any] = [None] * sum(map(len, parts))
    for i, part in enumerate(parts):
        every[i :: len(parts)] = part
    return every


def from_main(make: Callable[[], Result]) -> Result:
    """What the main process makes, on every rank; an exception there ends the run, here it is the loss of a peer."""
    if count() == 1:
        return make()
    values: list[Any] = [make() if is_main() else None]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def total(tensor: Tensor) -> Tensor:
    """The sum over the ranks; every rank gives the same shape, and holds the same sum afterwards, bit for bit."""
    if count() > 1:
        tensor = tensor.clone()
        dist.all_reduce(tensor)
    return tensor


def filled(tensor: Tensor) -> Tensor:
    """One tensor from what the ranks have filled in of it; NaN is what nobody has."""
    if count() == 1:
        return tensor
    known = ~tensor.isnan()
    return total(tensor.nan_to_num()) / total(known.to(tensor.dtype))


def total_count(own: int) -> int:
    """The sum of a plain number over the ranks."""
    return sum(gather(own))


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients over the ranks, in a few large pieces; one that no rank has stays None.

    Sharded parameters are left alone: theirs were summed as they were made.
    """
    if count() == 1:
        return
    whole = [p for p in parameters if not is_sharded(p) and p.requires_grad]
    if not whole:
        return
    has = total(torch.tensor([p.grad is not None for p in whole], dtype=torch.int32, device=whole[0].device))
    found = [p for p, owners in zip(whole, has.tolist(), strict=True) if owners]
    for parameter in found:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for bucket in _buckets(found):
        gradients = [p.grad for p in bucket if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.numel() > _BUCKET_ELEMENTS or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor only."""
    if count() == 1:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def share(items: Sequence[Item], costs: Sequence[int], *, even: bool) -> list[tuple[Item, bool]]:
    """This rank's share of the passes of one optimizer step, and whether each counts.

    The dearest come first, each to the rank with the least so far; every rank works it out alike. A pass that does not
    count repeats an item: a rank without any makes one, so that its gradients and results have their shapes, and with
    `even` every rank makes as many passes, because with sharded weights a pass is made by all ranks together.

    Args:
        costs: what each item costs, such as its tokens.
    """
    if count() == 1:
        return [(item, True) for item in items]
    split = shares(costs, count())
    own = [(items[i], True) for i in split[rank()]]
    wanted = max(map(len, split)) if even else 1
    cheapest = items[min(range(len(items)), key=lambda i: (costs[i], i))]
    return own + [(cheapest, False)] * (wanted - len(own))


def shares(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, in their order: the dearest first, to the rank with the least cost, then the fewest."""
    split: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = min(range(ranks), key=lambda r: (loads[r], len(split[r]), r))
        split[least].append(i)
        loads[least] += costs[i]
    return [sorted(own) for own in split]


def agree(what: str, value: object) -> None:
    """Raises ProcessesDisagree unless every rank gives the same value."""
    values = gather(repr(value))  # as text, in which NaN equals NaN
    if any(other != values[0] for other in values):
        raise ProcessesDisagree(
            f"{what} differs between the run's processes ({', '.join(values)}): their weights have come "
            "apart; start the run again, and if it happens again, with parallel.processes=1"
        )


def with_help(
    generate: Callable[..., list[Any]], model: object, work: Callable[[Callable[..., list[Any]]], Result]
) -> Result:
    """What `work` returns on the main process, which samples with the help of the others; every rank gets it.

    The main process alone does the work (it grades, it writes) with a sampler that splits prompts over the ranks; the
    others sample what they are asked to until it is done.

    Args:
        generate: the engine, a `bench.generate.Generator`.
        model: what it samples from, on every rank the same.
        work: is given the sampler that splits.
    """
    if count() == 1:
        return work(generate)
    if is_main():

        def split(_: object, prompts: Sequence[Any], keys: Sequence[Any], **how: Any) -> list[Any]:
            _tell(("sample", prompts, keys, how))
            return _sampled(generate, model, prompts, keys, how)

        result = work(split)
        _tell(("done", result))
        return result
    while True:
        request = _tell(None)
        if request[0] == "done":
            return request[1]
        _sampled(generate, model, *request[1:])


def _tell(request: Any) -> Any:
    return from_main(lambda: request)


def _sampled(
    generate: Callable[..., list[Any]], model: object, prompts: Sequence[Any], keys: Sequence[Any], how: dict[str, Any]
) -> list[Any]:
    """The completions of all prompts, a part of them sampled here."""
    own = mine(prompts)
    return gather_items(generate(model, own, mine(keys), **how) if own else [])


def is_lost_peer(error: BaseException) -> bool:
    """Whether an exception says that another rank is gone: that one's end is the reason, not this one's."""
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _PEER_IS_GONE)
