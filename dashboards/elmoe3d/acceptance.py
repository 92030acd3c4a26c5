"""The ELMoE-3D page on what a live model accepts (Figure 17): by pool, batch, bits and drafter, replayed against live."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import ACCEPTED, MODES, facts, law_words
from tokentape.dashboards.engine import Ask, Control, Drawn, known, options, sentences, some
from tokentape.dashboards.units import joined, percent

HOTNESS, RANDOM = "hotness", "random"
SCHEME_WORDS = {
    "lsb_aug": "slice, LSB augmentation", "trunc_sym": "slice, truncated", "round_sym": "rounded",
    "base_sym": "quantised at the width",    "amat": "AMAT", "full": "as loaded",
}  # fmt: skip
SCHEME_LOOKS = (theme.VERMILLION, theme.QUIET, theme.BLUE, theme.GREEN, theme.PURPLE, theme.INK)
PAPER_LAW = "paper_law"
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
    gain = ask("published_gain_frac")["gain"].drop_nulls().to_list()
    said = sentences(found, ["live"], lambda of: answer(curve, of, gain[0] if gain else None))
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
    }
    lives = named["live"].unique(maintain_order=True).to_list()
    return Drawn(
        {f"accepted_{curve.name}": found},
        said,
        facts(found) | own,
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
    of_law = found.filter(pl.col("law") == PAPER_LAW).sort("model", "gib", "batch").to_dicts()
    said = [
        f"{row['model']} ({row['scheme']}, {row['machine']}, batch {row['batch']}) accepts {row['accepted_len']:.2f} tokens a "
        f"round: {row['phi_sd']:.2f} × in SD, {row['phi_ar']:.2f} × in AR"
        for row in of_law[:4]
    ]
    return Drawn({"measured": told}, {"": f"{'; '.join(said)}."}, facts(found))


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


def answer(curve: Curve, found: pl.DataFrame, published: float | None) -> str:
    """Means by colour; for pools, hotness over random beside the paper's gain. Rows of one live model."""
    if curve.colour == "pool_policy" and {HOTNESS, RANDOM} <= set(found["pool_policy"]):
        return _over_random(curve, found, published)
    said = []
    for at in found.sort("order", "at")["at"].unique(maintain_order=True):
        of = (
            found.filter(pl.col("at") == at)
            .group_by(curve.colour)
            .agg(pl.mean("value"))
            .sort("value", curve.colour, descending=[True, False])
        )
        words = at if isinstance(at, str) else percent(float(at), 0)
        said.append(f"{words}: {joined([f'{name} {value:.2f}' for name, value in of.rows()])}")
    return f"{'; '.join(said)}."


def _over_random(curve: Curve, found: pl.DataFrame, published: float | None) -> str:
    keys = ["panel", "at"]
    hot, drawn = (found.filter(pl.col("pool_policy") == name).select(*keys, "value") for name in (HOTNESS, RANDOM))
    both = hot.join(drawn, on=keys, suffix="_random").filter(pl.col("value_random") > 0).sort(*keys)
    if both.is_empty():
        return "Hotness and random pools were not measured at the same setting."
    ratios = (both["value"] / both["value_random"]).to_list()
    won = sum(r > 1 for r in ratios)
    paper = f"; the paper says {percent(published, 0)} on GLM-4.7-Flash" if published is not None else ""
    ends = both.row(0, named=True), both.row(-1, named=True)
    words = [f"{row['value']:.2f} for {row['value_random']:.2f} at {_at(curve, row['at'])}" for row in ends]
    return (
        f"Hotness has more accepted than random in {won} of {len(ratios)} settings, "
        f"{percent(sum(ratios) / len(ratios) - 1, 0)} more on average{paper}: {joined(words)}."
    )


def _at(curve: Curve, value: float) -> str:
    return f"batch {value:g}" if curve.x == "batch" else f"a pool of {percent(value, 0)}"
