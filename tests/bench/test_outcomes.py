"""The outcome matrix keeps what was graded, through its file and into estimates."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.evaluation import (
    Outcome,
    estimates,
    gold_free_maj_at_k,
    graded,
    outcome_matrix,
    read_estimates,
    read_outcomes,
    summarise,
    write_estimates,
    write_outcomes,
)
from bench.evaluation.ballots import MISSING_RULES, TIE_RULES


def outcome(problem_id: str, sample: int, correct: bool | None, answer_key: str | None, **changes) -> Outcome:
    plain = Outcome(problem_id, sample, correct, answer_key, answer_key is not None, False, False, 7, "####")
    return replace(plain, **changes)


def rows_of(problem_id: str, correct: int, samples: int) -> list[Outcome]:
    return [outcome(problem_id, i, i < correct, "1" if i < correct else "2") for i in range(samples)]


def example():
    """Two problems: "b" is a tie of 2 and 2; "a" has 2 correct of 6 with 3 unparsed, one more sample is unscorable."""
    rows = [outcome("b", i, i < 2, "4" if i < 2 else "5") for i in range(4)]
    rows += [outcome("a", 0, True, "1/2"), outcome("a", 1, True, "0.5"), outcome("a", 2, False, "3", num_tokens=18)]
    rows += [outcome("a", i, False, None, truncated=i < 5, method="none") for i in (3, 4, 5)]
    rows += [outcome("a", 6, None, "7", timed_out=True)]
    return outcome_matrix(rows)


def test_a_matrix_survives_its_file(tmp_path: Path):
    path = tmp_path / "eval" / "test.parquet"
    write_outcomes(path, example())
    assert pq.read_schema(path).names == [
        "problem_id", "sample", "correct", "answer_key", "parsed", "truncated", "timed_out", "num_tokens", "method",
    ]  # fmt: skip
    back = read_outcomes(path)
    for name, column in vars(example()).items():
        np.testing.assert_array_equal(np.array(getattr(back, name), dtype=object), np.array(column, dtype=object))
    assert back.correct[-1] is None
    assert [file.name for file in path.parent.iterdir()] == ["test.parquet"]


def test_a_matrix_without_any_answer_or_verdict_survives_its_file(tmp_path: Path):
    write_outcomes(tmp_path / "x.parquet", outcome_matrix([outcome("a", 0, None, None)]))
    back = read_outcomes(tmp_path / "x.parquet")
    assert (back.correct, back.answer_key) == ((None,), (None,))


def test_a_failed_write_leaves_the_old_file_and_names_the_path(tmp_path: Path):
    path = tmp_path / "test.parquet"
    write_outcomes(path, example())
    before = path.read_bytes()
    limited = (
        "import resource, sys, pathlib, signal\n"
        "from bench.evaluation import read_outcomes, write_outcomes\n"
        "matrix = read_outcomes(pathlib.Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n    write_outcomes(pathlib.Path(sys.argv[1]), matrix)\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    done = subprocess.run([sys.executable, "-c", limited, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"cannot write {path}: File too large"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_estimates_of_the_example():
    table = estimates(example(), [1, 4, 6])
    assert table.problem_id == ("b", "a")
    assert (table.n.tolist(), table.c.tolist()) == ([4, 6], [2, 2])
    np.testing.assert_allclose(table.pass_at(1), [1 / 2, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(table.maj_at(4)[0], 0.5, atol=1e-12)
    np.testing.assert_allclose(table.tied_at(4)[0], 1.0, atol=1e-12)
    # "a" at 6 votes: the two spellings of one half win against one 3, and the unparsed three do not vote.
    np.testing.assert_allclose(table.maj_at(6), [np.nan, 1.0], atol=1e-12)
    np.testing.assert_array_equal(table.pass_at(6), [np.nan, 1.0])


def test_an_unparsed_completion_has_no_vote_whatever_its_key():
    rows = [outcome("a", 0, True, "1"), *(outcome("a", i, False, "", parsed=False) for i in (1, 2))]
    assert estimates(outcome_matrix(rows), [3]).maj_at(3)[0] == 1.0


def test_problems_without_a_scorable_sample_are_undefined_and_stay_in_the_table():
    rows = [outcome("a", 0, None, "1"), outcome("b", 0, False, None)]
    table = estimates(outcome_matrix(rows), [1])
    np.testing.assert_array_equal(table.pass_at(1), [np.nan, 0.0])
    np.testing.assert_array_equal(table.maj_at(1), [np.nan, 0.0])


def test_estimates_survive_their_file_with_the_rules_they_were_made_by(tmp_path: Path):
    path = tmp_path / "test.estimates.parquet"
    table = estimates(example(), [1, 4, 6], ties="pessimistic", missing="vote")
    write_estimates(path, table)
    kinds = ("pass", "maj", "tie", "maj_random", "maj_optimistic", "maj_abstain", "maj_drop", "maj_gold_free")
    assert pq.read_schema(path).names == ["problem_id", "n", "c", *(f"{kind}@{k}" for kind in kinds for k in (1, 4, 6))]
    back = read_estimates(path)
    assert (back.ties, back.missing, back.ks, back.problem_id) == ("pessimistic", "vote", (1, 4, 6), ("b", "a"))
    for name, column in table.table().items():
        np.testing.assert_array_equal(back.table()[name], column)


@pytest.mark.parametrize("ties", TIE_RULES)
@pytest.mark.parametrize("missing", MISSING_RULES)
def test_each_variant_is_what_its_rule_gives(ties, missing):
    table = estimates(example(), [1, 4, 6], ties=ties, missing=missing)
    for k in table.ks:
        for rule in TIE_RULES:
            other = estimates(example(), [k], ties=rule, missing=missing).maj_at(k)
            np.testing.assert_allclose(table.maj_at(k, rule), other, atol=1e-12)
        for rule in MISSING_RULES:
            other = estimates(example(), [k], ties=ties, missing=rule).maj_at(k)
            np.testing.assert_allclose(table.maj_at(k, rule), other, atol=1e-12)
    # "a" at 4 of its 6, by key: each half and the 3 tie at one vote where drawn, and the blanks vote only when asked.
    answers = ["1/2", "0.5", "3", None, None, None]
    expected = gold_free_maj_at_k(answers, [True, True, *[False] * 4], 4, missing=missing)
    np.testing.assert_allclose(table.maj_at(4, "gold_free"), [0.5, expected], atol=1e-12)
    assert table.errors == {}


def test_a_file_from_before_the_variants_is_read(tmp_path: Path):
    path = tmp_path / "test.estimates.parquet"
    write_estimates(path, estimates(example(), [1, 4]))
    names = ["problem_id", "n", "c", *(f"{kind}@{k}" for kind in ("pass", "maj", "tie") for k in (1, 4))]
    pq.write_table(pq.read_table(path).select(names), path)
    back = read_estimates(path)
    np.testing.assert_array_equal(back.maj_at(4), estimates(example(), [1, 4]).maj_at(4))
    np.testing.assert_array_equal(back.maj_at(4, "random"), back.maj_at(4))
    assert np.isnan(back.maj_error_at(4)).all()
    assert list(back.table()) == names
    with pytest.raises(ValueError, match=r"no estimates of Maj@K for 'vote', only for \['random', 'abstain'\]"):
        back.maj_at(4, "vote")


def test_what_follows_from_counts_is_computed_from_them():
    table = estimates(outcome_matrix([*rows_of("a", 3, 10), *rows_of("b", 10, 10), *rows_of("c", 1, 2)]), [2, 10])
    np.testing.assert_allclose(table.pass_hat_at(2), [3 / 45, 1, 0], atol=1e-12)
    np.testing.assert_allclose(table.g_pass_at(2, 0.5), table.pass_at(2), atol=1e-12)
    np.testing.assert_allclose(table.mg_pass_at(10), [0, 1, np.nan], atol=1e-12)
    np.testing.assert_array_equal(table.covered_at(0.3), [1, 1, 1])
    np.testing.assert_array_equal(table.covered_at(0.51), [0, 1, 0])
    blank = estimates(outcome_matrix([outcome("x", 0, None, "1"), *rows_of("y", 1, 1)]), [1])
    np.testing.assert_array_equal(blank.covered_at(0.5), [np.nan, 1])


def test_summary_counts_unparsed_truncated_timed_out_and_unscorable_apart():
    summary = summarise(example(), estimates(example(), [1, 4]))
    assert (summary.num_problems, summary.num_samples, summary.min_samples_per_problem) == (2, 11, 4)
    assert (summary.num_unparsed, summary.num_unscorable) == (3, 1)
    rates = (summary.parsed_rate, summary.truncated_rate, summary.timed_out_rate, summary.unscorable_rate)
    assert rates == pytest.approx((8 / 11, 2 / 11, 1 / 11, 1 / 11))
    assert summary.accuracy_given_parsed == pytest.approx(4 / 7)
    assert summary.mean_tokens == pytest.approx(8)
    # "a" at 4 of its 6: [1/2, 0.5, 3] and one blank, or one of the two against 3 with two blanks: a tie in 2 x 3 of 15.
    assert summary.tie_rate == pytest.approx({1: 0.0, 4: (1 + 6 / 15) / 2})


def test_accuracy_given_parsed_is_undefined_where_nothing_parsed():
    matrix = outcome_matrix([outcome("a", 0, False, None)])
    assert math.isnan(summarise(matrix, estimates(matrix, [1])).accuracy_given_parsed)


@pytest.mark.parametrize(
    ("ks", "message"),
    [([8], "k=8 exceeds the 7 samples"), ([], "at least one"), ([1, 1], "distinct"), ([0], "k must be at least 1")],
)
def test_impossible_ks_are_refused(ks, message):
    with pytest.raises(ValueError, match=message):
        estimates(example(), ks)


def test_a_k_that_was_not_estimated_is_refused():
    with pytest.raises(ValueError, match=r"no estimates for k=2, only for k in \[1, 4\]"):
        estimates(example(), [1, 4]).pass_at(2)


def test_a_sample_that_occurs_twice_is_refused():
    with pytest.raises(ValueError, match="sample 0 of problem 'a' occurs twice"):
        outcome_matrix([outcome("a", 0, True, "1"), outcome("a", 0, False, "2")])


def test_an_empty_matrix_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        outcome_matrix([])


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"problem_id": ["a"], "sample": [0]}), path)
    with pytest.raises(ValueError, match=r"x\.parquet: not an outcome matrix, it has no column correct, answer_key"):
        read_outcomes(path)
    with pytest.raises(ValueError, match="not a file of estimates, it has no n, c"):
        read_estimates(path)


def test_golden_estimates_from_the_public_file(shared_dir: Path, tmp_path: Path):
    golden = json.loads((shared_dir / "data/golden_qwen_maj_pass.json").read_text())
    with (shared_dir / "data/qwen_rm_maj_example_math_cot_100.jsonl").open() as lines:
        problems = [json.loads(line) for line in lines]
    write_outcomes(
        tmp_path / "x.parquet",
        outcome_matrix(
            outcome(str(row["idx"]), i, verdict, answer)
            for row in problems
            for i, (answer, verdict) in enumerate(zip(row["pred"], row["score"], strict=True))
        ),
    )
    table = estimates(read_outcomes(tmp_path / "x.parquet"), range(1, 9))
    curves = {"pass": table.pass_at, "maj_random": table.maj_at}
    curves |= {"maj_pess": lambda k: table.maj_at(k, "pessimistic"), "maj_opt": lambda k: table.maj_at(k, "optimistic")}
    for name, curve in curves.items():
        assert [curve(k).mean() for k in table.ks] == pytest.approx(list(golden[name].values()), abs=6e-7)


def test_the_module_loads_numpy_only():
    heavy = {"torch", "pandas", "pyarrow", "scipy", "transformers"}
    loaded = f"import sys, bench.evaluation; print(*({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_problem_that_cannot_be_graded_has_no_score_and_costs_the_others_none() -> None:
    rows = [("a", True), ("a", False), ("b", None), ("b", None), ("c", True), ("c", None)]
    outcomes = [
        Outcome(problem, i % 2, bit, "1", True, False, False, 3, "end") for i, (problem, bit) in enumerate(rows)
    ]
    found = estimates(outcome_matrix(outcomes), [1, 2])
    assert np.isnan(found.pass_at(1).mean())
    known = graded(found)
    assert known.problem_id == ("a", "c")
    np.testing.assert_array_equal(known.pass_at(1), [0.5, 1.0])
    assert np.isnan(known.pass_at(2)[1]), "one graded sample says nothing of two"
    assert graded(known) is known
    lost = estimates(outcome_matrix(outcomes[2:4]), [1])
    assert graded(lost) is lost
