"""How the Kelle page names and draws KV policies."""

from __future__ import annotations

from collections.abc import Iterable

import altair as alt
import polars as pl

from dashboards import theme
from dashboards.panels import known

SEEDS = "Bands: least to most of the seeds, which read different texts."
NAMES = {
    "full": "whole cache",
    "streaming": "StreamingLLM",
    "h2o": "H2O",
    "tova": "TOVA",
    "snapkv": "SnapKV",
    "random": "random",
    "aep": "AEP",
    "aerp": "AERP",
    "kelle": "Kelle",
    "oracle": "oracle (bound)",
}
WHOLE, FOUR_BITS = "whole cache", "whole cache, 4-bit"
ALONE = {"recent only": "recent only", "2DRP alone": "whole cache, 2DRP"}  # variants that say more than their policy
# Name -> colour, shape, dash.
LOOKS: dict[str, tuple[str, str, list[int]]] = {
    WHOLE: (theme.INK, "circle", [1, 0]),
    FOUR_BITS: (theme.QUIET, "square", [2, 3]),
    "whole cache, 2DRP": (theme.VERMILLION, "square", [2, 3]),
    "StreamingLLM": (theme.GREEN, "triangle-up", [1, 0]),
    "recent only": ("#117733", "triangle-down", [4, 3]),
    "H2O": (theme.ORANGE, "diamond", [1, 0]),
    "TOVA": (theme.PURPLE, "square", [1, 0]),
    "SnapKV": ("#8C510A", "triangle-right", [1, 0]),
    "AEP": (theme.SKY, "circle", [1, 0]),
    "AEP, mean score": (theme.SKY, "circle", [4, 3]),
    "AERP": (theme.BLUE, "cross", [6, 4]),
    "AERP, mean score": (theme.BLUE, "cross", [2, 3]),
    "Kelle": (theme.VERMILLION, "triangle-up", [1, 0]),
    "random": (theme.QUIET, "triangle-left", [1, 0]),
    "random, unprotected": ("#999999", "diamond", [2, 3]),
    "oracle (bound)": (theme.INK, "square", [7, 4]),
}
RECENT = ("StreamingLLM", "recent only")
SCORED = ("H2O", "AEP", "AEP, mean score", "AERP", "AERP, mean score")  # what evicts by accumulated attention
LEGEND = alt.Legend(title=None, orient="top", columns=7, symbolOpacity=1, symbolStrokeWidth=0)


def named(found: pl.DataFrame) -> pl.DataFrame:
    """With `who`: the policy as it is said, with its variant."""
    if found.is_empty():
        return found
    words = pl.col("policy").replace(NAMES)
    both = pl.when(pl.col("variant") == "").then(words).otherwise(pl.format("{}, {}", words, "variant"))
    alone = pl.col("variant").replace_strict(ALONE, default=None, return_dtype=pl.String)
    return found.with_columns(who=pl.coalesce(alone, both))


def first_of(found: pl.DataFrame, column: str, size: int) -> pl.DataFrame:
    """Rows of the first `size` models or tapes."""
    if found.is_empty():
        return found
    return found.filter(pl.col(column).is_in(found[column].unique().sort().head(size).implode()))


def looks(names: Iterable[str], legend: alt.Legend | None = LEGEND) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Colour, shape and dash of `who`, in the house order."""
    there = known(LOOKS, names)
    spare = zip(theme.SPARE_COLOURS * 4, theme.SPARE_SHAPES * 4, strict=True)
    taken = [LOOKS[name] if name in LOOKS else (*next(spare), [1, 0]) for name in there]
    colours, shapes, dashes = ([look[n] for look in taken] for n in range(3))
    return (
        alt.Color("who:N", scale=alt.Scale(domain=there, range=colours), legend=legend),
        alt.Shape("who:N", scale=alt.Scale(domain=there, range=shapes), legend=legend),
        alt.StrokeDash("who:N", scale=alt.Scale(domain=there, range=dashes), legend=legend),
    )


def budget_axis(budgets: list[int], title: str = "budget (tokens per head, log scale)") -> alt.X:
    """Budgets on a logarithmic axis with a tick at each."""
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    return alt.X("budget:Q", title=title, scale=scale, axis=alt.Axis(values=budgets, format=",d", grid=False))
