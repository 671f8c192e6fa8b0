"""TRL's trainers without a trainer: its own methods, called with a stand-in for `self` that holds only what they read.

The methods are private to TRL, so the version is pinned. TRL is imported when a function is called, never before.
"""

import importlib
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bench.conformance.trl_step import Graded

TRL_VERSION = "1.16.0"
PAD, END, WORD, PROMPT = 0, 1, 2, 3
"""Token ids of the made-up completions: only the last token of a row is ever looked at."""


def trainer_module(name: str) -> Any:
    """`trl.trainer.<name>` of the pinned version; what TRL warns about on import is not the comparison's business.

    Raises:
        ImportError: TRL is missing, or is another version.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        version = importlib.import_module("trl").__version__
        if version != TRL_VERSION:
            raise ImportError(f"the comparison calls private methods of trl {TRL_VERSION}; {version} is installed")
        return importlib.import_module(f"trl.trainer.{name}")


def accelerator() -> SimpleNamespace:
    """One process: what is gathered or reduced is what was given."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        process_index=0,
        sync_gradients=True,
        gather=lambda value: value,
        gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
        pad_across_processes=lambda value, dim, pad_index: value,
    )


def metrics_of(stub: SimpleNamespace) -> dict[str, float]:
    """The last value of each metric that the call logged."""
    return {name: values[-1] for name, values in stub._metrics["train"].items()}


def common_stub() -> dict[str, Any]:
    """What the stand-ins of all trainers hold."""
    return {
        "accelerator": accelerator(),
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list)},
    }


def token_ids(mask: Tensor) -> dict[str, Tensor]:
    """Prompt and completion ids (rows, 1) and (rows, tokens) for a loss that only needs their shapes."""
    prompt = torch.full((len(mask), 1), PROMPT)
    completion = torch.where(mask, WORD, PAD)
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": mask.long(),
    }


def completions(graded: Graded) -> list[list[int]]:
    """Token ids of each completion, without padding; the last one says whether it ended by itself."""
    lengths = graded.mask.sum(dim=1).tolist()
    ended = graded.terminated.tolist()
    return [[WORD] * (length - 1) + [END if end else WORD] for length, end in zip(lengths, ended, strict=True)]


def scoring_stub(graded: Graded, reward_weights: Tensor | None, beta: float, mask_truncated: bool) -> dict[str, Any]:
    """What GRPO and RLOO both read while they turn rewards into advantages."""
    assert graded.mask.shape[1] == int(graded.mask.sum(dim=1).max()), "the longest row fills the width"
    names = [f"reward_{index}" for index in range(graded.rewards.shape[1])]
    reference = object()

    def logps(model: object, *_: object, **__: object) -> tuple[Tensor | None, None, None]:
        return (graded.ref_logp if model is reference else graded.old_logp), None, None

    return {
        **common_stub(),
        "_tokenizer": SimpleNamespace(pad_token_id=PAD),
        "eos_token_ids": [END],
        "pad_to_multiple_of": None,
        "mask_truncated_completions": mask_truncated,
        "beta": beta,
        "ref_model": reference,
        "num_generations": graded.group_size,
        "reward_weights": torch.ones(len(names)) if reward_weights is None else reward_weights,
        "reward_funcs": names,
        "reward_func_names": names,
        "_calculate_rewards": lambda *_: graded.rewards.clone(),
        "_get_per_token_logps_and_entropies": logps,
        "_logs": {
            "prompt": [], "completion": [], "advantages": [], "rewards": defaultdict(list), "extra": defaultdict(list),
        },
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        "log_multimodal": False,
    }  # fmt: skip


@contextmanager
def one_process(module: Any) -> Iterator[None]:
    """Gathering over processes returns what it was given, without setting up accelerate's global state."""
    with mock.patch.multiple(module, gather=lambda value: value, gather_object=lambda value: value):
        yield
