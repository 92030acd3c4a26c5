"""The SliceMoE page: the paper's numbers beside ours, what replays show, what was measured inside a live model."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from tokentape.dashboards.engine import Ask, Control, Page, options, with_figures
from tokentape.dashboards.slicemoe import rows

FILE, TITLE = "slicemoe.html", "SliceMoE"
LEAD = (
    "Bit-sliced expert caching: each expert is cached as a low-precision slice and the bits that complete it. DBSC reads those "
    "only for the experts that matter most to a token. What it gains, beside the paper's numbers, and where it loses."
)
FIGURES = (
    "claims", "flash", "budgets", "live", "sparing", "gains", "proxies", "sweeps", "warmups", "schemes", "orderings", "fidelity",
    "operating", "early", "critical",
)  # fmt: skip


def asked(connection: duckdb.DuckDBPyConnection, size: int = 16) -> Ask:
    return Ask(connection, Path(__file__).parent, size, {"study": "slicemoe", "size": size})


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many live setups, fidelity setups and tapes it carries."""
    ask = asked(connection, size)
    warmups = ask.made(rows.warmups)
    choices = _choices(ask.made(rows.swept), ask.made(rows.live), warmups, ask("operating")["tau"])
    controls = (
        Control("model", "Model", ask.made(rows.names)),
        Control("cache", "Cache"),
        Control("pair", "Bit pair"),
        Control("tau", "Threshold tau of DBSC"),
        Control("steps", "Steps from the start", {name: f"first {name}" for name in warmups["steps"].unique()}, "slider"),
        Control("setup", "Live model"),
    )
    return with_figures(Page(FILE, TITLE, LEAD, "page.html", controls=controls, choices=choices), ask, FIGURES)


def _choices(sweeps: pl.DataFrame, live: pl.DataFrame, warmups: pl.DataFrame, chosen: pl.Series) -> tuple[dict[str, str], ...]:
    """Every swept model, cache, pair and tau, the tau that the study chose first; every live setup; every window of steps."""
    swept = sweeps.filter(pl.col("configuration") == "DBSC").select("model", "cache", "pair", "tau").unique(maintain_order=True)
    swept = swept.sort(pl.col("tau").is_in(chosen.unique().implode()), descending=True, maintain_order=True)
    return (
        *swept.to_dicts(),
        *options("steps", sorted(warmups["steps"].unique(), key=int)),
        *options("setup", live["setup"].unique(maintain_order=True)),
    )
