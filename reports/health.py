"""Run health: what the metrics of each run answer to the same questions, with numbers, thresholds and what to try."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.page import Block, Notes, Page, Text, sections, sentences, slug
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, words

position = 12

SHORT = {"cannot be told": "?", "not measured": NOT_AVAILABLE}
"""Answers that are none, as a narrow column shows them."""


def render(runs: Sequence[RunRecord]) -> Page:
    """For each task the answers of every arm and what asks for a look; then what each question means."""
    told = [run for run in runs if run.metrics]
    if not told:
        return Page("health", "Run health", ())
    return Page("health", "Run health", (*sections(arms_of(runs), _of_task), _meanings(told[0])))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    looks = _look_table(task, arms)
    return [_answer_table(task, arms), looks if looks.rows else Text("No answer asks for a look.")]


def _answer_table(task: str, arms: Sequence[Arm]) -> Table:
    """An arm a row, a question a column, without the questions that no run measures."""
    runs = [run for arm in arms for run in arm.runs]
    names = [_title(found.name) for found in runs[0].health]
    shown = [i for i in range(len(names)) if any(run.health[i].answer != "not measured" for run in runs)]
    rows = [cells(arm.label, *(_answers(arm, i) for i in shown)) for arm in arms]
    rows.append(cells("Threshold", *(_threshold(runs, i) for i in shown)))
    left = [name for i, name in enumerate(names) if i not in shown]
    caption = sentences(
        "Answers of all runs, finished or not; under them the number, median over the runs that have one. Bold: asks "
        "for a look. ?: cannot be told, too few values. n/a: not measured, by this objective or without a reference "
        "or a critic. Where the seeds differ, each answer with its runs. Threshold: noise is that of each run, which "
        "stands in the CSV file with the reasons.",
        f"Not measured in any run: {', '.join(left)}." if left else "",
    )
    columns = ("Algorithm", *(names[i] for i in shown))
    return Table(f"health_{slug(task)}", caption, columns, tuple(rows), tuple(_records(arms)))


def _title(name: str) -> str:
    """A question's name as a heading."""
    return name.upper() if name == "kl" else words(name).capitalize()


def _threshold(runs: Sequence[RunRecord], index: int) -> str:
    """What all runs are held against in one question; each run has its own noise."""
    found = {threshold for run in runs if (threshold := run.health[index].threshold) is not None}
    fixed = "noise" not in "".join(run.health[index].numbers for run in runs)
    return ", ".join(f"{value:g}" for value in sorted(found)) if fixed else "noise"


def _answers(arm: Arm, index: int) -> Cell:
    """What the runs of an arm answer to one question."""
    findings = [run.health[index] for run in arm.runs]
    counts = Counter(SHORT.get(found.answer, found.answer) for found in findings)
    text = (
        next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} {answer}" for answer, count in counts.items())
    )
    values = [found.value for found in findings if found.value is not None]
    return Cell(text, (f"{median(values):.3g}",) if values else (), bold=any(found.look for found in findings))


def _records(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for arm in arms:
        for run in arm.runs:
            about = {**arm.keys, "seed": run.seed, "run": run.id, "state": run.status.state}
            for found in run.health:
                numbers = {"value": found.value, "threshold": found.threshold, "numbers": found.numbers}
                answer = {"name": found.name, "question": found.question, "answer": found.answer, "look": found.look}
                records.append({**about, **answer, "metric": found.metric, **numbers, "text": found.text})
    return records


def _look_table(task: str, arms: Sequence[Arm]) -> Table:
    """A row for each question of an arm of which an answer asks for a look."""
    rows: list[tuple[Cell, ...]] = []
    records: list[dict[str, Any]] = []
    for arm in arms:
        for index, first in enumerate(arm.runs[0].health):
            looks = [run.health[index] for run in arm.runs if run.health[index].look]
            if looks:
                seen = Cell(looks[0].text, (f"To try: {first.advice}.",))
                answer = Cell(looks[0].answer, (looks[0].numbers,))
                rows.append(cells(arm.label, first.question, seen, answer, f"{len(looks)} of {len(arm.runs)}"))
                facts = {"name": first.name, "runs": len(looks), "runs_of_arm": len(arm.runs), "advice": first.advice}
                records.append({**arm.keys, **facts, "text": looks[0].text, "page": first.page})
    caption = (
        "What asks for a look, with the numbers of the first such run. The thresholds are proposals; an answer is a "
        "place to look, no proof of a fault. Runs: those whose answer asks for it, of all runs of the arm."
    )
    columns = ("Algorithm", "Question", "Seen", "Answer", "Runs")
    return Table(f"health_looks_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=4)


def _meanings(run: RunRecord) -> Notes:
    """What each column asks and measures, and the page that says more."""
    return Notes(
        tuple(
            f"{_title(found.name)}: {found.question} Measured: {found.meaning}. More: {found.page}"
            for found in run.health
        )
    )


def health_sentence(runs: Sequence[RunRecord]) -> str:
    """How many runs ask for a look, for the overview; empty where no question has an answer."""
    answered = [run for run in runs if any(found.answer in ("yes", "no") for found in run.health)]
    looks = sum(any(found.look for found in run.health) for run in answered)
    return (
        f"Run health: {looks} of {len(answered)} runs ask for a look; the page of that name has the answers."
        if answered
        else ""
    )
