"""The CXL GPU-NDP page on what the gain depends on: batch, link and NDP one at a time, then every other model and link."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.cxl_ndp.words import HEADLINE, LEGEND, MONDE, OURS, STUDY, SYSTEMS, setups, source, times
from tokentape.dashboards.panels import colour, known, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

SWEEPS, OTHERS = "Which batch, link and NDP make it pay?", "What do other models and other links gain?"
NO_SWEEPS = f"Nothing to draw: no sweep was computed. {STUDY}"
# Series with a number -> the panel's axis.
AXES = {
    "batch": "batch (requests, log scale)",
    "link bandwidth": "link bandwidth (GB/s, log scale)",
    "ndp macs": "NDP multiply-adds (× the paper's, log scale)",
    "ndp bandwidth": "NDP bandwidth (× the paper's, log scale)",
    "hot experts": "experts of a layer on the GPU (count)",
}
NAMED = {
    "batch": "batch",
    "link bandwidth": "link",
    "ndp macs": "NDP multiply-adds",
    "ndp bandwidth": "NDP bandwidth",
    "hot experts": "experts on the GPU",
}
UNITS = {"link bandwidth": " GB/s", "ndp macs": " ×", "ndp bandwidth": " ×"}
WITHIN = {"batch": "batch (requests, log scale)", "link": "link (GB/s, log scale)", "ndp size": "NDP devices (count, log scale)"}
COLUMNS = 3


def sweeps_part(points: pl.DataFrame) -> Part:
    """One thing changed at a time, on the models that were swept. points: rows.points."""
    found = _swept(points, list(AXES))
    swept = found.filter(pl.col("series") != "batch")["setup"].unique().to_list() if not found.is_empty() else []
    found = found.filter(pl.col("setup").is_in(swept)) if swept else found.clear()
    if found.is_empty():
        return Part((Figure("sweeps", SWEEPS, None, {}, (), "", NO_SWEEPS),))
    reading = (
        f"Decode speed over {MONDE}'s under the same setting. Bands: least to most of the seeds. A larger batch brings more "
        "tokens to every expert in the NDP, which then computes and no longer only reads; a faster link helps those that move "
        "weights."
    )
    return Part(
        (Figure("sweeps", SWEEPS, _sweeps_chart(found), {"": sweeps_answer(found)}, (), reading, NO_SWEEPS),),
        data={"sweeps": found},
    )


def _swept(points: pl.DataFrame, series: list[str]) -> pl.DataFrame:
    """Our systems in the series, with their gain."""
    kept = points.filter(pl.col("series").is_in(series) & pl.col("system").is_in(OURS)) if not points.is_empty() else points
    if kept.is_empty():
        return kept
    columns = (
        "setup",
        "rank",
        "series",
        "setting",
        "number",
        "system",
        "batch",
        "decode_gain",
        "decode_gain_low",
        "decode_gain_high",
    )
    return kept.drop_nulls(["number", "decode_gain"]).select(*columns)


def sweeps_answer(found: pl.DataFrame) -> str:
    """For each series: the gain at both ends, and where it is highest if that is between."""
    said = []
    for setup in setups(found):
        system = next(name for name in OURS if name in set(found["system"]))
        of = found.filter(pl.col("setup") == setup, pl.col("system") == system)
        told = [_ends(of.filter(pl.col("series") == series).sort("number"), series) for series in known(AXES, of["series"])]
        said.append(f"{system} over {MONDE} on {setup}: {'; '.join(told)}.")
    return " ".join(said)


def _ends(of: pl.DataFrame, series: str) -> str:
    """From the first to the last number of a series."""
    rows = of.to_dicts()
    first, last, best = rows[0], rows[-1], max(rows, key=lambda row: row["decode_gain"])
    between = (
        f", most at {best['number']:g}{UNITS.get(series, '')} ({times(best['decode_gain'])})" if best not in (first, last) else ""
    )
    unit = UNITS.get(series, "")
    gains = f"{first['decode_gain']:.1f} to {times(last['decode_gain'])}{between}"
    return f"{NAMED[series]} {first['number']:g} to {last['number']:g}{unit}: {gains}"


def _sweeps_chart(found: pl.DataFrame) -> alt.VConcatChart:
    names, swept = known(AXES, found["series"]), setups(found)
    numbers = {name: found.filter(pl.col("series") == name)["number"].unique().sort().to_list() for name in names}
    panels = [_panel(setup, name, numbers[name], len(swept) > 1) for setup in swept for name in names]
    rows = [alt.hconcat(*panels[n : n + COLUMNS], spacing=34) for n in range(0, len(panels), COLUMNS)]
    return stacked(rows, source(joined(swept)))


def _panel(setup: str, series: str, numbers: list[float], is_named: bool) -> alt.LayerChart:
    here = f"datum.setup === {theme.quote(setup)} && datum.series === {theme.quote(series)}"
    base = alt.Chart(alt.NamedData("sweeps")).transform_filter(here)
    is_count = series == "hot experts"
    scale = alt.Scale(nice=False, padding=12) if is_count else alt.Scale(type="log", base=2, nice=False, padding=12)
    x = alt.X("number:Q", title=AXES[series], scale=scale, axis=alt.Axis(format="~g", grid=False, values=numbers))
    y = alt.Y("decode_gain:Q", title=f"gain over {MONDE} (×)", scale=alt.Scale(zero=True))
    looks = colour(SYSTEMS, "system", known(SYSTEMS, OURS), LEGEND)
    tips = [
        alt.Tooltip("system:N"), alt.Tooltip("setting:N"), alt.Tooltip("decode_gain:Q", title="gain", format=".2f"),
        alt.Tooltip("decode_gain_low:Q", title="least of seeds", format=".2f"),
        alt.Tooltip("decode_gain_high:Q", title="most of seeds", format=".2f"),
    ]  # fmt: skip
    band = base.mark_area(opacity=0.15).encode(x, alt.Y("decode_gain_low:Q"), alt.Y2("decode_gain_high:Q"), looks)
    line, marks = base.mark_line().encode(x, y, looks), base.mark_point(size=45).encode(x, y, looks, tooltip=tips)
    one = base.transform_aggregate(n="count()").transform_calculate(one="1")
    rule = one.mark_rule(color=theme.INK, strokeDash=[3, 3]).encode(alt.Y("one:Q"))
    return alt.layer(band, line, rule, marks).properties(width=310, height=200, title=setup if is_named else "")


def others_part(points: pl.DataFrame) -> Part:
    """All models over batches, links and NDP sizes. points: rows.points."""
    found = _swept(points, list(WITHIN))
    if found.is_empty():
        return Part((Figure("others", OTHERS, None, {}, (), "", NO_SWEEPS),))
    reading = (
        f"The system of fewer bits, over {MONDE} under the same setting; every model with the constants fitted to the paper's "
        "smaller one. Link: PCIe Gen4, Gen5, Gen6 and CXL 3 as machines of their own. NDP devices: capacity, bandwidth and "
        "multiply-adds side by side behind the same link. Beyond the paper half of the experts are taken to be on the GPU."
    )
    system = next(name for name in OURS if name in set(found["system"]))
    kept = found.filter(pl.col("system") == system)
    base = points.filter((pl.col("series") == HEADLINE) & (pl.col("system") == system)).drop_nulls("decode_gain")
    said = others_answer(kept, base)
    return Part((Figure("others", OTHERS, _others_chart(kept), {"": said}, (), reading, NO_SWEEPS),), data={"others": kept})


def others_answer(found: pl.DataFrame, base: pl.DataFrame) -> str:
    """Gain of every model from the slowest to the fastest link, and the most that any setting has. base: headline rows."""
    links = found.filter(pl.col("series") == "link").sort("number")
    said = []
    for setup in setups(found):
        of = links.filter(pl.col("setup") == setup).to_dicts()
        if of:
            said.append(f"{setup} {of[0]['decode_gain']:.1f} to {times(of[-1]['decode_gain'])}")
    words = f"From {links['setting'][0]} to {links['setting'][-1]}: {'; '.join(said)}. " if said else ""
    lost = found.filter(pl.col("decode_gain") < 1)
    never = f"{MONDE} is faster in {lost.height or 'none'} of {found.height} settings."
    best = base.sort("decode_gain").to_dicts()
    most = (
        f"{best[-1]['setup']} gains most as it is ({times(best[-1]['decode_gain'])}), {best[0]['setup']} least "
        f"({times(best[0]['decode_gain'])}). "
        if len(best) > 1
        else ""
    )
    return f"{most}{words}{never}"


def _others_chart(found: pl.DataFrame) -> alt.VConcatChart:
    order = setups(found)
    looks = alt.Color("setup:N", scale=alt.Scale(domain=order, range=list(theme.colours(order).values())), legend=LEGEND)
    panels = []
    for series in known(WITHIN, found["series"]):
        base = alt.Chart(alt.NamedData("others")).transform_filter(f"datum.series === {theme.quote(series)}")
        values = found.filter(pl.col("series") == series)["number"].unique().sort().to_list()
        x = alt.X(
            "number:Q", title=WITHIN[series], scale=alt.Scale(type="log", base=2, nice=False, padding=12),
            axis=alt.Axis(values=values, format="~g", grid=False),
        )  # fmt: skip
        y = alt.Y("decode_gain:Q", title=f"gain over {MONDE} (×)", scale=alt.Scale(zero=True))
        tips = [
            alt.Tooltip("setup:N", title="model"), alt.Tooltip("setting:N"),
            alt.Tooltip("decode_gain:Q", title="gain", format=".2f"),
        ]  # fmt: skip
        band = base.mark_area(opacity=0.12).encode(x, alt.Y("decode_gain_low:Q"), alt.Y2("decode_gain_high:Q"), looks)
        line, marks = base.mark_line().encode(x, y, looks), base.mark_point(size=45).encode(x, y, looks, tooltip=tips)
        panels.append(alt.layer(band, line, marks).properties(width=310, height=240))
    return stacked([alt.hconcat(*panels, spacing=34)], source(found["system"][0]))
