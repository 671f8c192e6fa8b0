"""What learners on fixed completions share: the budget of a matched online run, its prompts, and the passes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench import processes
from bench.budget import num_rollouts
from bench.config import Reward, Run
from bench.instruments import Instruments
from bench.learner import Cast
from bench.rollout import Group, NothingToLearn, PromptStream, Sampler
from bench.rollout_metrics import imperfection_metrics, true_accuracy, unscorable_metrics
from bench.seeding import generator
from bench.store import append_jsonl
from tasks.parts.problem import Problem

OFFLINE_TEMPERATURE = 1.0
"""Log-probabilities of offline losses are taken at temperature 1, whatever was sampled at."""


@dataclass(frozen=True)
class Traces:
    """What sampling leaves beside its samples: kept with them, for samples that come from a file leave nothing."""

    failures: str = ""
    """The lines that it added to the log of the user's reward functions."""
    called: Sequence[str] = ()
    """The user's functions that had returned a batch as they should by then: `bench.rewards.Rewarder.called`."""


def log_size(sampler: Sampler) -> int:
    """Bytes of the log of the user's reward functions."""
    return sampler.log.stat().st_size if sampler.log is not None and sampler.log.exists() else 0


def traces(sampler: Sampler, since: int) -> Traces:
    """What was left since the log had so many bytes, on every process: the main one has called the functions."""

    def left() -> Traces:
        added = b"" if sampler.log is None or log_size(sampler) <= since else sampler.log.read_bytes()[since:]
        return Traces(added.decode(), sorted(sampler.rewarder.called))

    return processes.from_main(left)


def log_again(sampler: Sampler, failures: str) -> None:
    """Add lines to the log that a resume has cut off, where the samples that they tell of are not sampled again."""
    if sampler.log is not None and processes.is_main():
        for line in failures.split("\n"):
            if line:
                append_jsonl(sampler.log, json.loads(line))


def rounds(run: Run) -> list[list[Problem]]:
    """The prompts that an online run of this budget goes through, round by round, without dynamic sampling."""
    stream = PromptStream(run.task, run.seed, run.rollout.prompts)
    return [stream.round(index) for index in range(num_rollouts(run))]


def coverage(run: Run, rollouts: int | None = None) -> dict[str, float]:
    """How much of a finite training split the first `rollouts` of them go through, as metrics; None is all."""
    count = num_rollouts(run) if rollouts is None else rollouts
    return PromptStream(run.task, run.seed, run.rollout.prompts).coverage(count)


def sample_all(run: Run, cast: Cast, sampler: Sampler, instruments: Instruments) -> list[Group]:
    """Sample an online run's prompts with the policy as it is, which must be the starting policy.

    Raises:
        NothingToLearn: no completion could be scored.
    """
    groups = sample_rollouts(run, cast, sampler, instruments, range(num_rollouts(run)))
    require_scored(run, groups)
    return groups


def sample_rollouts(
    run: Run, cast: Cast, sampler: Sampler, instruments: Instruments, rollouts: Sequence[int]
) -> list[Group]:
    """Sample the prompts of some of an online run's rollouts, given by number, with the policy as it is."""
    groups: list[Group] = []
    stream = PromptStream(run.task, run.seed, run.rollout.prompts)
    metered = instruments.memory.metering
    for index in rollouts:
        if rollouts[0] == 0:
            # Memory is the same in every rollout, so before the first update it is counted in one, whose slower seconds
            # hardly show among all. Between updates it is counted with the update that follows.
            instruments.memory.metering = index == 0 and run.meter.every > 0
        groups += sampler.groups(cast.policy, stream.round(index), index)
    instruments.memory.metering = metered
    sampler.warn(groups)
    return groups


def require_scored(run: Run, groups: Sequence[Group]) -> None:
    """Raises NothingToLearn where no completion could be scored."""
    if not any(member.scorable for group in groups for member in group.members):
        if not any(group.labelled for group in groups):
            raise NothingToLearn(f"none of the {len(groups)} prompts carries a label: raise reward.sparsity")
        raise NothingToLearn(
            f"none of the {len(groups)} prompts x {run.rollout.group_size} completions could be scored: all of them "
            "are unscorable, so look at the grader and the gold answers"
        )


def sampling_metrics(reward: Reward, groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, verdicts and the cost of what was sampled before the first update. Unscorable ones enter no mean."""
    members = [member for group in groups for member in group.members]
    known = [member.reward for member in members if member.scorable]
    return {
        "reward/mean": float(torch.tensor(known, dtype=torch.float64).mean()),
        **unscorable_metrics(groups),
        "reward/accuracy": true_accuracy(groups),
        **imperfection_metrics(reward, groups),
        "tokens/generated": sum(len(m.completion.token_ids) for m in members),
        "completions/generated": len(members),
    }


def pass_order(seed: int, name: str, size: int, per_update: int, update: int) -> list[int]:
    """The items of an update: consecutive ones of an endless order of `size` items that is shuffled anew each pass;
    none where there is none."""
    if not size:
        return []
    positions = range(update * per_update, (update + 1) * per_update)
    orders = {
        epoch: generator(seed, name, epoch).permutation(size)
        for epoch in range(positions[0] // size, positions[-1] // size + 1)
    }
    return [int(orders[position // size][position % size]) for position in positions]
