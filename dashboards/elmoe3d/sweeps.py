"""The ELMoE-3D page past the paper: an explorer, sweeps over HB and context, and the acceptance that speculation needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import DIGITS, ELASTIC, HEADLINE_FIT, MODES, SCHEMES, TABLE, by_mode, facts
from tokentape.dashboards.engine import Ask, Control, Drawn, known, sentences, some
from tokentape.dashboards.units import joined, mean_of, percent, signed

# Series -> what varies, its title, its unit where the sentence tells it.
SWEEPS = {
    "hb-capacity": ("gib", "capacity of HB (GiB, log scale)", "{:g} GiB"),
    "hb-bandwidth": ("hb_gb_per_s", "bandwidth of HB (GB/s, log scale)", "{:,.0f} GB/s"),
    "context": ("context_tokens", "context of a request (tokens, log scale)", "{:,.0f} tokens"),
}
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


def explorer(ask: Ask) -> Drawn:
    found = some(_grid(ask.made(rows.points)))
    said = sentences(found, KEYS, explorer_answer)
    best = found.filter(pl.col("is_winner")).select(*KEYS, "scheme", "mode", "speedup", letter=pl.col("mode").str.head(1))
    return Drawn(
        {"grid": _packed_grid(found), "grid_best": best},
        said,
        {**facts(found), "chosen": "where datum.gib === toNumber(size) && datum.batch === toNumber(at)"},
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


def explorer_answer(found: pl.DataFrame) -> str:
    """The winner at one size and batch, and each scheme's better mode."""
    best = found.filter(pl.col("is_winner")).row(0, named=True)
    others = []
    for name in known(SCHEMES, found["scheme"]):
        own = found.filter(pl.col("scheme") == name).sort("speedup", descending=True).row(0, named=True)
        others += [f"{name} {own['speedup']:.1f} × ({own['mode']})"] if name != best["scheme"] else []
    two = {
        mode: found.filter(pl.col("scheme") == ELASTIC, pl.col("mode") == mode)["speedup"].to_list() for mode in MODES.values()
    }
    ours = ""
    if all(two.values()):
        ratio = two["SD"][0] / two["AR"][0]
        ours = f" {ELASTIC}'s own speculation is {ratio:.2f} × its AR: it {'pays' if ratio > 1 else 'does not pay'}."
    return (
        f"With {best['gib']:g} GiB and batch {best['batch']}, {best['scheme']} in {best['mode']} is fastest, "
        f"{best['speedup']:.1f} × the xPU; {joined(others)}.{ours}"
    )


def _choices(found: pl.DataFrame) -> Iterator[dict[str, str]]:
    """Sizes, the opening one first; per size its batches."""
    sizes = sorted(found["gib"].unique(), key=lambda gib: (abs(gib - OPENS_AT[0]), gib))
    for gib in sizes:
        yield {"size": f"{gib:g}"}
    for gib in sizes:
        batches = found.filter(pl.col("gib") == gib)["batch"].unique().to_list()
        for batch in sorted(batches, key=lambda batch: (abs(batch - OPENS_AT[1]), batch)):
            yield {"size": f"{gib:g}", "at": f"{batch}"}
