"""Fill the generated parts of docs/conformance.md from the stored results: `python docs/conformance.py`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.conformance.table import count, lines, sentence, tables, title
from bench.conformance.trl import OUT_OF_REACH
from bench.store import write_text
from reports.parts.table import escape_markdown

ROOT = Path(__file__).resolve().parents[1]
WIDEST = 100
"""Characters of names and marks in one table."""


def main() -> None:
    """Entry point."""
    path = ROOT / "docs" / "conformance.md"
    write_text(path, fill(path.read_text(encoding="utf-8")))


def fill(text: str, root: Path = ROOT) -> str:
    """The page with everything between its markers made anew.

    Raises:
        ValueError: a marker is missing.
    """
    ours, trl, bug = (_stored(root, name) for name in ("ours", "trl", "mean_of_means"))
    parts = {
        "checks": _checks(ours),
        "example": "```python\n" + (root / "docs/example_losses.py").read_text(encoding="utf-8") + "```",
        "bug": "\n".join(["```", *lines(bug), "```"]),
        "ours": f"{count(ours)}.\n\n{_tables(ours)}",
        "trl": f"{count(trl)}.\n\n{_tables(trl)}\n\n{_reasons(trl)}\n\n{_out_of_reach(trl)}",
    }
    for name, part in parts.items():
        opening, closing = f"<!-- generated:{name} -->", "<!-- /generated -->"
        before, found, after = text.partition(opening)
        if not found or closing not in after:
            raise ValueError(f"docs/conformance.md: the part {opening} ... {closing} is missing")
        text = f"{before}{opening}\n{part}\n{closing}{after.partition(closing)[2]}"
    return text


def _stored(root: Path, name: str) -> dict[str, Any]:
    return json.loads((root / f"results/conformance/{name}.json").read_text(encoding="utf-8"))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(map(escape_markdown, cells))} |"


def _checks(results: Mapping[str, Any]) -> str:
    rows = [_row([title(check), check["shows"], check["source"]]) for check in results["checks"]]
    return "\n".join(["| Check | Shows | After |", "| :-- | :-- | :-- |", *rows])


def _tables(results: Mapping[str, Any]) -> str:
    """Checks that apply to none of a table's columns are left out of it."""
    found: list[str] = []
    for header, rows in tables(results, WIDEST):
        used = [row for row in rows if set(row[1:]) != {"-"}]
        found.append("\n".join([_row(header), _row([":--"] * len(header)), *map(_row, used)]))
    return "\n\n".join(found)


def _reasons(results: Mapping[str, Any]) -> str:
    """One row a reason: where it is seen first, and in which columns and checks it is seen."""
    rows = [["TRL", "Measured first", "In", "Checks"]]
    for note, found in _grouped(results, ("deviates", "differs"), "note").items():
        first = {key: value for key, value in found[0][1].items() if key != "note"}
        rows.append([note, sentence(first).partition(": ")[2], _columns(found), _names(results, found)])
    return _table(rows)


def _out_of_reach(results: Mapping[str, Any]) -> str:
    """The checks that TRL could fail or pass, but that its own trainers never put to it, and why."""
    rows = [["Cannot happen in TRL, because", "In", "Checks"]]
    for why, found in _grouped(results, ("not applicable",), "detail").items():
        if why in OUT_OF_REACH:
            rows.append([why, _columns(found), _names(results, found)])
    return _table(rows)


Cells = list[tuple[str, Mapping[str, Any]]]
"""A column's name and one of its findings, each."""


def _grouped(results: Mapping[str, Any], statuses: tuple[str, ...], by: str) -> dict[str, Cells]:
    grouped: dict[str, Cells] = {}
    for column in results["implementations"]:
        for finding in column["findings"]:
            if finding["status"] in statuses:
                grouped.setdefault(finding[by], []).append((column["name"], finding))
    return grouped


def _columns(found: Cells) -> str:
    names = list(dict.fromkeys(name for name, _ in found))
    return "; ".join(names) if len(names) <= 8 else f"{len(names)} recipes, see the tables"


def _names(results: Mapping[str, Any], found: Cells) -> str:
    titles = {check["name"]: title(check) for check in results["checks"]}
    return "; ".join(titles[name] for name in dict.fromkeys(one["check"] for _, one in found))


def _table(rows: list[list[str]]) -> str:
    return "\n".join([_row(rows[0]), _row([":--"] * len(rows[0])), *map(_row, rows[1:])])


if __name__ == "__main__":
    main()
