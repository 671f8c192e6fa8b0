"""Reasoning Gym: each generator of that library as a task of its own, "reasoning_gym/leg_counting", graded by it.

    How many legs are there in total if you have 6 insects and 3 shrimps?                                   answer: 66

Stojanovski et al. 2025, arXiv:2505.24760; the package reasoning-gym 0.1.25, Apache-2.0. An item belongs to the split
that the hash of its question names, so no question is in two splits whatever the seeds are, and a generator with too
few distinct items says so. Within a split a question can come twice where a generator has few. The answer is the text
in the last <answer> tags, else in the last box, else the last line; it is right where the library scores it 1, and
partial scores count as wrong. Items are made and scored in worker processes with a time limit.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from tasks.parts.boxed import another
from tasks.parts.extract import balanced_boxes, final_text
from tasks.parts.problem import Grade, Problem, ProceduralTask, Split
from tasks.parts.tags import last_tagged
from tasks.parts.workers import run_all

_INSTRUCTION = "End with the answer, and nothing else, between <answer> and </answer>."
_WORKER = "tasks.parts.gym:call"
_MAKE_SECONDS, _SCORE_SECONDS = 120.0, 5.0
_MEMORY_BYTES = 8 << 30
_NEAR_IS_RIGHT = frozenset(
    {"number_sorting", "power_function", "propositional_logic", "intermediate_integration", "simple_integration"}
)
"""Generators whose right answers have right neighbours: numbers near it, formulas that follow, other constants."""
_MANY = 32
_MAX_ANSWER = 20_000
"""Characters of an answer; the longest right ones have some hundreds."""


class ReasoningGym(ProceduralTask, frozen=True):
    """One generator of reasoning-gym, named in `name`, with its own options."""

    version: ClassVar[int] = 1
    alphabet: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\t\n"
    name: str = "reasoning_gym"
    """The library's generator after a slash: reasoning_gym/leg_counting, reasoning_gym/sudoku, ..."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the generator, as the library calls them; those that are not given have its defaults."""

    @model_validator(mode="after")
    def _library_takes_it(self) -> Self:
        family, _, generator = self.name.partition("/")
        if family != "reasoning_gym" or not generator:
            raise ValueError("must name a generator, such as reasoning_gym/leg_counting")
        (outcome,) = run_all(
            _WORKER, [("check", *self._generator)], limit_seconds=_MAKE_SECONDS, memory_bytes=_MEMORY_BYTES
        )
        if outcome.value or outcome.error:
            raise ValueError(outcome.value or outcome.error)
        return self

    def __hash__(self) -> int:
        return hash((type(self), *self._generator))

    @property
    def _generator(self) -> tuple[str, str]:
        return self.name.removeprefix("reasoning_gym/"), json.dumps(self.options, sort_keys=True)

    def num_problems(self, split: Split) -> int | None:
        """None: a generator never ends, though it may repeat itself."""
        return None

    def generate(self, split: Split, index: int) -> Problem:
        job = ("make", *self._generator, split, index)
        (outcome,) = run_all(_WORKER, [job], limit_seconds=_MAKE_SECONDS, memory_bytes=_MEMORY_BYTES)
        if outcome.error is not None:
            raise ValueError(f"{self.name}, problem {index} of {split}: {outcome.error.removeprefix('ValueError: ')}")
        gold, entry = outcome.value
        question = entry["question"].strip()
        return Problem(
            id=f"{self.name}/{split}/{index}",
            prompt=f"{question}\n\n{_INSTRUCTION}",
            gold=gold,
            solution=f"<answer>{gold}</answer>" if gold else None,
            question=question,
            columns={"entry": entry},
        )

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        return self.grade_all([(problem, completion, truncated)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        answers = [_answer(completion, truncated=truncated) for _, completion, truncated in items]
        asked = [place for place, (text, _) in enumerate(answers) if text is not None]
        jobs = [("score", *self._generator, items[place][0].columns.get("entry"), answers[place][0]) for place in asked]
        # A worker takes a second to start and a score a millisecond: a few answers are not worth more than one.
        workers = 1 if len(jobs) < _MANY else None
        outcomes = run_all(_WORKER, jobs, limit_seconds=_SCORE_SECONDS, workers=workers, memory_bytes=_MEMORY_BYTES)
        by_place = dict(zip(asked, outcomes, strict=True))
        grades: list[Grade] = []
        for place, ((text, method), (_, _, truncated)) in enumerate(zip(answers, items, strict=True)):
            outcome = by_place.get(place)
            # A scorer that hangs or brings its process down does so on the answer; any other error is not the answer's.
            stuck = outcome is not None and (outcome.timed_out or outcome.died)
            no_verdict = outcome is not None and outcome.error is not None and not stuck
            right = outcome is not None and (outcome.value or 0.0) >= 1 - 1e-9
            grades.append(
                Grade(
                    correct=None if no_verdict else right,
                    answer_key=None if text is None else " ".join(text.split()),
                    method=method,
                    parsed=text is not None,
                    truncated=truncated,
                    timed_out=stuck,
                )
            )
        return grades

    def stated(self, problem: Problem) -> str | None:
        """None where the library knows no right answer."""
        return problem.solution

    def corrupted(self, problem: Problem) -> str | None:
        many = not problem.gold or self._generator[0] in _NEAR_IS_RIGHT
        return f"<answer>{'7777' if many else another(problem.gold)}</answer>"

    def format_score(self, problem: Problem, completion: str) -> float:
        """0 without <answer> tags, 0.5 with them, 1 where they end the completion."""
        tagged = last_tagged(completion, "answer")
        return 0.0 if tagged is None else 1.0 if completion.rstrip().endswith("</answer>") else 0.5


def _answer(completion: str, *, truncated: bool) -> tuple[str | None, str]:
    """The text of the answer and how it is marked. The last line of a truncated completion may be half an answer."""
    text = final_text(completion)
    tagged = last_tagged(text, "answer")
    places = [("tag", tagged), ("box", next(balanced_boxes(text), None))]
    if not truncated:
        places.append(("line", text.strip().rpartition("\n")[2]))
    for method, found in places:
        if found is not None and found.strip():
            return (found.strip() if len(found) <= _MAX_ANSWER else None), method
    return None, "none"
