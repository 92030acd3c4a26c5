"""The ELMoE-3D page's explorer: drag the size of HB and the batch, and see which scheme and which mode wins."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import DIGITS, ELASTIC, MODES, SCHEMES, TABLE, by_mode, facts
from tokentape.dashboards.engine import Ask, Control, Drawn, known, some
from tokentape.dashboards.units import joined

KEYS = ["law", "model", "gib", "batch"]
PACKED = ["gib", "batch", "speedup", "published"]
SAME_DIGITS = 5  # speed-ups alike to so many are a tie, which goes to the first in the house order
OPENS_AT = (8.0, 8)  # GiB and batch: on the paper's larger machine


def explorer(ask: Ask) -> Drawn:
    found = some(_grid(ask.made(rows.points)))
    said = {
        f"{law}|{model}|{gib:g}|{batch}": answer(of) for (law, model, gib, batch), of in found.group_by(KEYS, maintain_order=True)
    }
    best = found.filter(pl.col("is_winner")).select(*KEYS, "scheme", "mode", "speedup", letter=pl.col("mode").str.head(1))
    return Drawn(
        {"grid": _packed(found), "grid_best": best},
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


def _packed(found: pl.DataFrame) -> pl.DataFrame:
    """A row per scheme and mode, its sizes and batches as lists: a page stays small."""
    kept = ["gib", "batch", pl.col("speedup").round_sig_figs(DIGITS), "published"]
    return found.group_by("law", "model", "scheme", "mode", maintain_order=True).agg(kept)


def answer(found: pl.DataFrame) -> str:
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
