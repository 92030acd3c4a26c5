"""The CXL GPU-NDP page on bit widths: what an expert loses at each, which bits a rule gives to whom, and what that saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from tokentape.dashboards.cxl_ndp.words import GIVEN, RULES, SHARED, TABLE, setups
from tokentape.dashboards.engine import Ask, Drawn, in_words, options, sentences, some
from tokentape.dashboards.units import joined, lowest, mean_of, percent

STAND_IN = "stand-in"  # method of losses that no model was measured for

SELECTOR = "prefix_split"


def tables(ask: Ask) -> Drawn:
    """The first loss tables, a quarter of the page's size: measured ones, then stand-ins of the paper's models."""
    all_tables = some(ask("tables"))
    gptq_first = all_tables.with_columns(rank=2 * pl.col("rank") + (pl.col("method") == "rtn").cast(pl.Int32))
    kept = setups(gptq_first, by=TABLE.name)[: max(1, ask.size // 4)]
    found = all_tables.filter(pl.col("table").is_in(kept))
    widths = [
        {
            "bits": bits,
            "title": f"{bits} bit{'s' * (bits > 1)}",
            "heading": "-" if n else "layer",
            "side": "none" if n else "labelOverlap=yes ticks=no grid=no flat",
        }
        for n, bits in enumerate(found["bits"].unique().sort())
    ]
    return Drawn(
        {"tables": found.select("table", "bits", "layer", pl.col("mse").list.eval(pl.element().round_sig_figs(3)))},
        sentences(found, ["table"], lambda of: tables_answer(of, ask("won"))),
        {"widths": widths, "stand_in": STAND_IN.capitalize()},
        controls=(TABLE,),
        choices=options(TABLE.name, kept),
    )


def bits(ask: Ask) -> Drawn:
    found = some(_worded(ask("bits")))
    widths = found.select("mean_bits", "panel").unique().sort("mean_bits")["panel"].to_list()
    each = [{"panel": panel, "heading": "-" if n else "width (bit)"} for n, panel in enumerate(widths)]
    own = {"widths": each, "width": 1060 / max(3, len(widths)) - 22}
    # Bands of all rules would hide one another: those of the others have no height.
    is_selector = pl.col("rule") == SELECTOR
    drawn = found.with_columns(pl.when(is_selector).then(end).otherwise("bits").alias(end) for end in ("low", "high"))
    said = sentences(found, ["given", "shared"], bits_answer)
    return Drawn({"bits": drawn.drop("rank", "batch", "mean_bits", "n_ranked")}, said, own, **_menus(ask))


def losses(ask: Ask) -> Drawn:
    found = some(_worded(ask("losses")))
    said = sentences(found, ["given", "shared"], losses_answer)
    return Drawn({"losses": found.drop("rank", "batch")}, said, **_menus(ask))


def _menus(ask: Ask) -> dict[str, Any]:
    """Menus of both figures; the paper's models come first."""
    given = [frame.select("given", "rank", "batch") for frame in (ask("bits"), ask("losses"))]
    paper_first = (pl.col("rank") % 2, pl.col("rank"), -pl.col("given").rank("dense").cast(pl.Int64), "batch")
    pairs = pl.concat(given).unique().sort(*paper_first)
    labels = {str(n): "each sequence" if n == 1 else f"{n} sequences together" for n in pairs["batch"].unique().sort()}
    choices = tuple({GIVEN.name: row["given"], SHARED.name: str(row["batch"])} for row in pairs.to_dicts())
    return {"controls": (GIVEN, replace(SHARED, labels=labels)), "choices": choices}


def tables_answer(found: pl.DataFrame, won: pl.DataFrame) -> str:
    """Mean loss by width, how far experts differ, and how often it falls with bits; rows of one table."""
    cells = found.explode("mse").with_columns(expert=pl.int_range(pl.len()).over("bits", "layer"))
    means = cells.group_by("bits").agg(pl.mean("mse")).sort("bits")
    least = lowest(means["mse"])
    told = [f"{value / least:,.3g} at {bits}" for bits, value in means.rows()]
    by_expert = cells.pivot("bits", index=["layer", "expert"], values="mse").drop("layer", "expert")
    falls = pl.concat(
        [
            by_expert.select((pl.col(b) <= pl.col(a)).alias("falls"))
            for a, b in zip(by_expert.columns, by_expert.columns[1:], strict=False)
        ]
    )
    spread = mean_of(cells.group_by("bits", "layer").agg(ratio=pl.max("mse") / pl.min("mse")).select(pl.median("ratio"))["ratio"])
    first = (
        f"In {found['method'][0]} losses of {found['model'][0]}, an expert loses on average, with the least as 1, {joined(told)} "
        f"bits; the most sensitive expert of a layer loses {spread:,.3g} × the least (median). More bits lose less in "
        f"{percent(mean_of(falls['falls']))} of the steps."
    )
    both = won.filter(pl.col("trace_id") == found["source"][0]).to_dicts()
    return first + "".join(
        f" GPTQ loses at most as much as round-to-nearest in {percent(r['won'])} of {r['cells']:,} cells on calibration text"
        + (f", {percent(r['won_heldout'])} on held-out text." if r["won_heldout"] is not None else ".")
        for r in both
    )


def _worded(frame: pl.DataFrame) -> pl.DataFrame:
    """With the rule as it is said, the panel of its mean width, and how many sequences share the bits."""
    return frame.with_columns(
        said=in_words("rule", RULES),
        panel=pl.format("{} bits", pl.col("mean_bits").map_elements(lambda bits: f"{bits:g}", pl.String)),
        shared=pl.col("batch").cast(pl.String),
    )


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
