"""`bench evaluate`: a run's final model or any model, repeatable, stored beside the run, mistakes in one line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.config import Run
from bench.dialect import ConfigError
from bench.evaluate import Request, evaluate_target
from bench.evaluation import read_estimates, read_outcomes
from bench.train import execute

MakeRun = Callable[..., Run]


@pytest.fixture
def trained(tiny_run: MakeRun, tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    assert execute(tiny_run("grpo"), directory).state == "finished"
    return directory


def test_a_run_and_its_model_folder_give_the_same_outcomes(trained: Path, tmp_path: Path) -> None:
    """The final model is an ordinary folder: evaluated as such, it answers the same problems in the same way."""
    own = evaluate_target(Request(target=str(trained), samples=4, out=tmp_path / "a"))
    folder = evaluate_target(
        Request(
            target=str(trained / "checkpoints/final"), task="chain_sum", samples=4, problems=9,
            max_completion_tokens=4, out=tmp_path / "b",
        )
    )  # fmt: skip
    assert own.estimates.n.tolist() == [4] * 9
    assert folder.name == own.name
    # The bare folder's task has the default difficulty, so its problems differ from the run's.
    assert read_outcomes(own.folder / f"{own.name}.parquet").problem_id[0].startswith("chain_sum/test/")
    again = evaluate_target(Request(target=str(trained), samples=4, out=tmp_path / "c"))
    np.testing.assert_array_equal(again.estimates.passes, own.estimates.passes)


def test_the_results_stand_beside_the_run_and_leave_its_own_evaluation_alone(trained: Path) -> None:
    before = (trained / "eval/test.parquet").read_bytes()
    answer = evaluate_target(Request(target=str(trained), samples=8, ks=(1, 2)))
    assert answer.folder == trained / "eval"
    assert (trained / "eval/test.parquet").read_bytes() == before
    assert read_estimates(trained / "eval" / f"{answer.name}.estimates.parquet").ks == (1, 2)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"target": "no/such/folder", "task": "chain_sum"}, "there is no such run or model folder"),
        ({"target": "./nowhere", "task": "chain_sum"}, "there is no such run or model folder"),
        ({"target": "some-org/model"}, "--task must say"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(knobs: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        evaluate_target(Request(**knobs))
    assert len(error.value.lines) == 1
    assert message in error.value.lines[0]


def test_numbers_that_cannot_be_are_one_line(trained: Path) -> None:
    for knobs, message in (({"ks": (64,), "samples": 4}, "at most --samples = 4"), ({"problems": 10}, "has 9")):
        with pytest.raises(ConfigError, match=message):
            evaluate_target(Request(target=str(trained), **knobs))


def test_a_run_without_a_final_model_says_so(tiny_run: MakeRun, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    execute(tiny_run("grpo", **{"reward.correct": 1e-9}), directory)
    with pytest.raises(ConfigError, match="no final model yet"):
        evaluate_target(Request(target=str(directory)))
