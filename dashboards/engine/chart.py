"""Panels of a figure's file as one Vega-Lite chart: rows below one another under a line that says where they are from."""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from tokentape.dashboards import theme
from tokentape.dashboards.engine.grammar import Scope, channel, segments
from tokentape.dashboards.engine.marks import CHANNELS, layers

SIZED = {"beside": "offset", "row": "position"}
FACETS = ("facet", "row", "column")
OF_PANEL = (
    *CHANNELS,
    *FACETS,
    "data",
    "only",
    "here",
    "with",
    "tips",
    "marks",
    "right",
    "title",
    "width",
    "height",
    "columns",
    "each",
    "pick",
)
OF_GROUP = ("across", "down", "spacing", "columns", "resolve", "each", "title")
OF_TABLE = ("data", "pick", "columns", "below")
OF_CHART = ("rows", "caption", "params", "gap", "join")


def chart(scope: Scope, told: Mapping[str, Any], start: Mapping[str, str], params: Sequence[str]) -> dict[str, Any]:
    """told: tables [chart] and [panels.*] of the file, or its [table]. start: the values that the page's controls open with."""
    if "table" in told:
        return {"table": {**table(scope.inside("table"), told["table"]), "here": list(params)}}
    shared, panels = told.get("chart", {}), told.get("panels", {})
    at = scope.inside("chart")
    for key in shared:
        if key not in (*OF_PANEL, *OF_GROUP, *OF_CHART):
            raise at.bad(f"{key}: no setting of a chart")
    rows = [made for name in shared.get("rows", [""]) for made in _drawn(at, name, shared, panels)]
    is_alone = "rows" not in shared and "caption" not in shared
    drawn = rows[0] if is_alone else {"vconcat": rows, "spacing": shared.get("gap", 24)}
    found: dict[str, Any] = {"$schema": alt.SCHEMA_URL, **drawn}
    if params:
        found["params"] = [{"name": name, "value": start.get(name, scope.names.get(name, ""))} for name in params]
    if "pick" in shared:  # what is picked in a chart or table of the page (assets/site.js)
        found["params"] = [*found.get("params", []), {"name": "pick", "value": []}]
        found["usermeta"] = {"pick": shared["pick"]}
    found |= _resolved(at, shared, "join")
    if "caption" not in shared:
        return found
    caption = {"fontSize": 12, "fontWeight": "normal", "color": theme.QUIET, "anchor": "start", "offset": 14}
    return {**found, "title": {"text": {"expr": expression(at.inside("caption"), shared["caption"])}, **caption}}


def table(scope: Scope, told: Mapping[str, Any]) -> dict[str, Any]:
    """Rows as a table that assets/site.js makes. columns: "field | head | format", a format of numbers "%", "x", or digits;
    below: a field of long words, which stand on a line of their own under the row's numbers."""
    if unknown := sorted(told.keys() - set(OF_TABLE)):
        raise scope.bad(f"{unknown[0]}: no setting of a table; it has {', '.join(OF_TABLE)}")
    cells = [(*segments(scope.text(text)), "", "")[:3] for text in told.get("columns", ())]
    for field in (*(field for field, *_ in cells), *(told[of] for of in ("pick", "below") if of in told)):
        _of(scope, told).column(field)
    return {**told, "columns": cells}


def expression(scope: Scope, text: str) -> str:
    """A line of text as a Vega expression: [name] is a parameter of the chart, [name:TABLE] its words."""
    parts = []
    for n, part in enumerate(re.split(r"\[(\w+(?::\w+)?)\]", scope.text(text))):
        name, _, table = part.partition(":") if n % 2 else ("", "", "")
        parts.append(f"(({theme.literal(scope[table])})[{name}])" if table else name or theme.quote(part))
    return " + ".join(part for part in parts if part != "''")


def _drawn(scope: Scope, name: str, shared: Mapping[str, Any], panels: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A panel, or one for every item of its `each`; "": the chart's own."""
    if name and name not in panels:
        raise scope.bad(f"{name}: no [panels.{name}] in the file")
    own = panels[name] if name else {key: value for key, value in shared.items() if key not in OF_CHART}
    at = scope.inside(f"panels.{name}") if name else scope
    for key in own:
        if key not in (*OF_PANEL, *OF_GROUP):
            raise at.bad(f"{key}: no setting of a panel")
    items = at.filled(own.get("each", [{}]))
    for n, item in enumerate(items):
        told = item if isinstance(item, dict) else {"item": item}
        told = {"is_first": n == 0, "is_last": n == len(items) - 1, **told}
        here = replace(at, names=ChainMap(told, dict(at.names)) if told else at.names)
        if "across" in own or "down" in own:
            yield _group(here, own, shared, panels)
        else:
            inherited = {key: value for key, value in shared.items() if key in OF_PANEL and key not in ("each", "title")}
            yield _panel(here, {**inherited, **own})


def _group(scope: Scope, own: Mapping[str, Any], shared: Mapping[str, Any], panels: Mapping[str, Any]) -> dict[str, Any]:
    """Panels side by side (across) or below one another (down)."""
    side, kind = ("across", "hconcat") if "across" in own else ("down", "vconcat")
    kind = "concat" if "columns" in own else kind
    found: dict[str, Any] = {kind: [made for name in own[side] for made in _drawn(scope, name, shared, panels)]}
    return found | {key: own[key] for key in ("columns", "spacing") if key in own} | _resolved(scope, own)


def _resolved(scope: Scope, told: Mapping[str, Any], key: str = "resolve") -> dict[str, Any]:
    """Which scales are shared, where it is told."""
    return {"resolve": {"scale": scope.inside(key).settings(told[key], {})}} if key in told else {}


def _of(scope: Scope, told: Mapping[str, Any]) -> Scope:
    """Among the rows that a panel or a table is of."""
    data = scope.text(told.get("data", ""))
    if data not in scope.frames:
        raise scope.bad(f"data: {data}: the figure has no such rows; it has {', '.join(scope.frames)}")
    return replace(scope, data=data)


def _panel(scope: Scope, told: Mapping[str, Any]) -> dict[str, Any]:
    here = _of(scope, told)
    made = list(layers(here, told))
    if not made:
        raise scope.bad("marks: none")
    if "right" in told:  # marks on an axis of their own
        made = [{"layer": made}, {"layer": list(layers(here, {**told, "marks": told["right"]}))}]
    own = {key: _size(scope, told[key]) for key in ("width", "height") if key in told}
    drawn = {**(made[0] if len(made) == 1 else {"layer": made}), **own}
    if "right" in told:
        drawn["resolve"] = {"scale": {"y": "independent"}}
    if told.get("only"):  # before panels are told apart: what no row is left of has none
        drawn = {"layer": made, **own, "transform": [{"filter": scope.text(told["only"])}]}
    around: dict[str, Any] = {"data": {"name": here.data}}
    title = scope.text(told.get("title", ""))
    split = {key: scope.value(told[key]) for key in FACETS if key in told}
    facets = {key: channel(here, key, text) for key, text in split.items() if text}
    if not facets:
        return {**around, **drawn, **_resolved(scope, told), **({"title": title} if title else {})}
    around |= {"facet": facets.get("facet", {k: v for k, v in facets.items() if k != "facet"}), "spec": drawn}
    return around | {key: told[key] for key in ("columns", "spacing") if key in told} | _resolved(scope, told)


def _size(scope: Scope, told: Any) -> Any:
    """A number, or "15 each" (entry of an axis), "15 beside" (mark beside others), "15 row" (entry and all its marks)."""
    told = scope.value(told) if isinstance(told, str) and told.startswith("@") else told
    if not isinstance(told, str):
        return told
    step, _, of = told.partition(" ")
    return {"step": float(step), **({"for": SIZED[of]} if of in SIZED else {})}
