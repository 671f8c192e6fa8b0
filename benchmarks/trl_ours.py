"""The suite's side of the comparison with TRL: makes the model and the frozen rollout, and runs timed updates.

Started by trl.py, which sends it its job and says when to work.
"""

import json
import platform
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from trl_channel import Channel, Laps, keep_first_gradient
from trl_setup import NotHere, prompt_format, run_of

from bench.casting import make_cast, make_learner
from bench.config import Run
from bench.dialect import ConfigError
from bench.engines import EngineFailed, EngineMismatch, engine_of
from bench.generate import Completion, Generator
from bench.instruments import Instruments
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, load_folder, save_folder
from bench.prepare import PreparationFailed, starting_model
from bench.prompting import encode_prompts
from bench.rollout import Group, PromptStream, Sampler

GEMM_SIZE, GEMM_TRIES = 1024, 30


def gemm_rate(dtype: torch.dtype) -> float:
    """FLOP a second of a 1024 x 1024 x 1024 product with the threads that the run has; the median of thirty."""
    left, right = torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype), torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype)
    seconds: list[float] = []
    for _ in range(GEMM_TRIES + 5):
        start = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start)
    return 2 * GEMM_SIZE**3 / statistics.median(seconds[5:])


def model_of(job: dict[str, Any]) -> LanguageModel:
    """The model in the job's folder, which the other side loads too."""
    return load_folder(Path(job["folder"]) / "model", prompt_format(job))


def instruments() -> Instruments:
    meter = MemoryMeter("cpu")
    meter.metering = False
    return Instruments(PhaseClock(), meter)


def prepare(job: dict[str, Any]) -> dict[str, Any]:
    """Save the model as an ordinary folder and write the first rollout, sampled and graded, to a file."""
    folder = Path(job["folder"])
    save_folder(starting_model(run_of(job, prepared=False)).model, folder / "model")
    run = run_of(job)
    torch.set_num_threads(run.threads)
    model = model_of(job)
    problems = PromptStream(run.task, run.seed, run.rollout.prompts).round(0)
    with engine_of(run) as engine:
        groups = Sampler(run, run.task, engine, instruments()).groups(model, problems, 0)
    if job["algorithm"] == "ppo":
        groups = [without_padding(group, model.pad_id) for group in groups]
    (folder / "rollout.json").write_text(json.dumps([as_record(group) for group in groups]))
    lengths = [len(member.completion.token_ids) for group in groups for member in group.members]
    return {
        "num_parameters": sum(p.numel() for p in model.network.parameters()),
        "mean_length": statistics.mean(lengths),
        "prompt_length": statistics.mean(len(group.prompt_ids) for group in groups),
        "longest_prompt": max(len(group.prompt_ids) for group in groups),
        "mean_reward": statistics.mean(m.reward for group in groups for m in group.members),
        "end_ids": model.end_ids,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def without_padding(group: Group, pad_id: int) -> Group:
    """The group with completions in which the padding token was sampled replaced by another member.

    TRL's PPO tells padding by the token, so that such a completion would end there on one side alone.
    """
    whole = [member for member in group.members if pad_id not in member.completion.token_ids]
    return replace(group, members=tuple(m if pad_id not in m.completion.token_ids else whole[0] for m in group.members))


def as_record(group: Group) -> dict[str, Any]:
    """A group as plain data: its prompt, and each completion's tokens, log-probabilities, ending and reward."""
    return {
        "prompt_ids": group.prompt_ids,
        "completions": [
            [m.completion.token_ids, m.completion.terminated, m.completion.logps, m.reward] for m in group.members
        ],
    }


def for_ppo(job: dict[str, Any]) -> dict[str, Any]:
    """What TRL's PPO is told, which cannot read a run: optimizer, the objective's constants, and the prompts."""
    run = run_of(job)
    objective: Any = run.objective
    model = model_of(job)
    stream = PromptStream(run.task, run.seed, run.rollout.prompts)
    rounds = [encode_prompts(model, run.task, stream.round(i), run.prompt) for i in range(job["rounds"])]
    return {
        "run": run.optimizer.model_dump()
        | {
            "kl_coefficient": objective.penalty.coefficient,
            "clip": objective.surrogate.low,
            "value_clip": objective.value.clip,
            "gamma": objective.advantage.gamma,
            "lam": objective.advantage.lam,
        },
        "rows": run.rollout.prompts * run.rollout.group_size,
        "prompts_an_update": run.rollout.prompts,
        "prompts": [ids for own in rounds for ids in own],
        "max_completion_tokens": run.rollout.max_completion_tokens,
    }


class FrozenEngine:
    """A generator that gives the completions of a file back, for the prompts that they were sampled for."""

    def __init__(self, path: Path) -> None:
        self.groups: list[dict[str, Any]] = json.loads(path.read_text())

    def __call__(
        self, model: LanguageModel, prompts: Sequence[Sequence[int]], keys: Sequence[Sequence[int]], **_: Any
    ) -> list[list[Completion]]:
        assert [list(prompt) for prompt in prompts] == [group["prompt_ids"] for group in self.groups]
        return [
            [Completion(tuple(ids), ended, tuple(logps)) for ids, ended, logps, _ in group["completions"]]
            for group in self.groups
        ]


def generator(run: Run, job: dict[str, Any], tools: Instruments) -> AbstractContextManager[Generator]:
    """What samples: the run's engine in the run's precision, or the frozen rollout, which needs no engine."""
    if job["frozen"]:
        return nullcontext(FrozenEngine(Path(job["folder"]) / "rollout.json"))
    return engine_of(run, clock=tools.clock)


def measure(channel: Channel, job: dict[str, Any]) -> None:
    """Updates on command, each with its seconds by phase, tokens and loss."""
    run, tools = run_of(job), instruments()
    torch.set_num_threads(run.threads)
    with generator(run, job, tools) as engine:
        work(channel, job, Sampler(run, run.task, engine, tools), tools)


def work(channel: Channel, job: dict[str, Any], sampler: Sampler, tools: Instruments) -> None:
    """The updates of `measure`, with a sampler that is there."""
    run, folder, frozen = run_of(job), Path(job["folder"]), job["frozen"]
    cast = make_cast(run, model_of(job))
    learner = make_learner(run, cast, sampler, tools)
    learner.prepare()
    prepared = tools.clock.take(attempt=1, update=0, metered=False)
    if job["algorithm"] == "dpo":
        write_pairs(learner, folder / "pairs.json")
    if frozen or job["algorithm"] == "dpo":
        keep_first_gradient(cast.optimizer, cast.policy.network, f"{folder}/gradient_ours_{job['algorithm']}.pt")
    channel.answer(ready=True, prepare_seconds=prepared["seconds"])
    laps = Laps(channel)
    going = laps.hold()
    while going:
        (record,) = learner.advance()
        times = tools.clock.take(attempt=1, update=1, metered=False)
        if frozen:
            cast.progress.generation_round = 0  # the same prompts again
        if job["algorithm"] == "dpo":
            cast.progress.update = 0  # the same pairs again; the optimizer's own state goes on
        known = {name: value for name, value in record.items() if name.endswith(("loss", "grad_norm"))}
        going = laps.lap(own_phases=times["seconds"], tokens=times["tokens"], losses=known)


def write_pairs(learner: Any, path: Path) -> None:
    """The pairs that were made, as token ids, for the other side to train on."""
    pairs = [[p.prompt_ids, p.chosen, p.rejected] for p in learner.pairs]
    path.write_text(json.dumps(pairs))


def compare(own: str, other: str) -> dict[str, float]:
    """Cosine and relative difference of two gradients that were kept by parameter name."""
    first, second = torch.load(own), torch.load(other)
    names = sorted(first.keys() & second.keys())
    left, right = (torch.cat([kept[name].flatten().double() for name in names]) for kept in (first, second))
    return {
        "cosine": float(left @ right / (left.norm() * right.norm())),
        "relative_difference": float((left - right).norm() / left.norm()),
        "norm_ours": float(left.norm()),
        "norm_trl": float(right.norm()),
        "parameters_ours": len(first),
        "parameters_trl": len(second),
        "parameters_shared": len(names),
    }


def main() -> None:
    """Work off what the measuring script asks for."""
    channel = Channel()
    job = channel.job
    try:
        if job["stage"] == "measure":
            measure(channel, job)
            return
        channel.answer(ready=True)
        while (command := channel.ask())["do"] != "quit":
            if command["do"] == "prepare":
                channel.answer(**prepare(job))
            elif command["do"] == "for_ppo":
                channel.answer(**for_ppo({**job, "frozen": command["frozen"]}))
            elif command["do"] == "gemm":
                torch.set_num_threads(job["threads"])
                dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
                channel.answer(flops=gemm_rate(dtype))
            else:
                channel.answer(**compare(command["ours"], command["trl"]))
    except ConfigError as error:
        channel.answer(refused="\n".join(error.lines))
    except (EngineFailed, EngineMismatch, NotHere, PreparationFailed) as error:
        channel.answer(refused=str(error))


if __name__ == "__main__":
    main()
