"""Progress on work that takes over two seconds: a bar in a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Gives `advance(done, note)`, to be called with the units done since the last call and a short remark."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(label, total=total, note="")
            yield lambda done, note="": bar.update(task, advance=done, note=note)
        return
    state = {"done": 0, "said": time.monotonic()}

    def advance(done: int, note: str = "") -> None:
        state["done"] += done
        now = time.monotonic()
        if now - state["said"] >= _SECONDS_BETWEEN_LINES or state["done"] >= total:
            state["said"] = now
            print(f"{label}: {state['done']}/{total} {note}".rstrip(), file=sys.stderr, flush=True)

    yield advance
