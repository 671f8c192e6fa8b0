"""Knobs of how a run is computed: the engine that samples, the processes that share the work, and the precision."""

from typing import Annotated, Literal

from pydantic import Field

from bench.section import Count, Positive, Section


class BuiltinEngine(Section):
    """The suite's own sampler, in the training process, for any causal language model of transformers."""

    kind: Literal["builtin"] = "builtin"


class VllmEngine(Section):
    """vLLM beside the trainer: in the same process on a CUDA device, in a child process on a CPU."""

    kind: Literal["vllm"] = "vllm"
    kv_cache_gib: Positive = 1.0
    """Memory for keys and values, in GiB; a share of the machine's memory is never taken by itself."""
    max_sequences: Count = 256
    """Completions that are sampled side by side."""
    max_mismatch: Positive = 0.1
    """Mean |difference| of a token's log-probability between engine and trainer, in nats, above which the run ends."""


Engine = Annotated[BuiltinEngine | VllmEngine, Field(discriminator="kind")]


def engine_titles() -> dict[str, str]:
    """What each engine is, by the name that `engine=` takes."""
    return {kind.model_fields["kind"].default: str(kind.__doc__) for kind in (BuiltinEngine, VllmEngine)}


class Parallel(Section):
    """Processes that share one run."""

    processes: Count = 1
    """`bench run --processes N` and `accelerate launch` set it."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp` holds every model in every process; `fsdp` (FSDP2) shards weights, gradients and optimizer states."""


class Compute(Section):
    """Precision and memory of the training step."""

    autocast: Literal["none", "bfloat16"] = "none"
    """`bfloat16` multiplies matrices in bfloat16; weights, gradients, optimizer states and log-probabilities stay
    float32."""
    gradient_checkpointing: bool = False
    """Keep each layer's input alone for the backward pass, and compute the rest again."""
