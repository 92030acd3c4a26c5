"""The CXL GPU-NDP page on bit widths: what an expert loses at each, which bits a rule gives to whom, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.cxl_ndp.rows import STAND_IN
from tokentape.dashboards.cxl_ndp.words import GIVEN, LEGEND, RULES, SHARED, STUDY, TABLE, setups, source
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

TABLES, BITS = "What does an expert lose at each width?", "Which experts get more bits?"
LOSSES = "How much of the loss do better bits save?"
NO_TABLES = f"Nothing to draw: no table of losses. {STUDY}"
NO_BITS = f"Nothing to draw: no bits were given with these losses. {STUDY}"
SELECTOR = "prefix_split"


def tables_part(tables: pl.DataFrame, won: pl.DataFrame, size: int) -> Part:
    """Of the first loss tables, a quarter of `size`: measured ones, then stand-ins of the paper's models. Both: of rows.py."""
    gptq_first = tables.with_columns(rank=2 * pl.col("rank") + (pl.col("method") == "rtn").cast(pl.Int32))
    kept = setups(gptq_first, by=TABLE.name)[: max(1, size // 4)]
    if not kept:
        return Part((Figure("tables", TABLES, None, {}, (), "", NO_TABLES),))
    found = tables.filter(pl.col("table").is_in(kept))
    said = {str(table): tables_answer(of, won) for (table,), of in found.group_by(["table"], maintain_order=True)}
    reading = (
        "Mean squared error of an expert's output against full precision, by width: on the tokens that were routed to it, "
        f"weights alone quantised in groups of 128, not weighted by the gate. {STAND_IN.capitalize()}: drawn around the "
        "relative weight error of round-to-nearest on Gaussian weights, where no model was measured. GPTQ (gptq) has "
        "calibration activations, rtn rounds to nearest."
    )
    opening = {TABLE.name: kept[0]}
    drawn = found.select("table", "bits", "layer", pl.col("mse").list.eval(pl.element().round_sig_figs(3)))
    return Part(
        (Figure("tables", TABLES, _tables_chart(found, opening), said, (TABLE.name,), reading, NO_TABLES),),
        controls=(TABLE,),
        choices=tuple({TABLE.name: table} for table in kept),
        data={"tables": drawn},
    )


def bits_part(bits: pl.DataFrame, losses: pl.DataFrame) -> Part:
    """Bits by rank, and the loss that they save. bits, losses: of rows.py."""
    bits, losses = _worded(bits), _worded(losses)
    given = [frame.select("given", "rank", "batch") for frame in (bits, losses) if not frame.is_empty()]
    if not given:
        return Part(
            tuple(Figure(name, question, None, {}, (), "", NO_BITS) for name, question in (("bits", BITS), ("losses", LOSSES)))
        )
    paper_first = (pl.col("rank") % 2, pl.col("rank"), -pl.col("given").rank("dense").cast(pl.Int64), "batch")
    pairs = pl.concat(given).unique().sort(*paper_first)
    labels = {str(n): "each sequence" if n == 1 else f"{n} sequences together" for n in pairs["batch"].unique().sort()}
    choices = [{GIVEN.name: row["given"], SHARED.name: str(row["batch"])} for row in pairs.to_dicts()]
    # Bands of all rules would hide one another: those of the others have no height.
    bits = bits.with_columns(
        pl.when(pl.col("rule") == SELECTOR).then(end).otherwise("bits").alias(end) for end in ("low", "high")
    )
    data = {"bits": bits.drop("rank", "batch", "mean_bits", "n_ranked"), "losses": losses.drop("rank", "batch")}
    return Part(
        (_bits_figure(bits, choices[0]), _losses_figure(losses, choices[0])),
        controls=(GIVEN, replace(SHARED, labels=labels)),
        choices=tuple(choices),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )


def tables_answer(found: pl.DataFrame, won: pl.DataFrame) -> str:
    """Mean loss by width, how far experts differ, and how often it falls with bits; rows of one table."""
    cells = found.explode("mse").with_columns(expert=pl.int_range(pl.len()).over("bits", "layer"))
    means = cells.group_by("bits").agg(pl.mean("mse")).sort("bits")
    least = float(means["mse"].min())  # type: ignore[arg-type]
    told = [f"{value / least:,.3g} at {bits}" for bits, value in means.rows()]
    by_expert = cells.pivot("bits", index=["layer", "expert"], values="mse").drop("layer", "expert")
    falls = pl.concat(
        [
            by_expert.select((pl.col(b) <= pl.col(a)).alias("falls"))
            for a, b in zip(by_expert.columns, by_expert.columns[1:], strict=False)
        ]
    )
    spread = cells.group_by("bits", "layer").agg(ratio=pl.max("mse") / pl.min("mse"))["ratio"].median()
    first = (
        f"In {found['method'][0]} losses of {found['model'][0]}, an expert loses on average, with the least as 1, {joined(told)} "
        f"bits; the most sensitive expert of a layer loses {spread:,.3g} × the least (median). More bits lose less in "
        f"{percent(float(falls['falls'].mean()))} of the steps."
    )
    both = won.filter(pl.col("trace_id") == found["source"][0]).to_dicts()
    return first + "".join(
        f" GPTQ loses at most as much as round-to-nearest in {percent(r['won'])} of {r['cells']:,} cells on calibration text"
        + (f", {percent(r['won_heldout'])} on held-out text." if r["won_heldout"] is not None else ".")
        for r in both
    )


def _tables_chart(found: pl.DataFrame, opening: Mapping[str, str]) -> alt.VConcatChart:
    base = (
        alt.Chart(alt.NamedData("tables"))
        .transform_filter("datum.table === table")
        .transform_calculate(expert="sequence(0, length(datum.mse))")
        .transform_flatten(["mse", "expert"])
    )
    widths = found["bits"].unique().sort().to_list()
    panels = []
    for n, bits in enumerate(widths):
        axis = alt.Axis(labelOverlap=True, ticks=False, grid=False, labelAngle=0)
        x = alt.X("expert:O", title="expert (id)", axis=axis)
        y = alt.Y("layer:O", title=None if n else "layer", axis=axis if n == 0 else None)
        scale = alt.Scale(type="log", range=theme.HEAT, interpolate="rgb")
        legend = alt.Legend(title="MSE (log scale)", format=".0e", orient="right", gradientLength=230)
        shade = alt.Color("mse:Q", scale=scale, legend=legend)
        tips = [alt.Tooltip("layer:O"), alt.Tooltip("expert:O"), alt.Tooltip("mse:Q", title="MSE", format=".3g")]
        cells = base.transform_filter(f"datum.bits === {bits}").mark_rect().encode(x, y, shade, tooltip=tips)
        panels.append(cells.properties(width=228, height=270, title=f"{bits} bit{'s' * (bits > 1)}"))
    return stacked([alt.hconcat(*panels, spacing=14)], source(menu=TABLE), params(opening, TABLE.name))


def _worded(frame: pl.DataFrame) -> pl.DataFrame:
    """With the rule as it is said, the panel of its mean width, and how many sequences share the bits."""
    return frame.with_columns(
        said=pl.col("rule").replace({name: words for name, (words, _) in RULES.items()}),
        panel=pl.format("{} bits", pl.col("mean_bits").map_elements(lambda bits: f"{bits:g}", pl.String)),
        shared=pl.col("batch").cast(pl.String),
    )


def _bits_figure(found: pl.DataFrame, opening: Mapping[str, str]) -> Figure:
    if found.is_empty():
        return Figure("bits", BITS, None, {}, (), "", NO_BITS)
    said = {
        f"{given}|{shared}": bits_answer(of) for (given, shared), of in found.group_by(["given", "shared"], maintain_order=True)
    }
    reading = (
        "A panel for each average width; rank 1: the expert in the NDP that the prompt used most. The selector gives falling "
        "widths by rank, and spends the budget to the bit; reversed gives them the other way round and is the control. Bands: "
        "5 to 95 % of layers and sequences."
    )
    return Figure("bits", BITS, _bits_chart(found, opening), said, (GIVEN.name, SHARED.name), reading, NO_BITS)


def bits_answer(found: pl.DataFrame) -> str:
    """What the selector gives to the first and the last rank at each mean width; rows of one table."""
    rows = found.filter(pl.col("rule") == SELECTOR).sort("mean_bits").to_dicts()
    said = [f"{row['bits'][0]:.1f} and {row['bits'][-1]:.1f} at {row['mean_bits']:g}" for row in rows]
    n = found["n_ranked"][0]
    return (
        f"Bits of the most and the least important of {n} by the selector, by average: {'; '.join(said)}."
        if said
        else "The selector was not run with these losses."
    )


def _bits_chart(found: pl.DataFrame, opening: Mapping[str, str]) -> alt.VConcatChart:
    rules = [RULES[name][0] if name in RULES else name for name in known(RULES, found["rule"])]
    widths = found.select("mean_bits", "panel").unique().sort("mean_bits")["panel"].to_list()
    panels = [_bits_panel(width, n == 0, len(widths), rules) for n, width in enumerate(widths)]
    return stacked([alt.hconcat(*panels, spacing=14)], source(menu=GIVEN), params(opening, *opening))


def _bits_panel(panel: str, is_left: bool, n: int, rules: Sequence[str]) -> alt.LayerChart:
    base = (
        alt.Chart(alt.NamedData("bits"))
        .transform_filter(f"datum.given === given && datum.shared === shared && datum.panel === {theme.quote(panel)}")
        .transform_calculate(place="sequence(1, length(datum.bits) + 1)")
        .transform_flatten(["bits", "low", "high", "place"])
    )
    looks = colour(dict(RULES.values()), "said", rules, LEGEND)
    ranks = alt.Axis(tickMinStep=1, format="d", tickCount=5)
    x = alt.X("place:Q", title="rank (1: most used)", axis=ranks, scale=alt.Scale(nice=False, padding=10))
    axis = alt.Axis(values=[1, 2, 3, 4], format="d", labels=is_left)
    y = alt.Y("bits:Q", title="width (bit)" if is_left else None, scale=alt.Scale(domain=[0.8, 4.2], nice=False), axis=axis)
    tips = [
        alt.Tooltip("said:N", title="rule"), alt.Tooltip("place:Q", title="rank"), alt.Tooltip("bits:Q", format=".2f"),
        alt.Tooltip("low:Q", title="5 %", format=".2f"), alt.Tooltip("high:Q", title="95 %", format=".2f"),
    ]  # fmt: skip
    band = base.mark_area(opacity=0.15).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), looks)
    line, marks = base.mark_line(strokeWidth=1.8).encode(x, y, looks), base.mark_point(size=40).encode(x, y, looks, tooltip=tips)
    return alt.layer(band, line, marks).properties(width=1060 / max(3, n) - 22, height=210, title=panel)


def _losses_figure(found: pl.DataFrame, opening: Mapping[str, str]) -> Figure:
    if found.is_empty():
        return Figure("losses", LOSSES, None, {}, (), "", NO_BITS)
    said = {
        f"{given}|{shared}": losses_answer(of) for (given, shared), of in found.group_by(["given", "shared"], maintain_order=True)
    }
    reading = (
        "Loss by the table, each expert by its share of the prompts, over that of uniform bits of the same average; bands: 5 "
        "to 95 % of layers and sequences. Uniform bits, the most important one bit more between whole averages, are themselves "
        "a prefix split, so the selector is never above them. The optimum may give any width to any expert."
    )
    return Figure("losses", LOSSES, _losses_chart(found, opening), said, (GIVEN.name, SHARED.name), reading, NO_BITS)


def losses_answer(found: pl.DataFrame) -> str:
    """What the selector and the optimum keep of the loss of uniform bits, and the range of the reversed order; of one table."""
    said, turned = [], []
    for (mean,), of in found.sort("mean_bits").group_by(["mean_bits"], maintain_order=True):
        ratio = dict(of.select("rule", "ratio").iter_rows())
        best = f" (optimum {percent(ratio['optimum'], 0)})" if "optimum" in ratio else ""
        said += [f"{percent(ratio[SELECTOR], 0)}{best} at {mean:g} bits"] * (SELECTOR in ratio)
        turned += [ratio["reversed"]] * ("reversed" in ratio)
    against = f"; in reversed order it is {percent(min(turned), 0)} to {percent(max(turned), 0)}" if turned else ""
    return (
        f"Of the loss of uniform bits the selector keeps, in the median, {joined(said)}{against}."
        if said
        else "The selector was not run."
    )


def _losses_chart(found: pl.DataFrame, opening: Mapping[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("losses")).transform_filter("datum.given === given && datum.shared === shared")
    rules = [RULES[name][0] if name in RULES else name for name in known(RULES, found["rule"])]
    looks = colour(dict(RULES.values()), "said", rules, LEGEND)
    x = alt.X(
        "mean_bits:Q",
        title="average width in the NDP (bit)",
        scale=alt.Scale(nice=False, padding=14),
        axis=alt.Axis(values=found["mean_bits"].unique().sort().to_list()),
    )
    y = alt.Y("ratio:Q", title="table loss over uniform bits' (%)", axis=alt.Axis(format=".0%"), scale=alt.Scale(zero=True))
    tips = [
        alt.Tooltip("said:N", title="rule"), alt.Tooltip("mean_bits:Q", title="bits"), alt.Tooltip("ratio:Q", format=".1%"),
        alt.Tooltip("low:Q", title="5 %", format=".1%"), alt.Tooltip("high:Q", title="95 %", format=".1%"),
        alt.Tooltip("n:Q", title="layers x sequences"),
    ]  # fmt: skip
    band = base.mark_area(opacity=0.1).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), looks)
    line, marks = base.mark_line(strokeWidth=1.8).encode(x, y, looks), base.mark_point(size=50).encode(x, y, looks, tooltip=tips)
    drawn = alt.layer(band, line, marks).properties(width=900, height=290)
    return stacked([drawn], source(menu=GIVEN), params(opening, *opening))
