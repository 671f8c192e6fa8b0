"""How a problem is put to a model: with the task's instruction, bare, or after worked examples."""

from collections.abc import Sequence
from typing import Literal

from tasks.parts.problem import Problem

Style = Literal["task", "question", "few_shot"]
NEXT_QUESTION = "\n\nQuestion:"
"""Where a model that goes on in the manner of the examples begins another question."""


def render(problem: Problem, style: Style, shots: Sequence[Problem] = ()) -> str:
    """The text of a prompt, around which a chat template may go.

    Args:
        style: `task`: the task's own prompt, with its instruction. `question`: the question alone, which is the prompt
            where the task tells the two apart. `few_shot`: worked examples, then the question, then "Answer:".
        shots: the examples, in order; only of `few_shot`. One that is the problem itself is left out, so that no
            prompt holds its own answer.

    Raises:
        ValueError: there are examples with another style, or none with `few_shot`, or one has no worked solution.
    """
    if style != "few_shot":
        if shots:
            raise ValueError(f"prompt style {style} takes no worked examples, {len(shots)} were given")
        return problem.prompt if style == "task" else _question(problem)
    others = [shot for shot in shots if shot.id != problem.id]
    if not others:
        raise ValueError(f"prompt style few_shot needs worked examples, none was given for {problem.id}")
    parts: list[str] = []
    for shot in others:
        if shot.solution is None:
            raise ValueError(f"{shot.id} cannot be an example of a few_shot prompt: it has no worked solution")
        parts.append(f"Question: {_question(shot)}\nAnswer: {shot.solution.strip()}")
    return "\n\n".join([*parts, f"Question: {_question(problem)}\nAnswer:"])


def _question(problem: Problem) -> str:
    return problem.prompt if problem.question is None else problem.question
