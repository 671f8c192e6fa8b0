"""The generated parts of a README: result tables and the table of objectives, between markers, from a sweep's runs."""

import re
from collections.abc import Sequence

from bench.store import RunRecord
from reports.formulas import objective_tables
from reports.overview import brief_table
from reports.parts.arms import arms_of, by_task
from reports.parts.table import Table, escape_markdown, to_markdown

END = "<!-- /generated -->"


def fill(text: str, runs: Sequence[RunRecord]) -> str:
    """The text with its generated parts made anew; all else stays as it is.

    A part stands between `<!-- generated:results -->` or `<!-- generated:objectives -->` and `<!-- /generated -->`.

    Raises:
        ValueError: a part is not there, or has no end.
    """
    results = [brief_table(task, arms) for task, arms in by_task(arms_of(runs)).items()]
    for name, tables in (("results", results), ("objectives", objective_tables(runs))):
        start = f"<!-- generated:{name} -->"
        pattern = re.compile(f"({re.escape(start)}\n).*?({re.escape(END)})", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"the text needs the line {start} once, and the line {END} after it")
        content = "\n".join(map(_block, tables))
        text = pattern.sub(lambda match, content=content: f"{match[1]}{content}{match[2]}", text)
    return text


def _block(table: Table) -> str:
    return f"{to_markdown(table)}\n{escape_markdown(table.caption)}\n"
