"""The charts of the expert-cache page. Rows come by name from the page ("runs", "reuse", ...: see rows.py); the parameters trace,
hardware, scope, rules and phase follow the page's menus, and the pick of a policy is shared by every chart that shows policies.
"""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from tokentape.dashboards import theme
from tokentape.dashboards.theme import Lines

WIDTH = 980
PICK = alt.selection_point(name="policy_pick", fields=["policy"], bind="legend")
PERCENT = alt.Axis(format="%")
CAPACITY = alt.X("capacity:Q", title="cache capacity (% of all experts' bytes)", axis=PERCENT, scale=alt.Scale(domain=[0, 1]))


def hit_rate(lines: Lines, start: Mapping[str, str]) -> alt.LayerChart:
    """Hit rate against capacity: methods as lines, bounds dashed, L x k marked."""
    base = _runs(start, "trace", "hardware", "scope", "rules", "phase").transform_calculate(hit="datum['hit_' + phase]")
    hit = alt.Y("hit:Q", title="hit rate (% of unique lookups)", axis=PERCENT, scale=alt.Scale(domain=[0, 1]))
    colour = lines.color(title="When full, the cache drops …", sentences=True)
    drawn = _policy_layers(base.encode(CAPACITY, hit), lines, colour, [_tip("hit", "hit rate", ".1%"), *_CAPACITY_TIPS])
    return alt.layer(*_cycle_mark(base), *drawn).properties(width=740, height=380)


def cost(lines: Lines, start: Mapping[str, str]) -> alt.HConcatChart:
    """Milliseconds and millijoules per decoded token against capacity, on the chosen hardware."""
    base = _runs(start, "trace", "hardware", "scope", "rules")
    latency = cost_panel(base, lines, "step", "ms", "latency (ms per decoded token)", picks=True)
    return alt.hconcat(latency, cost_panel(base, lines, "energy", "mJ", "energy (mJ per decoded token)"), spacing=40)


def cost_panel(
    base: alt.Chart, lines: Lines, name: str, unit: str, title: str, width: int = 490, height: int = 300, picks: bool = False
) -> alt.LayerChart:
    """One cost against capacity; the band of the picked policy shows its range. picks: this panel owns the legend's pick."""
    value, low, high = (f"{name}_{end}{unit.lower()}" for end in ("", "low_", "high_"))
    tips = [
        _tip(value, title, ".4~g"),
        _tip(low, f"range from ({unit})", ".4~g"),
        _tip(high, f"range to ({unit})", ".4~g"),
        _tip("tokens_per_s", "speed (tokens/s)", ".4~g"),
        *_CAPACITY_TIPS,
    ]
    colour = lines.color(title=None, orient="bottom", columns=4)
    encoded = base.encode(CAPACITY, alt.Y(f"{value}:Q", title=title, scale=alt.Scale(zero=True)))
    shown = alt.when(PICK, empty=False).then(alt.value(0.18)).otherwise(alt.value(0))
    ends = alt.Y(f"{low}:Q", title=title), alt.Y2(f"{high}:Q")
    band = base.mark_area(color=theme.QUIET).encode(CAPACITY, *ends, alt.Detail("policy:N"), opacity=shown)
    return alt.layer(band, *_policy_layers(encoded, lines, colour, tips, picks)).properties(width=width, height=height)


def popularity(start: Mapping[str, str]) -> alt.Chart:
    """Layer-by-expert heat map of selections, as multiples of an even share."""
    legend = alt.Legend(gradientLength=240, values=[0, 1, 2, 3, 4], labelExpr="datum.value == 4 ? '4 or more' : datum.label")
    scale = alt.Scale(range=theme.HEAT, interpolate="rgb", domain=[0, 1, 2, 3, 4], clamp=True)
    return (
        alt.Chart(alt.NamedData("popularity"))
        .add_params(*_params(start, "trace", "phase"))
        .transform_filter("datum.trace === trace && datum.phase === phase")
        .transform_calculate(expert="sequence(0, length(datum.times))")
        .transform_flatten(["times", "expert"])
        .mark_rect()
        .encode(
            alt.X("expert:O", title="expert (id within its layer)", axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False)),
            alt.Y("layer:O", title="layer", axis=alt.Axis(labelOverlap=True, ticks=False)),
            alt.Color("times:Q", title=["selected,", "× an even share"], scale=scale, legend=legend),
            tooltip=[_tip("layer", "layer", "d"), _tip("expert", "expert", "d"), _tip("times", "times an even share", ".2f")],
        )
        .properties(width=WIDTH, height=300)
    )


def reuse(start: Mapping[str, str]) -> alt.LayerChart:
    """Histogram of reuse distances, L x k marked."""
    base = (
        alt.Chart(alt.NamedData("reuse"))
        .add_params(*_params(start, "trace", "scope", "rules"))
        .transform_filter("datum.trace === trace && datum.scope === scope && datum.rules === rules")
    )
    bars = base.mark_bar(color=theme.BLUE, binSpacing=1).encode(
        alt.X("low:Q", bin="binned", title="reuse distance (distinct experts looked up since the last use)"),
        alt.X2("high:Q"),
        alt.Y("share:Q", title="share of all lookups (%)", axis=alt.Axis(format=".1~%")),
        tooltip=[
            _tip("low", "above (experts)", ",d"),
            _tip("high", "up to (experts)", ",d"),
            _tip("share", "share of lookups", ".2%"),
            _tip("within", "LRU hit rate at this size", ".1%"),
        ],
    )
    return alt.layer(bars, *_cycle_mark(base, "cycle_experts")).properties(width=WIDTH, height=240)


def locality(start: Mapping[str, str]) -> alt.LayerChart:
    """Overlap of consecutive tokens' experts per layer, against chance."""
    base = (
        alt.Chart(alt.NamedData("locality"))
        .add_params(*_params(start, "trace"))
        .transform_filter("datum.trace === trace")
        .encode(alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)))
    )
    share = alt.Y("overlap:Q", title="experts shared with the token before (%)", axis=PERCENT, scale=alt.Scale(zero=True))
    phases, colours = list(theme.PHASE_COLOURS), list(theme.PHASE_COLOURS.values())
    legend = alt.Legend(title="Consecutive tokens of the …", labelExpr="datum.label + ' phase'")
    colour = alt.Color("phase:N", scale=alt.Scale(domain=phases, range=colours), legend=legend)
    shape = alt.Shape("phase:N", scale=alt.Scale(domain=phases, range=["square", "circle"]))
    shares = [_tip("overlap", "overlap", ".1%"), _tip("chance", "by chance", ".1%")]
    tips = [_tip("layer", "layer", "d"), alt.Tooltip("phase:N"), *shares]
    chance = base.mark_line(strokeDash=[2, 3], color=theme.QUIET, strokeWidth=1.5).encode(alt.Y("mean(chance):Q"))
    word = (
        base.transform_aggregate(chance="mean(chance)", layer="max(layer)")
        .mark_text(align="right", baseline="bottom", dy=-3, color=theme.QUIET, fontSize=12)
        .encode(alt.Y("chance:Q"), text=alt.value("by chance"))
    )
    return alt.layer(
        chance, word, base.mark_line().encode(share, colour), base.mark_point().encode(share, colour, shape, tooltip=tips)
    ).properties(width=820, height=260)


def similarity(start: Mapping[str, str]) -> alt.Chart:
    """Cosine between prefill and decode expert frequencies, per layer."""
    return (
        alt.Chart(alt.NamedData("similarity"))
        .add_params(*_params(start, "trace"))
        .transform_filter("datum.trace === trace")
        .mark_bar(color=theme.GREEN)
        .encode(
            alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True), scale=alt.Scale(paddingInner=0.25)),
            alt.Y("cosine:Q", title="cosine of their counts (1 = same)", scale=alt.Scale(domain=[0, 1])),
            tooltip=[_tip("layer", "layer", "d"), _tip("cosine", "cosine similarity", ".3f")],
        )
        .properties(width=WIDTH, height=220)
    )


def _policy_layers(
    base: alt.Chart, lines: Lines, colour: alt.Color, tips: list[alt.Tooltip], picks: bool = True
) -> list[alt.Chart]:
    """A line and its points per policy; what is not picked fades. The pick belongs to the line, whose legend it listens to."""
    faded = alt.when(PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    unseen_on_bounds = alt.when("datum.bound").then(alt.value(0)).when(PICK).then(alt.value(1)).otherwise(alt.value(0.12))
    line = base.mark_line().encode(colour, lines.dash(), opacity=faded)
    tooltip = [alt.Tooltip("policy:N", title="policy"), *tips]
    points = base.mark_point().encode(colour, lines.shape(), opacity=unseen_on_bounds, tooltip=tooltip)
    return [line.add_params(PICK) if picks else line, points]


def _cycle_mark(base: alt.Chart, where: str = "cycle") -> list[alt.Chart]:
    """A rule at L x k, the lookups of one decoded token; `where` is the column that holds it on the x axis."""
    mark = base.transform_aggregate(x=f"max({where})", n="max(cycle_experts)")
    flood = "(scope === 'global' ? ': below, LRU is flooded' : '')"
    word = f"'L × k = ' + format(datum.n, ',') + ' experts, the lookups of a token' + {flood}"
    rule = mark.mark_rule(color=theme.QUIET, strokeDash=[2, 3], strokeWidth=1.5).encode(alt.X("x:Q"))
    text = (
        mark.transform_calculate(word=word)
        .mark_text(align="left", dx=-3, color=theme.QUIET, fontSize=12)
        .encode(alt.X("x:Q"), alt.Y(value=-7), text="word:N")
    )
    return [rule, text]


def _runs(start: Mapping[str, str], *names: str) -> alt.Chart:
    """The replayed settings that the menus chose."""
    tests = [f"datum.{name} === {name}" for name in names if name != "phase"]
    return alt.Chart(alt.NamedData("runs")).add_params(*_params(start, *names)).transform_filter(" && ".join(tests))


def _params(start: Mapping[str, str], *names: str) -> list[alt.Parameter]:
    return [alt.param(name=name, value=start[name]) for name in names]


def _tip(column: str, title: str, number: str) -> alt.Tooltip:
    return alt.Tooltip(f"{column}:Q", title=title, format=number)


_CAPACITY_TIPS = [
    _tip("capacity", "capacity (% of bytes)", ".1%"),
    _tip("experts", "capacity (experts)", ",.1~f"),
    _tip("gb", "capacity (GB)", ".3~g"),
]
