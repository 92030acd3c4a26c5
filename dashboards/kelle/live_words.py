"""How the Kelle page names and draws KV policies."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Control, known

LIVE = Control("live", "Live model")
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


def named(found: pl.DataFrame) -> pl.DataFrame:
    """With `who`: the policy as it is said, with its variant; ways to refresh are not told apart."""
    words = pl.col("policy").replace(NAMES)
    is_plain = (pl.col("variant") == "") | (pl.col("policy") == "kelle")
    both = pl.when(is_plain).then(words).otherwise(pl.format("{} ({})", words, "variant"))
    alone = pl.col("variant").replace_strict(ALONE, default=None, return_dtype=pl.String)
    return found.with_columns(who=pl.coalesce(alone, both))


def first_of(found: pl.DataFrame, column: str, size: int) -> pl.DataFrame:
    """Rows of the first `size` models or tapes."""
    return found.filter(pl.col(column).is_in(found[column].unique().sort().head(size).implode()))


def whos(found: pl.DataFrame) -> dict[str, Any]:
    """What files of figures call by name: policies in the house order, and which have a dashed line."""
    there = known(LOOKS, found["who"])
    dashed = ", ".join(theme.quote(name) for name in there if name in LOOKS and LOOKS[name][2])
    dash = {"condition": {"test": f"indexof([{dashed}], datum.who) >= 0", "value": [5, 3]}, "value": [1, 0]}
    return {"whos": there, "who_dash": dash}
