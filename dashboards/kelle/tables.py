"""The Kelle page on Tables 7 and 9: gains against budget and batch beside the paper's; and what it shows without numbers."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.claims import signed
from tokentape.dashboards.kelle.words import HERE, KELLE, LEGEND, NOT_HERE, SYSTEMS, by_reading, in_full, source, times
from tokentape.dashboards.panels import colour, hollow, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

BUDGET, BATCH = "table-7", "table-9"
MODELS = {"llama-3.2-3b": theme.VERMILLION, "llama-2-13b": theme.GREEN}
ROLES = {
    "calibrate": ("fitted to this number", "diamond"),
    "predict": ("predicted", "circle"),
    "report": ("no published number", "square"),
}
SWEPT = {"refresh interval": "refresh interval (us)", "edram bandwidth": "bandwidth of the eDRAM (GB/s)"}
ERRORS = "Error bars: ±20 %, which is typical, and ±35 %, the worst met (assumed)"
GAIN = "energy gain over Original+SRAM (×)"


def part(tables: pl.DataFrame, sweeps: pl.DataFrame, start: dict[str, str]) -> Part:
    """tables, sweeps: rows' of these names."""
    role = pl.when(pl.col("published").is_null()).then(pl.lit("report")).otherwise("role")
    tables, sweeps = in_full(tables, "series"), in_full(sweeps, "series")
    told = tables.with_columns(role_words=role.replace({name: words for name, (words, _) in ROLES.items()}))
    figures = (_tables_figure(told, start), _sweeps_figure(sweeps, start))
    return Part(figures, data={n: f for n, f in {"tables": told, "sweeps": sweeps}.items() if not f.is_empty()})


def _tables_figure(tables: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "How does the gain fall with a larger budget and a smaller batch, and does the paper say the same?"
    if tables.is_empty():
        return Figure("tables", question, None, {}, (), "", NOT_HERE)
    said = {name: tables_answer(of) for name, of in by_reading(tables)}
    reading = (
        "The paper's Tables 7 (left) and 9 (right) on PG19; hollow: its numbers. Only batch 4 was fitted; batches 8, 2 and 1 "
        f"are predicted without a published number. {ERRORS}. A budget of 8750 tokens exceeds the sequence: nothing is evicted."
    )
    return Figure("tables", question, _tables_chart(tables, start), said, ("reading",), reading, NOT_HERE)


def tables_answer(found: pl.DataFrame) -> str:
    """Errors on predicted cells of each table, whether the gain falls throughout, and where another system beats Kelle."""
    said = []
    for series, name in ((BUDGET, "Table 7"), (BATCH, "Table 9 at batch 16")):
        of = found.filter((pl.col("series") == series) & (pl.col("role") == "predict")).drop_nulls("published")
        of = of.with_columns(error=pl.col("gain") / pl.col("published") - 1).sort(pl.col("error").abs())
        for worst in of.tail(1).to_dicts():
            where = f"{worst['model']}, {worst['budget']} tokens" if series == BUDGET else worst["system"]
            mean = percent(float(of["error"].abs().mean()), 0)  # type: ignore[arg-type]
            said.append(f"{name} is predicted within {mean} on average, {signed(worst['error'])} at worst ({where})")
    return f"{'. '.join(said)}{'. ' if said else ''}{_falls(found)}{_beaten(found)}"


def _falls(found: pl.DataFrame) -> str:
    rows = found.filter(pl.col("series") == BUDGET).sort("model", "budget")
    if rows.is_empty():
        return ""
    steps = rows.with_columns(step=pl.col("gain").diff().over("model"))["step"].drop_nulls()
    return f"The gain falls with {'every' if bool((steps <= 0).all()) else 'not every'} larger budget. "


def _beaten(found: pl.DataFrame) -> str:
    rows = found.filter(pl.col("series") == BATCH)
    if rows.is_empty():
        return ""
    best = rows.sort("gain", descending=True).group_by("batch", maintain_order=True).first().sort("batch")
    lost = best.filter(pl.col("system") != KELLE).group_by("system", maintain_order=True).agg(pl.col("batch").cast(pl.String))
    said = [f"{system} needs less energy than {KELLE} at batch {joined(batches)}" for system, batches in lost.rows()]
    return f"{joined(said)}." if said else f"{KELLE} needs least energy at every batch."


def _tables_chart(tables: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    panels = []
    for series, field, title, looks, of, wide in (
        (BUDGET, "budget", "budget (tokens per head)", MODELS, "model", 460),
        (BATCH, "batch", "batch (requests)", SYSTEMS, "system", 600),
    ):
        names = known(looks, tables.filter(pl.col("series") == series)[of])
        if not names:
            continue
        base = alt.Chart(alt.NamedData("tables")).transform_filter(f"{HERE} && datum.series === {theme.quote(series)}")
        x = alt.X(f"{field}:O", title=title, axis=alt.Axis(labelAngle=0, format=",d"))
        drawn = dots(base, x, of, colour(looks, of, names, LEGEND), names)
        marks = hollow(base, 150, at=("published", "datum.gain"))
        paper = marks.encode(x, alt.Y("at:Q"), alt.XOffset(f"{of}:N", scale=alt.Scale(domain=names)), color=alt.value(theme.INK))
        panels.append(alt.layer(drawn, paper).properties(width=wide, height=290))
    together = alt.hconcat(*panels, spacing=45).resolve_scale(color="independent", xOffset="independent", y="shared")
    return stacked([together], source("hollow: the paper's"), params(start, "reading"))


def dots(
    base: alt.Chart, x: alt.X, of: str, hue: alt.Color, names: list[str], roles: alt.Legend | None = LEGEND
) -> alt.LayerChart:
    """A mark per point with two error bars, side by side by `of`."""
    beside = alt.XOffset(f"{of}:N", scale=alt.Scale(domain=names))
    labels, shapes = zip(*ROLES.values(), strict=True)
    shape = alt.Shape("role_words:N", scale=alt.Scale(domain=list(labels), range=list(shapes)), legend=roles)
    tips = [
        alt.Tooltip(f"{of}:N"),
        alt.Tooltip("gain:Q", format=".2f"),
        alt.Tooltip("published:Q", title="paper", format=".2f"),
        alt.Tooltip("role_words:N", title="role"),
    ]
    thin = base.mark_rule(strokeWidth=1.2, opacity=0.6).encode(x, alt.Y("least:Q"), alt.Y2("most:Q"), beside, hue)
    wide = base.mark_rule(strokeWidth=5, opacity=0.35).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), beside, hue)
    marks = base.mark_point(size=70).encode(x, alt.Y("gain:Q", title=GAIN), beside, hue, shape, tooltip=tips)
    return alt.layer(thin, wide, marks)


def _sweeps_figure(sweeps: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "And where the paper shows curves without numbers: shorter refresh, slower eDRAM?"
    if sweeps.is_empty():
        return Figure("sweeps", question, None, {}, (), "", NOT_HERE)
    said = {name: sweeps_answer(of) for name, of in by_reading(sweeps)}
    reading = (
        f"Predicted with knobs that were fitted elsewhere; nothing of this was tuned on. {ERRORS}. Left: Llama-3.2-3B, all of "
        "Kelle's cells refreshed at one interval. Right: Llama-2-7B, eDRAM of the same size at its own and at half of its "
        "bandwidth, beside AERP on SRAM, which it does not touch."
    )
    return Figure("sweeps", question, _sweeps_chart(sweeps, start), said, ("reading",), reading, NOT_HERE)


def sweeps_answer(found: pl.DataFrame) -> str:
    """Gains at the ends of each sweep; rows of one reading."""
    said = []
    for (series, workload), of in found.filter(pl.col("system") == KELLE).group_by(["series", "workload"], maintain_order=True):
        rows = of.sort("value", descending=True)
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        said.append((str(series), f"{times(first['gain'])} to {times(last['gain'])} on {workload}", first, last))
    told = []
    for series, word in (
        ("refresh interval", "Refreshing every {} instead of {}"),
        ("edram bandwidth", "eDRAM at {} instead of {}"),
    ):
        of_series = [one for one in said if one[0] == series]
        if of_series:
            _, _, first, last = of_series[0]
            change = word.format(last["setting"], first["setting"])
            told.append(f"{change} takes Kelle's energy gain from {joined([words for _, words, *_ in of_series])}")
    return f"{'. '.join(told)}."


def _sweeps_chart(sweeps: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    panels = []
    for series, wide in zip(SWEPT, (560, 480), strict=True):
        rows = sweeps.filter(pl.col("series") == series)
        if rows.is_empty():
            continue
        base = alt.Chart(alt.NamedData("sweeps")).transform_filter(f"{HERE} && datum.series === {theme.quote(series)}")
        base = base.transform_calculate(who="datum.system + ', ' + datum.workload", role_words="'no published number'")
        settings = rows.sort("value", descending=True)["setting"].unique(maintain_order=True).to_list()
        names = sorted({f"{system}, {task}" for system, task in rows.select("system", "workload").rows()}, reverse=True)
        x = alt.X("setting:O", title=SWEPT[series], sort=settings, axis=alt.Axis(labelAngle=0))
        hue = colour(
            dict(zip(names, theme.PALETTE[1:], strict=False)),
            "who",
            names,
            alt.Legend(title=None, orient="top", columns=2, symbolOpacity=1),
        )
        panels.append(dots(base, x, "who", hue, names, None).properties(width=wide, height=240))
    together = alt.hconcat(*panels, spacing=45).resolve_scale(color="independent", xOffset="independent", y="shared")
    return stacked([together], source("no published numbers"), params(start, "reading"))
