"""The CXL GPU-NDP page: how much faster experts decode where they lie, what routing and low bits allow, and what it rests on."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import polars.selectors as cs

from tokentape.dashboards import orderings
from tokentape.dashboards.cxl_ndp import ablations as cxl_ndp_ablations
from tokentape.dashboards.cxl_ndp import bits as cxl_ndp_bits
from tokentape.dashboards.cxl_ndp import capacity as cxl_ndp_capacity
from tokentape.dashboards.cxl_ndp import checks as cxl_ndp_checks
from tokentape.dashboards.cxl_ndp import lanes as cxl_ndp_lanes
from tokentape.dashboards.cxl_ndp import quality as cxl_ndp_quality
from tokentape.dashboards.cxl_ndp import requests as cxl_ndp_requests
from tokentape.dashboards.cxl_ndp import routing as cxl_ndp_routing
from tokentape.dashboards.cxl_ndp import rows as cxl_ndp_rows
from tokentape.dashboards.cxl_ndp import sweeps as cxl_ndp_sweeps
from tokentape.dashboards.cxl_ndp import throughput as cxl_ndp_throughput
from tokentape.dashboards.cxl_ndp.words import DIGITS, ROUTING, SETUP, setups
from tokentape.dashboards.shell import Page, Part, with_parts

FILE, TITLE = "cxl_ndp.html", "CXL GPU-NDP"
LEAD = (
    "A GPU holds the attention and a few hot experts of every layer; the others lie in a CXL memory that computes. Instead of "
    "experts, activations cross the link. What placing experts by the prompt, running the others at 2 or 3 bits where they "
    "lie, and working at the same time are worth, and what they cost a model."
)


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many layers and loss tables it carries."""
    points, requests, lanes = (ask(connection) for ask in (cxl_ndp_rows.points, cxl_ndp_rows.requests, cxl_ndp_rows.lanes))
    hits, similarity, use = (ask(connection) for ask in (cxl_ndp_rows.hits, cxl_ndp_rows.similarity, cxl_ndp_rows.use))
    published = cxl_ndp_rows.published(connection)
    models, routings = setups(points, requests), setups(hits, similarity, use)
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        controls=(*(SETUP,) * bool(models), *(ROUTING,) * bool(routings)),
        choices=(*({SETUP.name: name} for name in models), *({ROUTING.name: name} for name in routings)),
    )
    start = own.opening
    ordered = orderings.rows(connection, "cxl_ndp")
    bits, losses = cxl_ndp_rows.bits(connection), cxl_ndp_rows.losses(connection)
    whole = with_parts(
        own,
        cxl_ndp_throughput.part(points, published),
        cxl_ndp_requests.part(requests, published, start),
        cxl_ndp_lanes.part(lanes, start),
        cxl_ndp_routing.use_part(use, size, start),
        cxl_ndp_routing.likeness_part(similarity, hits, start),
        cxl_ndp_bits.tables_part(cxl_ndp_rows.tables(connection), cxl_ndp_rows.won(connection), size),
        cxl_ndp_bits.bits_part(bits, losses),
        cxl_ndp_quality.quality_part(cxl_ndp_rows.quality(connection)),
        Part(
            (orderings.figure(ordered, cxl_ndp_quality.NO_ORDERINGS, cxl_ndp_quality.SEEDS),),
            data={} if ordered.is_empty() else {"orderings": ordered},
        ),
        cxl_ndp_quality.accuracy_part(cxl_ndp_rows.accuracy(connection)),
        cxl_ndp_sweeps.sweeps_part(points),
        cxl_ndp_ablations.part(points),
        cxl_ndp_sweeps.others_part(points),
        cxl_ndp_capacity.part(cxl_ndp_rows.capacity(connection), models),
        cxl_ndp_checks.claims_part(connection),
        cxl_ndp_checks.checks_part(cxl_ndp_rows.checks(connection)),
    )
    rounded = {name: frame.with_columns(cs.float().round_sig_figs(DIGITS)) for name, frame in whole.data.items()}
    return replace(whole, data=rounded)
