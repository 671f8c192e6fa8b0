"""Where the time of a call goes, by kind of operation, from torch's profiler."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

PRODUCTS = ("mm", "addmm", "addmm_", "matmul", "linear", "einsum", "mkl_linear", "_addmm_activation")
BATCHED = ("bmm", "baddbmm", "baddbmm_")
"""Products of activations with each other. In a decoder that is attention alone: scores, and the values they weigh."""
SOFTMAX = ("softmax", "_softmax")
"""By its name alone an operation does not tell whether attention or drawing asked for it."""
DRAWING = (
    "_log_softmax", "log_softmax", "logsumexp", "exp", "exp_", "log", "log_", "cumsum",
    "cumsum_", "searchsorted", "gather", "sort", "topk", "argmax", "max", "multinomial", "exponential_", "isin",
    "isnan", "isfinite", "isneginf", "isposinf", "nonzero", "eq", "all", "any", "clamp", "clamp_", "count_nonzero",
)  # fmt: skip
MOVING = (
    "cat", "index", "index_select", "index_put_", "_index_put_impl_", "index_copy_", "copy_", "clone", "contiguous",
    "_to_copy", "to", "repeat", "repeat_interleave", "gather_rows", "empty", "empty_like", "empty_strided", "new_empty",
    "zeros", "zero_", "fill_", "full", "scatter_", "resize_",
)  # fmt: skip
ATTENTION, REST, OUTSIDE = (
    "attention, its softmax aside",
    "other operations (norms, rotation, activation, sums, views)",
    "outside operations",
)
KINDS = {
    "matrix products with weights": PRODUCTS,
    ATTENTION: BATCHED,
    "softmax of attention and of drawing": SOFTMAX,
    "drawing tokens and looking for ends": DRAWING,
    "copies of keys, values and rows": MOVING,
}


@dataclass(frozen=True)
class Part:
    """One kind's share of a call."""

    kind: str
    seconds: float
    calls: int


def kind_of(operation: str) -> str:
    """The kind of an operation of torch, by its name."""
    name = operation.removeprefix("aten::")
    if "attention" in name:
        return ATTENTION
    return next((kind for kind, names in KINDS.items() if name in names), REST)


def breakdown(call: Callable[[], object], seconds: float, repeats: int = 10) -> list[Part]:
    """Kinds by the time that operations spent in themselves, and what is left of `seconds`: Python and dispatch.

    Args:
        call: What is looked at; it has run before.
        seconds: What the call takes without the profiler, whose own cost would else be counted.
        repeats: Times that it is looked at; the quickest is taken.
    """
    best: list[Part] | None = None
    fastest = float("inf")
    for _ in range(repeats):
        with profile(activities=[ProfilerActivity.CPU]) as found:
            start = time.perf_counter()
            call()
            taken = time.perf_counter() - start
        if taken < fastest:
            fastest, best = (
                taken,
                _parts((event.key, event.self_cpu_time_total, event.count) for event in found.key_averages()),
            )
    assert best is not None, "at least one repeat"
    return [*best, Part(OUTSIDE, max(0.0, seconds - sum(part.seconds for part in best)), 0)]


def _parts(events: Iterable[tuple[str, float, int]]) -> list[Part]:
    order = [*KINDS, REST]
    seconds, calls = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0)
    for name, microseconds, count in events:
        kind = kind_of(name)
        seconds[kind] += microseconds / 1e6
        calls[kind] += count
    return [Part(kind, seconds[kind], calls[kind]) for kind in order]


def table(parts: list[Part], title: str) -> list[str]:
    """The parts as a markdown table, largest first."""
    whole = sum(part.seconds for part in parts)
    rows = [f"| {title} | ms | share | calls |", "|---|---|---|---|"]
    for part in sorted(parts, key=lambda part: -part.seconds):
        calls = f"{part.calls:,}" if part.calls else ""
        rows.append(f"| {part.kind} | {1000 * part.seconds:.2f} | {part.seconds / whole:.0%} | {calls} |")
    return rows
