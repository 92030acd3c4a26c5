"""The CXL GPU-NDP page on whole requests: a batch from prompt to last token, by length and by what the clock is spent on."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.cxl_ndp.words import HOBBIT, MAIN, MONDE, OURS, SETUP, SQUARES, STUDY, SYSTEMS, setups, source, times
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined, quantity

QUESTION = "What does a whole answer take, and what is waited for?"
NO_REQUESTS = f"Nothing to draw: no whole request of this model was computed. {STUDY}"
PARTS = {
    "prefill": theme.SKY,
    "weights over the link": theme.BLUE,
    "attention and KV": theme.QUIET,
    "experts on the GPU": theme.GREEN,
    "waiting for the NDP": theme.ORANGE,
}
COLUMNS = dict(zip(("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s"), PARTS, strict=True))
LENGTHS = Control("lengths", "Lengths")
NDP_COLOUR = theme.VERMILLION


def part(requests: pl.DataFrame, published: pl.DataFrame, start: Mapping[str, str]) -> Part:
    """requests, published: of rows.py."""
    found = requests.filter(pl.col("system").is_in(MAIN))
    if found.is_empty():
        return Part((Figure("requests", QUESTION, None, {}, (), "", NO_REQUESTS),))
    turn = {name: n for n, name in enumerate(MAIN)}
    found = found.with_columns(
        at=pl.format("{} → {}", "prompt", "answer"), turn=pl.col("system").replace_strict(turn, return_dtype=pl.Int64)
    ).sort("setup", "lengths", "prompt", "answer", "turn")
    extended = " Answers longer than the routing go on with its mean step." if found["is_extrapolated"].any() else ""
    reading = (
        "Prompt → answer, tokens of each request. Every system has a scale of its own; beside the bar: the whole time, and how "
        f"much faster than {MONDE}. Thin bar: how long the NDP is busy while decoding, most of it beside the GPU. Prefill holds "
        f"the experts that are streamed to the GPU for it.{extended}"
    )
    said = {
        f"{setup}|{lengths}": answer(of, published.filter((pl.col("over") == "e2e") & (pl.col("model") == setup)))
        for (setup, lengths), of in found.group_by(["setup", "lengths"], maintain_order=True)
    }
    lengths = found["lengths"].unique().sort().to_list()
    opening = {SETUP.name: start.get(SETUP.name, setups(found)[0]), LENGTHS.name: lengths[0]}
    keys = found.select("setup", "lengths").unique(maintain_order=True).to_dicts()
    data = found.select(
        "setup", "lengths", "at", "system", "turn", "batch", "streamed", *COLUMNS, "ndp_s", "e2e_s", "e2e_gain", "low", "high"
    )
    return Part(
        (Figure("requests", QUESTION, _chart(found, opening), said, (SETUP.name, LENGTHS.name), reading, NO_REQUESTS),),
        controls=(LENGTHS,),
        choices=tuple(keys),
        data={"requests": data},
    )


def answer(found: pl.DataFrame, published: pl.DataFrame) -> str:
    """Gains over MoNDE from the least to the most over the lengths, the order of the systems, and where ours spends its time.

    published: the paper's ranges, of this setup.
    """
    said = []
    for system in known(SYSTEMS, set(OURS) & set(found["system"])):
        of = found.filter(pl.col("system") == system)
        paper = dict(published.filter(pl.col("system") == system).select("statistic", "published").iter_rows())
        beside = f" (paper {paper['min']:g} to {paper['max']:g})" if paper.keys() >= {"min", "max"} else ""
        said.append(f"{system} is {of['e2e_gain'].min():.1f} to {times(of['e2e_gain'].max())}{beside}")  # type: ignore[str-format]
    first = found.filter(pl.col("system").is_in(OURS)).head(1).to_dicts()
    if not said:
        return "None of our own systems was computed."
    over = first[0]["system"]
    hobbit = found.filter(pl.col("system") == over)["gain_over_hobbit"].drop_nulls()
    up_to = f", {over} up to {times(hobbit.max())} {HOBBIT}" if hobbit.len() else ""  # type: ignore[arg-type]
    row = first[0]
    parts = sorted(((row[name] / row["e2e_s"], words) for name, words in COLUMNS.items()), reverse=True)
    spent = joined([f"{percent(share, 0)} {words}" for share, words in parts[:3]])
    return (
        f"Over {found['at'].n_unique()} pairs of lengths {joined(said)} as fast as {MONDE}{up_to}. {_order(found)} {row['at']} "
        f"takes {over} {quantity(row['e2e_s'], 's')}: {spent}; its NDP is busy for {quantity(row['ndp_s'], 's')}."
    )


def _order(found: pl.DataFrame) -> str:
    """Whether the systems come in the same order at every pair of lengths."""
    orders = [tuple(of.sort("e2e_s")["system"]) for _, of in found.group_by(["at"], maintain_order=True)]
    usual = max(dict.fromkeys(orders), key=orders.count)
    where = "every pair" if orders.count(usual) == len(orders) else f"{orders.count(usual)} of {len(orders)} pairs"
    return f"{' < '.join(usual)} in time at {where}."


def _chart(found: pl.DataFrame, opening: Mapping[str, str]) -> alt.VConcatChart:
    systems = known(SYSTEMS, found["system"])
    panels = [_panel(system, n == 0, found) for n, system in enumerate(systems)]
    title = source("red: the NDP's own time, beside the rest", menu=SETUP)
    return stacked([alt.hconcat(*panels, spacing=14)], title, params(opening, *opening))


def _panel(system: str, is_left: bool, found: pl.DataFrame) -> alt.LayerChart:
    here = f"datum.setup === setup && datum.lengths === lengths && datum.system === {theme.quote(system)}"
    base = alt.Chart(alt.NamedData("requests")).transform_filter(here)
    axis = alt.Axis(ticks=False, domain=False, labelFontSize=12) if is_left else None
    order = found.select("prompt", "answer", "at").unique().sort("prompt", "answer")["at"].to_list()
    y = alt.Y("at:N", title="prompt → answer (tokens)" if is_left else None, sort=order, axis=axis)
    ends = base.transform_calculate(
        said="format(datum.e2e_s, datum.e2e_s < 10 ? '.1f' : ',.0f') + ' s'"
        + (" + ' | ' + format(datum.e2e_gain, '.1f') + ' ×'" if system != MONDE else "")
    )
    room = base.transform_aggregate(most="max(e2e_s)").transform_calculate(most="1.55 * datum.most")
    x = alt.X("seconds:Q", title=f"{system} (s)", stack="zero", axis=alt.Axis(tickCount=4, format="~s"))
    parts = base.transform_fold(list(COLUMNS), as_=["column", "seconds"]).transform_calculate(
        part=f"({theme.literal(COLUMNS)})[datum.column]", place=f"indexof({list(COLUMNS)}, datum.column)"
    )
    tips = [
        alt.Tooltip("at:N", title="lengths"), alt.Tooltip("part:N"), alt.Tooltip("seconds:Q", title="s", format=".3~g"),
        alt.Tooltip("e2e_s:Q", title="all (s)", format=".3~g"), alt.Tooltip("low:Q", title="gain, least of seeds", format=".2f"),
        alt.Tooltip("high:Q", title="gain, most of seeds", format=".2f"),
        alt.Tooltip("streamed:Q", title="experts streamed, a layer"),
    ]  # fmt: skip
    bars = parts.mark_bar(height=12, yOffset=-3).encode(
        x, y, colour(PARTS, "part", list(PARTS), SQUARES), alt.Order("place:Q"), tooltip=tips
    )
    ndp = base.mark_bar(height=4, yOffset=7, color=NDP_COLOUR).encode(
        alt.X("ndp_s:Q"), y, tooltip=[alt.Tooltip("ndp_s:Q", title="NDP busy (s)", format=".3~g")]
    )
    words = ends.mark_text(align="left", dx=5, dy=-3, fontSize=11.5, color=theme.INK).encode(alt.X("e2e_s:Q"), y, text="said:N")
    unseen = room.mark_rule(opacity=0).encode(alt.X("most:Q"))
    return alt.layer(bars, ndp, words, unseen).properties(width=248 if is_left else 240, height=alt.Step(27))
