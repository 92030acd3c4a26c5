"""A page as data, and its HTML: one file with the charts, their rows and the house style inside, and a policy that forbids the
browser any request but for Vega, which lies beside the pages once, or inside a page that is to go alone.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import polars as pl
import vl_convert

from tokentape.dashboards import theme, units
from tokentape.warehouse.atomic_files import replace

HERE = Path(__file__).parent
VEGA = "vega.js"
CLAIMS = "claims"  # the figure that a page begins with
AT_ONCE = 12  # figures of a page; others are drawn when asked for


@dataclass(frozen=True)
class Control:
    """A menu above the charts, or a slider. Its values are those of `name` in the page's choices; labels: value -> words."""

    name: str
    title: str
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = "menu"  # or "slider": its values are numbers, from the least to the most


@dataclass(frozen=True)
class Figure:
    """A question, its answer, and the chart that shows it.

    depends: names of the controls the answer changes with; answers: values of those, joined by "|" -> a sentence.
    chart: Vega-Lite without a look of its own, which the page has for all; None where the warehouse has no rows for it: `missing`
    then says what to run. sql: what its rows come from.
    """

    name: str
    question: str
    chart: dict[str, Any] | None
    answers: Mapping[str, str]
    depends: tuple[str, ...]
    reading: str
    missing: str
    sql: str = ""


@dataclass(frozen=True)
class Page:
    """One HTML file. data: named rows the charts share.

    choices: one row per selection that exists, best first. A row may leave controls out: it then goes with any value of theirs.
    """

    file: str
    title: str
    lead: str
    template: str
    figures: tuple[Figure, ...] = ()
    controls: tuple[Control, ...] = ()
    choices: tuple[Mapping[str, str], ...] = ()
    data: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def opening(self) -> dict[str, str]:
        """What the page opens with: of each control the first value that exists together with the controls before it."""
        return self.showing([control.name for control in self.controls], {}, {})

    def showing(self, names: Sequence[str], chosen: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
        """What menus of these names show: what is chosen, else what was there before, if it exists together with those in front,
        else the first that does. Raises ValueError for a choice that does not."""
        found: dict[str, str] = {}
        for name in names:
            fitting = (row for row in self.choices if all(row.get(other, value) == value for other, value in found.items()))
            there = list(dict.fromkeys(row[name] for row in fitting if name in row))
            value = chosen.get(name, before.get(name, ""))
            if name in chosen and value not in there:
                front = ", ".join(f"{other}={of}" for other, of in found.items())
                raise ValueError(f"{name}={value}: choose {', '.join(there)}{f' (with {front})' * bool(front)}")
            if there:
                found[name] = value if value in there else there[0]
        return found


def render(page: Page, pages: list[tuple[str, str]], is_single: bool = False) -> str:
    """The page's HTML. pages: (file, title) of the whole site, for its navigation. is_single: with Vega inside."""
    ordered, opening = sorted(page.figures, key=lambda f: f.name != CLAIMS), page.opening
    drawn = [f for f in ordered if f.chart is not None]
    figures = [(f, f.answers.get("|".join(opening.get(name, "") for name in f.depends), "")) for f in drawn]
    payload = {
        "charts": {
            f.name: {"spec": f.chart, "depends": f.depends, "answers": dict(f.answers), "missing": f.missing, "sql": f.sql}
            for f in drawn
        },
        "controls": [{"name": c.name, "labels": dict(c.labels)} for c in page.controls],
        "choices": [dict(row) for row in page.choices],
        "data": {name: frame.to_dicts() for name, frame in page.data.items()},
        "config": theme.CONFIG,
    }
    script, style = _asset("site.js"), _asset("site.css")
    drawn_by = _source(vega()) if is_single else "'self' file:"
    template = _templates().get_template(page.template)
    return template.render(
        page=page,
        figures=figures,
        lacking=[f for f in ordered if f.chart is None],
        at_once=AT_ONCE,
        pages=pages,
        payload=payload,
        vega=vega() if is_single else "",
        vega_file=VEGA,
        script=script,
        style=style,
        policy=f"default-src 'none'; script-src {drawn_by} {_source(script)}; style-src 'unsafe-inline'; img-src data:",
        **page.extra,
    )


def vega_version() -> str:
    return ".".join(alt.VEGALITE_VERSION.split(".")[:2])


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {name: getattr(units, name) for name in ("percent", "signed", "significant")}
    # A page with a NaN in its data draws nothing.
    made.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False, "separators": (",", ":")}
    return made


@cache
def _asset(name: str) -> str:
    return (HERE / "assets" / name).read_text(encoding="utf-8")


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which takes seconds to bundle and is kept beside the bytecode."""
    kept = HERE / "__pycache__" / f"vega-{vega_version()}-{version('vl-convert-python')}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    made: str = vl_convert.javascript_bundle(vl_version=vega_version())  # type: ignore[call-arg]
    with suppress(OSError):  # an installation that is only to be read
        replace(kept, made.encode())
    return made


def _source(script: str) -> str:
    """The script's hash as a Content-Security-Policy source: no other script inside a page may run."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
