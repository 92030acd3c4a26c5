"""What pages of many panels share: their order, captions, parameters, columns of words, and the paper's hollow marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import altair as alt

from tokentape.dashboards import theme


def known(table: Mapping[str, object], names: Iterable[str]) -> list[str]:
    """Names in the order of `table`, others after them by name."""
    there = set(names)
    return [name for name in table if name in there] + sorted(there - table.keys())


def hollow(base: alt.Chart, size: int = 110, **places: tuple[str, str]) -> alt.Chart:
    """The paper's marks, unseen where it prints no number: a chart without any row warns of its empty scale.

    places: the field to make -> the field of the paper's number, and a Vega expression of where an unseen mark stands.
    """
    given = {name: f"isValid(datum.{field}) ? datum.{field} : {other}" for name, (field, other) in places.items()}
    is_printed = " && ".join(f"isValid(datum.{field})" for field, _ in places.values())
    marks = base.transform_calculate(**given, printed=f"({is_printed}) ? 1 : 0")
    return marks.mark_point(filled=False, size=size, strokeWidth=1.7).encode(opacity=alt.Opacity("printed:Q", scale=None))


def colour(looks: Mapping[str, str], field: str, names: Sequence[str], legend: alt.Legend | None) -> alt.Color:
    """Colours of `names` in this order; one without a look takes a spare colour."""
    spare = iter(theme.SPARE_COLOURS * 4)
    scale = alt.Scale(domain=list(names), range=[looks[name] if name in looks else next(spare) for name in names])
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def caption(expression: str) -> alt.TitleParams:
    """The line above a chart. expression: Vega's, of the chart's parameters."""
    return alt.TitleParams(
        text=alt.ExprRef(expression), fontSize=12, fontWeight="normal", color=theme.QUIET, anchor="start", offset=14
    )


def params(start: Mapping[str, str], *names: str) -> list[alt.Parameter]:
    """Parameters of a chart, which the page's controls set."""
    return [alt.param(name=name, value=start.get(name, "")).param for name in names]


def stacked(
    rows: Sequence[alt.VConcatChart | alt.HConcatChart | alt.LayerChart | alt.FacetChart | alt.Chart],
    title: alt.TitleParams,
    parameters: Sequence[alt.Parameter] = (),
    spacing: int = 24,
) -> alt.VConcatChart:
    """Panels below one another under one caption. Parameters stand at the top: Altair 6.3 cannot gather them from facets."""
    return alt.vconcat(*rows, spacing=spacing, title=title, params=list(parameters))


def columns(base: alt.Chart, y: alt.Y, columns: Mapping[str, tuple[str, int]], end: int) -> list[alt.Chart]:
    """Words beside a plot that ends at `end`: column -> its head and how far behind the end it stands."""
    made = []
    for name, (title, at) in columns.items():
        mark = {"align": "left", "fontSize": 12.5, "color": theme.INK}
        made.append(base.mark_text(**mark).encode(y, x=alt.value(end + at), text=f"{name}:N"))
        head = base.transform_aggregate(n="count()").transform_calculate(title=theme.quote(title))
        made.append(head.mark_text(fontWeight=600, **mark).encode(x=alt.value(end + at), y=alt.value(-12), text="title:N"))
    return made
