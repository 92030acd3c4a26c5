"""The ELMoE-3D page past the paper: capacity and bandwidth of HB, context, and the acceptance that speculation needs."""

from __future__ import annotations

import math
from itertools import pairwise

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import DIGITS, HEADLINE_FIT, SCHEMES, TABLE, by_mode, facts
from tokentape.dashboards.engine import Ask, Drawn, known, sentences, some
from tokentape.dashboards.units import mean_of, percent, signed

# Series -> what varies, its title, its unit where the sentence tells it.
SWEEPS = {
    "hb-capacity": ("gib", "capacity of HB (GiB, log scale)", "{:g} GiB"),
    "hb-bandwidth": ("hb_gb_per_s", "bandwidth of HB (GB/s, log scale)", "{:,.0f} GB/s"),
    "context": ("context_tokens", "context of a request (tokens, log scale)", "{:,.0f} tokens"),
}
SAME_FRAC = 1e-6  # values nearer than this are the same


def sweeps(ask: Ask) -> Drawn:
    found = some(_swept(ask.made(rows.points)))
    each = [
        {
            "series": series,
            "title": title,
            "what": title.split(" (")[0],
            "side": "speed-up over the xPU's AR (×, log)" if series == next(iter(SWEEPS)) else None,
            "ticks": _doublings(found.filter(pl.col("series") == series)["at"].unique().sort().to_list()),
            "words": "datum.value / 1024 + 'k'" if series == "context" else "format(datum.value, ',.0f')",
        }
        for series, (_, title, _) in SWEEPS.items()
    ]
    said = sentences(found, ["law", "model", "batch_words"], sweeps_answer)
    return Drawn({"sweeps": _packed(found)}, said, {**facts(found), "each": each})


def _doublings(values: list[float]) -> list[float]:
    return [at for at in values if abs(math.log2(at / values[0]) % 1) < SAME_FRAC]


def alpha(ask: Ask) -> Drawn:
    points = ask.made(rows.points)
    swept = some(points.filter(pl.col("series") == "alpha"))
    found = _with_paper(swept, points)
    forms = _forms(points)
    said = sentences(found, ["model", "batch_words"], lambda of: f"{alpha_answer(of)} {forms}")
    return Drawn({"alpha": _packed_alpha(found)}, said, facts(found))


def _swept(points: pl.DataFrame) -> pl.DataFrame:
    """A row per point and mode with `at`, the value of what varies; the paper's number where the point is the paper's."""
    keys = ["hardware", "model", "scheme", "batch"]
    paper = points.filter((pl.col("series") == TABLE) & (pl.col("fit") == HEADLINE_FIT))
    paper = paper.select(*keys, "published_ar", "published_sd").unique()
    made = []
    for series, (column, _, _) in SWEEPS.items():
        of = points.filter(pl.col("series") == series).drop("published_ar", "published_sd").join(paper, on=keys, how="left")
        at, own = pl.col(column).cast(pl.Float64).alias("at"), _own(points, column)
        long = by_mode(of, "series", "law", "level", "model", "scheme", "batch", "fidelity", at)
        made.append(long.with_columns(published=pl.when((pl.col("at") / own - 1).abs() < SAME_FRAC).then("published")))
    order = ["law", "model", "batch", "series", "scheme", "mode", "at"]
    return (
        pl.concat(made)
        .with_columns(batch_words=pl.col("batch").cast(pl.String))
        .sort(order, descending=[False, True, *[False] * 5])
    )


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per line, its points as lists: a page stays small."""
    keys = ["series", "law", "model", "scheme", "batch_words", "mode"]
    stated = pl.col("published").is_not_null()
    own = [pl.col(name).filter(stated).first().alias(said) for name, said in (("at", "paper_at"), ("published", "published"))]
    return found.group_by(keys, maintain_order=True).agg("at", pl.col("speedup").round_sig_figs(DIGITS), *own)


def _own(points: pl.DataFrame, column: str) -> float:
    """The swept machine's own value, where the paper's numbers stand: Table 3's, on the hardware that the sweeps use."""
    hardware = points.filter(pl.col("series").is_in(list(SWEEPS)))["hardware"]
    own = points.filter((pl.col("series") == TABLE) & pl.col("hardware").is_in(hardware.unique().implode()))[column]
    return float(own[0]) if own.len() else float("nan")


def sweeps_answer(found: pl.DataFrame) -> str:
    """What is fastest at both ends of each sweep; rows of one law, model and batch."""
    said = []
    for series, (_, _, form) in SWEEPS.items():
        of = found.filter(pl.col("series") == series)
        if of.is_empty():
            continue
        ends = []
        for at in (of["at"].min(), of["at"].max()):
            best = (
                of.filter(pl.col("at") == at)
                .sort(pl.col("speedup").round_sig_figs(4), "scheme", descending=[True, False])
                .row(0, named=True)
            )
            ends.append(f"{best['scheme']} in {best['mode']} with {form.format(at)} ({best['speedup']:.1f} ×)")
        said.append(f"from {ends[0]} to {ends[1]}")
    return f"The fastest goes {'; '.join(said)}."


def _with_paper(swept: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    keys = ["hardware", "law", "level", "model", "scheme", "batch"]
    paper = points.filter((pl.col("series") == TABLE) & (pl.col("fit") == HEADLINE_FIT))
    paper = paper.select(*keys, "published_sd", paper_alpha="alpha")
    found = swept.drop("published_sd").join(paper, on=keys, how="left").with_columns(batch_words=pl.col("batch").cast(pl.String))
    kept = ["law", "level", "model", "scheme", "batch", "batch_words", "alpha", "phi_sd", "phi_ar", "published_sd", "paper_alpha"]
    order = ["model", "batch", "scheme", "alpha"]
    return found.select(*kept, "fidelity").sort(order, descending=[True, False, False, False])


def _packed_alpha(found: pl.DataFrame) -> pl.DataFrame:
    """A row per line; AR does not depend on alpha."""
    keys = ["model", "scheme", "batch_words", "phi_ar", "published_sd", "paper_alpha"]
    return found.group_by(keys, maintain_order=True).agg("alpha", pl.col("phi_sd").round_sig_figs(DIGITS))


def needed(alphas: list[float], gains: list[float]) -> float | None:
    """The acceptance at which SD equals AR, linear between two recorded ones; None: at none of them."""
    ordered = list(zip(alphas, gains, strict=True))
    for (before, low), (after, high) in pairwise(ordered):
        if low < 1 <= high:
            return before + (1 - low) / (high - low) * (after - before)
    return alphas[0] if gains and gains[0] >= 1 else None


def alpha_answer(found: pl.DataFrame) -> str:
    """The acceptance that each scheme needs, beside the one it has; rows of one model and batch."""
    said = []
    for name in known(SCHEMES, found["scheme"]):
        of = found.filter(pl.col("scheme") == name).sort("alpha")
        at, has = needed(of["alpha"].to_list(), (of["phi_sd"] / of["phi_ar"]).to_list()), of["paper_alpha"][0]
        need = f"needs {at:.2f}" if at is not None else "never pays"
        said.append(f"{name} {need}" + (f" and has {has:.2f}" if has is not None else ""))
    return f"To beat its own AR, {'; '.join(said)}."


def _forms(points: pl.DataFrame) -> str:
    """Mean error of SD over open rows with the chain instead of the linear form."""
    chain = points.filter(pl.col("series") == "accepted-form").drop_nulls("published_sd")
    if chain.is_empty():
        return ""
    error = chain["phi_sd"] / chain["published_sd"] - 1
    off = f"{percent(mean_of(error.abs()))} on average ({signed(mean_of(error))})"
    return f"With acceptance as a chain, constants not refitted, SD would be off by {off}."
