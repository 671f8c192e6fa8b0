"""The closing lines of a run, on records written by hand."""

from pathlib import Path

from bench.account import LOSS_NOTE, account
from bench.evaluation import Outcome, estimates, outcome_matrix, write_estimates
from bench.store import append_jsonl, read_run, set_status


def test_an_account_says_what_moved_and_what_a_small_loss_means(tmp_path: Path) -> None:
    set_status(tmp_path, "finished", attempt=1)
    append_jsonl(tmp_path / "metrics.jsonl", {"update": 1, "reward/mean": 0.25, "ratio/mean": 1.0})
    append_jsonl(tmp_path / "metrics.jsonl", {"update": 2, "reward/mean": None})
    append_jsonl(tmp_path / "metrics.jsonl", {"update": 3, "reward/mean": 0.5})
    rows = [Outcome("p", i, i == 0, str(i), True, False, False, 1, "end") for i in range(2)]
    write_estimates(tmp_path / "eval/test.estimates.parquet", estimates(outcome_matrix(rows), [1, 2]))
    assert account(read_run(tmp_path)) == [
        "training reward: 0.250 at update 1, 0.500 at update 3",
        "test, final model: Pass@1 0.500, Pass@2 1.000, Maj@2 0.500",
        LOSS_NOTE,
    ]


def test_pass_at_1_alone_is_said_once(tmp_path: Path) -> None:
    set_status(tmp_path, "finished", attempt=1)
    rows = [Outcome("p", i, i == 0, str(i), True, False, False, 1, "end") for i in range(2)]
    write_estimates(tmp_path / "eval/test.estimates.parquet", estimates(outcome_matrix(rows), [1]))
    assert account(read_run(tmp_path)) == ["test, final model: Pass@1 0.500, Maj@1 0.500"]


def test_a_run_that_recorded_nothing_is_accounted_for_in_no_lines(tmp_path: Path) -> None:
    set_status(tmp_path, "failed", attempt=1, error="no data")
    assert account(read_run(tmp_path)) == []
