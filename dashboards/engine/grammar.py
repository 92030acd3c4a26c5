"""The text of a channel, "field:T | title | scale | guide", as Vega-Lite, and what the names in it stand for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.units import joined

TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal", "T": "temporal"}
WORDS = {"yes": True, "no": False, **theme.NAMED}
# Words of a scale and of a guide (an axis, a legend or a header) that stand for several settings.
SCALES: dict[str, dict[str, Any]] = {
    "log": {"type": "log"},
    "log2": {"type": "log", "base": 2},
    "sqrt": {"type": "sqrt"},
    "from0": {"zero": True},
    "free": {"zero": False},
    "tight": {"nice": False},
    "clamp": {"clamp": True},
    "stacked": {"stack": "zero"},
    "as_found": {"sort": "as found"},
    "falling": {"sort": "falling"},
    "palette": {"palette": True},
}
GUIDES: dict[str, dict[str, Any]] = {
    "bare": {"ticks": False, "domain": False},
    "flat": {"labelAngle": 0},
    "mute": {"labels": False},
    "top": {"title": None, "orient": "top", "symbolOpacity": 1},
    "squares": {"symbolType": "square", "symbolStrokeWidth": 0},
    "bold": {"labelFontSize": 13, "labelFontWeight": 600},
    "each": {"values": "each"},
}
OF_CHANNEL = ("sort", "stack", "bin", "aggregate")  # written with the scale, but settings of the channel
GUIDE = {"x": "axis", "y": "axis", "row": "header", "column": "header", "facet": "header"}
FORMAT = re.compile(r"[+,]*(\.\d+)?~?[defgs%]")
FIELD = re.compile(r"(?:(?P<op>\w+)\((?P<of>\w*)\)|(?P<field>\w+)):(?P<type>[QNOT])")


class BadFigure(ValueError):
    """A figure's file says what cannot be drawn."""


@dataclass(frozen=True)
class Scope:
    """What names stand for, and where in which file: "elmoe3d/figures/winners.toml: panels.left: x"."""

    where: str
    names: Mapping[str, Any]
    frames: Mapping[str, pl.DataFrame]
    data: str = ""

    def inside(self, place: str) -> Scope:
        return replace(self, where=f"{self.where}: {place}")

    def bad(self, why: str) -> BadFigure:
        return BadFigure(f"{self.where}: {why}")

    def __getitem__(self, name: str) -> Any:
        """A fact of the figure, a word of its page, or what a column of its rows begins with."""
        return self.names[name] if name in self.names else self._held(name)[0]

    def many(self, name: str) -> Any:
        """As above, but of a column all values, ascending."""
        return self.names[name] if name in self.names else self._held(name).drop_nulls().unique().sort().to_list()

    def _held(self, name: str) -> pl.Series:
        shown = [self.frames[self.data]] if self.data in self.frames else []
        held = [frame[name] for frame in (*shown, *self.frames.values()) if name in frame.columns]
        if held:
            return next((of for of in held if not of.is_empty()), held[0])
        raise self.bad(f"{name}: neither a fact of the figure nor a word of its page nor a column of its rows")

    def column(self, of: str) -> pl.Series:
        """What the rows have in the field of a channel."""
        rows, name = self.frames[self.data], of.partition(":")[0]
        if name not in rows.columns:
            raise self.bad(f"{name}: the rows have no such field, only {', '.join(rows.columns)}")
        return rows[name]

    def text(self, text: str) -> str:
        """`text` with {name} replaced; {name:q}: as a Vega string, a table as an object of them; {name:names}: a table's keys;
        {name:,}: in a format of Python's; {name:all}: of a column all values in words."""

        def filled(found: re.Match[str]) -> str:
            if found[2] == "all":
                return joined([str(value).replace("_", " ") for value in self.many(found[1])])
            value, form = self[found[1]], found[2] or ""
            if isinstance(value, dict) and form:
                return theme.literal(value) if form == "q" else str(list(value))
            return theme.quote(str(value)) if form == "q" else format(value, form) if form else str(value)

        return re.sub(r"\{([A-Za-z_]\w*)(?::(q|,|all|names|[.,\d]*[a-z]))?\}", filled, text)

    def value(self, text: str) -> Any:
        """A word, a number, a list, a name (@name), or plain text."""
        if text.startswith("@"):
            return self.many(text[1:])
        if text in WORDS:
            return WORDS[text]
        try:
            return self.filled(json.loads(text))
        except ValueError:
            pass
        parts = text[1:-1].split(",")
        if text.startswith("{"):
            return {key.strip(): self.value(value) for key, _, value in (part.partition(":") for part in parts)}
        return [self.value(part.strip()) for part in parts] if text.startswith("[") else text

    def filled(self, found: Any) -> Any:
        """A table of the file as it stands, with its names and colours replaced."""
        if isinstance(found, dict):
            return {key: self.filled(value) for key, value in found.items()}
        if isinstance(found, list):
            return [self.filled(value) for value in found]
        if not isinstance(found, str):
            return found
        return self.many(found[1:]) if found.startswith("@") else WORDS.get(found, self.text(found))

    def settings(self, text: str, presets: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
        """Words as settings: key=value, a word of `presets`, a number format, or @name for more of them; None: "none"."""
        found: dict[str, Any] = {}
        for word in shlex.split(text):
            key, is_pair, value = word.partition("=")
            if word == "none":
                return None
            if word.startswith("@"):
                named = self[word[1:]]
                found |= (self.settings(named, presets) or {}) if isinstance(named, str) else named
            elif word in presets:
                found |= presets[word]
            elif FORMAT.fullmatch(word):
                found["format"] = word
            elif is_pair and key.isidentifier():
                found[key] = self.value(value)
            else:
                raise self.bad(f"{word}: not key=value, a number format, or one of {', '.join(presets)}")
        return found


def known(table: Mapping[str, object], names: Iterable[str]) -> list[str]:
    """Names in the order of `table`, others after them by name."""
    there = set(names)
    return [name for name in table if name in there] + sorted(there - table.keys())


def turn_of(column: str, names: Iterable[str]) -> pl.Expr:
    """Where each value of a column stands among `names`; others behind."""
    turns = {name: n for n, name in enumerate(names)}
    return pl.col(column).replace_strict(turns, default=len(turns), return_dtype=pl.Int64)


def in_words(column: str, words: Mapping[str, Any]) -> pl.Expr:
    """A column's values in words; of a table name -> (words, look, ...) the words. What has none stays."""
    return pl.col(column).replace({name: of if isinstance(of, str) else of[0] for name, of in words.items()})


def segments(text: str) -> list[str]:
    """Parts between lone bars."""
    return [part.strip() for part in re.split(r"(?<!\S)\|(?!\S)", text)]


def field(scope: Scope, text: str) -> dict[str, Any]:
    found = FIELD.fullmatch(text)
    if found is None:
        raise scope.bad(f"{text}: not a field with its type, as in ms:Q")
    named = (
        {"aggregate": found["op"]} | ({"field": found["of"]} if found["of"] else {}) if found["op"] else {"field": found["field"]}
    )
    return {**named, "type": TYPES[found["type"]]}


def channel(scope: Scope, name: str, told: Any) -> dict[str, Any]:
    """The encoding of a channel. "=8": the same for all; a table is taken as it stands."""
    scope = scope.inside(name)
    if not isinstance(told, str):
        return scope.filled(told)  # type: ignore[no-any-return]
    text = scope.text(told)
    if text.startswith("@"):
        return channel(scope, name, scope[text[1:]])
    if text.startswith("="):
        return {"value": scope.value(text[1:])}
    of, title, scale, guide, *more = (*segments(text), "", "", "")[: max(4, len(segments(text)))]
    if more:
        raise scope.bad("more than field | title | scale | guide")
    found = field(scope, of)
    kind = GUIDE.get(name, "legend")
    if name in ("x2", "y2"):
        del found["type"]
    settings = scope.settings(guide, GUIDES) if guide else {}
    if title and kind == "legend" and settings:
        settings["title"] = title
    elif title:
        found["title"] = None if title == "-" else scope.value(title) if title.startswith("@") else title
    if settings and settings.get("values") == "each":
        settings["values"] = scope.column(of).drop_nulls().unique().sort().to_list()
    if settings is None or settings:
        found[kind] = settings
    scaled = scope.settings(scale, SCALES) if scale else {}
    if scaled is None:
        return {**found, "scale": None}
    if scaled.get("sort") == "as found":
        scaled["sort"] = scope.column(of).unique(maintain_order=True).to_list()
    if scaled.get("sort") == "falling":
        scaled["sort"] = scope.column(of).unique().sort(descending=True).to_list()
    for word, setting in (("known", "sort"), ("held", "domain")):
        if word in scaled:
            scaled[setting] = known(dict.fromkeys(scope[scaled.pop(word)]), scope.column(of))
    found |= {key: _sort(scaled.pop(key)) for key in OF_CHANNEL if key in scaled}
    scaled = _looks(scope, name, found.get("field", ""), scaled)
    return {**found, "scale": scaled} if scaled else found


def _sort(told: Any) -> Any:
    """by:field:op[:order] sorts by another field."""
    if not isinstance(told, str) or not told.startswith("by:"):
        return told
    return dict(zip(("field", "op", "order"), told.removeprefix("by:").split(":"), strict=False))


def _looks(scope: Scope, name: str, of: str, scale: dict[str, Any]) -> dict[str, Any]:
    """looks=TABLE: of a table word -> colour or shape, the words that the rows have; all=TABLE: all of them.

    palette: a colour for each word of the domain, or of the rows where there is none.
    """
    if scale.pop("palette", False):
        scale.setdefault("domain", scope.column(of).drop_nulls().unique().sort().to_list())
        scale["range"] = list(theme.colours(scale["domain"]).values())
    for key in ("looks", "all"):
        if key in scale:
            table = scope[scale.pop(key)]
            frame = scope.frames.get(scope.data)
            held = known(table, frame[of].drop_nulls()) if key == "looks" and frame is not None else list(table)
            domain = scale.pop("domain", held)
            spare = cycle(theme.SPARE_SHAPES if name == "shape" else theme.SPARE_COLOURS)
            scale |= {"domain": domain, "range": [table[word] if word in table else next(spare) for word in domain]}
    return scale


def tooltip(scope: Scope, told: str) -> dict[str, Any]:
    """field:T | title | format"""
    of, title, form, *more = (*segments(scope.text(told)), "", "")[: max(3, len(segments(told)))]
    if more:
        raise scope.inside(f"tips: {told}").bad("more than field | title | format")
    return {**field(scope.inside("tips"), of), **({"title": title} if title else {}), **({"format": form} if form else {})}
