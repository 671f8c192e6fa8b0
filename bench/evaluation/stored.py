"""The estimates of every problem, and their file beside the outcomes', so that a report only aggregates.

<name>.estimates.parquet lies beside <name>.parquet. Its columns are problem_id, n, c and, for every K, pass@K, maj@K
and tie@K by the rules named in the file's metadata; then maj_<variant>@K, what Maj@K would be by another rule; and,
only where subsets had to be drawn, maj_error@K and maj_<variant>_error@K: the standard error of the entries that are
estimated, NaN for those that are exact. Files without the later columns are read as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
from jaxtyping import Float, Int

from bench.evaluation.ballots import (
    MISSING_RULES,
    TIE_RULES,
    Missing,
    Ties,
    Votes,
    check_k,
    count_votes,
    stack_votes,
    take,
)
from bench.evaluation.estimators import Elections, elections, gold_free_majority, tie_rate
from bench.evaluation.outcomes import OutcomeMatrix, by_problem
from bench.evaluation.reliability import cover_at_tau, g_pass_curve, mg_pass_curve, pass_curve, pass_hat_curve
from bench.evaluation.tables import arrow, read_table, write_table

Variant = Ties | Missing | Literal["gold_free"]

VARIANTS: tuple[Variant, ...] = (*TIE_RULES, *MISSING_RULES, "gold_free")
"""Maj@K by another tie rule, by another rule for samples without an answer, or with votes by answer key alone and ties
at random (`gold_free_maj_at_k`)."""


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
    variants: Mapping[Variant, Float[np.ndarray, "problems ks"]] = field(default_factory=dict[Variant, np.ndarray])
    """Maj@K with one rule changed. Empty for a file that was written without them."""
    errors: Mapping[str, Float[np.ndarray, "problems ks"]] = field(default_factory=dict[str, np.ndarray])
    """Standard errors of what was estimated from random subsets, NaN where it is exact: "maj" for `majorities`,
    "maj_vote" for the variant "vote". Only where some entry is estimated."""

    def pass_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """Pass@k of every problem."""
        return self.passes[:, self._column(k)]

    def maj_at(self, k: int, variant: Variant | None = None) -> Float[np.ndarray, " problems"]:
        """Maj@k of every problem, by the rules of these estimates or with the one rule changed that `variant` names.

        Raises: ValueError for a variant that was not stored.
        """
        if variant is None or variant in (self.ties, self.missing):
            return self.majorities[:, self._column(k)]
        if variant not in self.variants:
            raise ValueError(
                f"no estimates of Maj@K for {variant!r}, only for {[self.ties, self.missing, *self.variants]}"
            )
        return self.variants[variant][:, self._column(k)]

    def maj_error_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """Standard error of Maj@k where it was estimated from random subsets, NaN where it is exact."""
        column = self._column(k)
        return self.errors["maj"][:, column] if "maj" in self.errors else np.full(len(self.n), np.nan)

    def tied_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """Tie rate of every problem at k votes."""
        return self.tied[:, self._column(k)]

    def pass_hat_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """pass^k of every problem."""
        return pass_hat_curve(self._counts(), [k])[:, 0]

    def g_pass_at(self, k: int, tau: float) -> Float[np.ndarray, " problems"]:
        """G-Pass@k at tau of every problem."""
        return g_pass_curve(self._counts(), [k], tau)[:, 0]

    def mg_pass_at(self, k: int) -> Float[np.ndarray, " problems"]:
        """mG-Pass@k of every problem."""
        return mg_pass_curve(self._counts(), [k])[:, 0]

    def covered_at(self, tau: float) -> Float[np.ndarray, " problems"]:
        """Cover@tau of every problem: 1 where at least a share tau of its samples is correct."""
        covered = np.full(len(self.n), np.nan)
        sampled = self.n > 0
        if sampled.any():
            covered[sampled] = cover_at_tau(self.n[sampled], self.c[sampled], tau)
        return covered

    def table(self) -> dict[str, Sequence[str] | Int[np.ndarray, " problems"] | Float[np.ndarray, " problems"]]:
        """The columns of the estimates' file, as the first lines of this module name them."""
        columns: dict[str, Sequence[str] | np.ndarray] = {"problem_id": self.problem_id, "n": self.n, "c": self.c}
        curves = {"pass": self.passes, "maj": self.majorities, "tie": self.tied}
        for prefix, values in (curves | {f"maj_{name}": values for name, values in self.variants.items()}).items():
            columns |= {f"{prefix}@{k}": values[:, column] for column, k in enumerate(self.ks)}
        for prefix, values in self.errors.items():
            drawn = [column for column in range(len(self.ks)) if not np.isnan(values[:, column]).all()]
            columns |= {f"{prefix}_error@{self.ks[column]}": values[:, column] for column in drawn}
        return columns

    def _counts(self) -> Votes:
        return Votes(self.c, self.n - self.c, np.zeros((len(self.n), 1), dtype=np.int64))

    def _column(self, k: int) -> int:
        if k not in self.ks:
            raise ValueError(f"no estimates for k={k}, only for k in {list(self.ks)}")
        return self.ks.index(k)


def estimates(
    outcomes: OutcomeMatrix, ks: Sequence[int], *, ties: Ties = "random", missing: Missing = "abstain"
) -> Estimates:
    """Pass@K and Maj@K of every problem for every k, NaN where a problem has fewer than k scorable samples.

    Raises: ValueError when a k exceeds the samples of every problem, or occurs twice.
    """
    if not ks or len(set(ks)) != len(ks):
        raise ValueError(f"ks must be distinct and at least one, got {list(ks)}")
    if ties not in TIE_RULES:
        raise ValueError(f"ties must be one of {', '.join(TIE_RULES)}, got {ties!r}")
    found = by_problem(outcomes)
    for k in ks:
        check_k(k, max(len(answers) for answers, _ in found.values()))
    counted = stack_votes([count_votes(answers, verdicts) for answers, verdicts in found.values()])
    held = elections(counted, ks, missing=missing)
    rule = TIE_RULES.index(ties)
    values, errors = {"maj": held.estimate[rule]}, {"maj": held.error[rule]}
    for i, other in enumerate(TIE_RULES):
        values[f"maj_{other}"], errors[f"maj_{other}"] = held.estimate[i], held.error[i]
    for other in MISSING_RULES:
        changed = _with_other_rule(held, counted, ks, other) if other != missing else held
        values[f"maj_{other}"], errors[f"maj_{other}"] = changed.estimate[rule], changed.error[rule]
    by_key = gold_free_majority(list(found.values()), ks, missing=missing)
    values["maj_gold_free"], errors["maj_gold_free"] = by_key
    others: list[Variant] = [variant for variant in VARIANTS if variant not in (ties, missing)]
    return Estimates(
        problem_id=tuple(found),
        n=counted.num_samples,
        c=counted.num_correct,
        ks=tuple(ks),
        passes=pass_curve(counted, ks),
        majorities=values["maj"],
        tied=tie_rate(held.estimate),
        ties=ties,
        missing=missing,
        variants={variant: values[f"maj_{variant}"] for variant in others},
        errors={
            name: errors[name]
            for name in ("maj", *(f"maj_{variant}" for variant in others))
            if not np.isnan(errors[name]).all()
        },
    )


def _with_other_rule(held: Elections, counted: Votes, ks: Sequence[int], missing: Missing) -> Elections:
    """The elections under another rule for missing answers, held again only where some are missing."""
    changed = np.flatnonzero(counted.num_missing)
    again = elections(take(counted, changed), ks, missing=missing)
    other = Elections(held.estimate.copy(), held.error.copy())
    other.estimate[:, changed], other.error[:, changed] = again.estimate, again.error
    return other


def write_estimates(path: Path, estimated: Estimates) -> None:
    """Writes the estimates to a parquet file, which appears whole or not at all; the rules stand in its metadata."""
    pyarrow = arrow("pyarrow")
    table = pyarrow.table({name: pyarrow.array(column) for name, column in estimated.table().items()})
    write_table(path, table.replace_schema_metadata({"ties": estimated.ties, "missing": estimated.missing}))


def read_estimates(path: Path) -> Estimates:
    """The estimates in a parquet file.

    Raises: ValueError when it is not a file of estimates.
    """
    columns, metadata = read_table(path)
    ks = tuple(int(name.removeprefix("pass@")) for name in columns if name.startswith("pass@"))
    needed = ["problem_id", "n", "c", *(f"{prefix}@{k}" for prefix in ("maj", "tie") for k in ks)]
    missing = [name for name in needed if name not in columns]
    if missing or not ks or not {"ties", "missing"} <= metadata.keys():
        raise ValueError(f"{path}: not a file of estimates, it has no {', '.join(missing) or 'pass@K or vote rules'}")
    unknown = [np.nan] * len(columns["problem_id"])

    def curve(prefix: str) -> Float[np.ndarray, "problems ks"]:
        return np.array([columns.get(f"{prefix}@{k}", unknown) for k in ks], dtype=np.float64).T

    errors = {name: curve(f"{name}_error") for name in ("maj", *(f"maj_{variant}" for variant in VARIANTS))}
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
        variants={variant: curve(f"maj_{variant}") for variant in VARIANTS if f"maj_{variant}@{ks[0]}" in columns},
        errors={name: values for name, values in errors.items() if not np.isnan(values).all()},
    )


def graded(found: Estimates) -> Estimates:
    """The estimates without the problems of which no sample could be graded: these have none. The same where all have
    or none has."""
    kept = found.n > 0
    if kept.all() or not kept.any():
        return found
    ids = tuple(name for name, there in zip(found.problem_id, kept, strict=True) if there)
    rows = {name: getattr(found, name)[kept] for name in ("n", "c", "passes", "majorities", "tied")}
    tables = {name: {key: own[kept] for key, own in getattr(found, name).items()} for name in ("variants", "errors")}
    return replace(found, problem_id=ids, **rows, **tables)
