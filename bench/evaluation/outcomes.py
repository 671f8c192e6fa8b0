"""The outcome matrix: one row a graded completion, and its file.

The matrix is what an evaluation leaves behind; every accuracy that is reported is a function of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from bench.evaluation.ballots import Votes, count_votes, stack_votes
from bench.evaluation.tables import arrow, read_table, write_table


@dataclass(frozen=True)
class Outcome:
    """One graded completion."""

    problem_id: str
    sample: int
    """Number of the sample within its problem, from 0."""
    correct: bool | None
    """The verdict; None is unscorable (the grader could not tell), which is neither right nor wrong."""
    answer_key: str | None
    """Canonical form of the answer: equal keys vote together. None where there is no answer."""
    parsed: bool
    """Whether an answer was found in the completion; without one it is wrong and has no vote."""
    truncated: bool
    """Whether the completion ended at the token limit."""
    timed_out: bool
    """Whether the verifier hit its time limit."""
    num_tokens: int
    """Tokens of the completion."""
    method: str
    """How the answer was found, in the grader's words."""


@dataclass(frozen=True)
class OutcomeMatrix:
    """Outcomes by column, all of one length. Problems may have different numbers of samples.

    A plain tuple holds what may be None or is text, an array the rest.
    """

    problem_id: tuple[str, ...]
    sample: Int[np.ndarray, " rows"]
    correct: tuple[bool | None, ...]
    answer_key: tuple[str | None, ...]
    parsed: Bool[np.ndarray, " rows"]
    truncated: Bool[np.ndarray, " rows"]
    timed_out: Bool[np.ndarray, " rows"]
    num_tokens: Int[np.ndarray, " rows"]
    method: tuple[str, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in _columns(self).items()}
        if len(set(lengths.values())) != 1 or not self.problem_id:
            raise ValueError(f"an outcome matrix needs columns of one length, at least 1, got {lengths}")
        seen: set[tuple[str, int]] = set()
        for row in zip(self.problem_id, self.sample.tolist(), strict=True):
            if row in seen:
                raise ValueError(f"sample {row[1]} of problem {row[0]!r} occurs twice")
            seen.add(row)


def outcome_matrix(outcomes: Iterable[Outcome]) -> OutcomeMatrix:
    """Outcomes by column, in the order given.

    Raises: ValueError when there are none, or when a sample of a problem occurs twice.
    """
    rows = list(outcomes)
    return _matrix({field.name: [getattr(row, field.name) for row in rows] for field in fields(Outcome)})


def by_problem(outcomes: OutcomeMatrix) -> dict[str, tuple[list[str | None], list[bool | None]]]:
    """Answers and verdicts of each problem, in order of first occurrence; a completion without an answer has None."""
    found: dict[str, tuple[list[str | None], list[bool | None]]] = {}
    rows = zip(outcomes.problem_id, outcomes.answer_key, outcomes.correct, outcomes.parsed.tolist(), strict=True)
    for problem_id, answer_key, correct, parsed in rows:
        answers, verdicts = found.setdefault(problem_id, ([], []))
        answers.append(answer_key if parsed else None)
        verdicts.append(correct)
    return found


def votes(outcomes: OutcomeMatrix) -> tuple[tuple[str, ...], Votes]:
    """Problem ids, in order of first occurrence, and how each problem's scorable samples voted."""
    found = by_problem(outcomes)
    return tuple(found), stack_votes([count_votes(answers, verdicts) for answers, verdicts in found.values()])


def write_outcomes(path: Path, outcomes: OutcomeMatrix) -> None:
    """Writes the matrix to a parquet file, which appears whole or not at all."""
    pyarrow = arrow("pyarrow")
    # A column of nothing but None has no type of its own.
    types = {"correct": pyarrow.bool_(), "answer_key": pyarrow.string()}
    columns = {name: pyarrow.array(column, type=types.get(name)) for name, column in _columns(outcomes).items()}
    write_table(path, pyarrow.table(columns))


def read_outcomes(path: Path) -> OutcomeMatrix:
    """The matrix in a parquet file; columns it does not know are left alone.

    Raises: ValueError when a column is missing.
    """
    columns, _ = read_table(path)
    missing = [field.name for field in fields(Outcome) if field.name not in columns]
    if missing:
        raise ValueError(f"{path}: not an outcome matrix, it has no column {', '.join(missing)}")
    return _matrix(columns)


def _columns(outcomes: OutcomeMatrix) -> dict[str, Sequence[Any] | np.ndarray]:
    return {field.name: getattr(outcomes, field.name) for field in fields(OutcomeMatrix)}


def _matrix(columns: Mapping[str, Sequence[Any]]) -> OutcomeMatrix:
    return OutcomeMatrix(
        problem_id=tuple(columns["problem_id"]),
        sample=np.array(columns["sample"], dtype=np.int64),
        correct=tuple(columns["correct"]),
        answer_key=tuple(columns["answer_key"]),
        parsed=np.array(columns["parsed"], dtype=np.bool),
        truncated=np.array(columns["truncated"], dtype=np.bool),
        timed_out=np.array(columns["timed_out"], dtype=np.bool),
        num_tokens=np.array(columns["num_tokens"], dtype=np.int64),
        method=tuple(columns["method"]),
    )
