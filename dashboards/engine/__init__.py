"""Figures as data: a figure's TOML file and its rows become a Vega-Lite chart. Here is what the pages' code needs of it."""

from tokentape.dashboards.engine.ask import Ask, Nothing, some
from tokentape.dashboards.engine.figures import Drawn, options, with_figures
from tokentape.dashboards.engine.grammar import in_words, known, turn_of
from tokentape.dashboards.engine.pages import declared
from tokentape.dashboards.shell import Control, Figure, Page

__all__ = [
    "Ask", "Control", "Drawn", "Figure", "Nothing", "Page", "declared", "in_words", "known", "options", "some", "turn_of",
    "with_figures",
]  # fmt: skip
