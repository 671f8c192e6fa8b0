"""What is wrong with a run's prompts and evaluations: names that collide, examples that are not there, missing data."""

from collections.abc import Iterator

from bench.config import Run
from tasks.parts.problem import DatasetTask, Task


def evaluation_mistakes(run: Run) -> Iterator[str]:
    """One line for each knob of the prompts and evaluations that cannot be or could not act."""
    config = run.evaluation
    largest = config.all_ks[-1]
    if largest > config.samples:
        yield (
            f"evaluation.ks: {largest} given, must be at most evaluation.samples = {config.samples}, because "
            f"Pass@K needs K samples of each problem; {4 * largest} samples keep its error small"
        )
    if config.temperature == 0 and config.top_p < 1:
        yield f"evaluation.top_p: {config.top_p} given, but evaluation.temperature is 0 (greedy), so it could not act"
    if config.start_prompts and not config.start:
        yield "evaluation.start_prompts: given, but evaluation.start is false, so they could not act"
    for label, task in config.also.items():
        if task == run.task:
            yield f"evaluation.also.{label}: is the run's own task, which is evaluated anyway"
    labels = [prompt.label for prompt in config.start_prompts]
    if run.prompt in config.start_prompts:
        yield f"evaluation.start_prompts: {run.prompt.label} is the run's own prompt, which `start` has already"
    for label in sorted({label for label in labels if labels.count(label) > 1} | (config.also.keys() & set(labels))):
        yield f"evaluation: {label} names two evaluations of the starting model; each needs a name of its own"


def prompt_mistakes(run: Run) -> Iterator[str]:
    """A line if a prompt shows solved training problems and the task's data, where it is at hand, has too few."""
    from bench.prompting import solved_problems, tells_apart

    for path, prompt in [
        ("prompt", run.prompt),
        *(("evaluation.start_prompts", p) for p in run.evaluation.start_prompts),
    ]:
        if prompt.style == "question" and at_hand(run.task) and not tells_apart(run.task, "train"):
            yield f"{path}.style: question given, but a prompt of {run.task.name} is its question, so it could not act"
        tasks = [run.task, *run.evaluation.also.values()] if path == "prompt" else [run.task]
        for task in [task for task in tasks if prompt.shots and at_hand(task)]:
            try:
                solved_problems(task, prompt.shots + 1)
            except ValueError as error:
                yield f"{path}.shots: {error}"


def at_hand(task: Task) -> bool:
    """Whether the task's problems can be told without a network."""
    return not (isinstance(task, DatasetTask) and task.path is None)
