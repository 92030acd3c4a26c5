"""The SliceMoE page: the paper's numbers beside ours, what replays show, what was measured inside a live model."""

from __future__ import annotations

import re

import duckdb
import polars as pl

from tokentape.dashboards import claims as stated
from tokentape.dashboards import orderings
from tokentape.dashboards.shell import Control, Page, with_parts
from tokentape.dashboards.slicemoe import live as measured
from tokentape.dashboards.slicemoe import live_rows, live_words, replayed, rows, words
from tokentape.dashboards.slicemoe import operating as slicemoe_operating
from tokentape.dashboards.slicemoe import tape as slicemoe_tape

FILE, TITLE = "slicemoe.html", "SliceMoE"
NO_ORDERINGS = f"Nothing to draw: no ordering is checked in a model. {replayed.STUDY}"
LEAD = (
    "Bit-sliced expert caching: each expert is cached as a low-precision slice and the bits that complete it. DBSC reads those "
    "only for the experts that matter most to a token. What it gains, beside the paper's numbers, and where it loses."
)


def page(connection: duckdb.DuckDBPyConnection, size: int) -> Page:
    """The page over everything recorded; `size` says how many live setups, fidelity setups and tapes it carries."""
    claims, paper = stated.rows(connection, "slicemoe"), rows.paper_gains(connection)
    names = dict(paper.select("model", "name").unique().iter_rows())
    all_gains = rows.gains(connection)
    gains, sweeps = words.gains(all_gains, paper), words.swept(rows.sweeps(connection))
    flash = words.flash(rows.flash(connection), names)
    warmups = words.warmups(rows.warmups(connection), claims, names)
    live = live_words.live(live_rows.quality(connection), size)
    sparing = live_words.sparing(live)
    schemes = live_words.schemes(live_rows.schemes(connection))
    ordered = orderings.rows(connection, "slicemoe")
    fidelity = live_words.fidelity(live_rows.fidelity(connection), size)
    data = {
        "claims": claims.drop_nulls("replay"),
        "flash": flash,
        "gains": gains,
        "sweeps": sweeps,
        "warmups": warmups,
        "live": live,
        "sparing": sparing,
        "schemes": schemes,
        "orderings": ordered,
        "fidelity": fidelity,
    }
    choices = _choices(sweeps, live, warmups, claims)
    controls = (
        Control("model", "Model", names),
        Control("cache", "Cache"),
        Control("pair", "Bit pair"),
        Control("tau", "Threshold tau of DBSC"),
        Control("steps", "Steps from the start", {name: f"first {name}" for name in warmups["steps"].unique()}, "slider"),
        Control("setup", "Live model"),
    )
    start = Page(FILE, TITLE, LEAD, "page.html", controls=controls, choices=choices).opening
    own = Page(
        FILE,
        TITLE,
        LEAD,
        "page.html",
        figures=(
            replayed.claims(claims),
            replayed.flash(flash),
            measured.budgets(live, start),
            measured.live(live, start),
            measured.sparing(sparing, start),
            replayed.gains(gains, start),
            replayed.sweeps(sweeps, all_gains, start),
            replayed.warmups(warmups, start),
            measured.schemes(schemes, live_rows.paper_schemes(connection)),
            orderings.figure(ordered, NO_ORDERINGS, replayed.SEEDS),
            measured.fidelity(fidelity),
        ),
        controls=tuple(control for control in controls if control.name in start),
        choices=choices,
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )
    return with_parts(own, slicemoe_operating.part(connection), slicemoe_tape.part(connection, size))


def _choices(sweeps: pl.DataFrame, live: pl.DataFrame, warmups: pl.DataFrame, claims: pl.DataFrame) -> tuple[dict[str, str], ...]:
    """Every swept model, cache, pair and tau, the tau that the study chose first; every live setup; every window of steps."""
    chosen = re.findall(r"tau ([0-9.]+)", " ".join(claims["how"].to_list()))
    swept = sweeps.filter(pl.col("configuration") == "DBSC").select("model", "cache", "pair", "tau").unique(maintain_order=True)
    swept = swept.sort(pl.col("tau").is_in(chosen[:1]), descending=True, maintain_order=True)
    return (
        *swept.to_dicts(),
        *({"steps": name} for name in sorted(warmups["steps"].unique(), key=int)),
        *({"setup": name} for name in live["setup"].unique(maintain_order=True)),
    )
