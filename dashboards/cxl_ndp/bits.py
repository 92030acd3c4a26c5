"""The CXL GPU-NDP page on bit widths: what experts lose at each, which bits a rule gives to whom, what a live model loses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from tokentape.dashboards.cxl_ndp.words import GIVEN, PLACEMENTS, RULES, SHARED, TABLE, setups
from tokentape.dashboards.engine import Ask, Control, Drawn, in_words, known, options, sentences, some
from tokentape.dashboards.units import joined, lowest, mean_of, percent, signed

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
TASKS = {
    "average": "average", "mmlu": "MMLU", "mathqa": "MathQA", "hellaswag": "HellaSwag", "arc_easy": "ARC easy",
    "arc_challenge": "ARC challenge", "boolq": "BoolQ", "winogrande": "WinoGrande", "piqa": "PIQA",
}  # fmt: skip


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
        sentences(found, ["live"], quality_answer),
        {"measures": measures},
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
    said = sentences(others, ["live"], variants_answer)
    return Drawn({"variants": others.drop("model", "dataset", "loss_weight")}, said, {"widths": widths}, **_live_menu(ask))


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
    return Drawn({"accuracy": found}, {"": accuracy_answer(found)}, own)


def quality_answer(found: pl.DataFrame) -> str:
    """At every width that both have: selector beside uniform and reversed, and the seeds that agree; rows of one live model."""
    said = []
    for (bits,), of in found.sort("bits").group_by(["bits"], maintain_order=True):
        worse = dict(of.select("rule", "worse").iter_rows())
        if not {SELECTOR, "uniform"} <= worse.keys():
            continue
        row = of.filter(pl.col("rule") == SELECTOR).row(0, named=True)
        name = "exact match lower by" if row["is_accuracy"] else "perplexity"
        by_use = f" ({_worse(worse[BY_USE], row['is_accuracy'])} with losses by use)" if BY_USE in worse else ""
        beside = [f"uniform {_worse(worse['uniform'], row['is_accuracy'])}"]
        ahead = [f"uniform in {row['ahead_of_uniform']}"]
        if "reversed" in worse:
            beside.append(f"reversed order {_worse(worse['reversed'], row['is_accuracy'])}")
            ahead.append(f"reversed in {row['ahead_of_reversed']}")
        said.append(
            f"At {bits:g} bits {name} {_worse(worse[SELECTOR], row['is_accuracy'])} with the selector{by_use}, {joined(beside)}; "
            f"it is no worse than {joined(ahead)} of {row['seeds']} seeds."
        )
    return " ".join(said) or "The selector and uniform bits were not measured at one width."


def _worse(value: float, is_accuracy: bool) -> str:
    return f"{100 * value:.1f} points" if is_accuracy else signed(value)


def variants_answer(found: pl.DataFrame) -> str:
    """Least and most loss over the placements at every width; rows of one live model."""
    said = []
    for (width,), of in found.sort("bits").group_by(["width"], maintain_order=True):
        best, worst = of.sort("worse").row(0, named=True), of.sort("worse").row(-1, named=True)
        said.append(
            f"at {width} from {_worse(best['worse'], best['is_accuracy'])} ({best['variant']}) to "
            f"{_worse(worst['worse'], worst['is_accuracy'])} ({worst['variant']})"
        )
    return f"Over {found['variant'].n_unique()} placements the loss goes {'; '.join(said)}."


def accuracy_answer(found: pl.DataFrame) -> str:
    """What each width loses on average with and without the selector, and on which tasks the selector loses."""
    said = []
    for bits in (3, 2):
        held = found.pivot("method", index=["model", "task"], values="accuracy")
        with_, without = f"ours_{bits}bit", f"ours_{bits}bit_no_selector"
        if not {with_, without, "original_fp16"} <= set(held.columns):
            continue
        mean = held.filter(pl.col("task") == "average").to_dicts()
        worse = held.filter(pl.col(with_) < pl.col(without), pl.col("task") != "average")["task"].to_list()
        lost = (
            f", though not on {joined([TASKS.get(task, task) for task in known(TASKS, worse)])}" if worse else ", on every task"
        )
        said += [
            f"at {bits} bits the average falls from {row['original_fp16']:.2f} to {row[with_]:.2f} %, and the selector is "
            f"{row[with_] - row[without]:.2f} points ahead of uniform{lost}"
            for row in mean
        ]
    words = "; ".join(said)
    return (
        f"On {joined(found['model'].unique().sort().to_list())} {words}."
        if said
        else "No pair with and without the selector is printed."
    )
