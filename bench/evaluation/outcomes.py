"""The outcome matrix: one row a graded completion, its file, and the per-problem estimates that follow from it.

The matrix is what an evaluation leaves behind; every accuracy that is reported is a function of it. Estimates are
stored next to it (<name>.estimates.parquet beside <name>.parquet), so that a report only aggregates.
"""

import importlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from bench.evaluation.estimators import (
    TIE_RULES,
    Missing,
    Ties,
    Votes,
    check_k,
    count_votes,
    majority_by_tie_rule,
    pass_curve,
    stack_votes,
    tie_rate,
)


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


@dataclass(frozen=True)
class Estimates:
    """Pass@K and Maj@K of every problem, NaN where a problem has fewer than K scorable samples."""

    problem_id: tuple[str, ...]
    """In the order in which the problems first occur."""
    n: Int[np.ndarray, " problems"]
    """Scorable samples."""
    c: Int[np.ndarray, " problems"]
    """Correct samples."""
    ks: tuple[int, ...]
    passes: Float[np.ndarray, "problems ks"]
    majorities: Float[np.ndarray, "problems ks"]
    tied: Float[np.ndarray, "problems ks"]
    """Share of the elections in which the correct answer shares the first place, which the tie rule decides."""
    ties: Ties
    missing: Missing

    def pass_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """Pass@k of every problem."""
        return self.passes[:, self._column(k)]

    def maj_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """Maj@k of every problem."""
        return self.majorities[:, self._column(k)]

    def tied_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """Tie rate of every problem at k votes."""
        return self.tied[:, self._column(k)]

    def table(self) -> dict[str, Sequence[str] | Int[np.ndarray, " problems"] | Float[np.ndarray, " problems"]]:
        """The columns of the estimates' file: problem_id, n, c, then pass@K, maj@K and tie@K for every K."""
        columns: dict[str, Sequence[str] | np.ndarray] = {"problem_id": self.problem_id, "n": self.n, "c": self.c}
        for prefix, values in (("pass", self.passes), ("maj", self.majorities), ("tie", self.tied)):
            columns |= {f"{prefix}@{k}": values[:, column] for column, k in enumerate(self.ks)}
        return columns

    def _column(self, k: int) -> int:
        if k not in self.ks:
            raise ValueError(f"no estimates for k={k}, only for k in {list(self.ks)}")
        return self.ks.index(k)


@dataclass(frozen=True)
class Summary:
    """What stands beside an accuracy: how much was sampled, and what became of it. Rates are shares of all samples."""

    num_problems: int
    num_samples: int
    """Completions of all problems together."""
    min_samples_per_problem: int
    """Scorable samples of the problem that has fewest: above it, estimates are undefined for that problem."""
    num_unparsed: int
    num_unscorable: int
    parsed_rate: float
    truncated_rate: float
    timed_out_rate: float
    unscorable_rate: float
    accuracy_given_parsed: float
    """Correct share of the scorable samples in which an answer was found; NaN if there are none."""
    mean_tokens: float
    tie_rate: dict[int, float]
    """By K: mean over problems of the share of elections that the tie rule decides."""


def outcome_matrix(outcomes: Iterable[Outcome]) -> OutcomeMatrix:
    """Outcomes by column, in the order given.

    Raises: ValueError when there are none, or when a sample of a problem occurs twice.
    """
    rows = list(outcomes)
    return _matrix({field.name: [getattr(row, field.name) for row in rows] for field in fields(Outcome)})


def votes(outcomes: OutcomeMatrix) -> tuple[tuple[str, ...], Votes]:
    """Problem ids, in order of first occurrence, and how each problem's scorable samples voted."""
    answers: dict[str, list[str | None]] = {}
    verdicts: dict[str, list[bool | None]] = {}
    rows = zip(outcomes.problem_id, outcomes.answer_key, outcomes.correct, outcomes.parsed.tolist(), strict=True)
    for problem_id, answer_key, correct, parsed in rows:
        answers.setdefault(problem_id, []).append(answer_key if parsed else None)
        verdicts.setdefault(problem_id, []).append(correct)
    return tuple(answers), stack_votes([count_votes(answers[name], verdicts[name]) for name in answers])


def estimates(
    outcomes: OutcomeMatrix, ks: Sequence[int], *, ties: Ties = "random", missing: Missing = "abstain"
) -> Estimates:
    """Pass@K and Maj@K of every problem for every k, NaN where a problem has fewer than k scorable samples.

    Raises: ValueError when a k exceeds the samples of every problem, or occurs twice.
    """
    if not ks or len(set(ks)) != len(ks):
        raise ValueError(f"ks must be distinct and at least one, got {list(ks)}")
    _, drawn = np.unique(np.array(outcomes.problem_id), return_counts=True)
    for k in ks:
        check_k(k, int(drawn.max()))
    problem_id, counted = votes(outcomes)
    by_tie_rule = majority_by_tie_rule(counted, ks, missing=missing)
    return Estimates(
        problem_id=problem_id,
        n=counted.num_samples,
        c=counted.num_correct,
        ks=tuple(ks),
        passes=pass_curve(counted, ks),
        majorities=by_tie_rule[TIE_RULES.index(ties)],
        tied=tie_rate(by_tie_rule),
        ties=ties,
        missing=missing,
    )


def summarise(outcomes: OutcomeMatrix, estimated: Estimates) -> Summary:
    """Counts and rates of an evaluation; `estimated` are its own estimates, from which the tie rates are taken."""
    scorable = np.array([correct is not None for correct in outcomes.correct])
    correct = np.array([bool(correct) for correct in outcomes.correct])
    answered = scorable & outcomes.parsed
    return Summary(
        num_problems=len(estimated.problem_id),
        num_samples=len(scorable),
        min_samples_per_problem=int(estimated.n.min()),
        num_unparsed=int((~outcomes.parsed).sum()),
        num_unscorable=int((~scorable).sum()),
        parsed_rate=float(outcomes.parsed.mean()),
        truncated_rate=float(outcomes.truncated.mean()),
        timed_out_rate=float(outcomes.timed_out.mean()),
        unscorable_rate=float((~scorable).mean()),
        accuracy_given_parsed=float(correct[answered].mean()) if answered.any() else float("nan"),
        mean_tokens=float(outcomes.num_tokens.mean()),
        tie_rate={k: float(estimated.tied_at(k).mean()) for k in estimated.ks},
    )


def write_outcomes(path: Path, outcomes: OutcomeMatrix) -> None:
    """Writes the matrix to a parquet file, which appears whole or not at all."""
    arrow = _arrow("pyarrow")
    # A column of nothing but None has no type of its own.
    types = {"correct": arrow.bool_(), "answer_key": arrow.string()}
    columns = {name: arrow.array(column, type=types.get(name)) for name, column in _columns(outcomes).items()}
    _write_table(path, arrow.table(columns))


def read_outcomes(path: Path) -> OutcomeMatrix:
    """The matrix in a parquet file; columns it does not know are left alone.

    Raises: ValueError when a column is missing.
    """
    columns, _ = _read_table(path)
    missing = [field.name for field in fields(Outcome) if field.name not in columns]
    if missing:
        raise ValueError(f"{path}: not an outcome matrix, it has no column {', '.join(missing)}")
    return _matrix(columns)


def write_estimates(path: Path, estimated: Estimates) -> None:
    """Writes the estimates to a parquet file, which appears whole or not at all; the rules stand in its metadata."""
    arrow = _arrow("pyarrow")
    table = arrow.table({name: arrow.array(column) for name, column in estimated.table().items()})
    _write_table(path, table.replace_schema_metadata({"ties": estimated.ties, "missing": estimated.missing}))


def read_estimates(path: Path) -> Estimates:
    """The estimates in a parquet file.

    Raises: ValueError when it is not a file of estimates.
    """
    columns, metadata = _read_table(path)
    ks = tuple(int(name.removeprefix("pass@")) for name in columns if name.startswith("pass@"))
    needed = ["problem_id", "n", "c", *(f"{prefix}@{k}" for prefix in ("maj", "tie") for k in ks)]
    missing = [name for name in needed if name not in columns]
    if missing or not ks or not {"ties", "missing"} <= metadata.keys():
        raise ValueError(f"{path}: not a file of estimates, it has no {', '.join(missing) or 'pass@K or vote rules'}")

    def curve(prefix: str) -> Float[np.ndarray, "problems ks"]:
        return np.array([columns[f"{prefix}@{k}"] for k in ks], dtype=np.float64).T

    return Estimates(
        problem_id=tuple(columns["problem_id"]),
        n=np.array(columns["n"], dtype=np.int64),
        c=np.array(columns["c"], dtype=np.int64),
        ks=ks,
        passes=curve("pass"),
        majorities=curve("maj"),
        tied=curve("tie"),
        ties=cast(Ties, metadata["ties"]),
        missing=cast(Missing, metadata["missing"]),
    )


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


def _arrow(module: str) -> Any:
    """pyarrow, which has no type information, loaded only where a file is read or written."""
    return importlib.import_module(module)


def _write_table(path: Path, table: Any) -> None:
    buffer = io.BytesIO()
    _arrow("pyarrow.parquet").write_table(table, buffer, compression="zstd")
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _read_table(path: Path) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Columns and metadata of a parquet file."""
    # By its path, not as bytes: Arrow's threads free Python buffers after the read has returned, and where the process
    # ends just then that aborts it (exit status 134), with everything written.
    with _arrow("pyarrow.parquet").ParquetFile(str(path)) as file:
        table: Any = file.read(use_threads=False)
    metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
    return table.to_pydict(), {key.decode(): value.decode() for key, value in metadata.items()}
