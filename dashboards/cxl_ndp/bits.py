"""The CXL GPU-NDP page on bit widths: what experts lose at each, which bits a rule gives to whom, what a live model loses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from tokentape.dashboards.cxl_ndp.words import GIVEN, PLACEMENTS, RULES, SHARED, TABLE, TASKS, setups
from tokentape.dashboards.engine import Ask, Control, Drawn, in_words, known, options, some

STAND_IN = "stand-in"  # method of losses that no model was measured for

SELECTOR = "prefix_split"
LIVE = Control("live", "Live model")
FULL, BY_USE = "full", "by_use"
USUAL = (pl.col("placement") == "prefill_guided") & (pl.col("alpha") == 0.5)
METHODS = {
    "original_fp16": "FP16",
    "ours_3bit_no_selector": "3 bits, uniform",
    "ours_3bit": "3 bits, selector",
    "ours_2bit_no_selector": "2 bits, uniform",
    "ours_2bit": "2 bits, selector",
}


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
        facts={"widths": widths, "stand_in": STAND_IN.capitalize(), "won": ask("won")},
        said=found,
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
    return Drawn({"bits": drawn.drop("rank", "batch", "mean_bits", "n_ranked")}, facts=own, said=found, **_menus(ask))


def losses(ask: Ask) -> Drawn:
    found = some(_worded(ask("losses")))
    return Drawn({"losses": found.drop("rank", "batch")}, **_menus(ask))


def _menus(ask: Ask) -> dict[str, Any]:
    """Menus of both figures; the paper's models come first."""
    given = [frame.select("given", "rank", "batch") for frame in (ask("bits"), ask("losses"))]
    paper_first = (pl.col("rank") % 2, pl.col("rank"), -pl.col("given").rank("dense").cast(pl.Int64), "batch")
    pairs = pl.concat(given).unique().sort(*paper_first)
    labels = {str(n): "each sequence" if n == 1 else f"{n} sequences together" for n in pairs["batch"].unique().sort()}
    choices = tuple({GIVEN.name: row["given"], SHARED.name: str(row["batch"])} for row in pairs.to_dicts())
    return {"controls": (GIVEN, replace(SHARED, labels=labels)), "choices": choices}


def _worded(frame: pl.DataFrame) -> pl.DataFrame:
    """With the rule as it is said, the panel of its mean width, and how many sequences share the bits."""
    return frame.with_columns(
        said=in_words("rule", RULES),
        panel=pl.format("{} bits", pl.col("mean_bits").map_elements(lambda bits: f"{bits:g}", pl.String)),
        shared=pl.col("batch").cast(pl.String),
    )


def quality(ask: Ask) -> Drawn:
    found = some(ask.made(_ruled).filter(USUAL))
    line, points = "line strokeWidth=1.8", "point size=50"
    each = [
        {"of": "worse", "title": "perplexity above full precision (%)", "marks": ["band opacity=0.12", line, points]},
        {"of": "disagreement", "title": "tokens that change (%)", "marks": [line, points]},
        {"of": "table_loss", "title": "loss by the table (MSE, log scale)", "marks": [line, points]},
    ]
    looks = {True: ("log tight padding=12", ".0e"), False: ("from0", ".1~%")}
    measures = [
        {**one, "scale": looks[one["of"] == "table_loss"][0], "form": looks[one["of"] == "table_loss"][1]}
        for one in each
        if found[str(one["of"])].drop_nulls().len()
    ]
    return Drawn(
        {"quality": found.drop("placement", "alpha", "loss_weight", "model", "dataset")},
        facts={"measures": measures},
        said=found,
        **_live_menu(ask),
    )


def variants(ask: Ask) -> Drawn:
    found = ask.made(_ruled)
    others = found.filter(pl.col("rule").is_in([SELECTOR, BY_USE])).with_columns(
        variant=pl.when(pl.col("placement") != "prefill_guided")
        .then(pl.col("placement").replace(PLACEMENTS))
        .when(pl.col("rule") == BY_USE)
        .then(pl.lit("by the prompt, losses by use"))
        .otherwise(pl.format("by the prompt, alpha {}", "alpha")),
        width=pl.format("{} bits", pl.col("bits").map_elements(lambda bits: f"{bits:g}", pl.String)),
    )
    others = some(others.filter(pl.col("variant").n_unique().over("live", "bits") > 1))
    widths = others.select("bits", "width").unique().sort("bits")["width"].to_list()
    return Drawn({"variants": others.drop("model", "dataset", "loss_weight")}, facts={"widths": widths}, **_live_menu(ask))


def _live_menu(ask: Ask) -> dict[str, Any]:
    """Models that were measured as usual."""
    lives = ask.made(_ruled).filter(USUAL)["live"].unique(maintain_order=True).to_list()
    return {"controls": (LIVE,), "choices": options(LIVE.name, lives)}


def _ruled(ask: Ask) -> pl.DataFrame:
    """Quality of experts at the widths of a rule; the selector with losses by use is a rule of its own."""
    by_use = (pl.col("rule") == SELECTOR) & (pl.col("loss_weight") != "none")
    found = ask("quality").filter(pl.col("rule") != FULL)
    return found.with_columns(rule=pl.when(by_use).then(pl.lit(BY_USE)).otherwise("rule")).with_columns(
        live=pl.format("{}, {}, {}, {} hot", "model", "dataset", "method", "hot"), disagreement=1 - pl.col("agreement"),
        said=in_words("rule", RULES),
    )  # fmt: skip


def accuracy(ask: Ask) -> Drawn:
    """The paper's Table 3 as a table whose cells are shaded by what they lose."""
    base = pl.col("accuracy").filter(pl.col("method") == "original_fp16").first().over("model", "task")
    found = some(ask("accuracy")).with_columns(
        lost=base - pl.col("accuracy"), setting=pl.col("method").replace(METHODS), named=pl.col("task").replace(TASKS)
    )
    own = {
        "settings": [METHODS.get(name, name) for name in known(METHODS, found["method"])],
        "tasks": [TASKS.get(name, name) for name in known(TASKS, found["task"])],
    }
    return Drawn({"accuracy": found}, facts=own)
