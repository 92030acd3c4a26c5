"""Tables of the terminal: what rich would draw, cell by cell."""

from __future__ import annotations

import random

import pytest
from rich import box
from rich.console import Console
from rich.table import Table

from tokentape.flows import console
from tokentape.flows.console import print_table

WORDS = (
    "lru",
    "tokens per second",
    "日本語",
    "a-name-that-is-longer-than-any-column-will-be-on-this-terminal",
    "",
    "two\nlines",
    "x ",
)
HEADINGS = ("trace", "hit rate of all", "n")


@pytest.mark.parametrize("width", [30, 48, 80, 160])
def test_a_table_is_what_rich_draws_of_it(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random.seed(width)
    rows = [(random.choice(WORDS), " ".join(random.choices(WORDS, k=4)), str(random.randrange(10**6))) for _ in range(30)]
    widths, narrowed = list[int](), console._narrowed
    monkeypatch.setattr(console, "_narrowed", lambda *told: widths.extend(narrowed(*told)) or widths)
    monkeypatch.setattr(console, "PIPED_WIDTH", width)
    print_table("", HEADINGS, rows, numbers=("n",))
    ours = capsys.readouterr().out

    table = Table(box=box.SIMPLE_HEAD)
    for name, wide in zip(HEADINGS, widths, strict=True):
        table.add_column(name, justify="right" if name == "n" else "left", overflow="fold", width=wide)
    for row in rows:
        table.add_row(*row)
    drawn = Console(width=sum(widths) + 20, highlight=False, markup=False, emoji=False)
    with drawn.capture() as captured:
        drawn.print(table)
    assert ours == captured.get()


def test_a_rule_is_drawn_where_there_are_no_lines_to_draw_it_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("out") / "out.txt"
    with path.open("w", encoding="ascii") as out:
        monkeypatch.setattr("sys.stdout", out)
        print_table("", ("name",), [("lru",)])
    assert path.read_text(encoding="ascii").splitlines()[2].strip() == "------"
