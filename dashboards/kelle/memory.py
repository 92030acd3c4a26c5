"""The Kelle page on memory: more SRAM, plain eDRAM (Figure 3), recomputation and ways to refresh (Figure 15)."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.kelle.gains import parts_bars
from tokentape.dashboards.kelle.words import HEADER, HERE, NOT_HERE, PARTS, SQUARES, WORKLOADS, by_reading, source
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

SIZES = {"4 MB": theme.QUIET, "8 MB": theme.BLUE}
RECOMPUTE, REFRESH = "recompute", "refresh policy"
ORDER = {RECOMPUTE: ("off", "on"), REFRESH: ("45 us", "uniform 360 us", "2D", "2D + scheduler")}
TITLES = {RECOMPUTE: "Recomputation", REFRESH: "Refresh"}


def part(sram: pl.DataFrame, memory: pl.DataFrame, settings: pl.DataFrame, start: dict[str, str]) -> Part:
    """sram, memory, settings: rows' of these names."""
    figures = (_sram_figure(sram, memory, start), _settings_figure(settings, start))
    data = {"sram": sram, "memory": memory, "settings": settings}
    return Part(figures, data={name: frame for name, frame in data.items() if not frame.is_empty()})


def _sram_figure(sram: pl.DataFrame, memory: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Would more SRAM do, or eDRAM as it is?"
    if sram.is_empty() or memory.is_empty():
        return Figure("memory", question, None, {}, (), "", NOT_HERE)
    said = {
        name: memory_answer(of, memory.filter(pl.col("reading") == name))
        for name, of in by_reading(sram)
        if name in set(memory["reading"])
    }
    reading = (
        "The paper's Figures 3a and 3c: Llama-2-7B on PG19 with the whole cache, batch 16, an array of 32 x 32. Left: time of a "
        "step, weights keeping 2 MB (assumed). The paper says 1.27 × with 8 MB, which neither capacity nor bandwidth can give. "
        "Right: 8 MB of eDRAM refreshed every 45 us. The paper has at most 46 % for refresh; its own Table 1 gives what is drawn."
    )
    return Figure("memory", question, _sram_chart(sram, memory, start), said, ("reading",), reading, NOT_HERE)


def memory_answer(sram: pl.DataFrame, memory: pl.DataFrame) -> str:
    """What twice the SRAM saves, and the range of the refresh's share; rows of one reading."""
    gains = (1 / sram.filter(pl.col("setting") == "8 MB")["over_small"]).to_list()
    shares = memory.filter((pl.col("part") == "refresh") & (pl.col("setting") == "8 MB at 45 us"))["share"].to_list()
    if not gains or not shares:
        return "It was not computed for both sizes."
    span = " to ".join(dict.fromkeys(percent(share, 0) for share in (min(shares), max(shares))))
    return (
        f"8 MB of SRAM instead of 4 MB make a step at most {max(gains):.3f} × as fast. eDRAM of 8 MB, refreshed every 45 us, "
        f"spends {span} of the energy on refresh."
    )


def _sram_chart(sram: pl.DataFrame, memory: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    decode = alt.X("decode:O", title="decode length (tokens)", axis=alt.Axis(labelAngle=0, format=",d"))
    base = alt.Chart(alt.NamedData("sram")).transform_filter(HERE)
    names = known(SIZES, sram["setting"])
    tips = [alt.Tooltip("setting:N"), alt.Tooltip("over_small:Q", format=".5f"), alt.Tooltip("step_s:Q", format=".3f")]
    left = (
        base.mark_bar()
        .encode(
            decode,
            alt.Y("over_small:Q", title="time of a step (relative to 4 MB of SRAM, ×)"),
            alt.XOffset("setting:N", scale=alt.Scale(domain=names)),
            colour(SIZES, "setting", names, SQUARES),
            tooltip=tips,
        )
        .properties(width=360, height=230)
    )
    of = alt.Chart(alt.NamedData("memory")).transform_filter(HERE)
    settings = memory["setting"].unique().sort().to_list()
    lengths = memory["decode"].unique().sort().to_list()
    rows = [
        parts_bars(of.transform_filter(f"datum.setting === {theme.quote(name)}"), "share", "share of the energy (%)", list(PARTS))
        .encode(alt.Y("decode:O", title="decoded (tokens)", sort=lengths, axis=alt.Axis(format=",d", ticks=False, domain=False)))
        .properties(width=230, height=200, title=name)
        for name in settings
    ]
    right = alt.hconcat(*rows, spacing=20).resolve_scale(color="shared")
    return stacked(
        [alt.hconcat(left, right, spacing=40).resolve_scale(color="independent")],
        source("one model and task"),
        params(start, "reading"),
    )


def _settings_figure(settings: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What do recomputation and each way to refresh save?"
    if settings.is_empty():
        return Figure("settings", question, None, {}, (), "", NOT_HERE)
    said = {name: settings_answer(of) for name, of in by_reading(settings)}
    reading = (
        "The paper's Figure 15, Kelle on eDRAM: the energy of a step by part, over that of the upper bar. Above: means over "
        "models; below: Llama-2-7B. 2D refreshes tokens and bits by importance, on average every 1050 us; the scheduler shortens "
        "the life of transient data. As the paper counts, what is recomputed is free; counted physically, layer inputs are read "
        "and multiplied, and models with few KV heads do not recompute at all."
    )
    return Figure("settings", question, _settings_chart(settings, start), said, ("reading",), reading, NOT_HERE)


def settings_answer(found: pl.DataFrame) -> str:
    """Each setting's energy over the first one's, means over tasks; rows of one reading."""
    whole = found.group_by("series", "setting", "workload").agg(pl.sum("part_frac")).group_by("series", "setting")
    energy = {(series, setting): value for series, setting, value in whole.agg(pl.mean("part_frac")).rows()}
    said = []
    if (RECOMPUTE, "on") in energy:
        change = energy[RECOMPUTE, "on"] - 1
        said.append(f"Recomputation {'saves' if change <= 0 else 'adds'} {percent(abs(change), 0)} of the energy on average")
    steps = [(setting, 1 - energy[REFRESH, setting]) for setting in ORDER[REFRESH][1:] if (REFRESH, setting) in energy]
    if steps:
        each = joined([f"{percent(saved)} ({setting})" for setting, saved in steps])
        said.append(f"against a refresh every 45 us, Llama-2-7B saves {each}")
    return f"{'; '.join(said)}." if said else "Nothing of it fits into the DRAM."


def _settings_chart(settings: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    rows = []
    tasks = known(dict.fromkeys(WORKLOADS, ""), settings["workload"])
    for series, order in ORDER.items():
        held = settings.filter(pl.col("series") == series)
        if held.is_empty():
            continue
        base = alt.Chart(alt.NamedData("settings")).transform_filter(f"{HERE} && datum.series === {theme.quote(series)}")
        y = alt.Y(
            "setting:N",
            title=None,
            sort=[name for name in order if name in set(held["setting"])],
            axis=alt.Axis(ticks=False, domain=False, labelLimit=160),
        )
        bars = parts_bars(base, "part_frac", "energy (% of the upper bar)", list(PARTS)).encode(y)
        drawn = bars.properties(width=225, height=alt.Step(22))
        column = alt.Column("workload:N", title=TITLES[series], sort=tasks, header=HEADER)
        rows.append(drawn.facet(column=column, spacing=18))
    return stacked(rows, source(), params(start, "reading")).resolve_scale(color="shared")
