"""vLLM as a `Generator`: the trainer's weights are in the engine before it samples, and a look at both proves it.

Every call brings the weights over (unless the engine has these very numbers), drops the keys and values of the old
ones, and samples. After each push a few completions are scored by the trainer too: the two must agree.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from bench.adapted_weights import named_weights
from bench.checks_engine import LOWEST_TEMPERATURE
from bench.config_compute import VllmEngine
from bench.engines import EngineFailed, EngineMismatch, mismatch_sentence
from bench.generate import Completion, check_context
from bench.meter import PhaseClock
from bench.models import LanguageModel
from bench.policy import Sequences, token_logps
from bench.seeding import stream_key

LARGEST_GAP_AT_START, LARGEST_GAP = 1e-4, 1e-3
"""Nats a token in float32 on a CPU: 1e-6 to 1e-5 is usual, and what is not the same model is off by whole nats. Later
weights may be sharper than those of the start."""
_COMPARED = 4
_TOKENS_COMPARED = 16

Row = tuple[list[int], list[float], bool]
"""Token ids, log-probabilities (none where the engine has none to give) and whether an end token came."""


class Backend(Protocol):
    """An engine that runs somewhere and holds weights of its own."""

    @property
    def longest(self) -> int:
        """Prompt and completion together, in tokens, that its memory for keys and values allows."""
        ...

    def load(self, network: PreTrainedModel) -> bool:
        """Bring these weights over and drop what the old ones made; False where the engine has them already."""
        ...

    def sample(self, asked: Mapping[str, Any]) -> list[Row]:
        """Completions in (prompt, member) order; `asked` is what `bench.vllm_process.sampled` takes."""
        ...

    def rest(self) -> None:
        """Called after the last sample of a call: until the next `load` it need not be able to sample."""
        ...

    def close(self) -> None:
        """End it and give back all that it holds."""
        ...


class VllmGenerator:
    """The engine of one run. It starts with the first call, for its start is worth seconds."""

    def __init__(
        self,
        config: VllmEngine,
        start: Callable[[LanguageModel], Backend],
        exact: bool,
        clock: PhaseClock | None = None,
    ) -> None:
        """
        Args:
            start: makes the engine for models like this one.
            exact: engine and trainer both compute in float32 on this CPU, so that they must agree to 1e-3.
            clock: is told what the engine's start and the pushes of weights take.
        """
        self.config, self.exact, self._start = config, exact, start
        self._clock = clock or PhaseClock()
        self._backend: Backend | None = None
        self.gap = 0.0
        """Largest difference of a token's log-probability that the last comparison found, in nats."""
        self.pushes = 0

    def __call__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
    ) -> list[list[Completion]]:
        """As the protocol says; under a nucleus (`top_p` below 1) log-probabilities are NaN, the engine has none.

        Raises:
            ContextTooSmall, EngineFailed, EngineMismatch: one line that says what to do.
        """
        check_context(model, prompts, max_tokens)
        if 0 < temperature < LOWEST_TEMPERATURE:
            raise EngineFailed(
                f"engine.kind: vllm cannot sample at temperature {temperature:g}: give 0, or 0.01 or more"
            )
        if self._backend is None:
            with self._clock.instead("engine_start"):
                self._backend = self._start(model)
        self._check_room(self._backend, max(map(len, prompts)) + max_tokens)
        with self._clock.instead("sync"):
            pushed = self._backend.load(model.network)
        asked = {"prompts": [list(prompt) for prompt in prompts], "keys": [list(own) for own in keys]}
        asked |= {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "ends": list(model.end_ids)}
        found = self._completions(self._backend, asked)
        if pushed:
            with self._clock.instead("sync"):
                self._compare(self._backend, model, asked, found)
        self._backend.rest()
        group = len(keys[0])
        return [found[i : i + group] for i in range(0, len(found), group)]

    def close(self) -> None:
        """End the engine, if it was started."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _check_room(self, backend: Backend, needed: int) -> None:
        if needed > backend.longest:
            raise EngineFailed(
                f"engine.kv_cache_gib: {self.config.kv_cache_gib:g} given, which holds {backend.longest} tokens of one "
                f"completion with its prompt, and {needed} are needed; raise it"
            )

    def _completions(self, backend: Backend, asked: Mapping[str, Any]) -> list[Completion]:
        flat = [key for own in asked["keys"] for key in own]
        rows = backend.sample({**asked, "seed": stream_key(0, "vllm", *flat) % 2**63})
        return [
            Completion(tuple(ids), stopped, tuple(logps or [float("nan")] * len(ids))) for ids, logps, stopped in rows
        ]

    def _compare(
        self, backend: Backend, model: LanguageModel, asked: Mapping[str, Any], found: Sequence[Completion]
    ) -> None:
        """Score a few completions with the trainer's own forward pass.

        Raises:
            EngineMismatch: the engine's log-probabilities are another model's.
        """
        if asked["top_p"] < 1:
            few = {"prompts": asked["prompts"][:_COMPARED], "keys": [own[:1] for own in asked["keys"][:_COMPARED]]}
            few |= {"top_p": 1.0, "max_tokens": min(_TOKENS_COMPARED, asked["max_tokens"])}
            asked = {**asked, **few}
            found = self._completions(backend, asked)
        group, chosen = len(asked["keys"][0]), _spread(len(found), _COMPARED)
        prompts = [asked["prompts"][i // group] for i in chosen]
        own = [found[i] for i in chosen]
        sequences = Sequences.of(prompts, [one.token_ids for one in own], model.pad_id).to(model.network.device)
        with torch.no_grad():
            trained = token_logps(model.network, sequences, asked["temperature"] or 1.0)
        sampled = torch.zeros_like(trained)
        for row, one in enumerate(own):
            sampled[row, : len(one.logps)] = torch.tensor(one.logps)
        gaps = (trained - sampled)[sequences.mask].abs()
        # A comparison with NaN is not a pass.
        self.gap, mean = float(gaps.max().nan_to_num(torch.inf)), float(gaps.mean().nan_to_num(torch.inf))
        first = self.pushes == 0
        self.pushes += 1
        limit = LARGEST_GAP_AT_START if first else LARGEST_GAP
        if self.exact and self.gap > limit:
            when = "at its start" if first else f"after push {self.pushes} of the weights"
            raise EngineMismatch(
                f"engine.kind: vllm and the trainer differ {when} by up to {self.gap:.2g} nats a token, where float32 "
                f"allows {limit:g}: the engine does not compute this model as transformers does; give engine=builtin"
            )
        if mean > self.config.max_mismatch:
            raise EngineMismatch(mismatch_sentence(mean, self.config.max_mismatch))


def _spread(number: int, wanted: int) -> list[int]:
    """Up to `wanted` positions, evenly over all."""
    return sorted({i * number // wanted for i in range(wanted)}) if number > wanted else list(range(number))


class InProcess:
    """vLLM in the trainer's own process, for a CUDA device: it sleeps while the trainer works."""

    def __init__(self, folder: str, options: Mapping[str, Any]) -> None:
        import os

        # Read when vLLM is imported: requests are then scheduled here, in a fixed order.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        with random_state_kept():
            from vllm import LLM  # pyright: ignore[reportMissingImports]

            self.llm: Any = LLM(folder, enable_sleep_mode=True, **options)
        self.rest()

    @property
    def longest(self) -> int:
        return int(self.llm.model_config.max_model_len)

    def load(self, network: PreTrainedModel) -> bool:
        """Wake the weights' memory, fill it, and only then the memory of keys and values: both at once may not fit."""
        from bench.vllm_process import load_weights

        self.llm.wake_up(tags=["weights"])
        with random_state_kept():
            load_weights(self.llm, ((name, weight.detach()) for name, weight in named_weights(network)))
        self.llm.wake_up(tags=["kv_cache"])
        self.llm.reset_prefix_cache()
        return True

    def sample(self, asked: Mapping[str, Any]) -> list[Row]:
        from bench.vllm_process import sampled

        with random_state_kept():
            # A generator for each row would cost a launch for each row and token.
            return sampled(self.llm, asked, own_seeds=False)

    def rest(self) -> None:
        """Give the memory back: the next push brings the weights anew."""
        self.llm.sleep(level=2)

    def close(self) -> None:
        import gc

        from vllm.distributed import cleanup_dist_env_and_memory  # pyright: ignore[reportMissingImports]

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        cleanup_dist_env_and_memory()
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def random_state_kept() -> Iterator[None]:
    """The engine seeds and draws from the process's generators; after the block they stand where they stood."""
    import random

    import numpy as np

    state, array_state = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(array_state)
