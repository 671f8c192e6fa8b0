"""The stage that trains a reward model: the starting policy with a scalar head, on pairs of its own graded samples.

Training problems are sampled and graded; of each prompt every correct completion is preferred to every wrong one
(Bradley-Terry: -log sigmoid(r_correct - r_wrong), the mean over a prompt's pairs, then over prompts). Two completions
with one verdict are no pair. Problems that it is not trained on tell how often it orders a pair as the verifier does.

The suite's own sampler is used whatever the run's engine is, and float32 whatever its precision: the runs of a sweep
that differ in these have one reward.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from bench.adapted_weights import plain_state
from bench.checkpoint import weights_digest
from bench.config import Run, task_content
from bench.config_reward_model import TrainedReward
from bench.generate import ContextTooSmall, sample
from bench.models import LanguageModel, base_of
from bench.offline import pass_order
from bench.policy import Sequences
from bench.prepare import MARKER, PreparationFailed, Start, cached, start_content
from bench.problems import load_problems, num_problems
from bench.progress import progress
from bench.prompting import encode_prompts, ended, stop_of
from bench.reward_model import Row, pad_of, row_of, scores_of
from bench.seeding import generator, stream_key
from bench.statistics import accuracy_interval
from tasks.parts.problem import Problem, ProceduralTask

TOKENS_AT_ONCE = 4096
"""Most tokens in a pass, but for a prompt that has more by itself; the same for all runs, which share the model."""
_ROWS_AT_ONCE = 256
_MAX_GRAD_NORM = 1.0
_NOT_OF_TRAINING = ("weight", "clip", "standardise", "min_accuracy")


@dataclass(frozen=True)
class Judged:
    """The distinct graded completions of one prompt, and how often each was drawn."""

    right: tuple[Row, ...]
    wrong: tuple[Row, ...]
    drawn: Mapping[Row, int]

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.right, *self.wrong)

    @property
    def num_pairs(self) -> int:
        return len(self.right) * len(self.wrong)

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt) + len(own) for prompt, own in self.rows)


def trained_reward_model(run: Run, config: TrainedReward, start: Start) -> tuple[Path, dict[str, Any]]:
    """The folder of the trained model and its record, made now where the cache does not hold them.

    Raises:
        PreparationFailed: there are no pairs, training diverges, or the held-out accuracy is below what was asked for.
    """
    content = reward_model_content(run)
    folder = cached(
        Path(run.output.cache), "reward_model", content, lambda folder: train_reward_model(run, config, start, folder)
    )
    record = json.loads((folder / MARKER).read_text())
    about = {name: value for name, value in record.items() if name not in ("content", "sizes")}
    if about["accuracy"] < config.min_accuracy:
        raise PreparationFailed(
            f"reward.model.min_accuracy: {config.min_accuracy:g} was not reached: the reward model orders "
            f"{about['accuracy']:.3f} of the pairs of {about['held_out']['prompts']} held-out prompts as the verifier "
            f"does (chance is 0.5; on its training prompts {about['training_accuracy']:.3f}): raise "
            "reward.model.problems, updates or lr, or lower min_accuracy if that is what you want to study"
        )
    return folder / "model", about


def reward_model_content(run: Run) -> dict[str, Any]:
    """Everything that the trained model depends on; empty where the run has none. Runs that agree in it share it."""
    if not isinstance(run.reward.model, TrainedReward):
        return {}
    dump = run.dump()
    knobs = {name: value for name, value in dump["reward"]["model"].items() if name not in _NOT_OF_TRAINING}
    sampling = {name: dump["rollout"][name] for name in ("max_completion_tokens", "temperature")}
    content: dict[str, Any] = {"start": start_content(run), "on": task_content(run.task), "knobs": knobs}
    return {**content, "prompt": dump["prompt"], "sampling": sampling, "device": run.device}


def train_reward_model(run: Run, config: TrainedReward, start: Start, folder: Path) -> dict[str, Any]:
    """Sample, pair, train and judge; the model is saved as `folder/model`, an ordinary Hugging Face folder."""
    with _threads(config.threads):
        nn.Module.to(start.model.network, run.device)
        network = with_scalar_head(start.model, config.seed)
        judged, correct_rate = graded_samples(run, config, start.model, pad_of(network))
        cut = max(1, round(len(judged) * (1 - config.held_out)))
        training, held_out = judged[:cut], judged[cut:]
        paired = [one for one in training if one.num_pairs]
        held_out_paired = [one for one in held_out if one.num_pairs]
        _check_pairs(config, len(training), paired, len(held_out), held_out_paired, correct_rate)
        losses = _fit(config, network, paired)
        accuracy = [_accuracy(network, one) for one in held_out_paired]
        interval = accuracy_interval(np.array(accuracy))
        mean, std = _moments(network, training)
    network.save_pretrained(folder / "model")
    _tokenizer_of(start.model).save_pretrained(folder / "model")
    return {
        "accuracy": interval.mean,
        # Student's t knows no end of the scale.
        "interval": dict(zip(("low", "high"), np.clip([interval.low, interval.high], 0, 1).tolist(), strict=True))
        | {"level": interval.level, "over": interval.estimand},
        "caution": interval.caution,
        "training_accuracy": float(np.mean([_accuracy(network, one) for one in paired])),
        "training": {"prompts": len(paired), "of": len(training), "pairs": sum(one.num_pairs for one in paired)},
        "held_out": {
            "prompts": len(held_out_paired),
            "of": len(held_out),
            "pairs": sum(one.num_pairs for one in held_out_paired),
        },
        "correct_rate": correct_rate,
        "loss": {
            "first": losses[0],
            "last": losses[-1],
            "mean_of_last_tenth": float(np.mean(losses[-_tenth(losses) :])),
        },
        "score_mean": mean,
        "score_std": std,
        "trained_weights_sha256": weights_digest(network),
    }


def _tenth(losses: Sequence[float]) -> int:
    return max(1, len(losses) // 10)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_scalar_head(policy: LanguageModel, seed: int) -> PreTrainedModel:
    """The policy's trunk, copied, under a head with one output, drawn from a normal distribution of standard deviation
    1 / sqrt(hidden size + 1) (2403.17031).

    Raises:
        PreparationFailed: transformers has no sequence classifier with such a head for this architecture.
    """
    config = deepcopy(policy.network.config)
    config.num_labels = 1
    config.get_text_config().pad_token_id = _padding(policy)
    try:
        with torch.random.fork_rng(devices=[]):
            network: Any = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise PreparationFailed(
            f"reward.model.kind: trained given, but transformers has no sequence classifier for "
            f"{type(policy.network).__name__}: give a pretrained one"
        ) from error
    head = getattr(network, "score", None)
    if type(head) is not nn.Linear:
        raise PreparationFailed(
            f"reward.model.kind: trained given, but {type(network).__name__} keeps its head elsewhere than in `score`: "
            "give a pretrained one"
        )
    draws = torch.Generator().manual_seed(stream_key(seed, "reward model head"))
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=draws) * (head.in_features + 1) ** -0.5)
    base_of(network).load_state_dict(plain_state(base_of(policy.network)))
    return network.float().to(policy.network.device).eval()


def _padding(policy: LanguageModel) -> int:
    """A token that ends no completion, for classifiers read their score before what they take for padding; the policy's
    own padding where it has no such token."""
    candidates = [policy.pad_id, *policy.tokenizer.all_special_ids]
    return next((i for i in candidates if i not in policy.end_ids), policy.pad_id)


def _tokenizer_of(policy: LanguageModel) -> PreTrainedTokenizerBase:
    """The policy's tokenizer with the padding of the reward model."""
    tokenizer = deepcopy(policy.tokenizer)
    tokenizer.pad_token = str(tokenizer.convert_ids_to_tokens(_padding(policy)))
    return tokenizer


# Samples


def graded_samples(
    run: Run, config: TrainedReward, policy: LanguageModel, pad: int | None
) -> tuple[list[Judged], float]:
    """The distinct prompts of the stage with their graded completions, and the share of correct ones.

    Raises:
        PreparationFailed: a prompt leaves no room, or there are fewer problems than asked for.
    """
    problems = _problems(run, config)
    encoded = encode_prompts(policy, run.task, problems, run.prompt)
    prompts = {tuple(ids): problem for ids, problem in zip(reversed(encoded), reversed(problems), strict=True)}
    ordered = list(dict.fromkeys(map(tuple, encoded)))
    found: list[Judged] = []
    verdicts: list[bool] = []
    at_once = max(1, _ROWS_AT_ONCE // config.samples)
    with progress("sampling for the reward model", len(ordered)) as advance:
        for i in range(0, len(ordered), at_once):
            part = ordered[i : i + at_once]
            keys = [
                [
                    stream_key(config.seed, "reward model sample", prompts[ids].id, i + j, m)
                    for m in range(config.samples)
                ]
                for j, ids in enumerate(part)
            ]
            how = {"max_tokens": run.rollout.max_completion_tokens, "temperature": run.rollout.temperature}
            try:
                sampled = sample(policy, part, keys, **how)
            except ContextTooSmall as error:
                raise PreparationFailed(str(error)) from None
            flat = [
                (prompts[ids], *ended(policy, c, stop_of(run.prompt)))
                for ids, own in zip(part, sampled, strict=True)
                for c in own
            ]
            grades = run.task.grade_all([(problem, text, not said.terminated) for problem, said, text in flat])
            bits = [grade.correct for grade in grades]
            verdicts += [bit for bit in bits if bit is not None]
            for j, ids in enumerate(part):
                span = slice(j * config.samples, (j + 1) * config.samples)
                rows = [row_of(ids, said.token_ids, pad) for _, said, _ in flat[span]]
                found.append(_judged(rows, bits[span]))
            advance(len(part), "")
    return found, sum(verdicts) / len(verdicts) if verdicts else float("nan")


def _problems(run: Run, config: TrainedReward) -> list[Problem]:
    """Training problems of the stage's own stream."""
    if isinstance(run.task, ProceduralTask):
        keys = [stream_key(config.seed, "reward model problem", i) for i in range(config.problems)]
        return [run.task.generate("train", key) for key in keys]
    there = num_problems(run.task, "train")
    assert there is not None, "only procedural tasks are unbounded"
    if there < config.problems:
        raise PreparationFailed(
            f"reward.model.problems: {config.problems} given, but the train split has {there}; must be at most {there}"
        )
    everything = load_problems(run.task, "train", 0, there)
    order = generator(config.seed, "reward model problems").permutation(there)
    return [everything[i] for i in order[: config.problems].tolist()]


def _judged(rows: Sequence[Row], bits: Sequence[bool | None]) -> Judged:
    """Equal completions enter once; one that could not be graded, or was graded both ways, is on no side."""
    drawn = {row: rows.count(row) for row in rows}
    known = {row: {bit for other, bit in zip(rows, bits, strict=True) if other == row} for row in drawn}
    right, wrong = (tuple(row for row in drawn if known[row] == {side}) for side in (True, False))
    return Judged(right, wrong, {row: drawn[row] for row in (*right, *wrong)})


def _check_pairs(
    config: TrainedReward, num_training: int, training: Sequence[Judged], num_held_out: int,
    held_out: Sequence[Judged], correct_rate: float,
) -> None:  # fmt: skip
    """Raises PreparationFailed where there is nothing to learn from, or nothing to judge by."""
    for name, num, paired in (("training", num_training, training), ("held-out", num_held_out, held_out)):
        if not paired:
            raise PreparationFailed(
                f"reward.model: none of its {num} {name} prompts has both a correct and a wrong completion among "
                f"{config.samples} ({correct_rate:.1%} of all are correct): raise reward.model.samples or problems, or "
                "start from a model that solves some of the task"
            )


# Training


def _fit(config: TrainedReward, network: PreTrainedModel, judged: Sequence[Judged]) -> list[float]:
    """Optimizer steps on prompts in a seeded order, each pass in a new one; returns the loss of each step."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=0.0, fused=True)
    losses: list[float] = []
    size = min(config.batch_size, len(judged))
    with progress("reward model", config.updates) as advance:
        for update in range(config.updates):
            order = pass_order(config.seed, "reward model order", len(judged), size, update)
            total = 0.0
            for part in _parts([judged[i] for i in order]):
                loss = pair_losses(_scores(network, part), part).sum() / size
                loss.backward()
                total += float(loss.detach())
            norm = nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRAD_NORM)
            if not np.isfinite(total) or not bool(norm.isfinite()):
                raise PreparationFailed(
                    f"reward.model.lr: {config.lr} given, and the loss is no longer finite: lower it"
                )
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(total)
            advance(1, f"loss {total:.3f}")
    return losses


def _parts(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Whole prompts in passes of at most `TOKENS_AT_ONCE` tokens."""
    parts: list[list[Judged]] = []
    tokens = 0
    for one in judged:
        if not parts or tokens + one.num_tokens > TOKENS_AT_ONCE:
            parts.append([])
            tokens = 0
        parts[-1].append(one)
        tokens += one.num_tokens
    return parts


def _scores(network: PreTrainedModel, judged: Sequence[Judged]) -> Tensor:
    """float32: the score of each prompt's right completions, then of its wrong ones, prompt by prompt."""
    rows = [row for one in judged for row in one.rows]
    sequences = Sequences.of([prompt for prompt, _ in rows], [own for _, own in rows], pad_of(network) or 0)
    return scores_of(network, sequences.to(network.device))


def pair_losses(scores: Tensor, judged: Sequence[Judged]) -> Tensor:
    """The mean Bradley-Terry loss over the pairs of each prompt: float32 (prompts,)."""
    losses: list[Tensor] = []
    for one, own in zip(judged, scores.split([len(one.rows) for one in judged]), strict=True):
        right, wrong = own.split([len(one.right), len(one.wrong)])
        losses.append(-logsigmoid(right[:, None] - wrong[None, :]).mean())
    return torch.stack(losses)


def _accuracy(network: PreTrainedModel, one: Judged) -> float:
    """Share of a prompt's pairs whose correct side scores higher; equal scores are half right."""
    with torch.inference_mode():
        right, wrong = _scores(network, [one]).double().split([len(one.right), len(one.wrong)])
    gap = right[:, None] - wrong[None, :]
    return float(((gap > 0).double() + (gap == 0).double() / 2).mean())


def _moments(network: PreTrainedModel, judged: Sequence[Judged]) -> tuple[float, float]:
    """Mean and standard deviation of the scores over all completions drawn that could be graded."""
    values: list[float] = []
    with torch.inference_mode():
        for part in _parts([one for one in judged if one.rows]):
            scores = iter(_scores(network, part).double().tolist())
            for one in part:
                for row in one.rows:
                    values += [next(scores)] * one.drawn[row]
    return float(np.mean(values)), float(np.std(values)) or 1.0
