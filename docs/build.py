"""Make the generated parts of the documentation, from the code and from the runs of a sweep: `make docs`.

The README's tables and its figure, `docs/metrics.md`, `docs/objectives.md`, the thresholds in `docs/health.md`, and
under `results/` the CSV files behind the tables, so that a reader without the runs (and `tests/test_docs.py`) can check
every number that is printed.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.alarms import RULES
from bench.catalog import load_preset, names
from bench.glossary import METRICS
from bench.store import RunRecord, read_sweep, write_bytes, write_text
from bench.thresholds import THRESHOLDS
from reports import overview, pass_maj, readme, settings
from reports.parts.figure import Figure, save
from reports.parts.table import Table, escape_markdown, to_csv

ROOT = Path(__file__).resolve().parents[1]
FIGURE = "pass_maj"
"""The report's figure that the README shows."""

FAMILIES = {
    "": "The update",
    "reward": "Rewards",
    "reward_model": "Reward model",
    "groups": "Groups",
    "len": "Lengths",
    "adv": "Advantages",
    "clip": "Clipping",
    "ratio": "Importance ratio",
    "kl": "Divergence",
    "mismatch": "Sampler against trainer",
    "value": "Critic",
    "dpo": "Preference pairs",
    "tokens": "Cost",
    "completions": "Cost",
    "prompts": "Cost",
    "imitation": "Imitation",
    "ess": "Effective sample size",
    "is_weight": "Sampler against trainer",
    "returns": "Critic",
    "validation": "Validation",
}
"""Headings of the page on metrics, by what stands before the slash of a metric's name."""

METRICS_PAGE = """\
# Metrics

<!-- Made by `make docs` from bench/glossary.py and bench/alarms.py; not to be edited. -->

Every line of a run's `metrics.jsonl` is one optimizer step and holds these names and no others; MLflow and the report
show the same numbers. What is known once a rollout (rewards, groups, lengths, advantages, mismatch, divergence from the
reference, the critic's explained variance) stands in the line of the rollout's first update. Line 0, where there is
one, is the starting model. What could not be measured is `null`, never 0.

A loss near 0 is normal: with centred advantages and a ratio of 1 it is 0 by construction, whatever is learnt, while the
gradient is not 0. Watch `reward/mean`, `validation/pass@1` and `grad_norm`.
"""


ALARMS = """\
## Alarms

Training prints a line when one of these conditions first holds and writes all of them into `alarms.json` when the run
ends; the report counts them over runs. None stops a run; a loss or gradient that is not finite does (`diverged`). The
thresholds are proposals that suit no task exactly. A value that was not recorded raises no alarm; a median needs five
earlier values; the critic is not judged while only it is trained.
"""


def main() -> None:
    """Entry point: the sweep's folder is the one argument; without it, the pages that need no runs."""
    if len(sys.argv) > 2:
        sys.exit("usage: python docs/build.py [SWEEP], such as runs/quickstart")
    try:
        build_pages()
        if len(sys.argv) == 2:
            build(Path(sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))


def build_pages(root: Path = ROOT) -> None:
    """Write the pages that follow from the code alone."""
    write_text(root / "docs" / "metrics.md", metrics_page())
    write_text(root / "docs" / "objectives.md", objectives_page())
    health = root / "docs" / "health.md"
    write_text(health, health_page(health.read_text(encoding="utf-8")))


def build(sweep: Path, root: Path = ROOT) -> None:
    """Write the generated parts below `root` from the runs of `sweep`.

    Raises:
        ValueError: a run has not finished, so its numbers must not be published, or the README has lost a marker.
    """
    runs = read_sweep(sweep)
    unfinished = [f"{run.id} ({run.algorithm}, seed {run.seed}) is {run.status.state}" for run in runs if not done(run)]
    if unfinished:
        raise ValueError(f"{sweep}: {'; '.join(unfinished)}")
    text = (root / "README.md").read_text(encoding="utf-8")
    write_text(root / "README.md", readme.fill(text, runs))
    for block in (block for report in (overview, pass_maj, settings) for block in report.render(runs).blocks):
        if isinstance(block, Table):
            write_text(root / "results" / sweep.name / f"{block.name}.csv", to_csv(block.records))
        elif isinstance(block, Figure) and not block.name.startswith(f"{FIGURE}_change"):
            write_bytes(root / "docs" / "figures" / f"{FIGURE}.png", save(block)["png"])


def done(run: RunRecord) -> bool:
    """Whether the run finished and its final model was evaluated."""
    return run.status.state == "finished" and run.estimates("test") is not None


def metrics_page() -> str:
    """docs/metrics.md: the glossary by family."""
    sections: dict[str, list[str]] = {}
    for name, meaning in METRICS.items():
        family, slash, _ = name.partition("/")
        sections.setdefault(FAMILIES[family if slash else ""], []).append(f"| `{name}` | {escape_markdown(meaning)} |")
    return "\n".join([METRICS_PAGE, *(_section(title, rows) for title, rows in sections.items()), alarms_section()])


def alarms_section() -> str:
    """The rules of bench/alarms.py as a table."""
    rows = [
        f"| {rule.name.replace('_', ' ')} | {escape_markdown(rule.condition)} | {escape_markdown(rule.meaning)} | "
        f"{escape_markdown(rule.advice)} |"
        for rule in RULES
    ]
    header = ["| Alarm | Condition | Meaning | What to try |", "| :-- | :-- | :-- | :-- |"]
    return "\n".join([ALARMS, *header, *rows, ""])


def health_page(text: str) -> str:
    """docs/health.md with the table of bench/thresholds.py between its marks."""
    rows = [
        f"| {name.replace('_', ' ')} | {one.value:g} | {one.read_by} | {escape_markdown(one.reason)} |"
        for name, one in THRESHOLDS.items()
    ]
    table = "\n".join(["| Threshold | Value | Read by | Reason |", "| :-- | --: | :-- | :-- |", *rows])
    (before, rest), end = text.split("<!-- thresholds -->\n"), "<!-- /thresholds -->"
    return f"{before}<!-- thresholds -->\n{table}\n{end}{rest.partition(end)[2]}"


OBJECTIVES_PAGE = """\
# Objectives

<!-- Made by `python docs/build.py` from the files in algorithms/; not to be edited. -->

Every algorithm as it is: the formula in force on each axis and where it is from. `bench show docs/run.yaml
algorithm=NAME` prints the same for a run with its own knobs, `bench diff A B` the knobs in which two differ, and each
run writes its formula into `formula.json`. Axes that an algorithm does not name are off and left out here.

A = advantage, rho = importance ratio, sg = stop-gradient, L = tokens of a completion, Z = denominator of an optimizer
step, R = reward of a completion.
"""


def objectives_page() -> str:
    """docs/objectives.md: every preset with its formula and sources."""
    sections = [OBJECTIVES_PAGE]
    for name in names("algorithms"):
        preset = load_preset(name)
        module = importlib.import_module(f"algorithms.{name}")
        about = (module.__doc__ or "").partition("\n")[2].strip()
        rows = [
            f"| {axis.replace('_', ' ')} | {escape_markdown(line)} | {escape_markdown(preset.source(axis))} |"
            for axis, line in preset.objective.formula().items()
            if axis in preset.sources or axis in ("ratio", "reduction")
        ]
        sections += [
            f"## {name}",
            "",
            preset.title,
            "",
            about,
            "",
            "| Axis | In force | Source |",
            "| :-- | :-- | :-- |",
        ]
        sections += [*rows, ""]
    return "\n".join(sections)


def _section(title: str, rows: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", "| Name | Meaning |", "| :-- | :-- |", *rows, ""])


if __name__ == "__main__":
    main()
