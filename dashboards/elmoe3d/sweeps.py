"""The ELMoE-3D page past the paper: an explorer, sweeps over HB and context, and the acceptance that speculation needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import DIGITS, HEADLINE_FIT, SWEEPS, TABLE, by_mode, facts
from tokentape.dashboards.engine import Ask, Control, Drawn, some

SAME_FRAC = 1e-6  # values nearer than this are the same
KEYS = ["law", "model", "gib", "batch"]
PACKED = ["gib", "batch", "speedup", "published"]
SAME_DIGITS = 5  # speed-ups alike to so many are a tie, which goes to the first in the house order
OPENS_AT = (8.0, 8)  # GiB and batch: on the paper's larger machine


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
    return Drawn({"sweeps": _packed(found)}, facts={**facts(found), "each": each}, said=found)


def _doublings(values: list[float]) -> list[float]:
    return [at for at in values if abs(math.log2(at / values[0]) % 1) < SAME_FRAC]


def alpha(ask: Ask) -> Drawn:
    points = ask.made(rows.points)
    swept = some(points.filter(pl.col("series") == "alpha"))
    found = _with_paper(swept, points)
    chain = points.filter(pl.col("series") == "accepted-form").drop_nulls("published_sd")
    told = found.with_columns(needs=needed().over("model", "batch", "scheme"))
    return Drawn({"alpha": _packed_alpha(found)}, facts=facts(found) | {"chain": chain}, said=told)


def needed() -> pl.Expr:
    """The acceptance at which SD equals AR, linear between two recorded ones; null: at none of them. By ascending alpha."""
    alpha, gain = pl.col("alpha"), pl.col("phi_sd") / pl.col("phi_ar")
    before, low = alpha.shift(), gain.shift()
    crossing = (before + (1 - low) / (gain - low) * (alpha - before)).filter((low < 1) & (gain >= 1)).first()
    return pl.coalesce(crossing, alpha.filter((gain.first() >= 1) & (alpha == alpha.first())).first())


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


def explorer(ask: Ask) -> Drawn:
    found = some(_grid(ask.made(rows.points)))
    best = found.filter(pl.col("is_winner")).select(*KEYS, "scheme", "mode", "speedup", letter=pl.col("mode").str.head(1))
    return Drawn(
        {"grid": _packed_grid(found), "grid_best": best},
        facts={**facts(found), "chosen": "where datum.gib === toNumber(size) && datum.batch === toNumber(at)"},
        said=found,
        controls=(
            Control("size", "Size of HB", {f"{gib:g}": f"{gib:g} GiB" for gib in found["gib"].unique()}, "slider"),
            Control("at", "Batch, explored", {f"{b}": f"{b} requests" for b in found["batch"].unique()}, "slider"),
        ),
        choices=tuple(_choices(found)),
    )


def _grid(points: pl.DataFrame) -> pl.DataFrame:
    """A row per size, batch, scheme and mode on the machine that the sweep over capacity used."""
    there = points.filter(pl.col("series") == "hb-capacity")["hardware"].unique().implode()
    own = points.filter(pl.col("hardware").is_in(there))
    paper = (
        own.filter(pl.col("series") == TABLE).select("model", "scheme", "batch", "gib", "published_ar", "published_sd").unique()
    )
    swept = own.filter(pl.col("series").is_in(["hb-capacity", "batch"])).drop("published_ar", "published_sd")
    once = swept.unique([*KEYS, "scheme"], keep="first", maintain_order=True)
    beside = once.join(paper, on=["model", "scheme", "batch", "gib"], how="left")
    found = by_mode(beside, *KEYS, "scheme", "level", "fidelity")
    fastest: list[pl.Expr | str] = [-pl.col("speedup").round_sig_figs(SAME_DIGITS), rows.turn(), "mode"]
    ordered = found.sort("law", pl.col("model"), "gib", "batch", *fastest, descending=[False, True, *[False] * 5])
    return ordered.with_columns(is_winner=pl.int_range(pl.len()).over(KEYS) == 0)


def _packed_grid(found: pl.DataFrame) -> pl.DataFrame:
    """A row per scheme and mode, its sizes and batches as lists: a page stays small."""
    kept = ["gib", "batch", pl.col("speedup").round_sig_figs(DIGITS), "published"]
    return found.group_by("law", "model", "scheme", "mode", maintain_order=True).agg(kept)


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Sizes, the opening one first; per size its batches."""
    sizes = sorted(found["gib"].unique(), key=lambda gib: (abs(gib - OPENS_AT[0]), gib))
    for gib in sizes:
        yield {"size": f"{gib:g}"}
    for gib in sizes:
        batches = found.filter(pl.col("gib") == gib)["batch"].unique().to_list()
        for batch in sorted(batches, key=lambda batch: (abs(batch - OPENS_AT[1]), batch)):
            yield {"size": f"{gib:g}", "at": f"{batch}"}
