"""The Layered Prefill page on what is read: experts that tokens touch together, and bytes and time of a prompt in chunks."""

from __future__ import annotations

from itertools import cycle

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, options, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.words import FORMS, PARTS, TOKENS_OF, of_series

PAPER, ALL_LAYERS = "layered_prefill", "all"  # as rows name a source and a band
BANDS = {ALL_LAYERS: 0, "first third": 1, "middle third": 2, "last third": 3}
PROMPT = "one prompt"  # the series


def coverage(ask: Ask) -> Drawn:
    """Coverage of the paper and of the first tapes."""
    found = some(_named(ask("coverage"), ask.size))
    routed = found["routed"].unique(maintain_order=True).to_list()
    lines = found["line"].unique(maintain_order=True).to_list()
    spare = cycle([theme.BLUE, theme.SKY, theme.GREEN, theme.PURPLE, theme.ORANGE])
    colours = {"the paper's Table 1": theme.VERMILLION, "independent": theme.QUIET}
    own = {
        "lines": lines,
        "colours": [colours[name] if name in colours else next(spare) for name in lines],
        "dashes": [[1, 0] if name.startswith(("recorded", "the paper")) else [6, 4] for name in lines],
    }
    return Drawn(
        {"coverage": found},
        facts=own,
        controls=(Control("routed", "Coverage of"),),
        choices=options("routed", routed),
    )


def chunks(ask: Ask) -> Drawn:
    """One prompt alone: bytes and time against the chunk."""
    found = some(of_series(ask.made(rows.points), PROMPT))
    chunked = pl.col("chunk_tokens").is_not_null()
    size = pl.when(chunked).then(pl.col("chunk_tokens").cast(pl.String)).otherwise("system")
    most = found.filter(chunked).group_by("setting").len().sort("len", "setting")["setting"].to_list()[-1:]
    told = found.filter(pl.col("setting").is_in(most)).with_columns(size=size)
    told = told.sort(chunked, "chunk_tokens", descending=[True, False])
    names = [f"{part}_frac" for part in PARTS if f"{part}_frac" in told.columns]
    kept = told.select("setting", "system", "size", "chunk_tokens", "expert_bytes_per_request", "ttft_mean_s", *names)
    return Drawn({"chunks": kept})


def _named(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """Rows of the first `size` sources with the words of their curve and panel; the paper's first."""
    told = found.filter((pl.col("band") == ALL_LAYERS) | pl.col("form").str.starts_with("recorded")).with_columns(
        routed=pl.when(pl.col("source") == PAPER).then(pl.format("{} (the paper)", "model")).otherwise("source"),
        line=pl.format("{}{}", pl.col("form").replace(FORMS), _band()),
        panel=pl.col("tokens_of").replace(TOKENS_OF),
        place=turn_of("form", FORMS),
        depth=pl.col("band").replace_strict(BANDS, default=len(BANDS), return_dtype=pl.Int64),
        is_paper=pl.col("source") == PAPER,
    )
    told = told.sort("is_paper", "routed", "place", "depth", "line", "tokens_of", "n_tokens", descending=[True, *[False] * 6])
    kept = told["routed"].unique(maintain_order=True).head(size)
    return told.filter(pl.col("routed").is_in(kept.implode())).drop("is_paper", "source", "depth")


def _band() -> pl.Expr:
    """A band of layers, as it follows the name of a curve."""
    return pl.when(pl.col("band") == ALL_LAYERS).then(pl.lit("")).otherwise(pl.format(", {}", "band"))
