"""The figure of a study's orderings: ratios that a live model should keep, as times inside their margin."""

from __future__ import annotations

import altair as alt
import duckdb
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import significant
from tokentape.dashboards.engine.ask import Ask
from tokentape.dashboards.engine.figures import Drawn
from tokentape.dashboards.panels import columns
from tokentape.dashboards.shell import Figure
from tokentape.dashboards.units import joined

ROOM = (0.5, 4.0)  # ends of the axis; what lies beyond is drawn at its end
HELD = {"holds": (theme.BLUE, "circle"), "missed": (theme.VERMILLION, "diamond")}
ROOM_WIDE = 430  # of the plot, with columns of words beside it
SAID = ("assertion", "said_ratio", "said_margin", "said_holds")
_ORDERINGS = """
select model_id as model, dataset, assertion, split_part(margin, ' ', 1) as sign, split_part(margin, ' ', 2)::double as margin,
    mean, low, high, n_seeds as seeds, holds
from orderings where study = $study order by holds, model, dataset, assertion
"""


def rows(connection: duckdb.DuckDBPyConnection, study: str) -> pl.DataFrame:
    """Ratios that a live model is expected to keep, missed ones first, with how many times they are inside their margin.

    room: of the mean and of the least and the most of the seeds; above 1 they keep the margin.
    """
    return worded(connection.sql(_ORDERINGS, params={"study": study}).pl())


def drawn(ask: Ask, study: str) -> Drawn | None:
    """The figure that figures/orderings.toml describes."""
    found = rows(ask.connection, study)
    if found.is_empty():
        return None
    where = f" inside {found['model'][0]} on {joined(found['dataset'].unique().sort().to_list())}"
    return Drawn({"orderings": found}, {"": answer(found)}, {"inside": where})


def figure(found: pl.DataFrame, missing: str, seeds: str) -> Figure:
    """found: rows(). seeds: how the reading says what a band is."""
    where = "" if found.is_empty() else f" inside {found['model'][0]} on {joined(found['dataset'].unique().sort().to_list())}"
    return Figure(
        "orderings",
        "Does the live model order the methods as expected?",
        None if found.is_empty() else chart(),
        {} if found.is_empty() else {"": answer(found)},
        (),
        f"Ratios measured{where}; margins were set beforehand, on a smaller reference model or as an aim, and are not moved. It "
        f"holds where every seed does. Arrows: the mark lies beyond the axis. {seeds}",
        missing,
    )


def worded(found: pl.DataFrame) -> pl.DataFrame:
    """Ratios with how many times they are inside their margin; above 1 they keep it."""
    is_below = pl.col("sign") == "<="
    room = {
        name: pl.when(is_below).then(pl.col("margin") / pl.col(of)).otherwise(pl.col(of) / pl.col("margin"))
        for name, of in {"room": "mean", "room_low": "low", "room_high": "high"}.items()
    }
    told = found.with_columns(order=pl.int_range(pl.len()), **room)
    is_alone = told.select("model", "dataset").unique().height == 1
    said = [
        {
            "assertion": row["assertion"] + ("" if is_alone else f"|{row['model']}, {row['dataset']}"),
            "said_ratio": f"{significant(row['mean'])} ({significant(row['low'])} to {significant(row['high'])})",
            "said_margin": f"{'at most' if row['sign'] == '<=' else 'at least'} {row['margin']:g}",
            "said_holds": list(HELD)[0 if row["holds"] else 1],
        }
        for row in told.to_dicts()
    ]
    return told.with_columns(pl.DataFrame(said, schema=dict.fromkeys(SAID, pl.String)))


def answer(found: pl.DataFrame) -> str:
    """Ratios that miss their margin first, then how many keep it."""
    missed = [
        f"{row['assertion'].replace('|', ', ')} is {row['said_ratio']}, {row['said_margin']} is wanted"
        for row in found.filter(~pl.col("holds")).to_dicts()
    ]
    held = found.filter("holds").height
    if not missed:
        return f"All {held} ratios keep their margin on every seed."
    return f"Missed on some seed: {'; '.join(missed)}. The other {held} of {found.height} keep their margin on every seed."


def chart() -> alt.LayerChart:
    """How far inside its margin every ratio is: right of the dashed line it holds. Ratio and margin are written beside it."""
    base = alt.Chart(alt.NamedData("orderings"))
    axis = alt.Axis(labelExpr="split(datum.label, '|')", labelLimit=460, ticks=False, domain=False, grid=True, labelPadding=10)
    y = alt.Y("assertion:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=axis)
    scale = alt.Scale(type="log", domain=list(ROOM), clamp=True, nice=False)
    ticks = alt.Axis(values=[0.5, 0.75, 1, 1.5, 2, 3, 4], format="~g")
    x = alt.X("room:Q", title="times inside its margin (log scale; left of 1 it is missed)", scale=scale, axis=ticks)
    legend = alt.Legend(title=None, orient="top", symbolSize=110, symbolOpacity=1, offset=28)
    domain, (colours, shapes) = list(HELD), zip(*HELD.values(), strict=True)
    colour = alt.Color("said_holds:N", scale=alt.Scale(domain=domain, range=list(colours)), legend=legend)
    shape = alt.Shape("said_holds:N", scale=alt.Scale(domain=domain, range=list(shapes)), legend=legend)
    tips = [alt.Tooltip("assertion:N"), alt.Tooltip("said_ratio:N", title="ratio"), alt.Tooltip("said_margin:N", title="margin")]
    tips.append(alt.Tooltip("seeds:Q"))
    level = base.transform_aggregate(n="count()").transform_calculate(one="1").mark_rule(color=theme.INK, strokeDash=[6, 4])
    band = base.mark_rule(strokeWidth=7, opacity=0.4, strokeCap="round").encode(
        alt.X("room_low:Q", scale=scale), y, colour, alt.X2("room_high:Q")
    )
    points = base.mark_point(size=80).encode(x, y, colour, shape, tooltip=tips)
    beyond = base.transform_calculate(arrow=f"datum.room > {ROOM[1]} ? '→' : datum.room < {ROOM[0]} ? '←' : ''")
    arrows = beyond.mark_text(dx=-16, fontSize=16, color=theme.INK).encode(x, y, text="arrow:N")
    beside = {"said_ratio": ("ratio (least to most of seeds)", 12), "said_margin": ("margin", 225), "said_holds": ("", 330)}
    words = columns(base, y, beside, ROOM_WIDE)
    layers = [level.encode(alt.X("one:Q", scale=scale)), band, points, arrows, *words]
    return alt.layer(*layers).properties(width=ROOM_WIDE, height=alt.Step(34))
