"""The SliceMoE page's charts of a tape. Rows come by name from the page ("early", "critical", "gates": tape_rows.py);
the parameters trace and layer follow its menus."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from tokentape.dashboards import theme
from tokentape.dashboards.slicemoe.tape_rows import ALL

SERIES = {"prefill": ("prefill", theme.PHASE_COLOURS["prefill"]), "early": ("first ten decode steps", theme.BLUE)}
LIKENESS = {"cosine": (theme.GREEN, "circle"), "correlation": (theme.PURPLE, "diamond")}
TAUS = (theme.SKY, theme.BLUE, theme.INK)  # rising
LEFT, RIGHT, HEIGHT = 640, 300, 270
HERE = "datum.trace === trace && datum.layer === layer"


def early(start: Mapping[str, str]) -> alt.HConcatChart:
    """Shares of the selections by expert, prefill as bars and early decode as points; how alike they are, layer by layer."""
    base = alt.Chart(alt.NamedData("early")).transform_filter(HERE)
    flat = (
        base.transform_calculate(expert="sequence(0, length(datum.prefill))")
        .transform_flatten(["prefill", "early", "expert"])
        .transform_fold(list(SERIES), as_=["series", "share"])
    )
    axis = alt.Axis(labelAngle=0, labelOverlap=True, ticks=False, grid=False)
    x = alt.X("expert:O", title="expert (id in its layer; for all layers together: rank by use in prefill)", axis=axis)
    y = alt.Y("share:Q", title="share of selections (%)")
    words, colours = zip(*SERIES.values(), strict=True)
    legend = alt.Legend(title=None, orient="top", labelExpr=f"datum.label === 'early' ? '{words[1]}' : '{words[0]}'")
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(SERIES), range=list(colours)), legend=legend)
    tips = [
        alt.Tooltip("expert:Q"),
        alt.Tooltip("prefill:Q", title="prefill (%)", format=".2f"),
        alt.Tooltip("early:Q", title="first ten decode steps (%)", format=".2f"),
    ]
    bars = flat.transform_filter("datum.series === 'prefill'").mark_bar(opacity=0.65).encode(x, y, colour, tooltip=tips)
    points = flat.transform_filter("datum.series === 'early'").mark_point(size=38).encode(x, y, colour, tooltip=tips)
    even = base.transform_calculate(share="100 / length(datum.prefill)")
    rule = even.mark_rule(color=theme.QUIET, strokeDash=[2, 3], strokeWidth=1.5).encode(y)
    said = base.transform_calculate(
        words="'cosine ' + format(datum.cosine, '.2f')"
        " + (isValid(datum.correlation) ? ', correlation ' + format(datum.correlation, '.2f') : '')"
    )
    text = said.mark_text(align="right", fontSize=13, fontWeight=600, color=theme.INK).encode(
        x=alt.value(LEFT), y=alt.value(-10), text="words:N"
    )
    left = alt.layer(bars, rule, points, text).properties(width=LEFT, height=HEIGHT)
    return _beside(start, left, _likeness())


def _likeness() -> alt.LayerChart:
    """Cosine and correlation against the layer; the chosen one is marked."""
    base = (
        alt.Chart(alt.NamedData("early"))
        .transform_filter(f"datum.trace === trace && datum.layer !== '{ALL}'")
        .transform_fold(list(LIKENESS), as_=["measure", "value"])
    )
    x = alt.X("place:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True, grid=False))
    y = alt.Y("value:Q", title="prefill against early decode (1: same)", scale=alt.Scale(domainMax=1, zero=True))
    colours, shapes = zip(*LIKENESS.values(), strict=True)
    legend = alt.Legend(title=None, orient="top")
    colour = alt.Color("measure:N", scale=alt.Scale(domain=list(LIKENESS), range=list(colours)), legend=legend)
    shape = alt.Shape("measure:N", scale=alt.Scale(domain=list(LIKENESS), range=list(shapes)), legend=legend)
    tips = [alt.Tooltip("place:Q", title="layer"), alt.Tooltip("measure:N"), alt.Tooltip("value:Q", format=".3f")]
    marked = base.transform_filter("datum.layer === layer").mark_rule(color=theme.GRID, strokeWidth=9).encode(x)
    line = base.mark_line().encode(x, y, colour)
    points = base.mark_point(size=45).encode(x, y, colour, shape, tooltip=tips)
    return alt.layer(marked, line, points).properties(width=RIGHT, height=HEIGHT)


def critical(start: Mapping[str, str], taus: list[str]) -> alt.HConcatChart:
    """Critical experts of a token along the text, a line per tau; what every rank takes of the gate weight, by phase."""
    flat = (
        alt.Chart(alt.NamedData("critical"))
        .transform_filter(HERE)
        .transform_calculate(bin="sequence(0, length(datum.critical))")
        .transform_flatten(["critical", "bin"])
        .transform_filter("isValid(datum.critical)")
        .transform_calculate(first="datum.bin * datum.bin_tokens", last="datum.first + datum.bin_tokens - 1")
    )
    x = alt.X("first:Q", title="token position in its request (start of the bin)", scale=alt.Scale(nice=False))
    y = alt.Y("critical:Q", title="critical (experts of a token, per layer)", scale=alt.Scale(zero=True))
    legend = alt.Legend(title="critical: gate share above tau =", orient="top", titleOrient="left", symbolType="stroke")
    colour = alt.Color("tau:N", scale=alt.Scale(domain=taus, range=list(TAUS[: len(taus)])), legend=legend)
    tips = [
        alt.Tooltip("tau:N"),
        alt.Tooltip("first:Q", title="from position"),
        alt.Tooltip("last:Q", title="to position"),
        alt.Tooltip("critical:Q", title="critical experts", format=".2f"),
    ]
    line = flat.mark_line().encode(x, y, colour)
    points = flat.mark_point(size=22).encode(x, y, colour, tooltip=tips)
    left = alt.layer(line, points).properties(width=LEFT - 60, height=HEIGHT)
    return _beside(start, left, _gates())


def _gates() -> alt.LayerChart:
    """Share of the gate weight against rank; prefill is dashed, so that it hides nothing where both agree."""
    base = (
        alt.Chart(alt.NamedData("gates"))
        .transform_filter(HERE)
        .transform_calculate(rank="sequence(1, length(datum.share) + 1)")
        .transform_flatten(["share", "rank"])
    )
    x = alt.X("rank:O", title="rank of the selected expert (1: largest gate)", axis=alt.Axis(labelAngle=0, grid=False))
    y = alt.Y("share:Q", title="share of a token's gate weight (%)", scale=alt.Scale(zero=True))
    phases, colours = list(theme.PHASE_COLOURS), list(theme.PHASE_COLOURS.values())
    legend = alt.Legend(title=None, orient="top")
    colour = alt.Color("phase:N", scale=alt.Scale(domain=phases, range=colours), legend=legend)
    shape = alt.Shape("phase:N", scale=alt.Scale(domain=phases, range=["square", "circle"]), legend=legend)
    tips = [alt.Tooltip("phase:N"), alt.Tooltip("rank:Q"), alt.Tooltip("share:Q", title="share (%)", format=".1f")]
    dash = alt.StrokeDash("phase:N", scale=alt.Scale(domain=phases, range=[[5, 5], [1, 0]]), legend=None)
    line, points = base.mark_line().encode(x, y, colour, dash), base.mark_point().encode(x, y, colour, shape, tooltip=tips)
    return alt.layer(line, points).properties(width=RIGHT + 60, height=HEIGHT)


def _beside(start: Mapping[str, str], left: alt.LayerChart, right: alt.LayerChart) -> alt.HConcatChart:
    params = [alt.param(name=name, value=start[name]) for name in ("trace", "layer")]
    return alt.hconcat(left, right, spacing=50).resolve_scale(color="independent", shape="independent").add_params(*params)
