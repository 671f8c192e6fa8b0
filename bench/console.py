"""Tables on the command line."""

from collections.abc import Sequence

import typer


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: ruled on a terminal, plain aligned columns anywhere else."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        for line in columns(header, rows):
            typer.echo(line)
        return
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return [line.rstrip() for line in lines]
