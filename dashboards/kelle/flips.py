"""The Kelle page on lost bits inside a live model: by rate, token and bit (Figure 8), and by refresh interval (Table 4)."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.claims import signed
from tokentape.dashboards.kelle.live_words import SEEDS, named
from tokentape.dashboards.kelle.words import LEGEND, STUDY, source
from tokentape.dashboards.panels import colour, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_ERRORS = f"Nothing to draw: no bits were lost inside a live model. {STUDY}"
NO_REFRESH = f"Nothing to draw: no refresh interval was tried inside a live model. {STUDY}"
PANELS = {
    "all bits alike (Fig. 8a)": ("all bits",),
    "by token (Fig. 8b)": ("HST", "LST"),
    "by bit (Fig. 8c)": ("MSB", "LSB"),
}
GROUPS = {
    "int16, all bits": theme.BLUE, "fp16, all bits": theme.VERMILLION, "HST": theme.ORANGE, "LST": theme.GREEN,
    "MSB": theme.PURPLE, "LSB": theme.SKY,
}  # fmt: skip
DECADES = [10.0**n for n in range(-7, 0)]
WAYS = {"uniform": theme.QUIET, "2DRP": theme.VERMILLION}
SAID = {"HST": "important tokens (HST)", "LST": "the others (LST)", "MSB": "high bits (MSB)", "LSB": "low bits (LSB)"}


def part(quality: pl.DataFrame, table_4: pl.DataFrame, start: dict[str, str]) -> Part:
    """quality: live_rows.quality of the models that `live` chooses among; table_4: of that name."""
    errors, refresh = _errors(quality), _refresh(quality)
    figures = (_errors_figure(errors, start), _refresh_figure(refresh, table_4, start))
    data = {"flips": errors, "refresh": refresh}
    if not refresh.is_empty():
        data["table_4"] = table_4
    return Part(figures, data={name: frame for name, frame in data.items() if not frame.is_empty()})


def _errors(quality: pl.DataFrame) -> pl.DataFrame:
    """Rates above none, with the panel and the name of what loses bits."""
    if quality.is_empty():
        return quality
    panel = {variant: name for name, variants in PANELS.items() for variant in variants}
    found = named(quality.filter((pl.col("series") == "errors") & (pl.col("metric") == "perplexity_ratio") & (pl.col("at") > 0)))
    told = found.filter(pl.col("variant").is_in(list(panel)))
    group = pl.when(pl.col("variant") == "all bits").then(pl.format("{}, all bits", "storage")).otherwise("variant")
    return told.with_columns(panel=pl.col("variant").replace_strict(panel, default=""), group=group).sort("panel", "group", "at")


def _refresh(quality: pl.DataFrame) -> pl.DataFrame:
    if quality.is_empty():
        return quality
    is_row = (pl.col("series") == "refresh") & (pl.col("metric") == "perplexity_ratio") & pl.col("variant").is_in(list(WAYS))
    return quality.filter(is_row).sort("model", "at", "variant")


def _errors_figure(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Which lost bits hurt, and how many may be lost?"
    if found.is_empty():
        return Figure("flips", question, None, {}, (), "", NO_ERRORS)
    reading = (
        "The paper's Figure 8, measured: every bit of a stored word flips at the rate shown, once for its life; perplexity over "
        "that with the same words and no flips, whole cache. HST: tokens with at least their head's median score. int16 is fixed "
        f"point, fp16 IEEE half precision. The paper tolerates rates up to 1e-3 without saying how its words look. {SEEDS}"
    )
    said = {str(model): errors_answer(of) for (model,), of in found.group_by(["model"], maintain_order=True)}
    return Figure("flips", question, _errors_chart(found, start), said, ("live",), reading, NO_ERRORS)


def errors_answer(found: pl.DataFrame) -> str:
    """int16 at 1e-3, fp16 at 1e-4 where measured, and both comparisons at their largest common rate; rows of one model."""
    at = {(row["group"], float(f"{row['at']:.3g}")): row["value"] for row in found.to_dicts()}
    said = []
    for group, rate in (("int16, all bits", 1e-3), ("fp16, all bits", 1e-4)):
        if (group, rate) in at:
            said.append(f"losing {rate:.0e} of all bits costs {group.split(',')[0]} words {_cost(at[group, rate])}")
    for worse, better in (("HST", "LST"), ("MSB", "LSB")):
        rates = sorted({r for g, r in at if g == worse} & {r for g, r in at if g == better})
        if rates:
            pair = [f"{_cost(at[name, rates[-1]])} from {SAID[name]}" for name in (worse, better)]
            said.append(f"at {rates[-1]:.0e}, {joined(pair)}")
    text = "; ".join(said).replace("e-0", "e-")
    return f"{text[:1].upper()}{text[1:]}." if said else "No rate was measured that says it."


def _cost(ratio: float) -> str:
    """A ratio of perplexities as a person says it."""
    return signed(ratio - 1) if ratio < 2 else f"{ratio:,.0f} × the perplexity" if ratio >= 10 else f"{ratio:.1f} ×"


def _errors_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    panels = []
    for name in PANELS:
        of = found.filter(pl.col("panel") == name)
        if of.is_empty():
            continue
        base = alt.Chart(alt.NamedData("flips")).transform_filter(f"datum.model === live && datum.panel === {theme.quote(name)}")
        names = [group for group in GROUPS if group in set(of["group"])]
        hue = colour(GROUPS, "group", names, LEGEND)
        x = alt.X(
            "at:Q", title="bit error rate (log scale)", scale=alt.Scale(type="log"), axis=alt.Axis(format="~e", tickCount=5)
        )
        is_large = float(of["high"].max()) > 10  # type: ignore[arg-type]
        y = alt.Y(
            "value:Q",
            title="perplexity (over that without flips, ×, log)",
            scale=alt.Scale(type="log", nice=False, padding=8),
            axis=alt.Axis(format=",~g", values=[10.0**n for n in range(7)]) if is_large else alt.Axis(format="~g", tickCount=6),
        )
        tips = [
            alt.Tooltip("group:N", title="bits"),
            alt.Tooltip("at:Q", title="rate", format="~e"),
            alt.Tooltip("value:Q", format=".4~g"),
            alt.Tooltip("low:Q", format=".4~g"),
            alt.Tooltip("high:Q", format=".4~g"),
            alt.Tooltip("seeds:Q"),
        ]
        band = base.mark_area(opacity=0.18).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), hue)
        line = base.mark_line(point=True).encode(x, y, hue, tooltip=tips)
        panels.append(alt.layer(band, line).properties(width=310, height=250, title=name))
    drawn = alt.hconcat(*panels, spacing=30).resolve_scale(color="independent")
    return stacked([drawn], source("measured inside the model", reading=None), params(start, "live"))


def _refresh_figure(found: pl.DataFrame, table_4: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Is it worth refreshing important tokens and bits more often?"
    if found.is_empty():
        return Figure("refresh", question, None, {}, (), "", NO_REFRESH)
    row = found.row(0, named=True)
    reading = (
        f"Left: perplexity on {row['dataset']} over that of the same words without losses, Kelle with {row['budget']} tokens per "
        "head, both ways at the same mean interval and so the same refresh power. Bits fail by the assumed retention curve. "
        f"Right: Table 4 of the paper, accuracy of Llama-2-7B by task. {SEEDS}"
    )
    said = {
        str(model): f"{refresh_answer(of)}{_table_4_answer(table_4)}"
        for (model,), of in found.group_by(["model"], maintain_order=True)
    }
    return Figure("refresh", question, _refresh_chart(found, table_4, start), said, ("live",), reading, NO_REFRESH)


def refresh_answer(found: pl.DataFrame) -> str:
    """2DRP beside uniform refresh at each interval, for each way to store a word; rows of one model."""
    said = []
    for (storage,), held in found.sort("storage", descending=True).group_by(["storage"], maintain_order=True):
        pairs, won = [], 0
        for (at,), of in held.sort("at").group_by(["at"], maintain_order=True):
            value = dict(of.select("variant", "value").rows())
            if set(WAYS) <= value.keys():
                won += value["2DRP"] <= value["uniform"]
                pairs.append(f"{_cost(value['2DRP'])} against {_cost(value['uniform'])} every {at:,.0f} us")
        if pairs:
            said.append(f"with {storage} words at {won} of {len(pairs)} mean intervals ({joined(pairs)})")
    return f"2DRP loses no more than uniform refresh {joined(said)}." if said else "Both ways were not measured at one interval."


def _table_4_answer(table_4: pl.DataFrame) -> str:
    if table_4.is_empty():
        return ""
    both = table_4.pivot("variant", index=["task", "at"], values="accuracy").drop_nulls()
    won = both.filter(pl.col("2DRP") > pl.col("uniform")).height
    return f" In the paper it answers better in {won} of {both.height} cells."


def _refresh_chart(found: pl.DataFrame, table_4: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    ways = [way for way in WAYS if way in set(found["variant"])]
    hue = colour(WAYS, "variant", ways, LEGEND)
    x = alt.X("at:O", title="mean refresh interval (us)", axis=alt.Axis(labelAngle=0, format=",.0f"))
    beside = alt.XOffset("variant:N", scale=alt.Scale(domain=ways))
    tips = [
        alt.Tooltip("variant:N", title="refresh"),
        alt.Tooltip("value:Q", format=".4f"),
        alt.Tooltip("low:Q", format=".4f"),
        alt.Tooltip("high:Q", format=".4f"),
        alt.Tooltip("seeds:Q"),
    ]
    panels = []
    for storage in found["storage"].unique().sort(descending=True):
        base = alt.Chart(alt.NamedData("refresh"))
        base = base.transform_filter(f"datum.model === live && datum.storage === {theme.quote(storage)}")
        is_large = float(found.filter(pl.col("storage") == storage)["high"].max()) > 10  # type: ignore[arg-type]
        scale = alt.Scale(type="log", nice=False, padding=10) if is_large else alt.Scale(zero=False)
        title = f"perplexity (over that without losses, ×{', log' if is_large else ''})"
        y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5, format=",~g"))
        band = base.mark_rule(strokeWidth=6, opacity=0.35).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), beside, hue)
        marks = base.mark_point(size=80).encode(x, y, beside, hue, tooltip=tips)
        panels.append(alt.layer(band, marks).properties(width=235, height=250, title=f"{storage}, live"))
    drawn = alt.hconcat(*panels, *_table_4_charts(table_4, hue), spacing=22)
    return stacked([drawn], source("measured inside the model, and the paper's", reading=None), params(start, "live"))


def _table_4_charts(table_4: pl.DataFrame, hue: alt.Color) -> list[alt.Chart]:
    """A panel per task of the paper."""
    x = alt.X("at:O", title="interval (us)", axis=alt.Axis(labelAngle=0, format=",.0f"))
    y = alt.Y("accuracy:Q", title="accuracy (%; the paper's)", scale=alt.Scale(zero=False))
    tips = [alt.Tooltip("task:N"), alt.Tooltip("variant:N"), alt.Tooltip("accuracy:Q", format=".2f")]
    return [
        alt.Chart(alt.NamedData("table_4"))
        .transform_filter(f"datum.task === {theme.quote(task)}")
        .mark_line(point={"filled": False, "fill": "white", "size": 70})
        .encode(x, y, hue, tooltip=tips)
        .properties(width=125, height=250, title=f"{task}, the paper")
        for task in table_4["task"].unique().sort()
    ]
