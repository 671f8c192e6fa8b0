"""A page is what one report has to say: paragraphs, tables and figures, in Markdown and in one offline HTML file."""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from reports.parts.arms import Arm, by_task
from reports.parts.figure import Figure
from reports.parts.table import Table, escape_markdown, to_markdown

LONGEST_NAME = 80
"""Characters of a slug: a file's name has 255 bytes at most, of which others want some."""


@dataclass(frozen=True)
class Heading:
    """The start of a part of a page, such as one task's."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph of plain words."""

    text: str


@dataclass(frozen=True)
class Notes:
    """A list of sentences; `warning` marks what a reader must not overlook."""

    items: tuple[str, ...]
    warning: bool = False


Block = Heading | Text | Notes | Table | Figure


@dataclass(frozen=True)
class Page:
    """One report."""

    name: str
    title: str
    blocks: tuple[Block, ...]


def sections(arms: Sequence[Arm], of_task: Callable[[str, list[Arm]], Sequence[Block]]) -> tuple[Block, ...]:
    """The blocks of each task one after the other, under a heading where there are several."""
    tasks = by_task(arms)
    blocks: list[Block] = []
    for task, members in tasks.items():
        own = of_task(task, members)
        blocks += [*([Heading(task)] if own and len(tasks) > 1 else []), *own]
    return tuple(blocks)


def sentences(*parts: str) -> str:
    """Join the sentences of a caption, leaving out the empty ones."""
    return " ".join(part for part in parts if part)


def markdown(title: str, pages: Sequence[Page]) -> str:
    """The whole report as Markdown that refers to the files beside it."""
    lines = [f"# {escape_markdown(title)}", ""]
    numbers = _numbers(pages)
    for page in pages:
        lines += [f"## {page.title}", ""]
        for block in page.blocks:
            match block:
                case Heading(text):
                    lines += [f"### {escape_markdown(text)}", ""]
                case Text(text):
                    lines += [escape_markdown(text), ""]
                case Notes(items, warning):
                    mark = "**Warning:** " if warning else ""
                    lines += [*(f"- {mark}{escape_markdown(item)}" for item in items), ""]
                case Table(name=name, caption=caption):
                    link = f"[CSV](tables/{name}.csv)"
                    lines += [f"**{numbers[name]}.** {escape_markdown(caption)} {link}", "", to_markdown(block)]
                case Figure(name=name, caption=caption):
                    link = f"![{numbers[name]}](figures/{name}.png)"
                    lines += [
                        link,
                        "",
                        f"**{numbers[name]}.** {escape_markdown(caption)} [SVG](figures/{name}.svg)",
                        "",
                    ]
    return "\n".join(lines).rstrip() + "\n"


def html(title: str, pages: Sequence[Page], drawings: Mapping[str, bytes]) -> str:
    """The whole report as one HTML file that needs no other; `drawings` holds each figure's SVG by name."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.j2").render(
        title=title,
        pages=pages,
        numbers=_numbers(pages),
        drawings={name: base64.b64encode(svg).decode() for name, svg in drawings.items()},
        kind_of=lambda block: type(block).__name__,
    )


def _numbers(pages: Sequence[Page]) -> dict[str, str]:
    """ "Table 1", "Figure 1" and so on for each table and figure, by name."""
    numbers: dict[str, str] = {}
    for kind in (Table, Figure):
        blocks = [block for page in pages for block in page.blocks if isinstance(block, kind)]
        numbers |= {block.name: f"{kind.__name__} {index}" for index, block in enumerate(blocks, start=1)}
    return numbers


def slug(text: str) -> str:
    """A name for files: lower-case letters, digits and underscores, at most 80 of them.

    Where more than punctuation is lost, by the cut or because a letter is foreign, a hash keeps different texts apart.
    """
    signed = re.sub(r"(?<![\w-])-(?=[\d.])", "minus ", text.lower())  # -0.2 and 0.2 are not the same setting
    name = re.sub(r"[^a-z0-9]+", "_", signed).strip("_")
    if len(name) <= LONGEST_NAME and text.isascii():
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - len(digest) - 1]}_{digest}".strip("_")
