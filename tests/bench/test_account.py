"""The closing lines of a run, on records written by hand."""

from pathlib import Path

import pytest

from bench.account import COLUMNS, LOSS_NOTE, account, health_lines
from bench.evaluation import Outcome, estimates, outcome_matrix, write_estimates
from bench.health import PAGE, QUESTIONS, Finding, health_of
from bench.store import State, append_jsonl, read_run, set_status, write_json, write_yaml

NOTHING = "health: no answer yet; docs/health.md explains each under its name"


def test_an_account_says_what_moved_and_what_a_small_loss_means(tmp_path: Path) -> None:
    set_status(tmp_path, "finished", attempt=1)
    append_jsonl(tmp_path / "metrics.jsonl", {"update": 1, "reward/mean": 0.25, "ratio/mean": 1.0})
    append_jsonl(tmp_path / "metrics.jsonl", {"update": 2, "reward/mean": None})
    append_jsonl(tmp_path / "metrics.jsonl", {"update": 3, "reward/mean": 0.5})
    rows = [Outcome("p", i, i == 0, str(i), True, False, False, 1, "end") for i in range(2)]
    write_estimates(tmp_path / "eval/test.estimates.parquet", estimates(outcome_matrix(rows), [1, 2]))
    lines = account(read_run(tmp_path))
    assert lines[:3] == [
        "training reward: 0.250 at update 1, 0.500 at update 3",
        NOTHING,
        "  cannot be told: reward (2 values, 8 needed)",
    ]
    assert lines[-5:] == [
        "test, final model: Pass@1 0.500, Pass@2 1.000, Maj@2 0.500",
        LOSS_NOTE,
        f"{tmp_path}: finished",
        f"next: bench report {tmp_path.parent}",
        f"      bench evaluate {tmp_path} --samples 64",
    ]


def test_pass_at_1_alone_is_said_once(tmp_path: Path) -> None:
    set_status(tmp_path, "finished", attempt=1)
    rows = [Outcome("p", i, i == 0, str(i), True, False, False, 1, "end") for i in range(2)]
    write_estimates(tmp_path / "eval/test.estimates.parquet", estimates(outcome_matrix(rows), [1]))
    assert "test, final model: Pass@1 0.500, Maj@1 0.500" in account(read_run(tmp_path))


@pytest.mark.parametrize(
    ("state", "then"),
    [("failed", "next: bench run"), ("interrupted", "next: bench run"), ("diverged", "next: change a knob")],
)
def test_a_run_that_ended_badly_is_told_how_it_goes_on(tmp_path: Path, state: State, then: str) -> None:
    folder = tmp_path / "a folder"
    set_status(folder, state, attempt=1, error="no data")
    lines = account(read_run(folder))
    assert lines[0] == NOTHING
    assert lines[-2] == f"{folder}: {state}, no data"
    assert lines[-1].startswith(then)
    assert f"'{folder}" in lines[-1], "a path with a space can be pasted"


def test_health_is_told_in_lines_that_fit_and_explained_where_it_asks_for_a_look(tmp_path: Path) -> None:
    set_status(tmp_path, "finished", attempt=1)
    write_yaml(tmp_path / "run.yaml", {"rollout": {"group_size": 8}})
    for i in range(16):
        record = {"update": i + 1, "reward/mean": 0.2 + i / 100, "entropy": 0.5 - 0.03 * i}
        append_jsonl(tmp_path / "metrics.jsonl", record)
    write_json(tmp_path / "alarms.json", [{"name": "entropy_collapse", "count": 3, "checked": 16}])
    lines = account(read_run(tmp_path))
    assert "health: 1 of 2 answers asks for a look (!); docs/health.md explains each under its name" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("! Did entropy collapse?"))
    assert lines[at].split()[-1] == "docs/health.md#entropy"
    assert "0.19 x first, min 0.25" in lines[at]
    assert lines[at + 1].startswith("      entropy 0.5 nats at first, 0.095 in the last quarter. To try: lower")
    assert "alarms: entropy_collapse (3 of 16 records)" in lines
    told = "\n".join(lines)
    assert all(name in told for name in ("all_right", "kl", "longer_right", "critic", "imitation"))
    inside = [line for line in lines if line.startswith((" ", "!", "health", "alarms")) and str(tmp_path) not in line]
    assert max(map(len, inside)) <= COLUMNS


def test_the_widest_answers_fit() -> None:
    """Numbers of eight characters, in every question at once."""
    numbers = "-1.23e-05 (noise 1.2e-05)"
    findings = [
        Finding(q.name, q.question, "yes", True, q.metric, 1.0, 1.0, numbers, "t", "m", q.advice, f"{PAGE}#{q.name}")
        for q in QUESTIONS
    ]
    assert max(map(len, health_lines(findings))) <= COLUMNS


def test_nothing_is_left_out(tmp_path: Path) -> None:
    told = " ".join(health_lines(health_of([])))
    assert all(question.name in told for question in QUESTIONS)
    assert "no update recorded" in told
