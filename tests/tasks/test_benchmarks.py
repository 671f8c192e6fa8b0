"""AIME, AMC, Minerva, OlympiadBench: rows of our own in each of the published forms, read from files and graded."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.catalog import load_task_class
from bench.problems import load_problems, num_problems
from tasks.aime24 import Aime24
from tasks.minerva import Minerva
from tasks.olympiadbench import OlympiadBench
from tasks.parts.problem import DatasetTask, Problem
from tasks.parts.selftest import self_test


class Example(NamedTuple):
    """A task, rows in its form, and the golds that they must have."""

    task: str
    rows: list[dict[str, Any]]
    golds: list[str]


EXAMPLES = [
    Example(
        "aime24",
        [
            {"id": 60, "problem": "Find $5^2$.", "solution": "\\boxed{025}", "answer": "025", "year": "2024"},
            {"id": 61, "problem": "Find $10^2 - 1$.", "solution": "", "answer": "099", "year": "2024"},
            {"id": 62, "problem": "Find $0!-1$.", "solution": "", "answer": "000", "year": "2024"},
        ],
        ["25", "99", "0"],
    ),
    Example(
        "aime25",
        [
            {"problem": "Find $7 \\cdot 10$.", "answer": "70", "id": "0"},
            {"problem": "Find the angle, in degrees.", "answer": "336^\\circ", "id": "1"},
        ],
        ["70", "336"],
    ),
    Example(
        "amc23",
        [
            {"id": 0, "answer": 27.0, "url": "", "question": "Find $3^3$."},
            {"id": 1, "answer": -1.0, "url": "", "question": "Find $0-1$."},
            {"id": 2, "answer": 3159.0, "url": "", "question": "Find $81 \\cdot 39$."},
        ],
        ["27", "-1", "3159"],
    ),
    Example(
        "minerva",
        [
            {"question": "Find the energy in joules.", "answer": "4e-19"},
            {"question": "Find the distance.", "answer": "4.5e33"},
            {"question": "Find the current.", "answer": "Its size is $\\boxed{2.75}$ amperes."},
            {"question": "Find the sum of the series.", "answer": "\\frac{1}{1-x}"},
        ],
        ["4 \\times 10^{-19}", "4.5 \\times 10^{33}", "2.75", "\\frac{1}{1-x}"],
    ),
    Example(
        "olympiadbench",
        [
            {"question": "Find all roots.", "final_answer": ["$2,3$"], "is_multiple_answer": True, "error": None},
            {"question": "Find both.", "final_answer": ["$-1$", "$1$"], "is_multiple_answer": True, "error": None},
            {"question": "Find it.", "final_answer": ["$\\frac{1}{3}$"], "is_multiple_answer": False, "error": "1e-2"},
            {"question": "Find the pair.", "final_answer": ["$(1,2)$"], "is_multiple_answer": False, "error": None},
        ],
        ["2,3", "-1, 1", "\\frac{1}{3}", "(1,2)"],
    ),
]


def task_at(name: str, path: Path) -> DatasetTask:
    task = load_task_class(name).model_validate_json(json.dumps({"path": str(path)}))
    assert isinstance(task, DatasetTask)
    return task


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as a file of the kind that its name says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.task)
def test_rows_are_read_and_each_gold_is_its_own_answer(example: Example, tmp_path: Path):
    task = task_at(example.task, write_rows(tmp_path / "any_name.jsonl", example.rows))
    problems = load_problems(task, "test", 0, len(example.rows))
    assert [problem.gold for problem in problems] == example.golds
    assert [problem.id for problem in problems] == [f"{example.task}/test/{i}" for i in range(len(example.rows))]
    assert all(problem.prompt.startswith(f"{problem.question}\n\nReason") for problem in problems)
    asked_for_all = ["several answers" in problem.prompt for problem in problems]
    assert asked_for_all == [bool(row.get("is_multiple_answer")) for row in example.rows]
    assert self_test(task, problems) == []


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_any_kind_of_file_gives_the_same_problems(kind: str, tmp_path: Path):
    example = EXAMPLES[0]
    rows = [
        {**row, "answer": row["answer"] if kind != "csv" else row["answer"].lstrip("0") or "0"} for row in example.rows
    ]
    task = task_at(example.task, write_rows(tmp_path / f"rows.{kind}", rows))
    assert [problem.gold for problem in load_problems(task, "test", 0, 3)] == example.golds


@pytest.mark.parametrize("name", [example.task for example in EXAMPLES])
def test_there_is_a_test_split_alone(name: str):
    task = task_at(name, Path("nowhere"))
    assert num_problems(task, "train") == num_problems(task, "validation") == 0
    with pytest.raises(ValueError, match=f"{name} has no train split, only test"):
        load_problems(task, "train", 0, 1)


@pytest.mark.parametrize("name", [example.task for example in EXAMPLES])
def test_the_source_is_pinned(name: str):
    source = task_at(name, Path("nowhere")).source
    assert len(source.revision) == 40
    assert set(source.revision) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("aime24", {"problem": "?", "answer": "1000"}, "answer is 1000, not from 0 to 999"),
        ("aime24", {"problem": "?", "answer": "-1"}, "answer is -1, not from 0 to 999"),
        ("aime25", {"problem": "?", "answer": "1/2"}, "answer is '1/2', not an integer"),
        ("aime25", {"problem": "?", "answer": None}, "answer is None, not an integer"),
        ("amc23", {"question": "?", "answer": 27.5}, "answer is 27.5, not an integer"),
        ("amc23", {"question": "", "answer": 27.0}, "question is '', not a text"),
        ("minerva", {"question": "?", "answer": "so \\boxed{}"}, "answer has no \\\\boxed{} with something in it"),
        ("olympiadbench", {"question": "?", "final_answer": []}, "final_answer is \\[\\], not a list of texts"),
        ("olympiadbench", {"question": "?", "final_answer": None}, "final_answer is None, not a list of texts"),
        ("olympiadbench", {"question": "?", "final_answer": ["1"], "error": "some"}, "error is 'some', not a number"),
    ],
)
def test_a_bad_row_is_named(name: str, row: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        task_at(name, Path("nowhere")).from_row("test", 0, row)


def test_a_missing_column_is_named(tmp_path: Path):
    task = task_at("amc23", write_rows(tmp_path / "a.jsonl", [{"questions": "?", "answer": 1}]))
    with pytest.raises(ValueError, match="has no column question: its columns are questions, answer; is it questions"):
        load_problems(task, "test", 0, 1)


def test_an_answer_may_be_written_as_the_paper_does():
    problem = Aime24().from_row("test", 0, EXAMPLES[0].rows[0])
    assert Aime24().grade(problem, "\\boxed{025}").correct
    assert Aime24().grade(problem, "\\boxed{25}").answer_key == Aime24().grade(problem, "\\boxed{025}").answer_key
    assert not Aime24().grade(problem, "\\boxed{250}").correct
    assert Aime24().guess_rate == 0.001


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("4 \\times 10^{-19}", True),
        ("4.0 \\cdot 10^{-19}", True),
        ("4e-19", True),
        ("4 \\times 10^{-20}", False),
        ("4", False),
        ("0", False),
    ],
)
def test_scientific_notation_is_exact(answer: str, correct: bool):
    problem = Minerva().from_row("test", 0, EXAMPLES[3].rows[0])
    assert Minerva().grade(problem, f"\\boxed{{{answer}}}").correct is correct


@pytest.mark.parametrize(("answer", "correct"), [("0.33", True), ("0.34", True), ("0.35", False), ("1/3", True)])
def test_the_tolerance_of_a_row_is_kept(answer: str, correct: bool):
    task = OlympiadBench()
    problem = task.from_row("test", 0, EXAMPLES[4].rows[2])
    assert task.grade(problem, f"\\boxed{{{answer}}}").correct is correct
    strict = Problem(id=problem.id, prompt=problem.prompt, gold=problem.gold)
    assert task.grade(strict, f"\\boxed{{{answer}}}").correct is (answer == "1/3")


@pytest.mark.parametrize(("answer", "correct"), [("2, 3", True), ("3, 2", True), ("2", False), ("2, 3, 4", False)])
def test_all_answers_are_wanted_in_any_order(answer: str, correct: bool):
    problem = OlympiadBench().from_row("test", 0, EXAMPLES[4].rows[0])
    assert OlympiadBench().grade(problem, f"\\boxed{{{answer}}}").correct is correct


@pytest.mark.parametrize(
    ("final_answer", "gold"), [("['$2$', '$3$']", "2, 3"), ("$[1,2]$", "[1,2]"), ("[1,2]", "[1,2]"), (["['a'"], "['a'")]
)
def test_a_list_may_be_a_text_and_an_interval_is_no_list(final_answer: object, gold: str):
    assert OlympiadBench().from_row("test", 0, {"question": "?", "final_answer": final_answer}).gold == gold


def test_a_tolerance_for_each_of_several_answers_is_not_applied():
    problem = OlympiadBench().from_row("test", 0, {**EXAMPLES[4].rows[0], "error": "1e-1,1e-1"})
    assert not OlympiadBench().grade(problem, "\\boxed{2.05, 3}").correct


def test_a_shared_context_stands_before_the_question():
    row = {"question": "Find x.", "context": "Let x = 1.", "final_answer": ["1"]}
    assert OlympiadBench().from_row("test", 0, row).question == "Let x = 1.\n\nFind x."
