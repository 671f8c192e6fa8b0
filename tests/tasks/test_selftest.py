"""Gold self-test: it passes on every task that makes its problems, and names what a broken grader does."""

from typing import Literal

import pytest

from tasks.chain_sum import ChainSum
from tasks.countdown import Countdown
from tasks.gsm8k import Gsm8k
from tasks.parts.problem import Grade, Problem, ProceduralTask
from tasks.parts.selftest import self_test


class Lenient(ChainSum, frozen=True):
    """Accepts every completion, or none, or has no verdict."""

    verdict: Literal["yes", "no", "unreadable"] = "yes"

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        correct = {"yes": True, "no": False, "unreadable": None}[self.verdict]
        return Grade(correct=correct, answer_key="7", method="end", parsed=True, truncated=truncated)


@pytest.mark.parametrize("task", [ChainSum(), Countdown(), Countdown(num_numbers=6, use="at_most")])
def test_made_problems_pass(task: ProceduralTask):
    problems = [task.generate(split, index) for split in ("train", "validation", "test") for index in range(20)]
    assert self_test(task, problems) == []


@pytest.mark.parametrize(
    ("verdict", "what"),
    [("yes", ["corrupted accepted"]), ("no", ["gold refused"]), ("unreadable", ["gold unreadable"])],
)
def test_a_broken_grader_is_named(verdict: Literal["yes", "no", "unreadable"], what: list[str]):
    task = Lenient(verdict=verdict)
    failures = self_test(task, [task.generate("test", 0)])
    assert [failure.what for failure in failures] == what
    assert failures[0].problem_id == "chain_sum/test/0"
    assert failures[0].detail.endswith("read by end as '7'")


def test_a_gold_that_the_solution_contradicts_is_named():
    task = Gsm8k()
    row = {"question": "Ann has 9 pens and buys 9. How many?", "answer": "9+9=18 pens\n#### 18"}
    problem = task.from_row("train", 7, row)
    wrong = Problem(id=problem.id, prompt=problem.prompt, gold="19", solution=problem.solution)
    assert self_test(task, [problem]) == []
    (failure,) = self_test(task, [wrong])
    assert (failure.problem_id, failure.what) == ("gsm8k/train/7", "gold refused")


def test_a_problem_without_a_known_answer_is_passed_over():
    class Unknown(ChainSum, frozen=True):
        def stated(self, problem: Problem) -> str | None:
            return None

        def corrupted(self, problem: Problem) -> str | None:
            return None

    task = Unknown()
    assert self_test(task, [task.generate("test", 0)]) == []
