"""The page on baseline quality: numbers of the last measurement, by arm and estimator, and nothing where none was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import store
from reports import baseline_quality
from reports.parts.figure import Figure, save
from reports.parts.page import Page, markdown
from reports.parts.table import Table


def write_lines(run: Path, update: int, critic: bool, offset: float) -> None:
    """24 tokens of 6 problems; the critic is off by `offset`, and the truth is known by a variance of 0.01."""
    stream = np.random.default_rng(update)
    for i in range(24):
        value = i / 24
        returns = (stream.random(4) < value).astype(float).tolist()
        line: dict[str, Any] = {
            "update": update, "problem_id": f"p{i % 6}", "round": 0, "group": i % 6, "member": 0,
            "position": i // 6, "length": 4, "terminated": True, "return_to_go": returns[0], "group_returns": returns,
            "critic_value": value + offset if critic else None,
            "critic_advantage": returns[0] - value if critic else None, "advantage_in_force": returns[0] - 0.5,
            "value_true": value + float(stream.normal(0, 0.1)), "value_variance": 0.01, "num_continuations": 24,
            "q_true": value + 0.1, "q_variance": 0.02, "q_num_continuations": 24, "num_sampled_tokens": 50,
        }  # fmt: skip
        store.append_jsonl(run / "baseline_quality.jsonl", line)


@pytest.fixture
def page(bare_run: Callable[..., Path], tmp_path: Path) -> Page:
    for algorithm, critic in (("grpo", False), ("ppo", True)):
        for seed in (0, 1):
            run = bare_run(tmp_path, algorithm, seed, {})
            write_lines(run, 0, critic, 0.7)
            write_lines(run, 20, critic, 0.2)
    return baseline_quality.render(store.read_sweep(tmp_path))


def test_the_tables_are_of_the_last_measurement(page: Page) -> None:
    tables = [block for block in page.blocks if isinstance(block, Table)]
    values = tables[0]
    shown = {(row[0].text, row[1].text): dict(zip(values.columns, row, strict=True)) for row in values.rows}
    assert [key for key in shown if key[0] == "grpo"] == [
        ("grpo", "Group mean"), ("grpo", "Leave-one-out mean"), ("grpo", "Mean of V"),
    ]  # fmt: skip
    critic = shown["ppo", "Critic"]
    assert float(critic["Bias"].text) == pytest.approx(0.2, abs=0.03)
    assert float(critic["RMSE"].text) == pytest.approx(0.2, abs=0.03)
    assert critic["Bias"].text.startswith("+")
    assert float(critic["Correlation"].text) > 0.95
    record = next(record for record in values.records if record["estimator"] == "critic")
    assert (record["tokens"], record["problems"]) == (48, 6)
    assert record["bias_low"] < record["bias"] < record["bias_high"]
    assert tables[1].columns == ("Algorithm", "Estimator", "0", "1", "2-3")
    advantages = {row[1].text: row for row in tables[2].rows if row[0].text == "ppo"}
    assert str(advantages["As trained on"][2]) == "n/a"
    assert "at update 20, true values by 24 continuations on average, standard error 0.100" in values.caption


def test_the_figures_can_be_drawn_and_the_page_read(page: Page) -> None:
    figures = [block for block in page.blocks if isinstance(block, Figure)]
    assert all(save(figure)["svg"].startswith(b"<?xml") for figure in figures[:1])
    assert "Mean of V: the error of the best constant." in markdown("t", [page])


def test_there_is_no_page_where_nothing_was_measured(bare_run: Callable[..., Path], tmp_path: Path) -> None:
    bare_run(tmp_path, "grpo", 0, {})
    assert baseline_quality.render(store.read_sweep(tmp_path)).blocks == ()
