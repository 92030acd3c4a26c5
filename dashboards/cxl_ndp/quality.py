"""The CXL GPU-NDP page on quality: what a live model loses to low bits under every rule, and the accuracies of the paper."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards.cxl_ndp.words import PLACEMENTS, RULES
from tokentape.dashboards.engine import Ask, Control, Drawn, in_words, known, options, sentences, some
from tokentape.dashboards.units import joined, signed

LIVE = Control("live", "Live model")
FULL, SELECTOR, BY_USE = "full", "prefix_split", "by_use"
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
        **_menu(ask),
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
    return Drawn({"variants": others.drop("model", "dataset", "loss_weight")}, said, {"widths": widths}, **_menu(ask))


def _menu(ask: Ask) -> dict[str, Any]:
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
