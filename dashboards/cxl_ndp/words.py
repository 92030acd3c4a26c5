"""How the CXL GPU-NDP page names and draws systems, placements and rules, and the line above its charts."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.panels import caption
from tokentape.dashboards.shell import Control

STUDY = "Run: tokentape study cxl_ndp, then tokentape load and tokentape site."
DIGITS = 4  # of a number, as the page carries it
HEADLINE = "headline"
MONDE, HOBBIT = "MoNDE", "HOBBIT"
OURS = ("OURS-2", "OURS-3")
SYSTEMS = {
    "OURS-2": theme.VERMILLION,
    "OURS-3": theme.ORANGE,
    MONDE: theme.BLUE,
    "MoNDE never": theme.SKY,
    "MoNDE balance": theme.GREEN,
    "MoNDE always": theme.PURPLE,
    HOBBIT: theme.QUIET,
}
MAIN = ("OURS-2", "OURS-3", MONDE, HOBBIT)
PLACEMENTS = {
    "prefill_guided": "prefill-guided",
    "static_global": "static by frequency",
    "shuffled_prompts": "by another prompt",
    "random": "random",
    "ema": "reactive, EMA",
    "always": "reactive, always",
    "balance": "reactive, balance",
    "never": "never migrate",
    "oracle": "oracle (bound)",
}
RULES = {
    "prefix_split": ("selector (prefix split)", theme.VERMILLION),
    "by_use": ("selector, losses by use", theme.ORANGE),
    "uniform": ("uniform", theme.BLUE),
    "optimum": ("optimum (bound)", theme.INK),
    "greedy": ("greedy", theme.GREEN),
    "reversed": ("reversed order", theme.PURPLE),
}
SETUP, ROUTING = Control("setup", "Model"), Control("routing", "Routing")
TABLE, GIVEN, SHARED = Control("table", "Losses"), Control("given", "Bits of"), Control("shared", "Bits given to")
LEGEND = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1)
SQUARES = alt.Legend(title=None, orient="top", columns=7, symbolType="square", symbolOpacity=1, symbolStrokeWidth=0)


def source(*more: str, menu: Control | None = None) -> alt.TitleParams:
    """The line above a chart. menu: the one that says which rows it shows."""
    said = ["'source: study cxl_ndp'"] + ([f"'; ' + {menu.name}"] if menu else [])
    return caption(" + ".join([*said, *(theme.quote(f"; {words}") for words in more)]))


def setups(*frames: pl.DataFrame, by: str = "setup") -> list[str]:
    """Names of the frames' rows by rank; of the paper's models the smaller one first."""
    there = [frame.select(by, "rank") for frame in frames if not frame.is_empty()]
    found = pl.concat(there).unique() if there else pl.DataFrame(schema={by: pl.String, "rank": pl.Int32})
    return found.sort("rank", by, descending=[False, True])[by].to_list()


def times(value: float) -> str:
    """A gain as it is said."""
    return f"{value:.1f} ×"
