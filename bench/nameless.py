"""A run as others may read it: files and folders of this machine stand by their names, without their place."""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.config import PretrainedModel, Run, local_path
from bench.config_critic import ModelCritic
from bench.config_preference import fixed_pairs, local_set
from bench.config_reward_model import PretrainedReward
from tasks.parts.problem import DatasetTask


def without_places(run: Run) -> Run:
    """The same run, every local path in it shortened to its last part; names on the hub stay."""
    dump = run.dump()
    for *above, last in _local(run):
        section = dump
        for name in above:
            section = section[name]
        section[last] = _name(section[last])
    return Run.model_validate_json(json.dumps(dump))


def _local(run: Run) -> Iterator[tuple[str, ...]]:
    """Where in the run a file or a folder of this machine is named."""
    if isinstance(run.model, PretrainedModel) and local_path(run.model) is not None:
        yield "model", "path"
    critic = run.critic.model if isinstance(run.critic, ModelCritic) else None
    if isinstance(critic, PretrainedModel) and local_path(critic) is not None:
        yield "critic", "model", "path"
    judge = run.reward.model
    if isinstance(judge, PretrainedReward) and local_path(PretrainedModel(path=judge.path)) is not None:
        yield "reward", "model", "path"
    if run.reward.format_schema is not None:
        yield "reward", "format_schema"
    if run.adapter is not None and run.adapter.path is not None:
        yield "adapter", "path"
    pairs = fixed_pairs(run.objective)
    if pairs is not None and local_set(pairs) is not None:
        yield "objective", "pairing", "path"
    if isinstance(run.task, DatasetTask) and run.task.path is not None:
        yield "task", "path"
    for label, task in run.evaluation.also.items():
        if isinstance(task, DatasetTask) and task.path is not None:
            yield "evaluation", "also", label, "path"


def _name(path: str) -> str:
    """The last part of a path; of one that has none, such as `..`, that of the folder that it means."""
    name = Path(path).name
    return Path(path).expanduser().resolve().name if name in ("", "..", "~") else name
