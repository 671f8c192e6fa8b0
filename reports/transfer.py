"""Transfer: what training on one task did on others, and what the starting model makes of other prompts."""

from collections.abc import Sequence

from bench.statistics import accuracy_interval
from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.cards import ENDED, also_of, by_model, ended, prompts_of
from reports.parts.page import Block, Page, sections, sentences, slug
from reports.parts.results import gain_cell, seeds_cell
from reports.parts.scores import (
    NAMES,
    bracket,
    cautions,
    evaluated,
    gain,
    measures_of,
    new_seeds,
    score,
    starts_of,
    values,
)
from reports.parts.table import Cell, Table, cells, number, words

position = 28


def render(runs: Sequence[RunRecord]) -> Page:
    """For each task, a table of the other tasks and one of the other prompts; no block where there are none."""
    return Page("transfer", "Transfer", sections(arms_of(runs), _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    blocks: list[Block] = []
    if any(evaluated(arm, f"test_{label}") for label in also_of(arms) for arm in arms):
        blocks.append(_transfer_table(task, arms))
    if prompts_of(arms):
        blocks.append(_prompt_table(task, arms))
    return blocks


def _transfer_table(task: str, arms: Sequence[Arm]) -> Table:
    labels = also_of(arms)
    measures = measures_of(arms, [f"{side}_{label}" for label in labels for side in ("start", "test")])
    rows, records, intervals = [], [], []
    for label in labels:
        for arm in (arm for arm in arms if evaluated(arm, f"test_{label}")):
            gains = [gain(arm, measure, k, f"_{label}") for measure, k in measures]
            intervals += [interval for both in gains for interval in both.values()]
            rows.append(cells(words(label), arm.label, seeds_cell(arm, f"test_{label}"), *map(gain_cell, gains)))
            for (measure, k), both in zip(measures, gains, strict=True):
                final = score(arm, measure, k, f"test_{label}")
                record = {
                    **arm.keys,
                    "also": label,
                    "measure": f"{measure}@{k}",
                    "final": final.mean if final else None,
                }
                for name, interval in both.items():
                    record |= {"change": interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
                records.append(record)
    caption = sentences(
        f"Trained on {task}, evaluated on other tasks: final minus starting model, paired by problem. First bracket: "
        "95 % interval over problems (these checkpoints, new problems). Second: 95 % interval over seeds and problems "
        f"({new_seeds(arms)}, new problems). No correction for several comparisons. How these answers ended stands "
        "under Evaluations.",
        cautions(intervals),
    )
    columns = ("Evaluated on", "Algorithm", "Seeds", *(f"Change in {NAMES[measure]}@{k}" for measure, k in measures))
    return Table(f"transfer_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=2)


def _prompt_table(task: str, arms: Sequence[Arm]) -> Table:
    """The starting model's scores under the training prompt and under each further one."""
    names = {"start": "as in training"} | {f"start_{label}": words(label) for label in prompts_of(arms)}
    measures = measures_of(arms, list(names))
    cards = by_model(arms)
    rows, records, intervals = [], [], []
    for name, prompt in names.items():
        model = "Starting model" + ("" if name == "start" else f", prompt {prompt}")
        for start, estimates in starts_of(arms, name).items():
            label = f"{prompt}{start.removeprefix('Starting model')}"
            found = [accuracy_interval(values(estimates, measure, k)) for measure, k in measures]
            intervals += found
            scores = [Cell(number(one.mean), (bracket(one, within=(0.0, 1.0)),)) for one in found]
            rows.append(cells(label, *scores, ended(cards.get(model, []))))
            for (measure, k), one in zip(measures, found, strict=True):
                record = {"task": task, "prompt": label, "measure": f"{measure}@{k}", "mean": one.mean}
                records.append({**record, "problems_low": one.low, "problems_high": one.high})
    caption = sentences(
        "The starting model under other prompts: a gain over a prompt that does not suit the starting model is no gain "
        "over the model. In brackets: 95 % interval over problems (this checkpoint, new problems).",
        cautions(intervals),
    )
    columns = ("Prompt", *(f"{NAMES[measure]}@{k}" for measure, k in measures), ENDED)
    return Table(f"prompts_{slug(task)}", caption, columns, tuple(rows), tuple(records))
