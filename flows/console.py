"""What the terminal shows: tables on stdout, progress and notes on stderr. Imports rich only when something is shown.

Notes and progress are lines of the logger `tokentape`: --quiet shows none, --verbose also every step of a progress. Where stderr
is no terminal, a line begins with its time. With --json what would be tables and sentences is one JSON document.
"""

from __future__ import annotations

import bisect
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

    from tokentape.replay.result import Metric

SHORT = 36  # characters of a first column or a number that is never folded
FOLDED = 12  # of a word in a text that may be folded
BETWEEN, EDGE = 3, 1  # characters that a table needs beside what is in it: per column, and once
PROGRESS_EVERY_S = 10.0  # between lines of progress where there is no terminal
PIPED_WIDTH = 160  # columns of a table that goes to a file or another program

log = logging.getLogger("tokentape")
_document: ContextVar[list[dict[str, Any]] | None] = ContextVar("document", default=None)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        when = "" if sys.stderr.isatty() else time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(record.created))
        print(f"{when}{self.format(record)}", file=sys.stderr, flush=True)


log.addHandler(_Lines())
log.setLevel(logging.INFO)
log.propagate = False


class Shown(str):
    """How a value is shown, and the value: a number in its unit, two of a band, none."""

    value: object

    def __new__(cls, text: str, value: object) -> Self:
        made = super().__new__(cls, text)
        made.value = value
        return made


@contextmanager
def one_document() -> Iterator[None]:
    """What is shown inside becomes one JSON document, printed at the end: tables with their rows by heading, and sentences."""
    shown: list[dict[str, Any]] = []
    outside = _document.set(shown)
    try:
        yield
    finally:
        _document.reset(outside)
    print(json.dumps(shown, indent=1, ensure_ascii=False))


def _told(cell: object) -> object:
    """What JSON can hold of a cell: plain numbers, and null for none and for what is no number."""
    value = cell.value if isinstance(cell, Shown) else cell
    plain = value.item() if hasattr(value, "item") else value
    return None if plain != plain else plain


def print_json(value: object) -> None:
    """One document; dataclasses in it are objects of their fields."""
    print(json.dumps(value, indent=1, default=asdict))


def say(*texts: str) -> None:
    """Sentences on stdout, beside the tables."""
    for text in texts:
        if (document := _document.get()) is None:
            print(text)
        else:
            document.append({"said": text})


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()) -> None:
    """A table on stdout under its title; the columns in `numbers` are right-aligned.

    Columns come by importance: a terminal too narrow for the words of all headings shows the first, and a note names the rest.
    """
    if (document := _document.get()) is not None:
        document.append({"title": title, "rows": [dict(zip(columns, map(_told, row), strict=True)) for row in rows]})
        return
    from rich.cells import cell_len
    from rich.console import Console

    cells = [[str(value) for value in row] for row in rows]
    least = [_least(name, [row[i] for row in cells], i == 0 or name in numbers) for i, name in enumerate(columns)]
    needed = list(itertools.accumulate(width + BETWEEN for width in least))
    width = None if sys.stdout.isatty() else max(PIPED_WIDTH, *(n + EDGE for n in needed))
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    n_shown = max(1, bisect.bisect(needed, console.width - EDGE))
    natural = [max(map(cell_len, (name, *(row[i] for row in cells)))) for i, name in enumerate(columns[:n_shown])]
    widths = _narrowed(natural, least, console.width - EDGE - n_shown * BETWEEN)
    is_right = [name in numbers for name in columns]
    edge = " " * (sum(widths) + BETWEEN * n_shown + EDGE)
    if title:
        print(title)
    print(edge)
    console.print(_lines(columns[:n_shown], widths, is_right, console, is_heading=True), style="bold", soft_wrap=True)
    rule = "-" if console.options.ascii_only else "─"
    print(f" {rule * (len(edge) - 2)} ")
    for row in cells:
        print(_lines(row, widths, is_right, console))
    print(edge)
    if n_shown < len(columns):
        note(f"no room for {', '.join(map(repr, columns[n_shown:]))}; widen the terminal, or pipe the output into a file")


def _lines(
    row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool], console: Console, is_heading: bool = False
) -> str:
    """A row as it is printed; a heading stands on the rule below it."""
    cells = [_folded(text, width, console) for text, width in zip(row, widths, strict=False)]
    height = max(map(len, cells))
    blank = [[""] * (height - len(lines)) for lines in cells]
    full = [more + lines if is_heading else lines + more for lines, more in zip(cells, blank, strict=True)]
    between = " " * BETWEEN
    return "\n".join(f"  {between.join(map(_aligned, line, widths, is_right))}  " for line in zip(*full, strict=True))


def _folded(text: str, width: int, console: Console) -> list[str]:
    """The lines of a cell: rich is asked only where there are several, as it takes its time."""
    from rich.cells import cell_len
    from rich.text import Text

    if cell_len(text) <= width and "\n" not in text:
        return [text]
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")]


def _aligned(text: str, width: int, is_right: bool) -> str:
    from rich.cells import cell_len

    room = " " * (width - cell_len(text))
    return room + text if is_right else text + room


def _least(heading: str, cells: Sequence[str], is_whole: bool) -> int:
    """The width below which a column cannot be read: words of its heading, and cells in one piece or else longer words folded."""
    words = [len(word) for word in heading.split()]
    if is_whole:
        return max([*words, *(len(cell) for cell in cells if len(cell) <= SHORT)], default=1)
    return max([*words, *(min(len(word), FOLDED) for cell in cells for word in cell.split())], default=1)


def _narrowed(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths of columns that share `room`: as wide as they are, or one by one less of what has most to give."""
    widths = list(natural)
    for _ in range(sum(widths) - room):
        widest = max(range(len(widths)), key=lambda i: (widths[i] - least[i], widths[i]))
        widths[widest] -= 1
    return widths


def note(*texts: str) -> None:
    """Lines on stderr, so that stdout holds results only."""
    for text in texts:
        log.info(text)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[..., None]]:
    """A bar on stderr, and where there is no terminal a line every ten seconds, with the time left; call the yielded function
    with (done, total, text beside the bar)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal or log.level != logging.INFO:
        with _progress_lines(label) as tell:
            yield tell
        return
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task, left = bar.add_task(label, total=None, text=""), time_left()
        yield lambda done, total, text="": bar.update(
            task, completed=done, total=total, text=", ".join(filter(None, (text, left(done, total))))
        )


def time_left() -> Callable[[float, float | None], str]:
    """What says, of how much of how much is done, how long the rest takes at the pace since the first time it was asked; nothing
    where that is not known."""
    began: list[tuple[float, float]] = []

    def left(done: float, total: float | None) -> str:
        now = time.monotonic()
        first, since = began[0] if began else (done, now)
        began[:] = [(first, since)]
        if total is None or not first < done < total:
            return ""
        seconds = (total - done) * (now - since) / (done - first)
        for unit, of in (("s", 1.0), ("min", 60.0)):
            if seconds < 100.0 * of:
                return f"{seconds / of:.0f} {unit} left"
        return f"{seconds / 3600.0:.1f} h left"

    return left


@contextmanager
def _progress_lines(label: str) -> Iterator[Callable[..., None]]:
    """What was told last and how long it has taken, from a thread: the work need not come by to be seen going on."""
    began, ended, latest, left = time.monotonic(), threading.Event(), [""], time_left()

    def tell(done: float, total: float | None, text: str = "") -> None:
        share = f"{done:,.0f}" if total is None else f"{done:,.0f} of {total:,.0f}"
        latest[0] = "".join(f"{part}, " for part in (share, text, left(done, total)) if part)
        log.debug(f"{label}: {latest[0]}{time.monotonic() - began:,.0f} s")

    def repeat() -> None:
        while not ended.wait(PROGRESS_EVERY_S):
            note(f"{label}: {latest[0]}{time.monotonic() - began:,.0f} s")

    teller = threading.Thread(target=repeat, daemon=True)
    teller.start()
    try:
        yield tell
    finally:
        ended.set()
        teller.join()


def mebibytes(n_bytes: float) -> Shown:
    return Shown(f"{n_bytes / 2**20:,.1f}", n_bytes / 2**20)


def quantity(value: float, unit: str) -> Shown:
    """A value with its unit as people read them: seconds in ms or us, bytes in decimal GB or MB, joules in mJ."""
    for scaled, factor, floor in SCALES.get(unit, ()):
        if abs(value) >= floor:
            return Shown(f"{value * factor:,.3f} {scaled}", {"value": value, "unit": unit})
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
    return Shown(text, value) if unit == "1" else Shown(f"{text} {unit}", {"value": value, "unit": unit})


def brief(unit: str, value: float, *ends: float) -> str:
    """A value of three digits and the ends of its band, in one unit: `104 (86.1 to 151) 1/s`."""
    at_least = (scale for scale in SCALES.get(unit, ()) if max(map(abs, (value, *ends))) >= scale[2])
    shown, factor, _ = next(at_least, (unit, 1.0, 0.0))
    band = f" ({' to '.join(f'{factor * end:.3g}' for end in ends)})" if ends else ""
    return f"{factor * value:.3g}{band} {shown}"


def number(value: float | str | None, how: str = "", unit: str = "") -> Shown:
    """A number in a format; nothing for none. unit: what is written after it."""
    return Shown("" if value is None else f"{value:{how}}{unit}", value)


def percent(frac: float | None, how: str = ".2f") -> Shown:
    return Shown("" if frac is None else f"{100 * frac:{how}} %", frac)


def band(low: float | None, high: float | None, shown: Callable[[float], str]) -> Shown:
    """From one end to the other, each as it is `shown`; nothing where there is none."""
    if low is None or high is None:
        return Shown("", None)
    return Shown(f"{shown(low)} to {shown(high)}", [low, high])


def print_metrics(title: str, metrics: Mapping[str, Metric], columns: Sequence[str] = ("metric", "value", "band", "of")) -> None:
    """A run's metrics with their names, each with its band and what a share is of."""
    rows = []
    for name, m in metrics.items():
        shown = percent if "_frac" in name else partial(quantity, unit=m.unit)
        rows.append((name, shown(m.value), band(m.low, m.high, shown), m.denominator or ""))
    print_table(title, columns, rows, numbers=columns[1:2])


def print_beside(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Published numbers and ours, with the error that is the last column. rows: words, what is published, ours."""
    shown = [
        (*words, number(published, ".4g"), number(ours, ".4g"), percent(ours / published - 1, "+.1f"))
        for *words, published, ours in rows
    ]
    print_table(title, columns, shown, numbers=columns[-3:])


# unit -> (shown as, factor, from this value on)
SCALES = {
    "s": (("s", 1.0, 1.0), ("ms", 1e3, 1e-3), ("us", 1e6, 0.0)),
    "J": (("J", 1.0, 1.0), ("mJ", 1e3, 1e-3), ("uJ", 1e6, 0.0)),
    "B": (("GB", 1e-9, 1e9), ("MB", 1e-6, 1e6), ("kB", 1e-3, 1e3), ("B", 1.0, 0.0)),
}
