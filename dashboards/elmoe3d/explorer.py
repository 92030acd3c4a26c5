"""The ELMoE-3D page's explorer: drag the size of HB and the batch, and see which scheme and which mode wins."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.elmoe3d.words import DIGITS, ELASTIC, MODES, SCHEMES, STUDY, TABLE, by_mode, scheme_colour, source
from tokentape.dashboards.panels import hollow, known, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "Your own machine: which scheme and which mode win, for how much fast memory and which batch?"
MISSING = f"Nothing to draw: no sweep over capacity and batch was computed. {STUDY}"
KEYS = ["law", "model", "gib", "batch"]
CHOSEN = "datum.gib === toNumber(size) && datum.batch === toNumber(at)"
PACKED = ["gib", "batch", "speedup", "published"]
SAME_DIGITS = 5  # speed-ups alike to so many are a tie, which goes to the first in the house order
LEFT = 400
OPENS_AT = (8.0, 8)  # GiB and batch: on the paper's larger machine


def part(points: pl.DataFrame, start: dict[str, str]) -> Part:
    """points: rows.points."""
    found = _grid(points)
    if found.is_empty():
        return Part((Figure("explorer", QUESTION, None, {}, (), "", MISSING),))
    choices = tuple(_choices(found))
    first = start | choices[0] | next(row for row in choices if "at" in row)
    said = {
        f"{law}|{model}|{gib:g}|{batch}": answer(of) for (law, model, gib, batch), of in found.group_by(KEYS, maintain_order=True)
    }
    reading = (
        "The sliders above set the size of HB and the batch; the model and the hit model are menus. Left: every scheme in "
        "both modes, the fastest framed; hollow: the paper's own number, where it prints one for this size and batch. Right: "
        "the winner everywhere, the chosen cell framed, A where AR wins and S where SD does. Bandwidths are those of the 8 "
        "GB machine; larger batches than the paper's were computed at its own size only. Acceptance is the paper's at the "
        "nearest smaller batch, an input, and does not fall as HB shrinks; where HB holds fewer experts than a token "
        "selects, Elastic-SD's SD is left out."
    )
    figure = Figure("explorer", QUESTION, _chart(found, first), said, ("law", "model", "size", "at"), reading, MISSING)
    best = found.filter(pl.col("is_winner")).select(*KEYS, "scheme", "mode", "speedup", letter=pl.col("mode").str.head(1))
    return Part(
        (figure,),
        controls=(
            Control("size", "Size of HB", {f"{gib:g}": f"{gib:g} GiB" for gib in found["gib"].unique()}, "slider"),
            Control("at", "Batch, explored", {f"{b}": f"{b} requests" for b in found["batch"].unique()}, "slider"),
        ),
        choices=choices,
        data={"grid": _packed(found), "grid_best": best},
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
    turn = pl.col("scheme").replace_strict({name: n for n, name in enumerate(SCHEMES)}, default=len(SCHEMES))
    fastest = [-pl.col("speedup").round_sig_figs(SAME_DIGITS), turn, "mode"]
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


def _chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    here = "datum.law === law && datum.model === model"
    base = alt.Chart(alt.NamedData("grid")).transform_filter(here).transform_flatten(PACKED)
    base = base.transform_filter(CHOSEN)
    names = known(SCHEMES, found["scheme"])
    y = alt.Y("scheme:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False, labelFontSize=13))
    x = alt.X("speedup:Q", title="speed-up over the xPU's AR (×)")
    beside = alt.YOffset("mode:N", sort=list(MODES.values()))
    strength = alt.Opacity(
        "mode:O",
        scale=alt.Scale(domain=list(MODES.values()), range=[0.4, 1]),
        legend=alt.Legend(title=None, orient="top", symbolType="square", symbolOpacity=1),
    )
    tips = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("mode:N"),
        alt.Tooltip("speedup:Q", format=".2f"),
    ]
    bars = base.mark_bar().encode(x, y, beside, scheme_colour(None), strength, tooltip=tips)
    best = alt.Chart(alt.NamedData("grid_best")).transform_filter(here).transform_filter(CHOSEN)
    frame = best.mark_bar(fillOpacity=0, stroke=theme.INK, strokeWidth=2).encode(x, y, beside)
    words = base.transform_calculate(said="datum.mode + ' ' + format(datum.speedup, '.1f') + '×'")
    text = words.mark_text(align="left", fontSize=12).encode(y, beside, x=alt.value(LEFT + 8), text="said:N")
    stated = [*tips[:2], alt.Tooltip("published:Q", title="paper", format=".2f")]
    paper = hollow(base, 80, at=("published", "datum.speedup")).encode(alt.X("at:Q"), y, beside, tooltip=stated)
    left = alt.layer(bars, frame, text, paper).properties(width=LEFT, height=250)
    title = source(found, "hollow: the paper's", level=joined(found["level"].unique().to_list()))
    drawn = alt.hconcat(left, _map(here), spacing=75).resolve_scale(color="independent")
    return stacked([drawn], title, params(start, "law", "model", "size", "at"))


def _map(here: str) -> alt.LayerChart:
    """The winner over size and batch."""
    base = alt.Chart(alt.NamedData("grid_best")).transform_filter(here)
    x = alt.X("gib:O", title="size of HB (GiB)", axis=alt.Axis(labelAngle=0, ticks=False, domain=False, format="~g"))
    y = alt.Y("batch:O", title="batch (requests)", sort="descending", axis=alt.Axis(ticks=False, domain=False))
    tips = [
        alt.Tooltip("gib:Q", title="GiB"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("scheme:N"),
        alt.Tooltip("mode:N"),
        alt.Tooltip("speedup:Q", format=".2f"),
    ]
    legend = alt.Legend(title="fastest", orient="top", titleOrient="left", columns=4)
    cell = base.mark_rect(stroke="white", opacity=0.6).encode(x, y, scheme_colour(legend), tooltip=tips)
    letter = base.mark_text(fontSize=12, color=theme.INK).encode(x, y, text="letter:N")
    ring = base.transform_filter(CHOSEN).mark_rect(fillOpacity=0, stroke=theme.INK, strokeWidth=2.5)
    return alt.layer(cell, letter, ring.encode(x, y)).properties(width=440, height=250)
