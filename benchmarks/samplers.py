"""The engines that a rollout can be measured with: transformers' generate(), TRL, our sampler and vLLM."""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from machine import TINY
from trl_channel import libraries_last
from trl_machine import installed
from trl_setup import cache_for

from bench.config import Run
from bench.generate import Generator, sample
from bench.loading import build_run
from bench.models import LanguageModel
from bench.seeding import stream_key
from tasks.chain_sum import ChainSum

TASK = ChainSum(num_terms=3, num_digits=2)
ENGINES = ("generate", "trl", "trl_continuous", "ours", "vllm")
WARM_START = {
    "max_updates": 2000, "batch_size": 128, "lr": 3e-3, "label_smoothing": 0.05, "stop_at_pass_at_1": 0.33,
    "check_every": 25, "check_problems": 128, "check_samples": 4, "threads": 1,
}  # fmt: skip
"""The quickstart's."""


@dataclass(frozen=True)
class Setting:
    """What all engines are asked to do."""

    model: LanguageModel
    prompts: list[list[int]]
    group: int
    max_tokens: int
    ends: str
    """`natural`, or `never`: every completion has `max_tokens` tokens."""
    temperature: float = 1.0

    @property
    def rows(self) -> int:
        """Completions."""
        return len(self.prompts) * self.group

    @property
    def repeated(self) -> list[list[int]]:
        """Each prompt once for each of its completions."""
        return [prompt for prompt in self.prompts for _ in range(self.group)]


Sampler = Callable[[int], list[int]]
"""From the number of a repeat to the length of each completion."""


class NotInstalled(Exception):
    """An engine that is not here; the message says what is missing."""


def reference_run(
    cache: Path, prompts: int, group: int, max_tokens: int, threads: int = 1, engine: str = "builtin"
) -> Run:
    """The reference configuration: 0.86 million parameters, warm-started on sums of three two-digit numbers."""
    return build_run(
        {
            "task": {"name": "chain_sum", "num_terms": TASK.num_terms, "num_digits": TASK.num_digits},
            "model": TINY.model_dump(),
            "warm_start": WARM_START,
            "rollout": {"prompts": prompts, "group_size": group, "max_completion_tokens": max_tokens},
            "optimizer": {"lr": 2e-4, "microbatch_sequences": prompts * group},
            "budget": {"updates": 1},
            "threads": threads,
            "engine": {"kind": engine},
            "output": {"cache": str(cache)},
        }
    )


def without_end(model: LanguageModel) -> LanguageModel:
    """The same weights with an end token that the network cannot say."""
    network, tokenizer = copy.copy(model.network), copy.deepcopy(model.tokenizer)
    pad = model.pad_id
    tokenizer.add_special_tokens({"eos_token": "<never>"})
    assert isinstance(tokenizer.eos_token_id, int)
    assert tokenizer.eos_token_id >= network.config.vocab_size, "the end token must lie beyond the vocabulary"
    tokenizer.pad_token_id = pad
    network.generation_config = copy.deepcopy(network.generation_config)
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    return LanguageModel(network, tokenizer, model.prompt_format)


def generate_sampler(setting: Setting) -> Sampler:
    """transformers: prompts repeated, padded on the left; plain sampling."""
    model, width = setting.model, max(map(len, setting.repeated))
    network: Any = model.network
    padding = [width - len(prompt) for prompt in setting.repeated]
    filled = [[model.pad_id] * pad + prompt for pad, prompt in zip(padding, setting.repeated, strict=True)]
    ids = torch.tensor(filled)
    mask = (torch.arange(width)[None, :] >= torch.tensor(padding)[:, None]).long()
    settings = {
        "do_sample": True, "temperature": setting.temperature, "top_k": 0, "top_p": 1.0, "use_cache": True,
        "max_new_tokens": setting.max_tokens, "eos_token_id": list(model.end_ids), "pad_token_id": model.pad_id,
    }  # fmt: skip

    @torch.inference_mode()
    def run(repeat: int) -> list[int]:
        torch.manual_seed(repeat)
        found = network.generate(input_ids=ids, attention_mask=mask, **settings)
        return _lengths(found[:, width:].tolist(), model.end_ids)

    return run


def _lengths(rows: Sequence[Sequence[int]], ends: Sequence[int]) -> list[int]:
    """Tokens up to and including the first end."""
    return [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows]


def trl_sampler(setting: Setting, stack: ExitStack, continuous: bool = False) -> Sampler:
    """The method with which TRL's GRPOTrainer samples, from token ids to token ids."""
    if installed("trl") is None:
        raise NotInstalled("not installed (pip install trl==1.16.0)")
    libraries_last()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer
    folder = stack.enter_context(TemporaryDirectory(prefix="rollout_trl_"))
    cache = cache_for(setting.rows, max(map(len, setting.prompts)), setting.max_tokens)
    config = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], logging_strategy="no",
        save_strategy="no", per_device_train_batch_size=setting.rows, num_generations=setting.group,
        max_completion_length=setting.max_tokens, temperature=setting.temperature, disable_tqdm=True,
        use_transformers_continuous_batching=continuous,
        transformers_continuous_batching_config=cache if continuous else None,
    )  # fmt: skip
    tokenizer = copy.deepcopy(setting.model.tokenizer)
    tokenizer.pad_token_id = setting.model.pad_id
    network = copy.deepcopy(setting.model.network)
    setattr(network, "is_quantized", False)  # a GGUF file was dequantised when it was loaded
    trainer = GRPOTrainer(
        model=network,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["1+1="] * setting.rows}),
        processing_class=tokenizer,
    )
    trainer.eos_token_ids = list(setting.model.end_ids)
    trainer.generation_config.eos_token_id = list(setting.model.end_ids)

    def run(repeat: int) -> list[int]:
        torch.manual_seed(repeat)
        completions, _ = trainer._generate_single_turn(setting.repeated, None, {}, setting.group)
        return [len(completion) for completion in completions]

    return run


def own_sampler(setting: Setting, generate: Generator = sample) -> Sampler:
    """An engine of the suite; by default the built-in sampler."""

    def run(repeat: int) -> list[int]:
        keys = [
            [stream_key(repeat, "rollout", i, m) for m in range(setting.group)] for i in range(len(setting.prompts))
        ]
        found = generate(
            setting.model, setting.prompts, keys, max_tokens=setting.max_tokens, temperature=setting.temperature
        )
        return [len(completion.token_ids) for own in found for completion in own]

    return run


def alternating(setting: Setting) -> tuple[Setting, Setting]:
    """The setting, and one whose weights all differ from it, by a millionth: two that an engine cannot take for one."""
    network = copy.deepcopy(setting.model.network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + 2.0**-20)
    return setting, replace(setting, model=replace(setting.model, network=network))


def vllm_sampler(setting: Setting, stack: ExitStack) -> Sampler:
    """vLLM through `engine=vllm`: its time holds the push of the weights, all of which are new, as in a run.

    The engine is only given weights that it does not have, so the repeats take turns between two sets of them.
    """
    if find_spec("bench.engines") is None:
        raise NotInstalled("not installed")
    engines = import_module("bench.engines")
    threads, rows = torch.get_num_threads(), len(setting.prompts)
    run = reference_run(Path("runs/cache"), rows, setting.group, setting.max_tokens, threads, engine="vllm")
    try:
        engine = stack.enter_context(engines.engine_of(run))
    except engines.EngineFailed:
        raise NotInstalled("not installed") from None
    samplers = [own_sampler(each, engine) for each in alternating(setting)]
    return lambda repeat: samplers[repeat % 2](repeat)


SAMPLERS: dict[str, Callable[[Setting, ExitStack], Sampler]] = {
    "generate": lambda setting, _: generate_sampler(setting),
    "trl": trl_sampler,
    "trl_continuous": lambda setting, stack: trl_sampler(setting, stack, continuous=True),
    "ours": lambda setting, _: own_sampler(setting),
    "vllm": vllm_sampler,
}


def open_samplers(
    setting: Setting, engines: Sequence[str], stack: ExitStack
) -> tuple[dict[str, Sampler], dict[str, str]]:
    """The engines that are here, which end with the stack, and what is missing for the others."""
    samplers: dict[str, Sampler] = {}
    missing: dict[str, str] = {}
    for engine in engines:
        try:
            samplers[engine] = SAMPLERS[engine](setting, stack)
        except NotInstalled as error:
            missing[engine] = str(error)
    return samplers, missing
