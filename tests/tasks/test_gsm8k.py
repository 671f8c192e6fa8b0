"""GSM8K: every gold accepts itself and nothing else, rows are checked, the format score tells samples apart."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.gsm8k import Gsm8k
from tasks.parts.problem import Problem, Split
from tasks.parts.selftest import self_test

TASK = Gsm8k()
ROW = {"question": "Ann has 9 pens and buys 9. How many?", "answer": "9+9=<<9+9=18>>18 pens\n#### 18"}
PROBLEM = TASK.from_row("train", 7, ROW)


def public_problems(shared_dir: Path, split: Split) -> list[Problem]:
    path = shared_dir / "data" / TASK.source.files[split]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [TASK.from_row(split, index, row) for index, row in enumerate(rows)]


def test_a_row_becomes_a_problem():
    expected = Problem(
        id="gsm8k/train/7",
        prompt="Ann has 9 pens and buys 9. How many?\n\nReason step by step. "
        'Then end with one last line that holds only the answer, written "#### <number>".',
        gold="18",
        solution="9+9=18 pens\n#### 18",
        question="Ann has 9 pens and buys 9. How many?",
    )
    assert expected == PROBLEM


@pytest.mark.parametrize(("split", "count"), [("train", 7473), ("test", 1319)])
def test_every_gold_accepts_its_own_solution(shared_dir: Path, split: Split, count: int):
    problems = public_problems(shared_dir, split)
    assert len(problems) == count
    grades = [TASK.grade(problem, problem.solution or "") for problem in problems]
    failing = [p.id for p, g in zip(problems, grades, strict=True) if not (g.correct and g.method == "marker")]
    assert not failing
    assert all(grade.answer_key == problem.gold for problem, grade in zip(problems, grades, strict=True))


@pytest.mark.parametrize("corrupt", ["{}1", "1{}", "-{}", "{}.5", "{}00", "{} or 7777", "0.{}"])
def test_no_gold_accepts_a_corrupted_answer(shared_dir: Path, corrupt: str):
    def corrupted(problem: Problem) -> str:
        solution = problem.solution or ""
        return solution.rpartition("####")[0] + "#### " + corrupt.format(problem.gold)

    problems = [problem for problem in public_problems(shared_dir, "test") if problem.gold != "0"]
    accepted = [problem.id for problem in problems if TASK.grade(problem, corrupted(problem)).correct]
    assert not accepted


def test_the_alphabet_covers_the_data(shared_dir: Path):
    texts = [p.prompt + (p.solution or "") for split in ("train", "test") for p in public_problems(shared_dir, split)]
    assert set().union(*texts) <= set(TASK.alphabet)
    assert len(set(TASK.alphabet)) == len(TASK.alphabet)


def test_facts_about_the_golds(shared_dir: Path):
    golds = [int(problem.gold) for problem in public_problems(shared_dir, "test")]
    assert sum(gold < 0 for gold in golds) == 2
    assert sum(gold > 10_000 for gold in golds) == 46


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "answer": "18"}, "answer does not end with \"#### number\": '18'"),
        ({**ROW, "answer": "#### many"}, "answer does not end with \"#### number\": '#### many'"),
        ({**ROW, "answer": "#### 5 or 6"}, "answer does not end with"),
        ({**ROW, "answer": 18}, "answer is 18, not a text"),
        ({**ROW, "question": None}, "question is None, not a text"),
        ({**ROW, "question": "  "}, "question is '  ', not a text"),
    ],
)
def test_a_bad_row_is_named(row: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        TASK.from_row("train", 0, row)


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("9 + 9 = 18\n#### 18", 1.0),
        ("9 + 9 = 17\n#### 17", 1.0),
        ("#### 18", 0.75),
        ("9 + 9 = 18\n#### 18\nI hope this helps!", 0.75),
        ("#### 18\nI hope this helps!", 0.5),
        ("9 + 9 = 18", 0.5),
        ("She has 18 pens.", 0.25),
        ("She has many pens.", 0.0),
        ("", 0.0),
    ],
)
def test_the_form_is_scored_in_quarters_whatever_the_answer_is(completion: str, score: float):
    assert TASK.format_score(PROBLEM, completion) == score


def test_the_task_hands_the_cut_to_the_grader():
    assert TASK.grade(PROBLEM, "9+9=18\n#### 18").correct is True
    cut = TASK.grade(PROBLEM, "9+9=18\n#### 18", truncated=True)
    assert (cut.correct, cut.parsed, cut.truncated) == (False, False, True)


def test_many_at_once_are_graded_as_one_by_one():
    items = [(PROBLEM, "#### 18", False), (PROBLEM, "18", False), (PROBLEM, "#### 18", True), (PROBLEM, "", False)]
    one_by_one = [TASK.grade(problem, text, truncated=truncated) for problem, text, truncated in items]
    assert TASK.grade_all(items) == one_by_one
    assert [grade.method in TASK.strict_methods for grade in one_by_one] == [True, False, False, False]


def test_other_columns_reach_the_problem():
    assert TASK.from_row("train", 0, {**ROW, "source": "ours", "note": None}).columns == {"source": "ours"}


def test_the_self_test_passes_on_public_data_and_names_a_wrong_gold(shared_dir: Path):
    problems = public_problems(shared_dir, "test")[::10]
    assert self_test(TASK, problems) == []
    spoilt = replace(problems[3], gold="0.123", solution=problems[3].solution)
    (failure,) = self_test(TASK, [*problems[:3], spoilt])
    assert (failure.problem_id, failure.what) == (problems[3].id, "gold refused")
    assert failure.detail.startswith("gold '0.123', graded ")


def test_validation_is_cut_from_train():
    source = TASK.source
    assert source.files["validation"] == source.files["train"] != source.files["test"]
    assert (source.splits["train"], source.splits["validation"]) == ("train[:95%]", "train[95%:]")
