"""The ELMoE-3D page on energy: joules of a token by part, platform and batch (Figure 15)."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.elmoe3d.platforms import mean_words, named
from tokentape.dashboards.elmoe3d.words import LEGEND, OURS, PLATFORMS, STUDY, models, source
from tokentape.dashboards.panels import known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined, quantity

NO_ENERGY = f"Nothing to draw: no energy of a platform was computed. {STUDY}"
PARTS = {
    "static": ("static power", theme.QUIET),
    "ext": ("EXT reads", theme.BLUE),
    "hb": ("HB reads", theme.SKY),
    "compute": ("compute", theme.ORANGE),
    "links": ("links", theme.PURPLE),
}
REFERENCE = "xpu"
SETTING = ["law", "model", "batch"]


def part(energy: pl.DataFrame, start: dict[str, str]) -> Part:
    """Figure 15. energy: rows.energy."""
    question = "What does a token cost in energy, and on what?"
    if energy.is_empty():
        return Part((Figure("energy", question, None, {}, (), "", NO_ENERGY),))
    found, totals = _relative(energy)
    said = {str(law): energy_answer(of) for (law,), of in totals.group_by(["law"], maintain_order=True)}
    reading = (
        "Joules per emitted token over ELMoE-3D's at the same model and batch, each platform in its faster mode; a blue dot: "
        "that mode is SD. Rules: every part at the least and at the most of its range together. Energy of an operation, of "
        "links and static power are assumed, because the paper does not give them; reads of HB and EXT are its own. The "
        "paper's bars carry no numbers; what its text says of this figure is among the claims. No bar is set."
    )
    figure = Figure("energy", question, _energy_chart(found, totals, start), said, ("law",), reading, NO_ENERGY)
    return Part((figure,), data={"energy": found, "energy_totals": totals})


def _relative(energy: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parts and totals over our platform's total of the same law, model and batch."""
    ours = energy.filter(pl.col("platform") == OURS).group_by(SETTING).agg(pl.sum("j_per_token").alias("own"))
    order = {name: n for n, name in enumerate(PARTS)}
    names = known(PLATFORMS, energy["platform"])
    place = {name: n for n, name in enumerate(names)}
    beside = energy.join(ours, on=SETTING).with_columns(
        words=named(),
        said=pl.col("part").replace({name: words for name, (words, _) in PARTS.items()}),
        relative=pl.col("j_per_token") / pl.col("own"),
        turn=pl.col("part").replace_strict(order, default=len(order), return_dtype=pl.Int64),
        place=pl.col("platform").replace_strict(place, return_dtype=pl.Int64),
    )
    totals = beside.group_by(*SETTING, "level", "dataset", "platform", "words", "place", "mode", maintain_order=True).agg(
        pl.sum("relative", "j_per_token"), low=pl.sum("low") / pl.first("own"), high=pl.sum("high") / pl.first("own")
    )
    kept = beside.select(*SETTING, "words", "said", "turn", "place", "mode", "relative", "j_per_token").filter(
        pl.col("relative") > 0
    )
    return kept.sort("law", "model", "batch", "place", "turn"), totals.sort("law", "model", "batch", "place")


def energy_answer(totals: pl.DataFrame) -> str:
    """The xPU and the best other platform over ours; a token in joules; rows of one law."""
    ours = totals.filter(pl.col("platform") == OURS)
    xpu = totals.filter(pl.col("platform") == REFERENCE)["relative"]
    prior = (
        totals.filter(pl.col("platform") != OURS)
        .group_by("model", "batch")
        .agg(pl.min("relative"), pl.col("words").get(pl.col("relative").arg_min()))
    )
    cost = ours["j_per_token"]
    said = f"A token costs {quantity(float(cost.min()), 'J')} to {quantity(float(cost.max()), 'J')} on ELMoE-3D"
    said += f"; the xPU takes {mean_words(xpu)} × as much on average" if not xpu.is_empty() else ""
    if prior.is_empty():
        return f"{said}."
    nearest = prior.group_by("words").len().sort("len", "words", descending=[True, False]).row(0)
    dearer = prior.filter(pl.col("relative") < 1).height
    lost = f" in {dearer} settings another platform is cheaper" if dearer else " no other platform is cheaper in any setting"
    return (
        f"{said}; the cheapest other platform (mostly {nearest[0]}) {mean_words(prior['relative'])} ×;{lost}. SD is the "
        f"faster mode of ELMoE-3D in {percent(ours.filter(pl.col('mode') == 'sd').height / ours.height, 0)} of the settings."
    )


def _energy_chart(found: pl.DataFrame, totals: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    names, batches = models(found), found["batch"].unique().sort().to_list()
    most = float(totals["relative"].max()) * 1.3
    rows = []
    for n, model in enumerate(names):
        panels = [
            _energy_panel(model, batch, n == 0, m == 0, n == len(names) - 1, totals, most) for m, batch in enumerate(batches)
        ]
        rows.append(alt.hconcat(*panels, spacing=14))
    level = joined(totals["level"].unique().to_list())
    title = source(
        totals.drop("dataset"),
        "fidelity: input (rests on a given acceptance and assumed energies)",
        "blue dot: SD chosen",
        level=level,
    )
    return stacked(rows, title, params(start, "law"), spacing=10)


def _energy_panel(
    model: str, batch: int, is_top: bool, is_left: bool, is_bottom: bool, totals: pl.DataFrame, most: float
) -> alt.LayerChart:
    here = f"datum.law === law && datum.model === {theme.quote(model)} && datum.batch === {batch}"
    words = totals.sort("place")["words"].unique(maintain_order=True).to_list()
    axis = alt.Axis(ticks=False, domain=False, labelFontSize=11.5) if is_left else None
    y = alt.Y("words:N", title=f"{model} (platform)" if is_left else None, sort=words, axis=axis)
    scale = alt.Scale(domain=[said for said, _ in PARTS.values()], range=[colour for _, colour in PARTS.values()])
    colour = alt.Color("said:N", scale=scale, legend=LEGEND)
    title = "energy per token (ELMoE-3D = 1)" if is_bottom else None
    x = alt.X(
        "relative:Q",
        title=title,
        stack="zero",
        scale=alt.Scale(domain=[0, most], clamp=True),
        axis=alt.Axis(tickCount=5, labels=is_bottom),
    )
    tips = [
        alt.Tooltip("words:N", title="platform"),
        alt.Tooltip("said:N", title="part"),
        alt.Tooltip("j_per_token:Q", title="J per token", format=".3s"),
        alt.Tooltip("relative:Q", title="over ELMoE-3D", format=".2f"),
    ]
    bars = (
        alt.Chart(alt.NamedData("energy"))
        .transform_filter(here)
        .mark_bar(height=11)
        .encode(x, y, colour, alt.Order("turn:Q"), tooltip=tips)
    )
    each = alt.Chart(alt.NamedData("energy_totals")).transform_filter(here)
    rule = each.mark_rule(color=theme.INK, strokeWidth=1.1).encode(alt.X("low:Q"), y, alt.X2("high:Q"))
    chosen = each.transform_filter("datum.mode === 'sd'").mark_point(color=theme.BLUE, size=60, stroke="white", strokeWidth=1)
    dots = chosen.encode(x=alt.value(4), y=y)
    drawn = alt.layer(bars, rule, dots).properties(width=205, height=96)
    return drawn.properties(title=f"batch {batch}") if is_top else drawn
