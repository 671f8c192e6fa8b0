"""TRL's side of the comparison: GRPOTrainer or DPOTrainer of TRL 1.16 in its own loop, held between the updates.

Started by trl.py. Settings are those that TRL documents as fastest where they leave the arithmetic alone: one
microbatch, fused AdamW, no logging, saving or checkpointing. vLLM, TRL's fast engine, cannot be used from TRL on a CPU.
"""

import json
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from trl_channel import Channel, Laps, keep_first_gradient, take_part
from trl_setup import TRL_LOSS, cache_for, run_of

NO_LIMIT = 10**6


def arguments(run: Any, job: dict[str, Any]) -> dict[str, Any]:
    """What every TRL configuration here has in common: the run's optimizer, and nothing beside the training."""
    own = run.optimizer
    return {
        "output_dir": f"{job['folder']}/trl_output",
        "use_cpu": True,
        "bf16": job["precision"] == "bf16",
        "gradient_checkpointing": False,
        "learning_rate": own.lr,
        "weight_decay": own.weight_decay,
        "adam_beta1": own.beta1,
        "adam_beta2": own.beta2,
        "adam_epsilon": own.epsilon,
        "max_grad_norm": own.max_grad_norm,
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_steps": NO_LIMIT,
        "seed": run.seed,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def grpo_arguments(run: Any, job: dict[str, Any]) -> dict[str, Any]:
    """GRPOConfig for one optimizer step a rollout, on the whole rollout."""
    rows = run.rollout.prompts * run.rollout.group_size
    parts = -(-rows // run.optimizer.microbatch_sequences)
    settings = arguments(run, job) | {
        "per_device_train_batch_size": rows // parts,
        "gradient_accumulation_steps": parts,
        "steps_per_generation": parts,
        "num_iterations": 1,
        "num_generations": run.rollout.group_size,
        "max_completion_length": run.rollout.max_completion_tokens,
        "temperature": run.rollout.temperature,
        "beta": 0.0,
        "epsilon": run.objective.surrogate.low,
        "epsilon_high": run.objective.surrogate.high,
        "loss_type": TRL_LOSS[job["algorithm"]],
        "scale_rewards": "group",
        "shuffle_dataset": False,
    }
    if job["continuous_batching"]:
        settings |= {"use_transformers_continuous_batching": True}
        cache = cache_for(rows, job["longest_prompt"], run.rollout.max_completion_tokens)
        settings |= {"transformers_continuous_batching_config": cache}
    return settings


def prompts_of(run: Any, num_rounds: int) -> Iterator[dict[str, Any]]:
    """The prompts of the suite's first rounds, in their order, with what the reward needs to find the problem again."""
    from bench.prompting import prompt_texts
    from bench.rollout import PromptStream

    stream = PromptStream(run.task, run.seed, run.rollout.prompts)
    chat = run.model.prompt_format == "chat"
    for index in range(num_rounds):
        texts = prompt_texts(run.task, stream.round(index), run.prompt)
        for position, text in enumerate(texts):
            prompt = [{"role": "user", "content": text}] if chat else text
            yield {"prompt": prompt, "round": index, "position": position}


def reward_function(run: Any, end_ids: list[int], stop: list[Any]) -> Callable[..., list[float]]:
    """The run's reward as TRL calls it: the suite's verifier and rewards on the texts that TRL decoded.

    `stop` receives the rewards of the last call, so that they can be compared with the frozen rollout's.
    """
    from bench.rewards import Rewarder, Sample
    from bench.rollout import PromptStream

    stream, rewarder = PromptStream(run.task, run.seed, run.rollout.prompts), Rewarder(run)
    rounds: dict[int, list[Any]] = {}

    def reward(
        prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> list[float]:
        where = list(zip(columns["round"], columns["position"], strict=True))
        for index in set(columns["round"]):
            rounds.setdefault(index, stream.round(index))
        problems = [rounds[index][position] for index, position in where]
        texts = [said if isinstance(said, str) else said[0]["content"] for said in completions]
        cut = [ids[-1] not in end_ids for ids in completion_ids]
        grades = run.task.grade_all(list(zip(problems, texts, cut, strict=True)))
        size = run.rollout.group_size
        samples = [
            Sample(problem=problem, text=text, grade=grade, round=index, position=position, member=row % size)
            for row, (problem, text, grade, (index, position)) in enumerate(
                zip(problems, texts, grades, where, strict=True)
            )
        ]
        stop[:] = [worth.reward for worth in rewarder.worths(samples)]
        return list(stop)

    return reward


def frozen_rollout(path: Path) -> Callable[..., dict[str, Any]]:
    """A rollout function of TRL that gives the completions of a file back and checks the prompts."""
    groups = json.loads(path.read_text())
    completions = [row[0] for group in groups for row in group["completions"]]
    prompts = [group["prompt_ids"] for group in groups for _ in group["completions"]]

    def rollout(texts: list[Any], trainer: Any) -> dict[str, Any]:
        own, _, _ = trainer._tokenize_prompts(texts)
        if [list(ids) for ids in own] != prompts:
            raise ValueError("TRL's prompts are not the frozen rollout's, token for token")
        return {"prompt_ids": prompts, "completion_ids": completions, "logprobs": None}

    return rollout


class Counting:
    """Remembers the rollout that TRL made last, and the losses of the present update."""

    def __init__(self) -> None:
        self.generated, self.completions, self.losses, self.rewards = 0, 0, [], []

    def rollout(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            self.generated, self.completions = sum(map(len, output[1])), len(output[1])
            return output

        return wrapper

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            loss = function(*args, **kwargs)
            self.losses.append(loss)
            return loss

        return wrapper


def holding_callback(channel: Channel, laps: Laps, count: Counting, job: dict[str, Any], network: Any) -> Any:
    """Holds TRL's loop before the first update and after each command's last one, outside the time that is measured."""
    from transformers import TrainerCallback

    class Holding(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
            optimizer = known["optimizer"]
            if job["gradient"]:
                keep_first_gradient(optimizer.optimizer, network, job["gradient"])
            optimizer.step = laps.timed("optimizer", optimizer.step)
            channel.answer(ready=True, prepare_seconds=time.perf_counter() - job["started"])
            if not laps.hold():
                raise SystemExit  # the loop asks whether it should stop only after an update

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            losses = {"loss": float(sum(float(loss) for loss in count.losses))}
            count.losses.clear()
            tokens = {"generated": count.generated}
            if not laps.lap(tokens=tokens, losses=losses, rewards=[float(r) for r in count.rewards]):
                control.should_training_stop = True

    return Holding()


def grpo(channel: Channel, job: dict[str, Any]) -> None:
    """GRPOTrainer on the same model folder, prompts and reward."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trl: Any = import_module("trl")
    run, folder = run_of(job), f"{job['folder']}/model"
    network = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    laps, count = Laps(channel), Counting()
    # The end of an epoch costs TRL time, so the data set is as long as the measurement, also where it repeats itself.
    prompts = list(prompts_of(run, 1)) * job["rounds"] if job["frozen"] else list(prompts_of(run, job["rounds"]))
    trainer = trl.GRPOTrainer(
        model=network,
        reward_funcs=reward_function(run, job["end_ids"], count.rewards),
        args=trl.GRPOConfig(**grpo_arguments(run, job)),
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(folder),
        rollout_func=frozen_rollout(Path(job["folder"]) / "rollout.json") if job["frozen"] else None,
        callbacks=[holding_callback(channel, laps, count, job, network)],
    )
    for name, phase, counted in (
        ("_generate", "rollout", count.rollout),
        ("_calculate_rewards", "reward", None),
        ("_prepare_inputs", "inputs", None),
        ("training_step", "step", count.step),
    ):
        function = laps.timed(phase, getattr(trainer, name))
        setattr(trainer, name, counted(function) if counted else function)
    trainer.accelerator.clip_grad_norm_ = laps.timed("optimizer", trainer.accelerator.clip_grad_norm_)
    trainer.train()


def dpo(channel: Channel, job: dict[str, Any]) -> None:
    """DPOTrainer on the same pairs, all of them in every update, reference log-probabilities taken once before."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trl: Any = import_module("trl")
    run: Any = run_of(job)
    folder = f"{job['folder']}/model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    pairs = json.loads((Path(job["folder"]) / "pairs.json").read_text())
    rows = [
        dict(zip(("prompt", "chosen", "rejected"), map(tokenizer.decode, pair), strict=True)) for pair in pairs
    ] * job["rounds"]
    settings = arguments(run, job) | {
        "per_device_train_batch_size": len(pairs),
        "train_sampling_strategy": "sequential",
        "beta": run.objective.loss_function.beta,
        "loss_type": ["sigmoid"],
        "precompute_ref_log_probs": True,
        "precompute_ref_batch_size": len(pairs),
    }
    laps, count = Laps(channel), Counting()
    count.completions = 2 * len(pairs)
    trainer = trl.DPOTrainer(
        model=network,
        args=trl.DPOConfig(**settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[holding_callback(channel, laps, count, job, network)],
    )
    seen = [[row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]] for row in trainer.train_dataset]
    if seen[: len(pairs)] != pairs:
        raise ValueError("TRL's pairs are not the suite's, token for token")
    trainer.training_step = count.step(laps.timed("step", trainer.training_step))
    trainer.accelerator.clip_grad_norm_ = laps.timed("optimizer", trainer.accelerator.clip_grad_norm_)
    trainer.train()


if __name__ == "__main__":
    take_part(lambda channel, job: (dpo if job["algorithm"] == "dpo" else grpo)(channel, job))
