"""How the Kelle page names and draws KV policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.panels import known
from tokentape.dashboards.shell import Control

LIVE = Control("live", "Live model")
SEEDS = "Bands: least to most of the seeds, which read different texts."
RANGE = "Means over seeds, which read different texts; the tooltip of a mark has the least and the most of them."
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
WHOLE, FOUR_BITS = "whole cache", "whole cache (4-bit)"
ALONE = {"recent only": "recent only", "2DRP alone": "whole cache (2DRP)"}  # variants that say more than their policy
# Name -> colour, shape, whether its line is dashed.
LOOKS: dict[str, tuple[str, str, bool]] = {
    WHOLE: (theme.INK, "circle", False),
    FOUR_BITS: (theme.QUIET, "square", True),
    "whole cache (2DRP)": (theme.VERMILLION, "square", True),
    "StreamingLLM": (theme.GREEN, "triangle-up", False),
    "recent only": ("#117733", "triangle-down", True),
    "H2O": (theme.ORANGE, "diamond", False),
    "TOVA": (theme.PURPLE, "square", False),
    "SnapKV": ("#8C510A", "triangle-right", False),
    "AEP": (theme.SKY, "circle", False),
    "AEP (mean score)": ("#882255", "circle", True),
    "AERP": (theme.BLUE, "cross", True),
    "AERP (mean score)": ("#332288", "cross", True),
    "Kelle": (theme.VERMILLION, "triangle-up", False),
    "random": (theme.QUIET, "triangle-left", False),
    "random (unprotected)": ("#999999", "diamond", True),
    "oracle (bound)": (theme.INK, "square", True),
}
RECENT = ("StreamingLLM", "recent only")
SCORED = ("H2O", "AEP", "AEP (mean score)", "AERP", "AERP (mean score)")  # what evicts by accumulated attention
LEGEND = alt.Legend(title=None, orient="top", columns=5, symbolOpacity=1, symbolStrokeWidth=0)


def named(found: pl.DataFrame) -> pl.DataFrame:
    """With `who`: the policy as it is said, with its variant; ways to refresh are not told apart."""
    if found.is_empty():
        return found
    words = pl.col("policy").replace(NAMES)
    is_plain = (pl.col("variant") == "") | (pl.col("policy") == "kelle")
    both = pl.when(is_plain).then(words).otherwise(pl.format("{} ({})", words, "variant"))
    alone = pl.col("variant").replace_strict(ALONE, default=None, return_dtype=pl.String)
    return found.with_columns(who=pl.coalesce(alone, both))


def first_of(found: pl.DataFrame, column: str, size: int) -> pl.DataFrame:
    """Rows of the first `size` models or tapes."""
    if found.is_empty():
        return found
    return found.filter(pl.col(column).is_in(found[column].unique().sort().head(size).implode()))


def looks(names: Iterable[str], legend: alt.Legend | None = LEGEND) -> tuple[alt.Color, alt.Shape, Any]:
    """Colour, shape and dash of `who`, in the house order."""
    there = known(LOOKS, names)
    spare = zip(theme.SPARE_COLOURS * 4, theme.SPARE_SHAPES * 4, strict=True)
    taken = {name: LOOKS[name] if name in LOOKS else (*next(spare), False) for name in there}
    colours, shapes = [look[0] for look in taken.values()], [look[1] for look in taken.values()]
    dashed = ", ".join(theme.quote(name) for name, (_, _, is_dashed) in taken.items() if is_dashed)
    dash = alt.when(f"indexof([{dashed}], datum.who) >= 0").then(alt.value([5, 3])).otherwise(alt.value([1, 0]))
    return (
        alt.Color("who:N", scale=alt.Scale(domain=there, range=colours), legend=legend),
        alt.Shape("who:N", scale=alt.Scale(domain=there, range=shapes), legend=legend),
        dash,
    )


def budget_axis(budgets: list[int], title: str = "budget (tokens per head, log scale)") -> alt.X:
    """Budgets on a logarithmic axis with a tick at each."""
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    return alt.X("budget:Q", title=title, scale=scale, axis=alt.Axis(values=budgets, format=",d", grid=False))
