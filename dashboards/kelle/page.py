"""The Kelle page: what five systems gain and lose in a cost model, what eviction does to recorded and live attention, and both
beside the paper's numbers."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import polars as pl
import polars.selectors as cs

from tokentape.dashboards import orderings
from tokentape.dashboards.kelle import checks as kelle_checks
from tokentape.dashboards.kelle import explorer as kelle_explorer
from tokentape.dashboards.kelle import flips as kelle_flips
from tokentape.dashboards.kelle import gains as kelle_gains
from tokentape.dashboards.kelle import kept as kelle_kept
from tokentape.dashboards.kelle import live_rows as kelle_live_rows
from tokentape.dashboards.kelle import memory as kelle_memory
from tokentape.dashboards.kelle import quality as kelle_quality
from tokentape.dashboards.kelle import recompute as kelle_recompute
from tokentape.dashboards.kelle import refresh as kelle_refresh
from tokentape.dashboards.kelle import rows as kelle_rows
from tokentape.dashboards.kelle import tables as kelle_tables
from tokentape.dashboards.kelle.live_words import LIVE, SEEDS, named
from tokentape.dashboards.kelle.words import DIGITS, READING, READINGS
from tokentape.dashboards.shell import Page, Part, with_parts

FILE, TITLE = "kelle.html", "Kelle"
LEAD = (
    "KV caches on embedded DRAM: tokens that heads hardly attend to are evicted, popular ones recomputed from their layer input, "
    "and what stays is refreshed as rarely as its worth allows. What that saves, what it costs in quality, and what the paper's "
    "numbers ask for."
)


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many tapes and live models it carries."""
    held = kelle_rows.readings(connection)
    quality, pareto = kelle_live_rows.quality(connection), named(kelle_live_rows.pareto(connection))
    models = sorted({*quality["model"], *pareto["model"]})[:size]
    quality, pareto = (found.filter(pl.col("model").is_in(models)) for found in (quality, pareto))
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        controls=(*((READING,) if held else ()), *((LIVE,) if models else ())),
        choices=(*({"reading": name} for name in READINGS if name in held), *({"live": name} for name in models)),
    )
    start = own.opening
    ordered = orderings.rows(connection, "kelle")
    whole = with_parts(
        own,
        kelle_gains.part(kelle_rows.headline(connection), kelle_rows.published(connection), kelle_rows.chip(connection), start),
        kelle_quality.part(quality, kelle_live_rows.table_3(connection), pareto, start),
        kelle_flips.part(quality, kelle_live_rows.table_4(connection), start),
        Part(
            (orderings.figure(ordered, kelle_quality.NO_ORDERINGS, SEEDS),),
            data={} if ordered.is_empty() else {"orderings": ordered},
        ),
        kelle_kept.part(
            kelle_live_rows.kept(connection),
            kelle_live_rows.timeline(connection),
            kelle_live_rows.divergence(connection),
            size,
        ),
        kelle_explorer.part(kelle_rows.explorer(connection), start),
        kelle_tables.part(kelle_rows.tables(connection), kelle_rows.sweeps(connection), start),
        kelle_memory.part(kelle_rows.sram(connection), kelle_rows.memory(connection), kelle_rows.settings(connection), start),
        kelle_refresh.part(kelle_rows.retention(connection), kelle_rows.lifetimes(connection)),
        kelle_recompute.part(kelle_rows.recompute(connection), kelle_rows.requests(connection), start),
        kelle_checks.part(
            connection,
            kelle_rows.checks(connection),
            kelle_rows.sensitivity(connection),
            kelle_rows.chip_parts(connection),
            start,
        ),
    )
    return replace(
        whole, data={name: frame.with_columns(cs.float().round_sig_figs(DIGITS)) for name, frame in whole.data.items()}
    )
