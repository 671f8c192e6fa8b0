"""Alarms in the report: a row for each alarm of an arm, counted over its runs, and a sentence where there is none."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import store
from reports.parts.alarms import alarm_blocks
from reports.parts.arms import arms_of
from reports.parts.page import Text
from reports.parts.table import Table

MakeRun = Callable[..., Path]


@pytest.fixture
def alarm() -> Callable[..., dict[str, Any]]:
    def make(**changes: Any) -> dict[str, Any]:
        words = {"name": "much_clipped", "metric": "clip/region", "condition": "clip/region > 0.3"}
        numbers = {"first": 4, "last": 9, "count": 3, "checked": 10, "value": 0.4, "threshold": 0.3}
        return {**words, **numbers, "meaning": "much is cut", "advice": "cut less", **changes}

    return make


def blocks(sweep: Path, alarms: Mapping[Path, Any]) -> Any:
    for directory, content in alarms.items():
        store.write_json(directory / "alarms.json", content)
    arms = arms_of(store.read_sweep(sweep))
    (block,) = alarm_blocks(arms[0].task, arms)
    return block


def test_an_arm_counts_its_runs(make_run: MakeRun, alarm: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Two of three checked seeds have it, a fourth was not checked; the other arm has none."""
    runs = [make_run(tmp_path, "grpo", seed) for seed in range(4)]
    calm = make_run(tmp_path, "dapo", 0)
    table = blocks(tmp_path, {runs[0]: [alarm()], runs[1]: [alarm(first=8, count=5)], runs[2]: [], calm: []})
    assert isinstance(table, Table)
    (row,) = table.rows
    assert [cell.text for cell in row][1:] == ["much clipped", "much is cut", "2 of 3", "6", "8 of 20"]
    assert row[1].details == ("(clip/region > 0.3)",)
    (record,) = table.records
    assert (record["runs"], record["runs_checked"], record["first_update"], record["count"]) == (2, 3, 4, 8)
    assert record["advice"] == "cut less"
    assert "3 of 4" in table.caption


def test_no_alarm_is_said(make_run: MakeRun, tmp_path: Path) -> None:
    assert blocks(tmp_path, {make_run(tmp_path, "grpo", 0): []}) == Text("No alarm.")


def test_runs_that_were_not_checked_are_not_called_calm(make_run: MakeRun, tmp_path: Path) -> None:
    make_run(tmp_path, "grpo", 0)
    assert blocks(tmp_path, {}) == Text("Checked for alarms: 0 of 1 each.")
