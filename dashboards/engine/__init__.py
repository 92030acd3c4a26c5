"""Figures as data: a figure's TOML file and its rows become a Vega-Lite chart. Here is what the pages' code needs of it."""

from tokentape.dashboards.engine.ask import Ask, Nothing, some
from tokentape.dashboards.engine.figures import Drawn, options, with_figures
from tokentape.dashboards.engine.grammar import in_words, known, turn_of
from tokentape.dashboards.shell import Control, Page

__all__ = ["Ask", "Control", "Drawn", "Nothing", "Page", "in_words", "known", "options", "some", "turn_of", "with_figures"]
