"""`bench evaluate`: runs and models, grids of tasks, prompts and temperatures, resumable, mistakes in one line."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from bench.cli import app
from bench.config import Run
from bench.dialect import ConfigError
from bench.evaluate import Answer, Request, evaluate_target, table
from bench.evaluation import read_estimates, read_outcomes
from bench.evaluation.journal import Journal
from bench.generate import sample
from bench.models import load_folder, save_folder
from bench.train import execute

MakeRun = Callable[..., Run]


@pytest.fixture
def trained(tiny_run: MakeRun, tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    assert execute(tiny_run("grpo"), directory).state == "finished"
    return directory


def one(request: Request) -> Answer:
    (answer,) = evaluate_target(request)
    return answer


def test_a_run_and_its_model_folder_give_the_same_outcomes(trained: Path, tmp_path: Path) -> None:
    """The final model is an ordinary folder: evaluated on the same task, it gives the same answers."""
    own = one(Request(target=str(trained), samples=4, out=tmp_path / "a"))
    folder = one(
        Request(
            target=str(trained / "checkpoints/final"), tasks=["chain_sum"], knobs=["num_terms=2", "num_digits=1"],
            samples=4, problems=9, max_completion_tokens=4, out=tmp_path / "b",
        )
    )  # fmt: skip
    assert own.estimates.n.tolist() == [4] * 9
    assert folder.name == own.name
    np.testing.assert_array_equal(folder.estimates.passes, own.estimates.passes)
    again = one(Request(target=str(trained), samples=4, out=tmp_path / "c"))
    np.testing.assert_array_equal(again.estimates.passes, own.estimates.passes)


def test_the_results_stand_beside_the_run_and_leave_its_own_evaluation_alone(trained: Path) -> None:
    before = (trained / "eval/test.parquet").read_bytes()
    answer = one(Request(target=str(trained), samples=8, ks=(1, 2)))
    assert answer.folder == trained / "eval"
    assert (trained / "eval/test.parquet").read_bytes() == before
    assert read_estimates(trained / "eval" / f"{answer.name}.estimates.parquet").ks == (1, 2)


def test_a_grid_is_one_evaluation_for_each_task_prompt_and_temperature(trained: Path) -> None:
    request = Request(
        target=str(trained), tasks=["chain_sum"], prompts=["task", "few_shot:1"], temperatures=[0.5, 1.0, 0.5],
        samples=4, problems=3, max_completion_tokens=4,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="positions"):
        evaluate_target(request)  # an example of a sum does not fit the tiny model's context
    # Nothing of a grid is sampled before all of it is known to fit.
    assert not list((trained / "eval").glob("chain_sum-*"))
    with pytest.raises(ConfigError, match="question given, but a prompt of chain_sum is its question"):
        evaluate_target(Request(target=str(trained), prompts=["task", "question"]))
    tasks = ["chain_sum", "countdown"]
    # A tiny tokenizer reads what it does not know as one unknown token.
    asked = Request(target=str(trained), tasks=tasks, temperatures=[0.5, 1.0, 0.5], samples=4, max_completion_tokens=1)
    with pytest.raises(ConfigError, match="positions"):
        evaluate_target(asked)
    answers = evaluate_target(replace(asked, tasks=["chain_sum"]))
    assert [answer.manifest["temperature"] for answer in answers] == [0.5, 1.0]
    assert len({answer.name for answer in answers}) == 2


def test_a_finished_evaluation_is_read_and_a_killed_one_goes_on(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The killed one samples only what is missing, and ends with the same files as one that was never killed."""
    monkeypatch.setattr("bench.evaluation.driver._ROWS_AT_ONCE", 8)  # two problems at once
    whole = one(Request(target=str(trained), samples=4))
    stored = (whole.folder / f"{whole.name}.parquet").read_bytes()
    assert not whole.was_there
    assert one(Request(target=str(trained), samples=4)).was_there
    asked: list[int] = []

    def dies_at_the_third_call(*arguments: object, **options: object) -> object:
        asked.append(len(arguments[1]))  # pyright: ignore[reportArgumentType]
        if len(asked) == 3:
            raise KeyboardInterrupt
        return sample(*arguments, **options)  # pyright: ignore[reportArgumentType]

    (whole.folder / f"{whole.name}.json").unlink()
    monkeypatch.setattr("bench.generate.sample", dies_at_the_third_call)
    with pytest.raises(KeyboardInterrupt):
        evaluate_target(Request(target=str(trained), samples=4))
    (journal,) = whole.folder.glob(f".{whole.name}.*.journal.jsonl")
    assert len(journal.read_text().splitlines()) == 1 + 4
    with journal.open("a") as file:
        file.write('{"problem_id": "chain_sum/test/4", "rows": [{"torn')
    again = one(Request(target=str(trained), samples=4))
    assert asked == [2, 2, 2, 2, 2, 1]
    assert (whole.folder / f"{whole.name}.parquet").read_bytes() == stored
    assert not journal.exists()
    assert not again.was_there


def test_a_journal_of_another_evaluation_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, "one").add("a", [{"correct": True}])
    assert Journal(path, "one").done == {"a": [{"correct": True}]}
    assert Journal(path, "another").done == {}
    assert Journal(path, "one").done == {}


def test_two_models_never_share_files(trained: Path, tmp_path: Path) -> None:
    """Into one folder: the second keeps its own name, and each is found again."""
    request = {"tasks": ["chain_sum"], "samples": 4, "problems": 9, "max_completion_tokens": 4, "out": tmp_path / "out"}
    other = tmp_path / "other"
    shutil.copytree(trained / "checkpoints/final", other)
    model = load_folder(other, "plain")
    with torch.no_grad():
        model.network.get_input_embeddings().weight.mul_(0.5)
    save_folder(model, other)
    targets = (str(trained / "checkpoints/final"), str(other))
    knobs = ["num_terms=2", "num_digits=1"]
    first, second = (one(Request(target=target, knobs=knobs, **request)) for target in targets)
    assert second.name == f"{first.name}-{second.manifest['key'][:6]}"
    again = [one(Request(target=target, knobs=knobs, **request)) for target in targets]
    assert [answer.was_there for answer in again] == [True, True]
    assert [answer.name for answer in again] == [first.name, second.name]


def test_another_k_needs_no_new_sample(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = one(Request(target=str(trained), samples=8, ks=(1,)))

    def never(*arguments: object, **options: object) -> object:
        raise AssertionError("sampled again")

    monkeypatch.setattr("bench.generate.sample", never)
    second = one(Request(target=str(trained), samples=8, ks=(1, 4)))
    assert second.estimates.ks == (1, 4)
    np.testing.assert_array_equal(second.estimates.pass_at(1), first.estimates.pass_at(1))
    assert {**second.manifest, "ks": 0, "tie_rate": 0} == {**first.manifest, "ks": 0, "tie_rate": 0}


def test_the_table_gives_each_score_its_interval_over_problems(trained: Path) -> None:
    """Wilson's for one answer a problem, Student's over the problems' rates for several samples."""
    greedy = one(Request(target=str(trained), samples=1, ks=(1,), temperatures=(0.0,)))
    several = one(Request(target=str(trained), samples=8, ks=(1, 4)))
    header, rows = table([greedy, several])
    place = header.index("Pass@K [95 %]")
    right, trials = int(greedy.estimates.c.sum()), len(greedy.estimates.n)
    wilson = stats.binomtest(right, trials).proportion_ci(method="wilson")
    assert rows[0][place] == f"{right / trials:.4f} [{wilson.low:.3f}, {wilson.high:.3f}]"
    for row, k in zip(rows[1:], (1, 4), strict=True):
        values = several.estimates.pass_at(k)
        low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
        assert row[place] == f"{values.mean():.4f} [{max(0, low):.3f}, {min(1, high):.3f}]"
        assert row[place + 1].startswith(f"{several.estimates.maj_at(k).mean():.4f} [")


def test_one_evaluation_is_made_by_one_process(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*arguments: object, **options: object) -> object:
        with pytest.raises(ConfigError, match="another process is making this evaluation"):
            evaluate_target(Request(target=str(trained), samples=4))
        return sample(*arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("bench.generate.sample", again)
    assert not one(Request(target=str(trained), samples=4)).was_there


def test_greedy_samples_are_called_identical_and_shown_at_one_k(trained: Path) -> None:
    """EVL-07: temperature 0 with n = 8."""
    result = CliRunner().invoke(app, ["evaluate", str(trained), "--temperature", "0", "--samples", "8", "--k", "8"])
    assert result.exit_code == 0, result.output
    assert "samples are identical, pass@k equals pass@1" in result.output
    (row,) = [line for line in result.output.splitlines() if line.startswith("chain_sum")]
    assert row.split()[3] == "1"


def test_the_manifest_says_how_it_was_made(trained: Path) -> None:
    answer = one(Request(target=str(trained), samples=4, top_p=0.9))
    said = answer.manifest
    assert {name: said[name] for name in ("top_p", "temperature", "prompt_format", "split", "samples")} == {
        "top_p": 0.9, "temperature": 1.0, "prompt_format": "plain", "split": "test", "samples": 4,
    }  # fmt: skip
    assert said["task_version"] == 1
    assert len(said["prompt_sha256"]) == 64
    rows = read_outcomes(answer.folder / f"{answer.name}.parquet")
    assert said["num_samples"] == len(rows.sample) == 36


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"target": "no/such/folder", "tasks": ["chain_sum"]}, "there is no such run or model folder"),
        ({"target": "./nowhere", "tasks": ["chain_sum"]}, "there is no such run or model folder"),
        ({"target": "some-org/model"}, "--task must say"),
        ({"target": "some-org/model", "tasks": ["chain_sums"]}, "did you mean chain_sum"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "data": "x"}, "chain_sum reads no data"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "knobs": ["num_terms=1"]}, "num_terms: 1 given"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "knobs": ["num_term=3"]}, "did you mean num_terms?"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "temperatures": [float("inf")]}, "--temperature: inf"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "prompts": ["few_shot"]}, "few_shot:N"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "prompts": ["other"]}, "other given"),
        ({"target": "some-org/model", "tasks": ["chain_sum"], "prompt_format": "no"}, "auto, chat or plain"),
    ],
)
def test_a_request_that_cannot_be_is_one_line(knobs: dict[str, str], message: str) -> None:
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
