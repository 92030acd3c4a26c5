"""The Layered Prefill page on the schedulers' knobs: the front of TTFT and TBT over them, and the number of groups alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.layered_prefill.words import BAND, STUDY, WIDE, of_series
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined, quantity

NO_FRONT = f"Nothing to draw: chunks and group counts were not swept at one rate. {STUDY}"
NO_GROUPS = f"Nothing to draw: the number of groups was not swept. {STUDY}"
FRONT, GROUPS = "pareto", ("n-sweep", "table-11")  # series
FAMILIES = {"chunked": (theme.BLUE, "circle"), "layered": (theme.VERMILLION, "triangle-up")}
MEASURES = {"ttft_mean_s": "TTFT, mean", "ttft_p99_s": "TTFT, p99", "tbt_mean_s": "TBT, mean", "tbt_p99_s": "TBT, p99"}
PAPER_GROUPS = 16  # most groups of the paper's main model
FIELDS = ("setting", "at", "scheduler", "system", "rate", "knob", "n_seeds")


def part(points: pl.DataFrame) -> Part:
    """points: rows.points."""
    front, groups = _with_front(_swept(points, FRONT)), _rule_apart(_swept(points, *GROUPS))
    choices = tuple({"at": name} for name in front["at"].unique(maintain_order=True)) if not front.is_empty() else ()
    return Part(
        (_front_figure(front, choices), _groups_figure(groups)),
        controls=(Control("at", "Front at"),) if choices else (),
        choices=choices,
        data={name: frame for name, frame in {"front": front, "groups": groups}.items() if not frame.is_empty()},
    )


def _swept(points: pl.DataFrame, *series: str) -> pl.DataFrame:
    found = of_series(points, *series)
    if found.is_empty():
        return found
    knob = pl.when(pl.col("scheduler") == "chunked").then("chunk_tokens").otherwise("n_max")
    told = found.with_columns(knob=knob, at=pl.format("{}, {}/s", "setting", "rate")).drop_nulls("knob")
    bands = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    return told.select(*FIELDS, "n_lg_rule", *bands).sort("at", "scheduler", "knob", descending=[True, False, False])


def _with_front(found: pl.DataFrame) -> pl.DataFrame:
    """is_best: no other point of the setting is as good in both TTFT and TBT and better in one."""
    if found.is_empty():
        return found
    best = []
    for row in found.to_dicts():
        x, y = pl.col("tbt_p99_s"), pl.col("ttft_mean_s")
        as_good = (x <= row["tbt_p99_s"]) & (y <= row["ttft_mean_s"])
        better = (x < row["tbt_p99_s"]) | (y < row["ttft_mean_s"])
        best.append(found.filter((pl.col("at") == row["at"]) & as_good & better).is_empty())
    return found.with_columns(pl.Series("is_best", best, pl.Boolean))


def _rule_apart(found: pl.DataFrame) -> pl.DataFrame:
    """The fixed rule alone where it is swept: with another the number is the most that a batch may take."""
    fixed = found.filter(pl.col("n_lg_rule") == "fixed") if not found.is_empty() else found
    return fixed if not fixed.is_empty() else found


def _front_figure(found: pl.DataFrame, choices: Sequence[Mapping[str, str]]) -> Figure:
    question = "Which chunk or group count gives the best TTFT at which TBT?"
    if found.is_empty():
        return Figure("front", question, None, {}, (), "", NO_FRONT)
    return Figure(
        "front",
        question,
        _front_chart(choices[0]["at"]),
        {str(at): front_answer(of) for (at,), of in found.group_by(["at"], maintain_order=True)},
        ("at",),
        "Numbers: tokens of a chunk, or most groups of layers. Full marks lie on the front: no other setting has both a "
        f"smaller mean TTFT and a smaller TBT p99. Lower left is better. {BAND}",
        NO_FRONT,
    )


def front_answer(found: pl.DataFrame) -> str:
    """What lies on the front, from short gaps to short waits, and how many of each scheduler do not."""
    best = found.filter("is_best").sort("tbt_p99_s").to_dicts()
    told = [f"{_named(row)} ({quantity(row['tbt_p99_s'], 's')}, {quantity(row['ttft_mean_s'], 's')})" for row in best]
    if len(told) > 4:
        told = [*told[:2], f"{len(told) - 4} more", *told[-2:]]
    beaten = [
        f"{of.filter(~pl.col('is_best')).height} of {of.height} {name}"
        for (name,), of in found.sort("scheduler").group_by(["scheduler"], maintain_order=True)
    ]
    return f"On the front (TBT p99, mean TTFT): {joined(told)}. Off it: {joined(beaten)} settings."


def _named(row: Mapping[str, object]) -> str:
    return f"{'chunks of' if row['scheduler'] == 'chunked' else 'N ='} {row['knob']}"


def _front_chart(start: str) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("front")).transform_filter("datum.at === at")
    base = base.transform_calculate(strength="datum.is_best ? 1 : 0.4", tbt_ms="datum.tbt_p99_s * 1000")
    base = base.transform_calculate(low="datum.tbt_p99_s_low * 1000", high="datum.tbt_p99_s_high * 1000")
    log = alt.Scale(type="log", nice=False, padding=22)
    x = alt.X("tbt_ms:Q", title="TBT, p99 (ms, log scale)", scale=log, axis=alt.Axis(format="~s"))
    y = alt.Y("ttft_mean_s:Q", title="TTFT, mean (s, log scale)", scale=log, axis=alt.Axis(format="~g"))
    domain, (colours, shapes) = list(FAMILIES), zip(*FAMILIES.values(), strict=True)
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1)
    colour = alt.Color("scheduler:N", scale=alt.Scale(domain=domain, range=list(colours)), legend=legend)
    shape = alt.Shape("scheduler:N", scale=alt.Scale(domain=domain, range=list(shapes)), legend=legend)
    tips = [
        alt.Tooltip("system:N"),
        alt.Tooltip("tbt_ms:Q", title="TBT p99 (ms)", format=".1f"),
        alt.Tooltip("ttft_mean_s:Q", title="TTFT mean (s)", format=".3~g"),
        alt.Tooltip("ttft_mean_s_low:Q", title="5 % of seeds", format=".3~g"),
        alt.Tooltip("ttft_mean_s_high:Q", title="95 % of seeds", format=".3~g"),
    ]
    up = base.mark_rule(opacity=0.25, strokeWidth=2).encode(x, alt.Y("ttft_mean_s_low:Q"), alt.Y2("ttft_mean_s_high:Q"), colour)
    across = base.mark_rule(opacity=0.25, strokeWidth=2).encode(alt.X("low:Q"), y, colour, alt.X2("high:Q"))
    line = base.mark_line(strokeWidth=1.2).encode(x, y, colour, order=alt.Order("knob:Q"))
    strength = alt.Opacity("strength:Q", scale=None)
    marks = base.mark_point(size=85, strokeWidth=1.5).encode(x, y, colour, shape, opacity=strength, tooltip=tips)
    words = [
        base.transform_filter(f"datum.scheduler === '{family}'").mark_text(dy=dy, fontSize=12).encode(x, y, colour, text="knob:Q")
        for family, dy in (("chunked", -14), ("layered", 16))
    ]
    drawn = alt.layer(up, across, line, marks, *words).properties(width=WIDE - 60, height=380)
    return drawn.add_params(alt.param(name="at", value=start))


def _groups_figure(found: pl.DataFrame) -> Figure:
    question = "What does the number of groups trade?"
    if found.is_empty():
        return Figure("groups", question, None, {}, (), "", NO_GROUPS)
    return Figure(
        "groups",
        question,
        _groups_chart(found["at"].unique().sort().to_list()),
        {"": " ".join(groups_answer(of) for _, of in found.group_by(["at"], maintain_order=True))},
        (),
        "More groups: each iteration carries the prompt through fewer layers, so gaps are shorter and the first token comes "
        f"later. Dashed: p99. {BAND}",
        NO_GROUPS,
    )


def groups_answer(found: pl.DataFrame) -> str:
    """From the least to the largest number of groups of one setting."""
    rows = found.sort("knob")
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    told = [
        f"mean TTFT goes from {quantity(first['ttft_mean_s'], 's')} to {quantity(last['ttft_mean_s'], 's')}",
        f"TBT p99 from {quantity(first['tbt_p99_s'], 's')} to {quantity(last['tbt_p99_s'], 's')}",
    ]
    steps = rows.select(up=pl.col("ttft_mean_s").diff() > 0, down=pl.col("tbt_p99_s").diff() < 0).drop_nulls()
    kept = steps.filter(pl.col("up") & pl.col("down")).height
    every = "with every step" if kept == steps.height else f"in {kept} of {steps.height} steps"
    between = [
        f" N = {row['knob']} has {quantity(row['ttft_mean_s'], 's')} and {quantity(row['tbt_p99_s'], 's')}."
        for row in rows.filter(pl.col("knob") == PAPER_GROUPS).to_dicts()
    ]
    return (
        f"{found['at'][0]}: from N = {first['knob']} to {last['knob']}, {joined(told)}; the one rises and the other falls "
        f"{every}." + "".join(between)
    )


def _groups_chart(settings: Sequence[str]) -> alt.HConcatChart:
    panels = []
    for family, factor, unit in (("ttft", "1", "s"), ("tbt", "1000", "ms")):
        base = alt.Chart(alt.NamedData("groups"))
        base = base.transform_fold([f"{family}_mean_s", f"{family}_p99_s"], as_=["measure", "seconds"]).transform_calculate(
            shown=f"datum.seconds * {factor}",
            low=f"datum[datum.measure + '_low'] * {factor}",
            high=f"datum[datum.measure + '_high'] * {factor}",
            said=f"datum.measure === '{family}_mean_s' ? 'mean' : 'p99'",
        )
        x = alt.X(
            "knob:Q", title="groups of layers, N (log scale)", scale=alt.Scale(type="log", base=2, nice=False, padding=12),
            axis=alt.Axis(values=[1, 2, 4, 8, 16, 32, 64, 128]),
        )  # fmt: skip
        y = alt.Y(
            "shown:Q", title=f"{family.upper()} ({unit}, log scale)", scale=alt.Scale(type="log", nice=False, padding=12),
            axis=alt.Axis(values=[m * 10**n for n in range(-2, 5) for m in (1, 2, 5)], format="~g"),
        )  # fmt: skip
        colours = alt.Scale(domain=list(settings), range=list(theme.colours(settings).values()))
        legend = alt.Legend(title=None, orient="top", labelLimit=300) if len(settings) > 1 else None
        colour = alt.Color("at:N", scale=colours, legend=legend)
        dashes = alt.StrokeDash(
            "said:N", scale=alt.Scale(domain=["mean", "p99"], range=[[1, 0], [6, 4]]), legend=alt.Legend(title=None, orient="top")
        )
        tips = [
            alt.Tooltip("at:N"),
            alt.Tooltip("knob:Q", title="N"),
            alt.Tooltip("said:N"),
            alt.Tooltip("shown:Q", title=unit, format=".4~g"),
        ]
        band = base.mark_area(opacity=0.12).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour, detail="said:N")
        line, marks = (
            base.mark_line().encode(x, y, colour, dashes),
            base.mark_point(size=40).encode(x, y, colour, detail="said:N", tooltip=tips),
        )
        panels.append(alt.layer(band, line, marks).properties(width=WIDE / 2 - 30, height=260))
    return alt.hconcat(*panels, spacing=50)
