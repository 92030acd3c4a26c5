"""How the Kelle page names and draws systems, readings and parts of the energy, and the line above its charts."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.panels import caption
from tokentape.dashboards.shell import Control

STUDY = "Run: tokentape study kelle, then tokentape load and tokentape site."
NOT_HERE = f"Nothing to draw: not computed, or too little of it fits into the DRAM under this reading. {STUDY}"
DIGITS = 5  # of a number, as the page carries it
BASELINE, KELLE = "Original+SRAM", "Kelle+eDRAM"
SYSTEMS = {
    BASELINE: theme.QUIET,
    "Original+eDRAM": theme.PURPLE,
    "AEP+SRAM": theme.SKY,
    "AERP+SRAM": theme.BLUE,
    KELLE: theme.VERMILLION,
}
# Names are those of answers.mode, so that claims and charts share a menu.
PAPER, ZERO, PHYSICAL = "paper", "paper, nothing fitted", "physical"
READINGS = {
    PAPER: "as the paper counts, calibrated",
    ZERO: "as the paper counts, nothing fitted",
    PHYSICAL: "physically counted, calibrated",
}
READING = Control("reading", "Reading", READINGS)
PARTS = {
    "DRAM": theme.QUIET,
    "weight SRAM": theme.BLUE,
    "KV memory": theme.GREEN,
    "refresh": theme.VERMILLION,
    "array and special functions": theme.ORANGE,
    "leakage": theme.PURPLE,
}
WORKLOADS = ("LA", "TQ", "QP", "PG19")  # by length
LEGEND = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1)
SQUARES = alt.Legend(title=None, orient="top", columns=6, symbolType="square", symbolOpacity=1, symbolStrokeWidth=0)
HEADER = alt.Header(labelFontSize=13, labelLimit=400, labelFontWeight=600)
HERE = "datum.reading === reading"


def source(*more: str, reading: str | None = "reading") -> alt.TitleParams:
    """The line above a chart. reading: a parameter of the chart, or the words themselves; None: it has none."""
    text = ["'source: study kelle'"]
    if reading == "reading":
        text.append(f"'; reading: ' + (({theme.literal(READINGS)})[reading])")
    elif reading is not None:
        text.append(theme.quote(f"; {reading}"))
    return caption(" + ".join([*text, *(theme.quote(f"; {words}") for words in more)]))


def by_reading(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Rows of each reading, in the order of the menu."""
    held = {str(name): of for (name,), of in frame.group_by(["reading"], maintain_order=True)}
    return [(name, held[name]) for name in READINGS if name in held]


def in_full(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Rows of the readings that have every value of `column`: a panel each, and none of them empty."""
    return frame.filter(pl.col(column).n_unique().over("reading") == pl.col(column).n_unique())


def times(value: float) -> str:
    """A gain as it is said."""
    return f"{value:.2f} ×"
