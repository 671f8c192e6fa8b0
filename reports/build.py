"""Build the whole report of a sweep from its run directories alone: Markdown, one HTML page, tables and figures."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import reports
from bench.store import RunRecord, read_sweep, write_bytes, write_text
from reports.overview import BRACKETS, brief_table
from reports.parts.arms import arms_of, by_task
from reports.parts.figure import Figure, save
from reports.parts.page import Page, html, markdown
from reports.parts.table import Table, to_csv, to_text


@dataclass(frozen=True)
class BuiltReport:
    """A report on disk."""

    paths: tuple[Path, ...]
    """Every file written: the HTML page first, then the Markdown, then tables and figures."""
    summary: str
    """The result tables as plain text, for a terminal."""


def build(sweep_dir: Path, out: Path | None = None) -> BuiltReport:
    """Write the report of a sweep to `out`, by default the sweep's own folder `report`.

    Raises:
        ValueError: there is no run in `sweep_dir`.
        OSError: `out` cannot be written.
    """
    runs = read_sweep(sweep_dir)
    out = sweep_dir / "report" if out is None else out
    pages = pages_of(runs)
    drawings: dict[str, bytes] = {}
    paths: list[Path] = []
    for block in (block for page in pages for block in page.blocks):
        if isinstance(block, Table):
            paths.append(out / "tables" / f"{block.name}.csv")
            write_text(paths[-1], to_csv(block.records))
        elif isinstance(block, Figure):
            for suffix, content in save(block).items():
                paths.append(out / "figures" / f"{block.name}.{suffix}")
                write_bytes(paths[-1], content)
                drawings |= {block.name: content} if suffix == "svg" else {}
    title = f"Sweep {sweep_dir.resolve().name}"
    write_text(out / "report.md", markdown(title, pages))
    write_text(out / "index.html", html(title, pages, drawings))
    return BuiltReport((out / "index.html", out / "report.md", *paths), _summary(runs))


def _summary(runs: Sequence[RunRecord]) -> str:
    """The result table of each task for a terminal, and what its brackets are."""
    tables = [f"{task}\n{to_text(brief_table(task, arms))}" for task, arms in by_task(arms_of(runs)).items()]
    marked = " *: doubtful; the report's captions say why." if any("*" in table for table in tables) else ""
    return "\n\n".join([*tables, "\n".join(wrap(BRACKETS + marked, 100))] if tables else [])


def pages_of(runs: Sequence[RunRecord]) -> list[Page]:
    """The pages of the report in order, without those that have nothing to say."""
    pages = [module.render(runs) for module in report_modules()]
    return [page for page in pages if page.blocks]


def report_modules() -> list[Any]:
    """The modules of this package that are reports, in the order of their positions."""
    names = [module.name for module in pkgutil.iter_modules(reports.__path__) if not module.ispkg]
    modules = [importlib.import_module(f"reports.{name}") for name in names]
    return sorted((module for module in modules if hasattr(module, "render")), key=lambda module: module.position)
