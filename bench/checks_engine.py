"""What an engine asks of its run: one process, one precision, and temperatures that it keeps."""

from collections.abc import Iterator

from bench.config import Run
from bench.config_compute import VllmEngine

LOWEST_TEMPERATURE = 0.01
"""vLLM raises what lies between 0 and this to it, without a word."""


def engine_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right."""
    if not isinstance(run.engine, VllmEngine):
        return
    given = "engine.kind: vllm given"
    if run.parallel.processes > 1:
        yield (
            f"{given} with parallel.processes = {run.parallel.processes}, but so far it samples for one process; "
            "give parallel.processes=1 or engine=builtin"
        )
    if run.device == "cpu" and run.compute.autocast != "none":
        yield (
            f"{given} with compute.autocast={run.compute.autocast} on a CPU, where the engine computes in float32 and "
            "both sides must agree; give compute.autocast=none or engine=builtin"
        )
    for knob, value in (
        ("rollout.temperature", run.rollout.temperature),
        ("evaluation.temperature", run.evaluation.temperature),
    ):
        if 0 < value < LOWEST_TEMPERATURE:
            yield f"{knob}: {value:g} given, but vLLM would sample at {LOWEST_TEMPERATURE:g}; give that or more, or 0"
