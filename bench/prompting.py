"""How a problem is put to a model: the run's prompt style around it, solved training problems before it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.config import Prompt
from bench.problems import load_problems, num_problems
from tasks.parts.problem import Problem, Task
from tasks.parts.prompts import render

if TYPE_CHECKING:
    from bench.models import LanguageModel

_LOOKED_THROUGH = 256
"""Training problems that are searched for worked solutions."""


def prompt_texts(task: Task, problems: Sequence[Problem], prompt: Prompt) -> list[str]:
    """What the user says for each problem, before any chat template.

    Raises:
        ValueError: the style needs solved training problems and the task has too few.
    """
    solved = solved_problems(task, prompt.shots + 1) if prompt.shots else []
    # A training problem may be one of the examples itself: it is then left out, and the next one takes its place.
    shots = [[shot for shot in solved if shot.id != problem.id][: prompt.shots] for problem in problems]
    return [render(problem, prompt.style, own) for problem, own in zip(problems, shots, strict=True)]


def encode_prompts(model: "LanguageModel", task: Task, problems: Sequence[Problem], prompt: Prompt) -> list[list[int]]:
    """Token ids of the problems' prompts, ready for the completions to follow."""
    return [model.encode_prompt(text) for text in prompt_texts(task, problems, prompt)]


def solved_problems(task: Task, count: int) -> list[Problem]:
    """The first training problems that have a worked solution: the examples of a few-shot prompt.

    Raises:
        ValueError: there are fewer.
    """
    there = num_problems(task, "train")
    looked_at = load_problems(task, "train", 0, _LOOKED_THROUGH if there is None else min(there, _LOOKED_THROUGH))
    solved = [problem for problem in looked_at if problem.solution]
    if len(solved) < count:
        raise ValueError(
            f"prompt.shots: {count - 1} given, but {task.name} has {len(solved)} solved training problems to show"
        )
    return solved[:count]
