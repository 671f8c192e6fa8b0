"""What an engine asks of its run: a model that it has kernels for, temperatures that it keeps, and one precision."""

from collections.abc import Iterator

from bench.config import Run, TinyModel
from bench.config_compute import VllmEngine

HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Numbers a head for which vLLM 0.32 has attention on a CPU."""
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
    if isinstance(run.model, TinyModel) and run.device == "cpu":
        size = run.model.hidden_size // run.model.num_heads
        if size not in HEAD_SIZES:
            fitting = [n for n in range(1, run.model.hidden_size + 1) if run.model.hidden_size / n in HEAD_SIZES]
            fix = f"model.num_heads={fitting[-1]}" if fitting else f"model.hidden_size={32 * run.model.num_heads}"
            yield (
                f"{given} with model.hidden_size {run.model.hidden_size} / num_heads {run.model.num_heads} = {size} "
                f"numbers a head, for which it has no attention on a CPU; give {fix} or engine=builtin"
            )
