"""Gold self-test: every right answer that a task states is graded correct, every corrupted one is not."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tasks.parts.problem import Grade, Problem, Task

_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One problem on which the task's grader and its gold do not agree."""

    problem_id: str
    what: Literal["gold refused", "gold unreadable", "corrupted accepted"]
    detail: str
    """The gold, what was graded, and the grade, in one line."""


def self_test(task: Task, problems: Iterable[Problem]) -> list[Failure]:
    """Grade each problem's own gold and a corruption of it, and return what went wrong; nothing is a pass.

    A problem is passed over where the task knows no right answer (`stated` is None) or no wrong one (`corrupted`).
    """
    stated: list[tuple[Problem, str, bool]] = []
    corrupted: list[tuple[Problem, str, bool]] = []
    for problem in problems:
        right, wrong = task.stated(problem), task.corrupted(problem)
        if right is not None:
            stated.append((problem, right, False))
        if wrong is not None:
            corrupted.append((problem, wrong, False))
    failures = [
        _failure(problem, "gold unreadable" if grade.correct is None else "gold refused", text, grade)
        for (problem, text, _), grade in zip(stated, task.grade_all(stated), strict=True)
        if not grade.correct
    ]
    failures += [
        _failure(problem, "corrupted accepted", text, grade)
        for (problem, text, _), grade in zip(corrupted, task.grade_all(corrupted), strict=True)
        if grade.correct
    ]
    return failures


def _failure(
    problem: Problem, what: Literal["gold refused", "gold unreadable", "corrupted accepted"], text: str, grade: Grade
) -> Failure:
    end = text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}"
    timed_out = ", timed out" if grade.timed_out else ""
    detail = (
        f"gold {problem.gold[:_SHOWN]!r}, graded {end!r}, read by {grade.method} as {grade.answer_key!r}{timed_out}"
    )
    return Failure(problem_id=problem.id, what=what, detail=detail)
