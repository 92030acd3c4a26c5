"""What the terminal shows: tables on stdout, progress and notes on stderr. Imports rich only when something is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capture.run import Progress

SHORT = 36  # characters of a first column that is never folded
PIPED_WIDTH = 160  # columns of a table that goes to a file or another program


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()) -> None:
    """A table on stdout under its title; the columns in `numbers` are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        is_short = i == 0 and max((len(str(row[0])) for row in rows), default=0) <= SHORT
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold", no_wrap=is_short)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    if title:
        print(title)
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, markup=False, emoji=False).print(table)


def note(text: str) -> None:
    """A line on stderr, so that stdout holds results only."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(label: str, unit: str = "") -> Iterator[Callable[..., None]]:
    """A bar on stderr, shown on a terminal only; call the yielded function with (done, total, text beside the bar)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=None, text="")
        yield lambda done, total, text="": bar.update(task, completed=done, total=total, text=text)


@contextmanager
def capture_bar(dataset: str) -> Iterator[Callable[[Progress], None]]:
    """A bar for a capture; hand the yielded function to it."""
    with progress_bar(f"capture {dataset}") as show:

        def tell(done: Progress) -> None:
            text = f"{done.requests_done}/{done.requests_total} requests, {done.tokens_per_s:,.0f} tokens/s"
            show(done.requests_done, done.requests_total, text if done.eta_s is None else f"{text}, {done.eta_s:,.0f} s left")

        yield tell


def mebibytes(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.1f}"


def quantity(value: float, unit: str) -> str:
    """A value with its unit as people read them: seconds in ms or us, bytes in decimal GB or MB, joules in mJ."""
    for scaled, factor, floor in SCALES.get(unit, ()):
        if abs(value) >= floor:
            return f"{value * factor:,.3f} {scaled}"
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
    return text if unit == "1" else f"{text} {unit}"


def percent(frac: float) -> str:
    return f"{100 * frac:.2f} %"


# unit -> (shown as, factor, from this value on)
SCALES = {
    "s": (("s", 1.0, 1.0), ("ms", 1e3, 1e-3), ("us", 1e6, 0.0)),
    "J": (("J", 1.0, 1.0), ("mJ", 1e3, 1e-3), ("uJ", 1e6, 0.0)),
    "B": (("GB", 1e-9, 1e9), ("MB", 1e-6, 1e6), ("kB", 1e-3, 1e3), ("B", 1.0, 0.0)),
}
