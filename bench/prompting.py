"""How a problem is put to a model: the run's prompt style around it, solved training problems before it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.config import Prompt
from bench.overlap import question_words
from bench.problems import load_problems, num_problems
from tasks.parts.problem import Problem, Split, Task
from tasks.parts.prompts import NEXT_QUESTION, render

if TYPE_CHECKING:
    from bench.generate import Completion
    from bench.models import LanguageModel

_LOOKED_THROUGH = 256
"""Training problems that are searched for worked solutions."""


def prompt_texts(task: Task, problems: Sequence[Problem], prompt: Prompt) -> list[str]:
    """What the user says for each problem, before any chat template.

    Raises:
        ValueError: the style needs solved training problems and the task has too few.
    """
    if not prompt.shots:
        return [render(problem, prompt.style) for problem in problems]
    solved = [(question_words(shot), shot) for shot in solved_problems(task, prompt.shots + 1)]
    texts: list[str] = []
    for problem in problems:
        # A problem may itself be an example, under its own id or another's: the next one then takes its place.
        own = question_words(problem)
        shots = [shot for words, shot in solved if words != own][: prompt.shots]
        texts.append(render(problem, prompt.style, shots))
    return texts


def stop_of(prompt: Prompt) -> str | None:
    """What ends a completion besides the end token: after worked examples, the beginning of another question."""
    return NEXT_QUESTION if prompt.shots else None


def ended(model: "LanguageModel", completion: "Completion", stop: str | None) -> "tuple[Completion, str]":
    """A completion up to where it said `stop`, and its text without that; one that did has ended by itself.

    Its tokens go as far as the one that completes the stop string, which the policy chose as it chooses an end token.
    """
    text = model.decode(completion.token_ids)
    if stop is None or stop not in text:
        return completion, text
    ids = completion.token_ids
    count = bisect_left(range(len(ids) + 1), True, key=lambda count: stop in model.decode(ids[:count]))
    cut = replace(completion, token_ids=ids[:count], logps=completion.logps[:count], terminated=True)
    return cut, text[: text.index(stop)]


def encode_prompts(model: "LanguageModel", task: Task, problems: Sequence[Problem], prompt: Prompt) -> list[list[int]]:
    """Token ids of the problems' prompts, ready for the completions to follow."""
    return [model.encode_prompt(text) for text in prompt_texts(task, problems, prompt)]


def solved_problems(task: Task, count: int) -> list[Problem]:
    """The first different training problems that have a worked solution: the examples of a few-shot prompt.

    Raises:
        ValueError: there are fewer.
    """
    there = num_problems(task, "train")
    looked_at = load_problems(task, "train", 0, _LOOKED_THROUGH if there is None else min(there, _LOOKED_THROUGH))
    solved: dict[str, Problem] = {}
    for problem in looked_at:
        if problem.solution:
            solved.setdefault(question_words(problem), problem)
    if len(solved) < count:
        raise ValueError(
            f"prompt.shots: {count - 1} given, but {task.name} has {len(solved)} solved training problems to show"
        )
    return list(solved.values())[:count]


def tells_apart(task: Task, split: Split) -> bool:
    """Whether the task's prompts are more than its questions; judged by the first problem of the split."""
    try:
        (problem,) = load_problems(task, split, 0, 1)
    except ValueError:
        return True  # what is wrong with the data is said elsewhere
    return problem.question is not None and problem.question != problem.prompt
