"""Marks and what each of them takes: a layer of a figure's file as a Vega-Lite layer.

A layer is a mark's name with its settings ("line strokeWidth=1.8"), or a table: mark, channels of its own ("" drops one that the
panel has), data, with, here, tips, brush (a box that picks), legend (the field that a click in its legend picks). In a panel with
`pick = FIELD` what is not picked fades.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokentape.dashboards import theme
from tokentape.dashboards.engine.grammar import Scope, channel, segments, tooltip

OFFSETS = ("xOffset", "yOffset")
CHANNELS = (
    *("x", "y", "x2", "y2", "color", "shape", "strokeDash", "strokeWidth", "size", "opacity", "detail", "order", "text", "key"),
    *("fill", "stroke", "theta", "angle", *OFFSETS),
)
OF_LAYER = ("mark", "data", "with", "here", "tips", "place", "columns", "end", "above", "brush", "legend")
# Of a panel's channels, those that a mark takes; others it has to name itself.
TAKES = {
    "bar": ("x", "y", "x2", "y2", "color", "opacity", "order", *OFFSETS, "tips"),
    "line": ("x", "y", "color", "strokeDash", "detail", "order"),
    "area": ("x", "y", "y2", "color", "detail"),
    "band": ("x", "y", "color", "detail"),
    "whisker": ("x", "y", "color", *OFFSETS),
    "point": ("x", "y", "color", "shape", "size", "opacity", *OFFSETS, "tips"),
    "circle": ("x", "y", "color", "size", "opacity", "tips"),
    "rule": ("x", "y", "color"),
    "level": ("x", "y", "color", "strokeDash", "tips"),
    "tick": ("x", "y", "color", *OFFSETS, "tips"),
    "rect": ("x", "y", "color", "tips"),
    "text": ("x", "y", "text", *OFFSETS),
    "hollow": ("x", "y", "color", *OFFSETS, "tips"),
    "columns": ("y",),
}
# A band or a whisker runs from `low` to `high`, along the axis of quantities; a level is a rule that says what it stands for.
MADE_OF = {"band": "area", "whisker": "rule", "level": "rule"}


def layers(scope: Scope, panel: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panel's marks, from the back to the front."""
    marks = panel.get("marks", ())
    for n, told in enumerate(scope.value(marks) if isinstance(marks, str) else marks):
        own = {"mark": told} if isinstance(told, str) else told
        at = scope.inside(f"marks {n + 1}")
        name, _, settings = at.text(own.get("mark", "")).partition(" ")
        if name not in TAKES:
            raise at.bad(f"{name}: no mark; there are {', '.join(sorted(TAKES))}")
        for key in own:
            if key not in (*CHANNELS, *OF_LAYER):
                raise at.bad(f"{key}: neither a channel nor a setting of a layer")
        if name == "columns":
            yield from _columns(at, panel, own, settings)
        else:
            yield _layer(at, panel, own, name, settings)


def steps(scope: Scope, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """here: parameters that rows have to fit; with: filters, fields and what else `_step` knows, in order."""
    found: list[dict[str, Any]] = []
    if told.get("here"):
        fits = (word.partition("=") for word in told["here"].split())
        found.append({"filter": " && ".join(f"datum.{name} === {value or name}" for name, _, value in fits)})
    return found + [_step(scope, step) for step in told.get("with", ())]


def _step(scope: Scope, told: Any) -> dict[str, Any]:
    """A transform; a table is one as Vega-Lite has it."""
    if not isinstance(told, str):
        return scope.filled(told)  # type: ignore[no-any-return]
    text = scope.text(told)
    if made := re.fullmatch(r"(\w+) = (.*)", text, re.S):
        return {"calculate": made[2], "as": made[1]}
    step, _, rest = text.partition(" ")
    of, _, by = rest.removeprefix("by ").partition(" by ") if step != "count" else ("", "", rest.removeprefix("by "))
    fields, _, names = of.partition(" as ")
    match step:
        case "where":
            return {"filter": rest}
        case "flatten":
            return {"flatten": rest.split()}
        case "fold":
            return {"fold": fields.split(), "as": names.split()}
        case "count":
            return _aggregate([{"op": "count", "as": "n"}], by)
        case "most":
            return _aggregate([{"op": "max", "field": fields, "as": names or fields}], by)
        case "ends":  # of two fields: the least of the first as low, the most of the second as high
            low, high = fields.split()
            ends = [{"op": "min", "field": low, "as": "low"}, {"op": "max", "field": high, "as": "high"}]
            return _aggregate(ends, by)
    raise scope.inside("with").bad(f"{text}: not where, fold, flatten, count, most, ends, or name = expression")


def _aggregate(made: list[dict[str, str]], by: str) -> dict[str, Any]:
    return {"aggregate": made, **({"groupby": by.split()} if by else {})}


def _layer(scope: Scope, panel: Mapping[str, Any], own: Mapping[str, Any], name: str, settings: str) -> dict[str, Any]:
    told = {key: panel[key] for key in TAKES[name] if key in panel}
    mark: dict[str, Any] = {"type": MADE_OF.get(name, name), **(scope.settings(settings, {}) or {})}
    transform = [*steps(scope, panel), *steps(scope, own)] if "data" not in own else steps(scope, own)
    if name in ("band", "whisker"):
        told |= _ends(told, own)
    if mark.get("point") and "tips" in panel:
        told["tips"] = panel["tips"]
    told |= {key: value for key, value in own.items() if key in CHANNELS or key == "tips"}
    found: dict[str, Any] = {key: channel(scope, key, value) for key, value in told.items() if key != "tips" and value != ""}
    if told.get("tips"):
        found["tooltip"] = [tooltip(scope, text) for text in told["tips"]]
    if "pick" in panel and "opacity" not in own:
        test = f"!length(pick) || indexof(pick, datum.{panel['pick']}) >= 0"
        found["opacity"] = {"condition": {"test": test, "value": mark.get("opacity", 1)}, "value": 0.12}
    if name == "hollow":
        mark = {"filled": False, "size": 110, "strokeWidth": 1.7} | mark | {"type": "point"}
        if "place" not in own:
            raise scope.bad("place: a hollow mark needs the field of the paper's number")
        transform += _places({key: scope.text(text) for key, text in own["place"].items()})
        found["opacity"] = {"field": "printed", "type": "quantitative", "scale": None}
    made: dict[str, Any] = {"mark": mark, "encoding": found}
    if "brush" in own:
        made["params"] = [{"name": "brush", "select": "interval"}]
    if field := scope.text(own.get("legend", "")):
        made["params"] = [{"name": "policy_pick", "select": {"type": "point", "fields": [field]}, "bind": "legend"}]
    if "data" in own:
        made["data"] = {"name": own["data"]}
    return made | ({"transform": transform} if transform else {})


def _ends(told: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, str]:
    """low and high along the axis of quantities."""
    y = own.get("y") or told.get("y", "")
    along = "x" if re.match(r"\w+:[NO]", y) else "y"
    return {along: "low:Q", f"{along}2": "high:Q"}


def _places(places: Mapping[str, str]) -> list[dict[str, Any]]:
    """The paper's marks, unseen where it prints no number: a chart without any row warns of its empty scale.

    places: the field to make -> "the field of the paper's number else an expression of where an unseen mark stands".
    """
    split = {name: text.split(" else ") for name, text in places.items()}
    made = [
        {"calculate": f"isValid(datum.{field}) ? datum.{field} : {other}", "as": name} for name, (field, other) in split.items()
    ]
    is_printed = " && ".join(f"isValid(datum.{field})" for field, _ in split.values())
    return [*made, {"calculate": f"({is_printed}) ? 1 : 0", "as": "printed"}]


def _columns(scope: Scope, panel: Mapping[str, Any], own: Mapping[str, Any], settings: str) -> Iterator[dict[str, Any]]:
    """Words beside a plot, `field | head | how far behind its end`, the end at `end`, heads `above` it."""
    y = channel(scope, "y", own.get("y", panel["y"]))
    for text in own["columns"]:
        name, title, at, *more = segments(scope.text(text))
        mark = {"type": "text", "align": "left", "fontSize": 12.5, "color": theme.INK}
        mark |= scope.settings(settings, {}) or {}
        mark |= scope.settings(more[0], {}) or {} if more else {}
        x = {"value": own.get("end", 0) + float(at)}
        tips = {"tooltip": [tooltip(scope, told) for told in own["tips"]]} if "tips" in own else {}
        words = {"mark": mark, "encoding": {"x": x, "y": y, "text": {"field": name, "type": "nominal"}, **tips}}
        yield words | ({"transform": steps(scope, panel)} if steps(scope, panel) else {})
        head = [{"aggregate": [{"op": "count", "as": "n"}]}, {"calculate": theme.quote(title), "as": "title"}]
        above = {"x": x, "y": {"value": -own.get("above", 12)}, "text": {"field": "title", "type": "nominal"}}
        yield {"transform": [*steps(scope, panel), *head], "mark": {**mark, "fontWeight": 600}, "encoding": above}
