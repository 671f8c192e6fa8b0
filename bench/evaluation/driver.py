"""The evaluation driver: samples a model on a task's problems, grades with the task's grader, and stores the outcomes.

Training curves, final evaluations and `bench evaluate` all come through here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from bench.evaluation import (
    Outcome,
    OutcomeMatrix,
    estimates,
    outcome_matrix,
    summarise,
    write_estimates,
    write_outcomes,
)
from bench.generate import Completion, Generator
from bench.models import LanguageModel
from bench.problems import load_problems
from bench.seeding import stream_key
from bench.store import write_bytes, write_json
from tasks.parts.problem import Problem, Split, Task

_ROWS_AT_ONCE = 512


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


@dataclass(frozen=True)
class Evaluated:
    """Outcomes of an evaluation, with the completions they were graded from."""

    outcomes: OutcomeMatrix
    completions: tuple[dict[str, Any], ...]


def evaluate(
    model: LanguageModel,
    task: Task,
    plan: Plan,
    generate: Generator,
    advance: Callable[[int], None] = lambda done: None,
) -> Evaluated:
    """Sample and grade; `advance` is told how many completions are done since the last call."""
    problems = load_problems(task, plan.split, 0, plan.problems)
    rows: list[Outcome] = []
    texts: list[dict[str, Any]] = []
    at_once = max(1, _ROWS_AT_ONCE // plan.samples)
    for start in range(0, len(problems), at_once):
        part = problems[start : start + at_once]
        for problem, own in zip(part, _sampled(model, part, plan, generate), strict=True):
            for i, completion in enumerate(own):
                text = model.decode(completion.token_ids)
                rows.append(_outcome(task, problem, i, completion, text))
                texts.append({"problem_id": problem.id, "sample": i, "gold": problem.gold, "completion": text})
        advance(len(part) * plan.samples)
    return Evaluated(outcome_matrix(rows), tuple(texts))


def _sampled(
    model: LanguageModel, problems: Sequence[Problem], plan: Plan, generate: Generator
) -> list[list[Completion]]:
    keys = [[stream_key(plan.seed, plan.purpose, p.id, m) for m in range(plan.samples)] for p in problems]
    prompts = [model.encode_prompt(problem.prompt) for problem in problems]
    return generate(model, prompts, keys, max_tokens=plan.max_completion_tokens, temperature=plan.temperature)


def _outcome(task: Task, problem: Problem, sample: int, completion: Completion, text: str) -> Outcome:
    grade = task.grade(problem, text, truncated=not completion.terminated)
    return Outcome(
        problem_id=problem.id,
        sample=sample,
        correct=grade.correct,
        answer_key=grade.answer_key,
        parsed=grade.parsed,
        truncated=grade.truncated,
        timed_out=grade.timed_out,
        num_tokens=len(completion.token_ids),
        method=grade.method,
    )


def pass_at_1(evaluated: Evaluated) -> float:
    """Mean over problems of the share of scorable samples that are correct; NaN where a problem has none."""
    return float(estimates(evaluated.outcomes, [1]).pass_at(1).mean())


def write_evaluation(
    folder: Path, name: str, evaluated: Evaluated, plan: Plan, ks: Sequence[int], about: dict[str, Any]
) -> None:
    """Write the four files of an evaluation; the manifest comes last, so that it marks the others as whole."""
    estimated = estimates(evaluated.outcomes, ks)
    write_outcomes(folder / f"{name}.parquet", evaluated.outcomes)
    write_estimates(folder / f"{name}.estimates.parquet", estimated)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in evaluated.completions)
    write_bytes(folder / f"{name}.jsonl.zst", zstandard.ZstdCompressor(level=10).compress(lines.encode()))
    summary = asdict(summarise(evaluated.outcomes, estimated))
    rules = {"ks": list(ks), "ties": estimated.ties, "missing": estimated.missing}
    write_json(folder / f"{name}.json", {**about, **asdict(plan), **rules, **summary, "samples": plan.samples})
