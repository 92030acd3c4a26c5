"""The ELMoE-3D page on what a live model accepts (Figure 17): by pool, batch, bits and drafter, replayed against live."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import ACCEPTED, MODES, facts, law_words
from tokentape.dashboards.engine import Ask, Control, Drawn, known, options, some

HOTNESS = "hotness"
SCHEME_WORDS = {
    "lsb_aug": "slice, LSB augmentation", "trunc_sym": "slice, truncated", "round_sym": "rounded",
    "base_sym": "quantised at the width",    "amat": "AMAT", "full": "as loaded",
}  # fmt: skip
SCHEME_LOOKS = (theme.VERMILLION, theme.QUIET, theme.BLUE, theme.GREEN, theme.PURPLE, theme.INK)
RUNS = {"pool": "live run", "replay": "replayed from a tape"}  # of a series


@dataclass(frozen=True)
class Curve:
    """A figure of lines: its series and metric, what varies along x and what a colour means."""

    name: str
    series: str
    metric: str
    x: str
    colour: str


def accepted(ask: Ask, **given: str) -> Drawn:
    """The first live models; each figure's menu is all of theirs. given: fields of a Curve."""
    curve = Curve(**given)
    named = ask.made(_named)
    found = some(_of(named, curve))
    panels = found["panel"].unique(maintain_order=True).to_list()
    names = known(dict.fromkeys((*SCHEME_WORDS.values(), *RUNS.values()), ""), found[curve.colour])
    spare = cycle(SCHEME_LOOKS)
    own = {
        "of": curve.colour,
        "names": names,
        "colours": [ACCEPTED[name] if name in ACCEPTED else next(spare) for name in names],
        "panels": panels,
        "facet": "panel:N | - | sort=@panels | @HEADER" if len(panels) > 1 else "",
        "width": 430 if len(panels) > 1 else 680,
        "stated": ask("published_gain_frac").drop_nulls("gain"),
        "x_words": "batch {at:g}" if curve.x == "batch" else "a pool of {at:percent 0}",
    }
    lives = named["live"].unique(maintain_order=True).to_list()
    return Drawn(
        {f"accepted_{curve.name}": found},
        facts=facts(found) | own,
        controls=(Control("live", "Live model"),),
        choices=options("live", lives),
    )


def measured(ask: Ask) -> Drawn:
    found = some(ask.made(rows.points).filter(pl.col("series") == "measured"))
    told = pl.concat(
        found.select(
            "model", "machine", "scheme", "batch", "law", "fidelity", "accepted_len", mode=pl.lit(words), speedup=f"phi_{mode}",
            label=pl.format("{}, {}, batch {}: {}", "model", "machine", "batch", law_words()),
        )
        for mode, words in MODES.items()
    )  # fmt: skip
    return Drawn({"measured": told}, facts=facts(found), said=found)


def _named(ask: Ask) -> pl.DataFrame:
    """With `live`, the words of schemes, runs and drafts, and the panel that a setting belongs to."""
    found = ask("acceptance")
    tree = pl.when(pl.col("width") > 1).then(pl.format("tree of width {}", "width")).otherwise(pl.lit("chain"))
    sampled = pl.when(pl.col("temperature") > 0).then(pl.format("sampled at {}", "temperature")).otherwise(pl.lit("greedy"))
    told = found.with_columns(
        live=pl.format("{}, {}", "model", "dataset"),
        scheme_words=pl.col("scheme").replace(SCHEME_WORDS),
        run=pl.col("series").replace(RUNS),
        bits=pl.format("{} to {} bits", "bits_high", "bits_low"),
        panel=pl.format("{}, {}", tree, sampled),
        how=pl.format("{}, {}", tree, sampled),
    )
    kept = told["live"].unique().sort().head(ask.size)
    return told.filter(pl.col("live").is_in(kept.implode()))


def _of(found: pl.DataFrame, curve: Curve) -> pl.DataFrame:
    """Rows of one figure; a panel per draft where the figure has several and x does not tell them apart."""
    is_of = pl.col("series") == curve.series
    if curve.colour == "run":  # a replay stands beside the live run of the same pools
        is_of = pl.col("series").is_in(list(RUNS)) & (pl.col("pool_policy") == HOTNESS)
    rows = found.filter(is_of & pl.col("metric").is_in([curve.metric, f"tree_{curve.metric}"]))
    is_single = curve.series in ("bits", "drafters", "replay")
    panel = pl.lit("") if is_single else pl.col("panel")
    order = pl.col("bits_low").cast(pl.Int64) if curve.x == "bits" else pl.lit(0)
    kept = ["live", "n_seeds", "n_rounds", "fidelity", "value", "low", "high", curve.colour]
    return rows.select(*kept, pl.col(curve.x).alias("at"), panel=panel, order=-order).sort(
        "live", "panel", curve.colour, "order", "at", maintain_order=True
    )
