"""GSM8K: grade school word problems whose answer is one number, stated after "####".

    Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips ...
    Natalia sold 48/2 = 24 clips in May.
    Natalia sold 48+24 = 72 clips altogether in April and May.
    #### 72

Cobbe et al. 2021, arXiv:2110.14168; 7473 training and 1319 test problems, MIT licence.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from tasks.parts.boxed import other_columns, text_of
from tasks.parts.extract import ends_with_marker, gsm8k_answer, without_annotations
from tasks.parts.problem import DatasetTask, Grade, Problem, Source, Split
from tasks.parts.verify import Asked, grade, grade_all, number_of

# All that the 8792 rows hold beyond ASCII, by number because several look like something else.
_BEYOND_ASCII = (
    "\u00a0\u00a2\u00a3\u00b3\u00bc\u00bd\u00be\u00d7\u00e7\u00e8\u00e9\u00f1\u00f7"
    "\u0410\u200b\u2013\u2014\u2018\u2019\u201c\u201d\u2028\u20ac\u2212\u221a"
)
_INSTRUCTION = 'Reason step by step. Then end with one last line that holds only the answer, written "#### <number>".'


class Gsm8k(DatasetTask, frozen=True):
    """GSM8K with the grader of `tasks.parts.verify`, style "gsm8k". Validation is the last 5 % of the training rows."""

    version: ClassVar[int] = 1
    alphabet: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\t\n" + _BEYOND_ASCII
    strict_methods: ClassVar[frozenset[str]] = frozenset({"marker"})
    source: ClassVar[Source] = Source(
        hub_id="openai/gsm8k",
        hub_config="main",
        revision="740312add88f781978c0658806c59bc2815b9866",
        files={"train": "gsm8k_train.jsonl", "validation": "gsm8k_train.jsonl", "test": "gsm8k_test.jsonl"},
        splits={"train": "train[:95%]", "validation": "train[95%:]", "test": "test"},
        columns=("question", "answer"),
    )
    name: Literal["gsm8k"] = "gsm8k"

    def from_row(self, split: Split, index: int, row: Mapping[str, Any]) -> Problem:
        question, answer = text_of(row, "question"), text_of(row, "answer")
        _, marker, stated = answer.rpartition("####")
        gold = number_of(stated) if marker else None
        if gold is None:
            raise ValueError(f'answer does not end with "#### number": {answer[-60:]!r}')
        return Problem(
            id=f"gsm8k/{split}/{index}",
            prompt=f"{question}\n\n{_INSTRUCTION}",
            gold=gold,
            solution=without_annotations(answer),
            question=question,
            columns=other_columns(row, self.source.columns),
        )

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        return grade(completion, gold=problem.gold, style="gsm8k", truncated=truncated)

    def grade_all(self, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        asked = [Asked(completion, problem.gold, truncated) for problem, completion, truncated in items]
        return grade_all(asked, style="gsm8k")

    def corrupted(self, problem: Problem) -> str | None:
        return f"#### {problem.gold}1"

    def format_score(self, problem: Problem, completion: str) -> float:
        """A quarter each: some answer can be found; it follows "####"; that line is the last; "=" shows some working.

        Graded in steps, because a weak model hardly ever keeps the whole form and would then learn nothing from it.
        """
        method = gsm8k_answer(completion).method
        parts = (method != "none", method == "marker", ends_with_marker(completion), "=" in completion)
        return sum(parts) / len(parts)
