"""The Layered Prefill page's side-by-side figures: the same schedulers under other arrivals, beside older ones, elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from tokentape.dashboards.layered_prefill.words import BAND, STUDY, drawing_order, looks, of_series
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_ARRIVALS = f"Nothing to draw: requests came in one way only. {STUDY}"
NO_OTHERS = f"Nothing to draw: no other scheduler was served. {STUDY}"
NO_PLACES = f"Nothing to draw: no other model or GPU was served. {STUDY}"
# Metric -> title and what turns it into what is shown; times on logarithmic axes.
MEASURES = {
    "ttft_mean_s": ("mean TTFT (s, log)", "1", ",.2~f"),
    "tbt_p99_s": ("TBT p99 (ms, log)", "1000", ",.0f"),
    "energy_j_per_token": ("energy per token (mJ)", "1000", ",.0f"),
    "jain": ("Jain index (1: all alike)", "1", ".2f"),
}
LOG = ("ttft_mean_s", "tbt_p99_s")
WIDTH = 205


@dataclass(frozen=True)
class Beside:
    """One figure: its series, and what of a point names its row."""

    name: str
    question: str
    series: tuple[str, ...]
    row: tuple[str, ...]
    reading: str
    missing: str


FIGURES = (
    Beside(
        "arrivals",
        "What changes when requests come otherwise than in the paper?",
        ("table-12", "bursty", "azure", "mooncake"),
        ("workload", "arrival"),
        "Poisson arrivals as in the paper; gamma: bursty for a CV above 1, more even below; traces keep their order of "
        "arrivals and their lengths, scaled to the rate.",
        NO_ARRIVALS,
    ),
    Beside(
        "others",
        "How do older schedulers compare?",
        ("other schedulers", "table-2", "table-6", "table-10", "table-12"),
        ("model",),
        "Static and Orca take whole prompts; disaggregated has an engine of one GPU for prompts and another for decoding; "
        "layered with one pass of 32,768 tokens cuts no prompt.",
        NO_OTHERS,
    ),
    Beside(
        "elsewhere",
        "And with other models and on other GPUs?",
        ("other models", "other gpus"),
        ("model", "hardware"),
        "Costs with the constants fitted on the paper's main model and GPU: extrapolated.",
        NO_PLACES,
    ),
)


def part(points: pl.DataFrame) -> Part:
    """points: rows.points."""
    found = {beside.name: _rows(points, beside) for beside in FIGURES}
    figures = tuple(_figure(beside, found[beside.name]) for beside in FIGURES)
    return Part(figures, data={name: frame for name, frame in found.items() if not frame.is_empty()})


def _rows(points: pl.DataFrame, beside: Beside) -> pl.DataFrame:
    """A row per point, named by place and rate; only where the first series of `beside` or more than one system is there."""
    held = of_series(points, *beside.series)
    if held.is_empty():
        return held
    metrics = [name for name in MEASURES if name in held.columns]
    place = {name: n for n, name in enumerate(held["series"].unique(maintain_order=True))}
    turn = [pl.col("series").replace_strict(place), "model", "hardware", "arrival", "rate", "system"]
    told = held.filter(pl.col("rate").is_not_null()).sort(turn).with_columns(label=_label(beside))
    if beside.name == "others":
        is_other = ~pl.col("scheduler").is_in(["chunked", "layered"]) | pl.col("series").eq("other schedulers")
        told = told.filter(pl.col("rate").is_in(told.filter(is_other)["rate"].unique().implode()))
    if beside.name == "arrivals" and told["arrival"].n_unique() < 2:
        return told.clear()
    bands = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    labels = {name: n for n, name in enumerate(told["label"].unique(maintain_order=True))}
    order = pl.col("label").replace_strict(labels, return_dtype=pl.Int64)
    return told.select("label", "system", "scheduler", "n_seeds", *bands, order=order)


def _label(beside: Beside) -> pl.Expr:
    """A row's name; a trace is called as its series, not as its tape."""
    cached = pl.when(pl.col("workload").str.contains("prefix cache")).then(pl.lit(" with prefix cache")).otherwise(pl.lit(""))
    named = pl.concat_str([pl.col(name) for name in beside.row], separator=", ")
    trace = pl.format("{} trace{}", pl.col("series").str.to_titlecase(), cached)
    return pl.format("{}, {}/s", pl.when(pl.col("arrival") == "trace").then(trace).otherwise(named), "rate")


def _figure(beside: Beside, found: pl.DataFrame) -> Figure:
    if found.is_empty():
        return Figure(beside.name, beside.question, None, {}, (), "", beside.missing)
    metrics = [name for name in MEASURES if name in found.columns]
    reading = f"{beside.reading} Energy is per prompt and output token. {BAND}"
    return Figure(
        beside.name,
        beside.question,
        _chart(beside.name, metrics, drawing_order(found["system"])),
        {"": others_answer(found) if beside.name == "others" else answer(found)},
        (),
        reading,
        beside.missing,
    )


def answer(found: pl.DataFrame) -> str:
    """Layered over chunked in TTFT and in TBT p99, row by row; and the rows where it loses."""
    said, lost = [], []
    for (label,), of in found.sort("order", maintain_order=True).group_by(["label"], maintain_order=True):
        ours, theirs = (of.filter(pl.col("scheduler") == name) for name in ("layered", "chunked"))
        if ours.is_empty() or theirs.is_empty():
            continue
        ttft, tbt = (float(ours[name][0] / theirs[name][0]) for name in LOG)
        said.append((ttft, tbt))
        lost += [f"{label} ({ttft:.2f} × TTFT, {tbt:.2f} × TBT p99)"] if max(ttft, tbt) > 1 else []
    if not said:
        return "No row has both layered and chunked."
    ends = [
        f"{min(of):.2f} to {max(of):.2f} × chunked's {name}"
        for of, name in zip(zip(*said, strict=True), ("mean TTFT", "TBT p99"), strict=True)
    ]
    worse = f"It is above in {joined(lost)}." if lost else "It is below in every row."
    return f"Layered has {joined(ends)} over {len(said)} {'row' if len(said) == 1 else 'rows'}. {worse}"


def others_answer(found: pl.DataFrame) -> str:
    """The shortest wait and the shortest gap, row by row."""
    said = []
    for (label,), of in found.sort("order", maintain_order=True).group_by(["label"], maintain_order=True):
        wait, gap = (of.sort(name).row(0, named=True) for name in LOG)
        said.append(
            f"{label}: {wait['system']} waits least for the first token ({wait['ttft_mean_s']:.2f} s), {gap['system']} has the "
            f"least TBT p99 ({1000 * gap['tbt_p99_s']:.0f} ms)"
        )
    return f"{'; '.join(said)}."


def _chart(data: str, metrics: Sequence[str], names: Sequence[str]) -> alt.HConcatChart:
    return alt.hconcat(*(_panel(data, name, names, place) for place, name in enumerate(metrics)), spacing=18)


def _panel(data: str, metric: str, names: Sequence[str], place: int) -> alt.LayerChart:
    title, factor, form = MEASURES[metric]
    base = (
        alt.Chart(alt.NamedData(data))
        .transform_filter(f"isValid(datum.{metric})")
        .transform_calculate(
            shown=f"datum.{metric} * {factor}", low=f"datum.{metric}_low * {factor}", high=f"datum.{metric}_high * {factor}"
        )
    )
    axis = alt.Axis(labelLimit=330, ticks=False, domain=False, grid=True, labels=place == 0, labelFontSize=12.5)
    y = alt.Y("label:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=axis)
    scale = alt.Scale(type="log", nice=False, padding=16) if metric in LOG else alt.Scale(zero=False, padding=16, nice=False)
    x = alt.X("shown:Q", title=title, scale=scale, axis=alt.Axis(tickCount=4, format="~s" if metric in LOG else form))
    colour, shape = looks(names)
    beside = alt.YOffset("system:N", sort=list(names))
    tips = [
        alt.Tooltip("label:N", title="where"),
        alt.Tooltip("system:N"),
        alt.Tooltip("shown:Q", title=title, format=".4~g"),
        alt.Tooltip("low:Q", title="5 % of seeds", format=".4~g"),
        alt.Tooltip("high:Q", title="95 % of seeds", format=".4~g"),
        alt.Tooltip("n_seeds:Q", title="seeds"),
    ]
    band = base.mark_rule(strokeWidth=3, opacity=0.4).encode(alt.X("low:Q"), y, beside, colour, alt.X2("high:Q"))
    marks = base.mark_point(size=50).encode(x, y, beside, colour, shape, tooltip=tips)
    return alt.layer(band, marks).properties(width=WIDTH, height=alt.Step(9, **{"for": "offset"}))
