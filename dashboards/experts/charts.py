"""The charts of policies on the expert-cache page. Parameters trace, hardware, scope, rules and phase follow the page's menus,
and the pick of a policy is shared by every chart that shows policies.
"""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from tokentape.dashboards import theme
from tokentape.dashboards.experts.words import CYCLE_WORDS
from tokentape.dashboards.theme import Lines

PICK = alt.selection_point(name="policy_pick", fields=["policy"], bind="legend")
PERCENT = alt.Axis(format="%")
CAPACITY = alt.X("capacity:Q", title="cache capacity (% of all experts' bytes)", axis=PERCENT, scale=alt.Scale(domain=[0, 1]))


def hit_rate(lines: Lines, start: Mapping[str, str]) -> alt.LayerChart | alt.FacetChart:
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
) -> alt.LayerChart | alt.FacetChart:
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


def _cycle_mark(base: alt.Chart) -> list[alt.Chart]:
    """A rule at L x k, the lookups of one decoded token."""
    mark = base.transform_aggregate(x="max(cycle)", n="max(cycle_experts)")
    rule = mark.mark_rule(color=theme.QUIET, strokeDash=[2, 3], strokeWidth=1.5).encode(alt.X("x:Q"))
    text = (
        mark.transform_calculate(word=CYCLE_WORDS)
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
