"""The schema of a run: every knob, its default and its meaning; a `Run` is the one configuration object, frozen."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from algorithms.axes.objective import Objective
from bench import catalog, fingerprint
from bench.config_adapter import Lora, adapter_digest
from bench.config_compute import BuiltinEngine, Compute, Engine, Parallel
from bench.config_critic import Critic, ModelCritic
from bench.config_models import Model, PretrainedModel, TinyModel, model_digest
from bench.config_models import PromptFormat as PromptFormat
from bench.config_models import local_path as local_path
from bench.config_preference import fixed_pairs, set_content
from bench.config_quality import BaselineQuality
from bench.config_reward import Reward
from bench.config_reward_model import PretrainedReward
from bench.reward_functions import reward_fingerprint
from bench.section import Count, CountOrZero, NotNegative, Positive, Section, Threads
from tasks.parts.problem import DatasetTask, Task
from tasks.parts.verify import VERSION

Label = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
NOT_OF_THE_RESULT = ("output", "tracking", "checkpoint")
"""Sections that change no result: a run that is stopped and resumed ends as an undisturbed one."""


class WarmStart(Section):
    """Supervised fine-tuning on worked solutions up to a validation accuracy, shared by all runs of a sweep."""

    max_updates: Count
    batch_size: Count
    """Solutions an optimizer step."""
    lr: Positive
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target spread over the vocabulary: leaves the starting model diffuse, with something to sharpen."""
    stop_at_pass_at_1: Annotated[float, Field(gt=0, le=1)]
    """Ends the fine-tuning at the first check that reaches this Pass@1 on validation problems."""
    check_every: Count = 25
    """Optimizer steps between two checks."""
    check_problems: Count = 100
    check_samples: Count = 4
    seed: CountOrZero = 0
    """Its own seed, so that runs that differ in theirs start from the same weights."""
    threads: Threads = 2
    """CPU threads of this stage and of the starting model's evaluation, which run before the trials do."""


class Rollout(Section):
    """What is sampled, and how often it is used."""

    prompts: Count
    """Prompts in one rollout."""
    group_size: Count
    """Completions of each prompt."""
    updates_per_rollout: Count = 1
    """Minibatches of whole groups that a rollout is split into, one optimizer step each."""
    epochs: Count = 1
    """Passes over the same rollout."""
    max_completion_tokens: Count
    temperature: Positive = 1.0
    old_logp: Literal["recomputed", "sampler"] = "recomputed"
    """Whose log-probabilities stand under the importance ratio: the trainer's own or the sampler's."""


class Prompt(Section):
    """How a problem is put to the model, the same for every arm; a chat template goes around it."""

    style: Literal["task", "question", "few_shot"] = "task"
    """`task`: with the task's instruction; `question`: bare; `few_shot`: after solved training problems."""
    shots: CountOrZero = 0
    """Solved problems before the question; only of `few_shot`."""

    @model_validator(mode="after")
    def _shots_fit(self) -> Self:
        if (self.style == "few_shot") != (self.shots > 0):
            raise ValueError(f"shots is {self.shots}, must be at least 1 with style few_shot and 0 with any other")
        return self

    @property
    def label(self) -> str:
        """Its name in files and tables."""
        return f"few_shot_{self.shots}" if self.shots else self.style


class Optimizer(Section):
    """AdamW on the policy; the critic, where there is one, has its own with another learning rate."""

    lr: Positive
    weight_decay: NotNegative = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: Positive = 1e-8
    max_grad_norm: Positive = 1.0
    warmup_updates: CountOrZero = 0
    """Optimizer steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: `linear` and `cosine` (half a wave) would be 0 one step after the end of the budget."""
    microbatch_tokens: Count = 4096
    """Most tokens in one forward and backward pass; a prompt counts once for all its completions there. Changes memory
    and speed, not the gradient."""
    microbatch_sequences: Count | None = None
    """Most completions in one forward and backward pass; null is no limit beside that of the tokens."""


class Budget(Section):
    """How long a run is."""

    updates: Count
    """Optimizer steps; a critic's warm-up counts among them."""


class Validation(Section):
    """Held-out accuracy during training."""

    every: CountOrZero = 0
    """Updates between two measurements; 0 is never."""
    problems: Count = 100
    samples: Count = 4
    select: Literal["last", "validation"] = "last"
    """Which weights are the final model: the last, or those with the best validation Pass@1."""


def _task_by_name(value: object) -> object:
    """A task from its name or `{name: ..., its knobs}`: the file of that name says which knobs there are."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value
    knobs = dict(cast(Mapping[str, Any], value))
    name = knobs.get("name")
    if not isinstance(name, str):
        raise ValueError(f"needs a name, one of {', '.join(catalog.names('tasks'))}")
    return catalog.load_task_class(name).model_validate_json(json.dumps(knobs))


class Evaluation(Section):
    """The one evaluation on the test split, of the starting model and of the final model."""

    problems: Count = 100
    samples: Count = 64
    """Completions of each problem."""
    ks: tuple[Count, ...] | None = None
    """The K of Pass@K and Maj@K, rising; null is the powers of two up to 16 that are not above `samples`."""
    temperature: NotNegative = 1.0
    """0 is greedy: all samples of a problem are then the same."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: the most likely tokens that hold this much probability; 1 is all of them."""
    start: bool = True
    """Evaluate the starting model too; it is done once for all runs that share it."""
    start_prompts: tuple[Prompt, ...] = ()
    """Further prompts for the starting model, so that it is not judged by the prompt of the training alone."""
    also: dict[Label, Annotated[SerializeAsAny[Task], BeforeValidator(_task_by_name)]] = Field(default_factory=dict)
    """Other tasks, by a label of their own, on which the start and the final model are evaluated: transfer."""

    @field_validator("ks")
    @classmethod
    def _ks_rise(cls, ks: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if ks is not None and (not ks or list(ks) != sorted(set(ks))):
            raise ValueError(f"must rise without repeats, such as {sorted(set(ks)) or [1, 2, 4]}")
        return ks

    @property
    def all_ks(self) -> tuple[int, ...]:
        """The K in force."""
        return self.ks or tuple(k for k in (1, 2, 4, 8, 16) if k <= self.samples)


class Meter(Section):
    """Memory metering; a metered update is slower and is left out of throughput."""

    every: CountOrZero = 10
    """Every n-th update is metered; 0 is never."""


class Checkpoint(Section):
    """What a killed run resumes from."""

    every: CountOrZero = 0
    """Updates between two checkpoints; 0 keeps the final model alone."""
    keep: Count = 1
    """How many of the newest stay."""
    keep_every: CountOrZero = 0
    """Updates between two checkpoints that stay for good, beside the newest; 0 keeps none for good."""


class Output(Section):
    """Where files go; no part of the run's identity."""

    root: str = "runs"
    sweep: str = "single"
    """Folder below `root` that holds the run."""
    cache: str = "runs/cache"
    """What runs share: warm starts, evaluations of starting models."""

    @field_validator("root", "cache")
    @classmethod
    def _home_is_meant(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("must be a path, without a NUL character")
        return os.path.expanduser(path)  # a shell does not expand it inside key=value

    @field_validator("sweep")
    @classmethod
    def _is_a_folder_name(cls, sweep: str) -> str:
        if sweep in ("", ".", "..") or "/" in sweep or "\\" in sweep:
            raise ValueError("must be the name of one folder, without slashes")
        return sweep


class Tracking(Section):
    """MLflow, which mirrors run directories; no part of the run's identity."""

    enabled: bool = True
    uri: str | None = None
    """Tracking server or database; null is SQLite in `output.root`."""


class Run(Section):
    """One training run: what is trained, on what, how, and how it is measured."""

    algorithm: str = "grpo"
    """Preset that the objective starts from: the name of a file in `algorithms/`."""
    objective: Annotated[Objective, Field(discriminator="kind")]
    """The preset, with every knob that was changed."""
    task: Annotated[SerializeAsAny[Task], BeforeValidator(_task_by_name)]
    seed: CountOrZero = 0
    model: Model = TinyModel()
    warm_start: WarmStart | None = None
    adapter: Lora | None = None
    prompt: Prompt = Prompt()
    rollout: Rollout
    reward: Reward = Reward()
    optimizer: Optimizer
    critic: Annotated[Critic, Field(discriminator="kind")] | None = None
    """The value model; exactly where the objective has one."""
    budget: Budget
    validation: Validation = Validation()
    evaluation: Evaluation = Evaluation()
    meter: Meter = Meter()
    baseline_quality: BaselineQuality | None = None
    checkpoint: Checkpoint = Checkpoint()
    threads: Threads = 1
    """CPU threads of the run; part of its identity, because they change the last bits of a sum."""
    device: Literal["cpu", "cuda"] = "cpu"
    engine: Engine = BuiltinEngine()
    parallel: Parallel = Parallel()
    compute: Compute = Compute()
    output: Output = Output()
    tracking: Tracking = Tracking()

    def dump(self) -> dict[str, Any]:
        """Every knob as plain data; `bench.loading.build_run` reads it back to an equal run."""
        return self.model_dump(mode="json")

    def formula(self) -> dict[str, str]:
        """The formula in force, one line an axis, and with the value loss whose values they are."""
        lines = self.objective.formula()
        return lines if self.critic is None else {**lines, "value": f"{lines['value']}; {self.critic.formula()}"}

    @property
    def tracking_uri(self) -> str:
        """The run's tracker: SQLite in `output.root` by default."""
        return self.tracking.uri or f"sqlite:///{self.output.root}/mlflow.db"

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the content of everything that can change the run's results.

        A local model or data file counts by what is in it: a moved file is the same run, a changed one is not.
        """
        content = {key: value for key, value in self.dump().items() if key not in NOT_OF_THE_RESULT}
        content |= task_content(self.task)
        if fixed_pairs(self.objective) is not None:
            content["objective"]["pairing"] |= set_content(self.objective)
        content["evaluation"]["ks"] = self.evaluation.all_ks
        also = self.evaluation.also.items()
        named = [own.function for own in self.reward.functions]
        content["reward"] |= reward_fingerprint(named, self.reward.format_schema)
        if isinstance(self.reward.model, PretrainedReward):
            content["reward"]["model"]["path"] = model_digest(PretrainedModel(path=self.reward.model.path))
        content["evaluation"]["also"] = {label: task_content(task) for label, task in also}
        if isinstance(self.model, PretrainedModel):
            content["model"]["path"] = model_digest(self.model)
        if isinstance(self.critic, ModelCritic) and isinstance(self.critic.model, PretrainedModel):
            content["critic"]["model"]["path"] = model_digest(self.critic.model)
        if self.adapter is not None and self.adapter.path is not None:
            content["adapter"]["path"] = adapter_digest(self.adapter.path)
        return fingerprint.data_digest(content)[:12]

    @property
    def alphabet(self) -> str:
        """The characters that a character tokenizer needs for all of the run's tasks."""
        characters = "".join(task.alphabet for task in (self.task, *self.evaluation.also.values()))
        return "".join(dict.fromkeys(characters))


def task_content(task: Task) -> dict[str, Any]:
    """What a task's problems and verdicts depend on; local data counts by what is in it."""
    content: dict[str, Any] = {"task": task.model_dump(mode="json"), "task_version": task.version}
    content["verifier_version"] = VERSION
    if isinstance(task, DatasetTask):
        if task.path is None:
            content["revision"] = task.source.revision
        else:
            content["task"]["path"] = _data_digest(task, Path(task.path).expanduser())
    return content


def data_files(task: DatasetTask, path: Path) -> list[Path]:
    """The files that the task reads: `path` itself, or those in the folder that its source names and that are there."""
    if path.is_file():
        return [path]
    return sorted({path / name for name in task.source.files.values() if (path / name).is_file()})


def _data_digest(task: DatasetTask, path: Path) -> str:
    return fingerprint.file_digest(path) if path.is_file() else fingerprint.files_digest(path, data_files(task, path))
