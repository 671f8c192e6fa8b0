r"""MATH: golds from boxes, levels and subjects, and every gold of the test set against its own solution."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from bench.problems import load_problems, num_problems
from tasks.math import Math
from tasks.parts.boxed import another, boxed_gold
from tasks.parts.problem import Problem
from tasks.parts.selftest import self_test

ROW = {
    "problem": "What is $1/2 + 1/2$?",
    "level": "Level 1",
    "type": "Counting & Probability",
    "solution": "It is $\\boxed{\\frac{2}{2}}$, that is $\\boxed{1}$.",
    "idx": 7,
    "origin": None,
}


@pytest.fixture(scope="module")
def public(shared_dir: Path) -> list[Problem]:
    lines = (shared_dir / "data" / "math_test_5000.jsonl").read_text(encoding="utf-8").splitlines()
    return [Math().from_row("test", index, json.loads(line)) for index, line in enumerate(lines)]


def test_a_row_becomes_a_problem():
    assert Math().from_row("test", 7, ROW) == Problem(
        id="math/test/7",
        prompt="What is $1/2 + 1/2$?\n\n"
        "Reason step by step. Then put the final answer, and nothing else, in \\boxed{}.",
        gold="1",
        solution=ROW["solution"],
        question="What is $1/2 + 1/2$?",
        columns={"level": 1, "subject": "counting_and_probability", "idx": 7},
    )


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"$\boxed{3}$ or $\boxed{4}$", "3, 4"),
        (r"First $\boxed{3}$. But that was wrong: $\boxed{4}$", "4"),
        (r"$\fbox{ 12 }$", "12"),
        (r"so $\boxed 7$.", "7"),
        (r"$\boxed{x+11}$ or $\boxed{11+x}$", "11+x"),
        (r"$\boxed{}$", None),
        ("no box", None),
    ],
)
def test_the_gold_is_what_the_solution_boxes(solution: str, gold: str | None):
    assert boxed_gold("Find x.", solution) == gold


def test_one_of_several_is_the_last():
    assert boxed_gold("Enter one of the foci, not both.", r"$\boxed{(0,1)}$ and $\boxed{(0,2)}$") == "(0,2)"


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_every_gold_is_its_own_answer(public: list[Problem], step: int):
    assert len(public) == 5000
    assert self_test(Math(), public[::step]) == []


def test_facts_about_the_test_set(public: list[Problem]):
    assert Counter(problem.columns["level"] for problem in public) == {1: 437, 2: 894, 3: 1131, 4: 1214, 5: 1324}
    assert Counter(problem.columns["subject"] for problem in public)["geometry"] == 479
    joined = [problem.id for problem in public if problem.gold not in (problem.solution or "")]
    assert joined == ["math/test/414", "math/test/2703", "math/test/4860"]
    assert set().union(*(problem.prompt + (problem.solution or "") for problem in public)) <= set(Math.alphabet)


def test_levels_and_subjects_are_chosen(shared_dir: Path):
    task = Math(path=str(shared_dir / "data"), levels=(5,), subjects=("geometry",))
    assert num_problems(task, "test") == 132
    assert {(p.columns["level"], p.columns["subject"]) for p in load_problems(task, "test", 0, 132)} == {
        (5, "geometry")
    }


def test_a_row_without_a_level_is_kept_unless_levels_are_chosen():
    row = {**ROW, "level": "Level ?"}
    assert Math().selects("test", row)
    assert not Math(levels=(1, 2, 3, 4, 5)).selects("test", row)
    assert Math().from_row("train", 0, row).columns["level"] is None


def test_a_row_with_an_empty_box_is_left_out():
    assert not Math().selects("test", {**ROW, "solution": "There are $\\boxed{}$ primes."})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solution": "It is 1."}, "solution has no \\\\boxed{} with something in it: 'It is 1.'"),
        ({"problem": " "}, "problem is ' ', not a text"),
        ({"type": "Topology"}, "type is 'Topology', must be one of algebra, "),
    ],
)
def test_a_bad_row_is_named(change: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        Math().from_row("train", 0, {**ROW, **change})


@pytest.mark.parametrize("knobs", [{"levels": [6]}, {"levels": [0]}, {"subjects": ["topology"]}])
def test_bad_knobs_are_refused(knobs: dict[str, object]):
    with pytest.raises(ValidationError):
        Math.model_validate_json(json.dumps(knobs))


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("1 + 1 = 2, so \\boxed{2}", 1.0),
        ("\\boxed{2}", 0.75),
        ("1 = 1\n\\boxed{2}\nI hope so.", 0.75),
        ("\\boxed{2", 0.25),
        ("It is 2.", 0.0),
    ],
)
def test_the_form_is_scored_in_quarters(completion: str, score: float):
    assert Math().format_score(Math().from_row("test", 0, ROW), completion) == score


@pytest.mark.parametrize(
    ("answer", "changed"),
    [("12", "13"), ("19", "11"), (r"\frac{1}{2}", r"\frac{2}{2}"), (r"\text{Evelyn}", r"\text{Evelyo}"), ("", "7777")],
)
def test_a_corrupted_gold_keeps_its_form(answer: str, changed: str):
    assert another(answer) == changed


def test_validation_is_a_sample_of_the_training_rows_whatever_their_order() -> None:
    """Rows that are sorted by subject must not leave the last subject alone for validation."""
    rows = [{**ROW, "problem": f"What is {i} + {i}?"} for i in range(2000)]
    kept = {split: [i for i, row in enumerate(rows) if Math().selects(split, row)] for split in ("train", "validation")}
    assert not set(kept["train"]) & set(kept["validation"])
    assert len(kept["train"]) + len(kept["validation"]) == 2000
    assert 70 < len(kept["validation"]) < 130
    assert 20 < sum(1 for i in kept["validation"] if i < 1000) < 80
