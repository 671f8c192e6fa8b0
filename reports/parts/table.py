"""A table is read by people as text with units and by programs as CSV with full numbers: one object holds both."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_AVAILABLE = "n/a"


@dataclass(frozen=True)
class Cell:
    """What stands in a table: the value, and under it in smaller type what qualifies it (an interval, a reason)."""

    text: str
    details: tuple[str, ...] = ()
    bold: bool = False

    def __str__(self) -> str:
        return " ".join((self.text, *self.details))


@dataclass(frozen=True)
class Table:
    """A captioned table."""

    name: str
    """Stem of its CSV file, unique in the whole report."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    records: tuple[Mapping[str, Any], ...]
    """The same facts with full precision, one mapping a line of the CSV file."""
    num_text_columns: int = 1
    """Leading columns that hold words and are set to the left; the others hold numbers."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"table {self.name} is ragged"


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """A row, from plain texts and cells."""
    return tuple(text if isinstance(text, Cell) else Cell(text) for text in texts)


def words(name: str) -> str:
    """A name of the code as words."""
    return name.replace("_", " ")


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """A number with fixed digits, thousands apart, or "n/a" where it is not known."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    rounded = round(value, digits) + 0.0  # adding zero turns -0.0 into 0.0
    return f"{rounded:{'+' if sign else ''},.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent, or "n/a" where it is not known."""
    shown = number(None if share is None else 100 * share, digits)
    return shown if shown == NOT_AVAILABLE else f"{shown} %"


def mebibytes(value: float | None) -> str:
    """Bytes as MiB, or "n/a" where they are not known: never a zero that would win a comparison."""
    return NOT_AVAILABLE if value is None else number(value / 2**20, 1 if value >= 10 * 2**20 else 2)


def to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """CSV with every key that occurs, in order of appearance; what is not known is empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: "" if isinstance(v, float) and not math.isfinite(v) else v for key, v in record.items()})
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """A pipe table; the caller prints the caption."""
    marks = [":--" if index < table.num_text_columns else "--:" for index in range(len(table.columns))]
    lines = [[escape_markdown(name) for name in table.columns], marks]
    lines += [[_markdown(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _markdown(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return " ".join((f"**{text}**" if cell.bold else text, *map(escape_markdown, cell.details)))


def escape_markdown(text: str) -> str:
    """Text that Markdown prints as it is, also inside a table."""
    text = re.sub(r"[\\`*|~$]|\](?=\()", r"\\\g<0>", text.replace("&", "&amp;").replace("<", "&lt;"))
    # An underscore between letters is printed as it is; at the edge of a word it would start emphasis.
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def to_text(table: Table) -> str:
    """The table for a terminal, in aligned columns."""
    grid = [list(table.columns), *([str(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[index]) for row in grid) for index in range(len(table.columns))]
    lines: list[str] = []
    for row in grid:
        pairs = enumerate(zip(row, widths, strict=True))
        padded = [text.ljust(w) if index < table.num_text_columns else text.rjust(w) for index, (text, w) in pairs]
        lines.append("  ".join(padded).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
