"""The evaluation driver: samples a model on a task's problems, grades with the task's grader, and stores the outcomes.

Training curves, final evaluations and `bench evaluate` all come through here.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import zstandard

from bench.config import Prompt
from bench.evaluation import (
    Outcome,
    OutcomeMatrix,
    duplicates,
    estimates,
    graded,
    outcome_matrix,
    summarise,
    write_estimates,
    write_outcomes,
)
from bench.evaluation.journal import Journal
from bench.generate import Completion, Generator
from bench.models import LanguageModel
from bench.problems import load_problems
from bench.prompting import encode_prompts, ended, stop_of
from bench.seeding import stream_key
from bench.store import write_bytes, write_json
from tasks.parts.problem import Problem, Split, Task
from tasks.parts.verify import VERSION

_ROWS_AT_ONCE = 512
_ROWS_OF_A_LARGE_MODEL = 64
"""Of a model that takes minutes for a batch, so that progress shows and a kill costs little."""
_LARGE = 20_000_000


@dataclass(frozen=True)
class Plan:
    """What is sampled: problems of one split, completions of each, and how."""

    split: Split
    problems: int
    samples: int
    temperature: float
    max_completion_tokens: int
    seed: int
    purpose: str
    """Names the random stream, so that two evaluations of one model share no draws unless they mean to."""
    top_p: float = 1.0
    prompt: Prompt = field(default_factory=Prompt)

    def record(self) -> dict[str, Any]:
        """The plan as plain data."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**own, "prompt": self.prompt.model_dump(mode="json")}


@dataclass(frozen=True)
class Evaluated:
    """Outcomes of an evaluation, with the completions they were graded from."""

    outcomes: OutcomeMatrix
    completions: tuple[dict[str, Any], ...]
    prompting: Mapping[str, str]
    """Chat or plain, and a hash of the prompts as the model read them."""


def evaluate(
    model: LanguageModel,
    task: Task,
    plan: Plan,
    generate: Generator,
    advance: Callable[[int], None] = lambda done: None,
    journal: Journal | None = None,
) -> Evaluated:
    """Sample and grade; `advance` is told how many completions are done since the last call.

    A journal keeps what is done as it is done, and what it has of an earlier attempt is not sampled again.
    """
    problems = load_problems(task, plan.split, 0, plan.problems)
    prompts = encode_prompts(model, task, problems, plan.prompt)
    done = dict(journal.done) if journal else {}
    advance(sum(map(len, done.values())))
    waiting = [(problem, prompt) for problem, prompt in zip(problems, prompts, strict=True) if problem.id not in done]
    at_once = max(1, _rows_at_once(model) // plan.samples)
    stop = stop_of(plan.prompt)
    for start in range(0, len(waiting), at_once):
        part = waiting[start : start + at_once]
        sampled = _sampled(model, [problem for problem, _ in part], [prompt for _, prompt in part], plan, generate)
        for problem, rows in _graded(model, task, [problem for problem, _ in part], sampled, stop):
            done[problem.id] = rows
            if journal:
                journal.add(problem.id, rows)
        advance(len(part) * plan.samples)
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    prompting = {"prompt_format": model.prompt_format, "prompt_sha256": digest}
    rows = [row for problem in problems for row in done[problem.id]]
    outcomes = outcome_matrix(Outcome(**{name: row[name] for name in _OUTCOME}) for row in rows)
    return Evaluated(outcomes, tuple({name: row[name] for name in _COMPLETION} for row in rows), prompting)


_OUTCOME = tuple(f.name for f in fields(Outcome))
_COMPLETION = ("problem_id", "sample", "gold", "completion", "truncated", "num_tokens")


def _rows_at_once(model: LanguageModel) -> int:
    on_cpu = model.network.device.type == "cpu"
    large = sum(parameter.numel() for parameter in model.network.parameters()) > _LARGE
    return _ROWS_OF_A_LARGE_MODEL if on_cpu and large else _ROWS_AT_ONCE


def _sampled(
    model: LanguageModel,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    generate: Generator,
) -> list[list[Completion]]:
    keys = [[stream_key(plan.seed, plan.purpose, p.id, m) for m in range(plan.samples)] for p in problems]
    return generate(
        model,
        prompts,
        keys,
        max_tokens=plan.max_completion_tokens,
        temperature=plan.temperature,
        top_p=plan.top_p,
    )


def _graded(
    model: LanguageModel,
    task: Task,
    problems: Sequence[Problem],
    sampled: Sequence[Sequence[Completion]],
    stop: str | None,
) -> Iterator[tuple[Problem, list[dict[str, Any]]]]:
    """Each problem with its rows: the completion, its verdict and what else is stored of it."""
    said = [[ended(model, completion, stop) for completion in own] for own in sampled]
    asked = [
        (problem, text, not completion.terminated)
        for problem, own in zip(problems, said, strict=True)
        for completion, text in own
    ]
    grades = iter(task.grade_all(asked))
    for problem, own in zip(problems, said, strict=True):
        rows: list[dict[str, Any]] = []
        for sample, (completion, text) in enumerate(own):
            grade = next(grades)
            about = {"problem_id": problem.id, "sample": sample, "gold": problem.gold, "completion": text}
            rows.append({**about, **asdict(grade), "num_tokens": len(completion.token_ids)})
        yield problem, rows


def pass_at_1(evaluated: Evaluated) -> float:
    """Mean over problems of the share of scorable samples that are correct; a problem that has none is left out."""
    return float(graded(estimates(evaluated.outcomes, [1])).pass_at(1).mean())


def write_evaluation(
    folder: Path, name: str, evaluated: Evaluated, task: Task, plan: Plan, ks: Sequence[int], about: Mapping[str, Any]
) -> None:
    """Write the four files of an evaluation; the manifest comes last, so that it marks the others as whole.

    Args:
        about: what else the manifest says, such as the model's name.
    """
    estimated = estimates(evaluated.outcomes, ks)
    write_outcomes(folder / f"{name}.parquet", evaluated.outcomes)
    write_estimates(folder / f"{name}.estimates.parquet", estimated)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in evaluated.completions)
    write_bytes(folder / f"{name}.jsonl.zst", zstandard.ZstdCompressor(level=10).compress(lines.encode()))
    summary = asdict(summarise(evaluated.outcomes, estimated, task.strict_methods))
    repeated = duplicates((row["problem_id"], row["completion"]) for row in evaluated.completions)
    rules = {"ks": list(ks), "ties": estimated.ties, "missing": estimated.missing}
    record: dict[str, Any] = {
        "task": {"name": task.name, **task.model_dump(mode="json")},
        "task_version": task.version,
        "verifier_version": VERSION,
        "guess_rate": task.guess_rate,
        **about,
        **plan.record(),
        **evaluated.prompting,
        "stop": stop_of(plan.prompt),
        **rules,
        **summary,
        "duplicate_rate": repeated.overall,
        "identical": repeated.identical,
        "samples": plan.samples,
    }
    write_json(folder / f"{name}.json", record)
