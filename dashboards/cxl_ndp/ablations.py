"""The CXL GPU-NDP page on its own assumptions: what the gain is when one of them is another."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.cxl_ndp.words import (
    HEADLINE,
    LEGEND,
    MONDE,
    OURS,
    PLACEMENTS,
    RULES,
    STUDY,
    SYSTEMS,
    setups,
    source,
    times,
)
from tokentape.dashboards.panels import colour, known, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

QUESTION = "On which assumptions does the gain rest?"
NO_ABLATIONS = f"Nothing to draw: no assumption was changed. {STUDY}"
SERIES = {
    "mac rate": "NDP multiply-adds",
    "monde": f"{MONDE}'s migration",
    "overlap": f"{MONDE}'s transfers",
    "placement": "placement",
    "alpha": "alpha (counts against weights)",
    "bits rule": "bit widths",
}
TICKS = [0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200]
SAME_FRAC = 0.05  # a gain that moves less is said to be the same
WORDS = {name: words for name, (words, _) in RULES.items()} | PLACEMENTS


def part(points: pl.DataFrame) -> Part:
    """points: rows.points."""
    found = rows(points)
    if found.is_empty():
        return Part((Figure("ablations", QUESTION, None, {}, (), "", NO_ABLATIONS),))
    reading = (
        f"Gain over {MONDE} while decoding, one assumption changed at a time; dotted: as it is everywhere else on this page. "
        "Fixed multiply-adds: an NDP that does not compute faster on fewer bits. Rules: least to most of the seeds; where "
        f"{MONDE} itself is another, the ratio of median steps."
    )
    return Part(
        (Figure("ablations", QUESTION, _chart(found), {"": answer(found)}, (), reading, NO_ABLATIONS),),
        data={"ablations": found},
    )


def rows(points: pl.DataFrame) -> pl.DataFrame:
    """A row per changed assumption and system of ours, on the first model that has them: gain, band, and the gain as it is."""
    if points.is_empty():
        return points
    ours = points.filter(pl.col("system").is_in(OURS))
    changed = ours.filter(pl.col("series").is_in(list(SERIES)))
    swept = setups(changed) if not changed.is_empty() else []
    if not swept:
        return changed
    here = pl.col("setup") == swept[0]
    base = ours.filter(here & (pl.col("series") == HEADLINE)).select("system", "step_s", pl.col("decode_gain").alias("as_is"))
    others = (
        points.filter(here & (pl.col("series") == HEADLINE) & pl.col("system").str.starts_with(MONDE))
        .select(pl.lit("monde").alias("series"), pl.col("system").alias("setting"), pl.col("step_s").alias("theirs"))
        .join(base, how="cross")
        .with_columns(decode_gain=pl.col("theirs") / pl.col("step_s"), setup=pl.lit(swept[0]))
        .with_columns(setting=pl.when(pl.col("setting") == MONDE).then(pl.lit(f"{MONDE} average (ema)")).otherwise("setting"))
    )
    kept = changed.filter(here).join(base.drop("step_s"), on="system", how="left")
    columns = ("setup", "series", "setting", "system", "decode_gain", "decode_gain_low", "decode_gain_high", "as_is")
    both = pl.concat(
        [kept.select(*columns, "number"), others.select(*(c for c in columns if c in others.columns))], how="diagonal"
    )
    return (
        both.drop_nulls("decode_gain")
        .with_columns(said=pl.col("setting").replace(WORDS), group=pl.col("series").replace(SERIES))
        .sort(
            pl.col("series").replace_strict({name: n for n, name in enumerate(SERIES)}, return_dtype=pl.Int64),
            "number",
            "setting",
            "system",
        )
    )


def answer(found: pl.DataFrame) -> str:
    """Of the system of fewer bits: the gain as it is, what each assumption makes of it at worst, and which do not matter."""
    system = next(name for name in OURS if name in set(found["system"]))
    of = found.filter(pl.col("system") == system).drop_nulls("as_is")
    said, same = [], []
    for series in known(SERIES, of["series"]):
        rows = of.filter(pl.col("series") == series).sort("decode_gain").to_dicts()
        least, most, as_is = rows[0], rows[-1], rows[0]["as_is"]
        if max(as_is - least["decode_gain"], most["decode_gain"] - as_is) < SAME_FRAC * as_is:
            same.append(SERIES[series])
        else:
            said.append(
                f"{SERIES[series]} from {least['decode_gain']:.1f} ({least['said']}) to "
                f"{times(most['decode_gain'])} ({most['said']})"
            )
    if of.is_empty():
        return f"{system} was not computed as it is."
    moved = f" It moves with {'; '.join(said)}." if said else ""
    unmoved = f" It changes by less than {percent(SAME_FRAC, 0)} with {joined(same)}." if same else ""
    return f"{system} gains {times(of['as_is'][0])} on {of['setup'][0]}.{moved}{unmoved}"


def _chart(found: pl.DataFrame) -> alt.VConcatChart:
    systems = known(SYSTEMS, found["system"])
    groups = [SERIES[name] for name in known(SERIES, found["series"])]
    ends = [0.85 * found["decode_gain"].min(), 1.2 * found["decode_gain"].max()]  # type: ignore[operator]
    panels = [_panel(group, found.filter(pl.col("group") == group), systems, ends) for group in groups]
    half = -(-len(panels) // 2)
    columns = [alt.vconcat(*of, spacing=12) for of in (panels[:half], panels[half:]) if of]
    return stacked([alt.hconcat(*columns, spacing=40)], source(found["setup"][0]))


def _panel(group: str, of: pl.DataFrame, systems: list[str], ends: list[float]) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("ablations")).transform_filter(f"datum.group === {theme.quote(group)}")
    y = alt.Y(
        "said:N", title=None, sort=of["said"].unique(maintain_order=True).to_list(),
        axis=alt.Axis(ticks=False, domain=False, grid=True, labelFontSize=12.5, labelLimit=200, minExtent=190),
    )  # fmt: skip
    scale = alt.Scale(type="log", domain=ends, nice=False)
    x = alt.X("decode_gain:Q", title=f"gain over {MONDE} (×, log scale)", scale=scale, axis=alt.Axis(values=TICKS, format="~g"))
    looks = colour(SYSTEMS, "system", systems, LEGEND)
    tips = [
        alt.Tooltip("group:N", title="assumption"), alt.Tooltip("said:N", title="changed to"), alt.Tooltip("system:N"),
        alt.Tooltip("decode_gain:Q", title="gain", format=".2f"), alt.Tooltip("as_is:Q", title="as it is", format=".2f"),
    ]  # fmt: skip
    level = base.transform_aggregate(as_is="max(as_is)", groupby=["system"])
    rule = level.mark_rule(strokeDash=[2, 3], strokeWidth=1.4).encode(alt.X("as_is:Q"), looks)
    band = base.mark_rule(strokeWidth=5, opacity=0.35).encode(alt.X("decode_gain_low:Q"), y, looks, alt.X2("decode_gain_high:Q"))
    marks = base.mark_point(size=75).encode(x, y, looks, tooltip=tips)
    return alt.layer(rule, band, marks).properties(width=330, height=alt.Step(23), title=group)
