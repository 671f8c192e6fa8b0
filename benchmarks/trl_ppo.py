"""TRL's side of the comparison for PPO: PPOTrainer of TRL 1.12 in its own loop and its own environment.

Started by trl.py with the Python of that environment, which has TRL and no suite. The reward model that PPOTrainer asks
for is a module that reads the tokens and gives the verdict itself, so that both sides are rewarded alike.
"""

import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from trl_channel import Channel, Laps, keep_first_gradient, take_part


def settings_of(job: dict[str, Any]) -> dict[str, Any]:
    """PPOConfig for one epoch in one minibatch on the whole rollout."""
    own, rows = job["run"], job["rows"]
    return {
        "output_dir": f"{job['folder']}/trl_output",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "learning_rate": own["lr"],
        "weight_decay": own["weight_decay"],
        "adam_beta1": own["beta1"],
        "adam_beta2": own["beta2"],
        "adam_epsilon": own["epsilon"],
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": 1,
        "local_rollout_forward_batch_size": rows,
        "num_mini_batches": 1,
        "num_ppo_epochs": 1,
        "total_episodes": rows * job["rounds"],
        "response_length": job["max_completion_tokens"],
        "stop_token": "eos",
        "temperature": 1.0,
        "num_sample_generations": 0,
        "kl_coef": own["kl_coefficient"],
        "kl_estimator": "k1",
        "cliprange": own["clip"],
        "cliprange_value": own["value_clip"],
        "vf_coef": 1.0,
        "gamma": own["gamma"],
        "lam": own["lam"],
        "seed": 0,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def verdict(text: str, end: str) -> float:
    """1 where the text, "12+34+56=46+56=102" and the end token, states the sum of the terms before its first "="."""
    said, ended, _ = text.partition(end)
    terms, _, rest = said.partition("=")
    answer = rest.rpartition("=")[2]
    right = ended and answer.isascii() and answer.isdigit()
    return float(bool(right) and int(answer) == sum(map(int, terms.split("+"))))


def reward_model(tokenizer: Any) -> Any:
    """A module in the form that TRL's `get_reward` calls: a backbone with hidden states, and a score of them."""
    from types import SimpleNamespace

    import torch

    class Backbone(torch.nn.Module):
        def forward(self, input_ids: Any, **_: Any) -> Any:
            # Pad tokens arrive as token 0, which is the pad token here.
            found = [verdict(text, tokenizer.eos_token) for text in tokenizer.batch_decode(input_ids)]
            width = input_ids.shape[1]
            return SimpleNamespace(hidden_states=[torch.tensor(found)[:, None, None].expand(-1, width, 1)])

    class Verifier(torch.nn.Module):
        base_model_prefix = "backbone"

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.score = Backbone(), torch.nn.Identity()

    return Verifier()


def frozen_generation(job: dict[str, Any], network: Any, pad: int) -> Callable[..., Any]:
    """In place of TRL's generation: the completions of a file, in the order of the prompts that TRL shuffled."""
    import torch

    groups = json.loads((Path(job["folder"]) / "rollout.json").read_text())
    width = max(len(row[0]) for group in groups for row in group["completions"])

    @torch.no_grad()
    def generation(model: Any, queries: Any, *_: Any) -> Any:
        left = {tuple(g["prompt_ids"]): [row[0] for row in g["completions"]] for g in groups}
        rows = [left[tuple(query)].pop() for query in queries.tolist()]
        responses = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
        whole = torch.cat([queries, responses], dim=1)
        return whole, model(input_ids=whole, attention_mask=whole != pad).logits[:, queries.shape[1] - 1 : -1]

    return generation


def holding_callback(channel: Channel, laps: Laps, losses: dict[str, float], job: dict[str, Any]) -> Any:
    """Holds TRL's loop between the commands; its losses come by the log that it writes after every update."""
    from transformers import TrainerCallback

    class Holding(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            channel.answer(ready=True, prepare_seconds=time.perf_counter() - job["started"])
            if not laps.hold():
                raise SystemExit

        def on_log(self, args: Any, state: Any, control: Any, **known: Any) -> None:
            logs = known["logs"]
            losses.update(loss=logs["loss/policy_avg"], value=logs["loss/value_avg"], reward=logs["objective/scores"])

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # PPOTrainer's loop does not ask whether it should stop.
            if not laps.lap(tokens={"generated": losses["generated"]}, losses=dict(losses)):
                raise SystemExit

    return Holding()


def train(channel: Channel, job: dict[str, Any]) -> None:
    """PPOTrainer on the same model folder and prompts; value model and reference of the policy's size."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    ppo: Any = import_module("trl.experimental.ppo.ppo_trainer")
    folder = f"{job['folder']}/model"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    policy, reference = (AutoModelForCausalLM.from_pretrained(folder, dtype="float32") for _ in range(2))
    value = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype="float32")
    value.score.weight.data.zero_()  # as the suite's critic begins: V is 0
    rows = [{"input_ids": ids} for ids in job["prompts"] for _ in range(job["rows"] // job["prompts_an_update"])]
    laps, losses = Laps(channel), {"generated": 0.0}
    generation = frozen_generation(job, policy, tokenizer.pad_token_id) if job["frozen"] else ppo.batch_generation

    def counted(model: Any, queries: Any, *rest: Any) -> Any:
        whole, logits = generation(model, queries, *rest)
        ended = (whole[:, queries.shape[1] :] == tokenizer.eos_token_id).int()
        losses["generated"] = float((ended.cumsum(1) - ended == 0).sum())  # up to and with the first end token
        return whole, logits

    ppo.batch_generation = laps.timed("rollout", counted)
    ppo.forward = laps.timed("forward", ppo.forward)
    ppo.get_reward = laps.timed("scoring", ppo.get_reward)
    verifier = reward_model(tokenizer)
    verifier.backbone.forward = laps.timed("reward", verifier.backbone.forward)
    trainer = ppo.PPOTrainer(
        args=ppo.PPOConfig(**settings_of(job)),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=verifier,
        value_model=value,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:1]),
        callbacks=[holding_callback(channel, laps, losses, job)],
    )
    if job["gradient"]:
        keep_first_gradient(trainer.optimizer.optimizer, policy, job["gradient"])
    trainer.optimizer.step = laps.timed("optimizer", trainer.optimizer.step)
    trainer.accelerator.backward = laps.timed("backward", trainer.accelerator.backward)
    trainer.train()


if __name__ == "__main__":
    take_part(train)
