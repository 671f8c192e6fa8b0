"""Write golden/ppo_trl_1_12.json: run by hand, with the folder of an unzipped TRL 1.12.0 wheel as the one argument.

TRL 1.12.0 is the last release with a PPO trainer. It computes rewards, advantages and losses inside `train`, so the
trainer really trains, a tiny random Llama on the CPU, and two of its helpers are wrapped to read their caller's locals.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

GOLDEN = Path(__file__).parent / "golden" / "ppo_trl_1_12.json"
TRL = "1.12.0"
VOCABULARY = ["<pad>", "<eos>", "a", "b", "c", "d", "e"]
ROWS, LENGTH, UPDATES = 8, 7, 2
SETTINGS: dict[str, Any] = {
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "gamma": 1.0,
    "kl_coef": 0.05,
    "kl_estimator": "k1",
    "lam": 0.95,
    "missing_eos_penalty": None,
    "vf_coef": 0.1,
}
RUNS: dict[str, dict[str, Any]] = {
    "defaults": SETTINGS,
    "undiscounted": SETTINGS | {"lam": 1.0, "kl_coef": 0.3},
    "discounted": SETTINGS
    | {"gamma": 0.9, "lam": 0.5, "kl_estimator": "k3", "kl_coef": 0.2, "missing_eos_penalty": 1.5}
    | {"cliprange": 0.1, "cliprange_value": 0.4, "vf_coef": 0.7},
}
ROLLOUT = (
    "rewards",
    "values",
    "logprobs",
    "ref_logprobs",
    "scores",
    "sequence_lengths",
    "padding_mask",
    "padding_mask_p1",
    "returns",
)
MICROBATCH = ("micro_batch_inds", "new_logprobs", "vpred", "pg_loss", "vf_loss", "vf_clipfrac")


def plain(values: Any) -> Any:
    """Nested lists: the shortest decimals that read back as the same float32, 0 and 1 for booleans."""
    values = torch.as_tensor(values).detach()
    if values.dim():
        return [plain(value) for value in values]
    return float(str(np.float32(values.item()))) if values.is_floating_point() else int(values)


def watch(trainer: Any, updates: list[dict[str, Any]]) -> None:
    """Wrap the trainer module's helpers so that each update of `train` leaves its tensors in `updates`."""
    whiten: Callable[..., Tensor] = trainer.masked_whiten
    mean: Callable[..., Tensor] = trainer.masked_mean
    reward: Callable[..., tuple[Tensor, Tensor, Tensor]] = trainer.get_reward
    last_score: list[Tensor] = []
    calls: list[int] = []

    def watched_reward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        # The reward model is asked after the value model; its scores are changed in place later.
        result = reward(*arguments)
        last_score[:] = [result[1].clone()]
        return result

    def watched_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
        seen = sys._getframe(1).f_locals
        kept = {name: plain(seen[name]) for name in ROLLOUT} | {"responses": plain(seen["postprocessed_responses"])}
        updates.append(kept | {"raw_scores": plain(last_score[0]), "raw_advantages": plain(values), "microbatches": []})
        return whiten(values, mask, shift_mean)

    def watched_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
        result, frame = mean(values, mask, axis), sys._getframe(1)
        if frame.f_code.co_name != "train":
            return result
        # In this order: value loss, its clip fraction, policy loss, then after backward that one's clip fraction.
        calls.append(len(calls))
        seen = frame.f_locals
        if calls[-1] % 4 == 2:
            seen["new_logprobs"].retain_grad()
            seen["vpred"].retain_grad()
        if calls[-1] % 4 == 3:
            updates[-1]["advantages"] = plain(seen["advantages"])
            kept = {name: plain(seen[name]) for name in MICROBATCH} | {"pg_clipfrac": plain(result)}
            gradients = {f"{name}_gradient": plain(seen[name].grad) for name in ("new_logprobs", "vpred")}
            updates[-1]["microbatches"].append(kept | gradients)
        return result

    trainer.masked_whiten, trainer.masked_mean, trainer.get_reward = watched_whiten, watched_mean, watched_reward


def tiny(kind: type[Any], seed: int, scale: float) -> Any:
    """A random Llama; a large `scale` makes its distributions and values uneven."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": scale,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "num_labels": 1,
    }
    return kind(LlamaConfig(**sizes))


def prompts(tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Prompts of one to four tokens."""
    generator = np.random.default_rng(0)
    texts = [generator.choice(VOCABULARY[2:], size=1 + row % 4).tolist() for row in range(ROWS)]
    return Dataset.from_dict({"input_ids": [tokenizer.convert_tokens_to_ids(text) for text in texts]})


def train(package: Any, settings: dict[str, Any], seed: int) -> None:
    """A few updates of TRL's PPO: two epochs of two minibatches each, at a rate that soon leaves the trust region."""
    vocabulary = {token: index for index, token in enumerate(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        config = package.PPOConfig(
            output_dir=folder,
            per_device_train_batch_size=ROWS,
            num_mini_batches=2,
            num_ppo_epochs=2,
            total_episodes=ROWS * UPDATES,
            response_length=LENGTH,
            stop_token="eos",
            learning_rate=0.02,
            num_sample_generations=0,
            seed=seed,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **settings,
        )
        package.PPOTrainer(
            args=config,
            processing_class=tokenizer,
            model=tiny(LlamaForCausalLM, seed, 0.2),
            ref_model=tiny(LlamaForCausalLM, seed + 1, 0.2),
            reward_model=tiny(LlamaForSequenceClassification, seed + 2, 0.3),
            value_model=tiny(LlamaForSequenceClassification, seed + 3, 0.3),
            train_dataset=prompts(tokenizer),
            eval_dataset=prompts(tokenizer),
        ).train()


def main(wheel: str) -> None:
    """Run TRL and write what was seen, one update a line."""
    sys.path.insert(0, wheel)
    if version("trl") != TRL:
        raise SystemExit(f"{wheel} holds no TRL {TRL}; unzip its wheel there")
    torch.set_num_threads(1)
    package = importlib.import_module("trl.experimental.ppo")
    updates: list[dict[str, Any]] = []
    watch(importlib.import_module("trl.experimental.ppo.ppo_trainer"), updates)
    rows: list[str] = []
    for index, (name, settings) in enumerate(RUNS.items()):
        updates.clear()
        train(package, settings, seed=10 * index)
        rows += [
            json.dumps({"name": f"{name}-{step}", "settings": settings} | update) for step, update in enumerate(updates)
        ]
    provenance = {name: version(name) for name in ("trl", "torch", "transformers", "accelerate")}
    provenance |= {
        "command": "python tests/parity/capture_ppo.py FOLDER_OF_THE_UNZIPPED_WHEEL",
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu",
        "dtype": "float32",
    }
    body = ",\n".join(f"    {row}" for row in rows)
    GOLDEN.write_text(
        f'{{\n  "provenance": {json.dumps(provenance)},\n  "updates": [\n{body}\n  ]\n}}\n', encoding="utf-8"
    )
    sys.stdout.write(f"{GOLDEN.name}: {len(rows)} updates, {GOLDEN.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1])
