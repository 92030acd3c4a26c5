"""The ELMoE-3D page on other platforms: speed-ups over the xPU (Figure 14)."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.elmoe3d.words import LAWS, LEGEND, MODES, OURS, PLATFORMS, STUDY, mode_dash, models, source
from tokentape.dashboards.panels import known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_PLATFORMS = f"Nothing to draw: no platform was computed. {STUDY}"


def part(platforms: pl.DataFrame, start: dict[str, str]) -> Part:
    """Figure 14. platforms: rows.platforms."""
    question = "Against other platforms: who is fastest, and how sure is that?"
    if platforms.is_empty():
        return Part((Figure("platforms", question, None, {}, (), "", NO_PLATFORMS),))
    found = platforms.filter(pl.col("law").is_in(list(LAWS))).with_columns(
        words=named(), mode=pl.col("mode").replace(MODES), panel=pl.format("{}, {}", "model", "dataset")
    )
    said = {str(law): platforms_answer(of) for (law,), of in found.group_by(["law"], maintain_order=True)}
    first = found.row(0, named=True)
    near = found.drop_nulls("least_ratio").head(1).to_dicts()
    inputs = "".join(
        f", near-memory bandwidth {row['least_ratio']:g} to {row['most_ratio']:g} × EXT (line: {row['ratio']:g}), dense or "
        "experts placed there"
        for row in near
    )
    reading = (
        f"Bands: over what the paper does not give: {first['least_nodes']:g} to {first['most_nodes']:g} verified nodes per "
        f"request (line: {first['nodes']:g}){inputs}. Every baseline drafts with EAGLE3. Only MT-Bench's acceptance is "
        "printed, of the paper's four data sets; its own bars carry no numbers, so there is no hollow mark: what its text "
        "says of this figure is among the claims. No bar is set."
    )
    figure = Figure("platforms", question, _platforms_chart(found, start), said, ("law",), reading, NO_PLATFORMS)
    return Part((figure,), data={"platforms": found.select("law", "panel", "words", "mode", "batch", "speedup", "low", "high")})


def named() -> pl.Expr:
    """A platform as it is written."""
    return pl.col("platform").replace({name: said for name, (said, _) in PLATFORMS.items()})


def platforms_answer(found: pl.DataFrame) -> str:
    """Our better mode over the xPU and over the best other platform without HB, over all models and batches; rows of one law."""
    best = found.group_by("platform", "model", "batch").agg(pl.max("speedup"), pl.max("low"), pl.max("high"))
    ours = best.filter(pl.col("platform") == OURS)
    prior = (
        best.filter(~pl.col("platform").is_in([OURS, "hb-xpu"]))
        .group_by("model", "batch")
        .agg(pl.max("speedup").alias("prior"), pl.max("low").alias("prior_low"), pl.max("high").alias("prior_high"))
    )
    both = ours.join(prior, on=["model", "batch"])
    if both.is_empty():
        return "Our platform was not computed beside another."
    over = both["speedup"] / both["prior"]
    least, most = (both["low"] / both["prior_high"]).mean(), (both["high"] / both["prior_low"]).mean()
    said = (
        f"ELMoE-3D is {mean_words(ours['speedup'])} × the xPU on average and {float(ours['speedup'].max()):.1f} × at most; "
        f"over the best other platform without HB it is {mean_words(over)} × on average ({least:.1f} to {most:.1f} × over "
        "what the paper does not give)"
    )
    hb = best.filter(pl.col("platform") == "hb-xpu").join(ours, on=["model", "batch"], suffix="_ours")
    beside = f", over HB-xPU with EAGLE3 {mean_words(hb['speedup_ours'] / hb['speedup'])} ×" if not hb.is_empty() else ""
    lost = both.filter(pl.col("speedup") < pl.col("prior"))
    return f"{said}{beside}. It is ahead in {both.height - lost.height} of {both.height} settings."


def mean_words(values: pl.Series) -> str:
    """A mean to one decimal."""
    return f"{float(values.mean()):.1f}"


def _platforms_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("platforms")).transform_filter("datum.law === law")
    batches = found["batch"].unique().sort().to_list()
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    x = alt.X("batch:Q", title="batch (requests, log scale)", scale=scale, axis=alt.Axis(values=batches, format="d", grid=False))
    y = alt.Y(
        "speedup:Q",
        title="speed-up over the xPU's AR (×, log)",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(values=[0.5, 1, 2, 4, 8, 16], format="~g"),
    )
    names = known(PLATFORMS, found["platform"])
    domain = [PLATFORMS[n][0] if n in PLATFORMS else n for n in names]
    colour = alt.Color(
        "words:N",
        scale=alt.Scale(domain=domain, range=[PLATFORMS[n][1] if n in PLATFORMS else theme.INK for n in names]),
        legend=LEGEND,
    )
    shape = alt.Shape("mode:N", scale=alt.Scale(domain=list(MODES.values()), range=["triangle-up", "circle"]), legend=LEGEND)
    tips = [
        alt.Tooltip("words:N", title="platform"),
        alt.Tooltip("mode:N"),
        alt.Tooltip("batch:Q"),
        alt.Tooltip("speedup:Q", format=".2f"),
        alt.Tooltip("low:Q", title="least", format=".2f"),
        alt.Tooltip("high:Q", title="most", format=".2f"),
    ]
    band = base.mark_area(opacity=0.14).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour, alt.Detail("mode:N"))
    line = base.mark_line(strokeWidth=1.8).encode(x, y, colour, mode_dash())
    marks = base.mark_point(size=50).encode(x, y, colour, shape, tooltip=tips)
    panels = [f"{model}, {dataset}" for model in models(found) for dataset in found["dataset"].unique().sort()]
    header = alt.Header(labelFontSize=13, labelFontWeight=600, labelLimit=245)
    drawn = (
        alt.layer(band, line, marks)
        .properties(width=225, height=290)
        .facet(alt.Facet("panel:N", title=None, sort=panels, header=header), columns=4, spacing=16)
    )
    title = source(found, "dashed, triangles: AR; solid, circles: SD", level=joined(found["level"].unique().to_list()))
    return stacked([drawn], title, params(start, "law"))
