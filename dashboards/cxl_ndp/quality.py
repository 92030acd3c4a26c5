"""The CXL GPU-NDP page on quality: what a live model loses to low bits under every rule, and the accuracies of the paper."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.claims import signed
from tokentape.dashboards.cxl_ndp.words import LEGEND, PLACEMENTS, RULES, source
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Control, Figure, Part
from tokentape.dashboards.units import joined

QUALITY, VARIANTS = (
    "What do low bits cost a live model, and does the selector help?",
    "Does it matter how experts are placed, to quality?",
)
ACCURACY = "What did the paper measure on its own model?"
RUN = "Run: tokentape evaluate --policy cxl_ndp, then tokentape load and tokentape site."
NO_QUALITY = f"Nothing to draw: no live model was measured with experts at low widths. {RUN}"
NO_VARIANTS = f"Nothing to draw: a single placement was measured in a live model. {RUN}"
NO_ORDERINGS = (
    "Nothing to draw: no ordering of bit widths is checked. Run: tokentape study cxl_ndp, then tokentape load and site."
)
SEEDS = "Bands: least to most of the seeds, which read different texts."
NO_ACCURACY = (
    "Nothing to draw: the paper's Table 3 is not loaded. Run: tokentape study cxl_ndp, then tokentape load and tokentape site."
)
LIVE = Control("live", "Live model")
FULL, SELECTOR, BY_USE = "full", "prefix_split", "by_use"
USUAL = (pl.col("placement") == "prefill_guided") & (pl.col("alpha") == 0.5)
MEASURES = {
    "worse": "perplexity above full precision (%)",
    "disagreement": "tokens that change (%)",
    "table_loss": "loss by the table (MSE, log scale)",
}
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


def quality_part(quality: pl.DataFrame) -> Part:
    """quality: rows.quality."""
    if quality.is_empty():
        empty = (("quality", QUALITY, NO_QUALITY), ("variants", VARIANTS, NO_VARIANTS))
        return Part(tuple(Figure(name, question, None, {}, (), "", missing) for name, question, missing in empty))
    by_use = (pl.col("rule") == SELECTOR) & (pl.col("loss_weight") != "none")
    ruled = quality.filter(pl.col("rule") != FULL).with_columns(rule=pl.when(by_use).then(pl.lit(BY_USE)).otherwise("rule"))
    found = ruled.with_columns(
        live=pl.format("{}, {}, {}, {} hot", "model", "dataset", "method", "hot"), disagreement=1 - pl.col("agreement"),
        said=pl.col("rule").replace({name: words for name, (words, _) in RULES.items()}),
    )  # fmt: skip
    usual = found.filter(USUAL)
    others = found.filter(pl.col("rule").is_in([SELECTOR, BY_USE])).with_columns(
        variant=pl.when(pl.col("placement") != "prefill_guided")
        .then(pl.col("placement").replace(PLACEMENTS))
        .when(pl.col("rule") == BY_USE)
        .then(pl.lit("by the prompt, losses by use"))
        .otherwise(pl.format("by the prompt, alpha {}", "alpha")),
        width=pl.format("{} bits", pl.col("bits").map_elements(lambda bits: f"{bits:g}", pl.String)),
    )
    others = others.filter(pl.col("variant").n_unique().over("live", "bits") > 1)
    lives = usual["live"].unique(maintain_order=True).to_list()
    data = {
        "quality": usual.drop("placement", "alpha", "loss_weight", "model", "dataset"),
        "variants": others.drop("model", "dataset", "loss_weight"),
    }
    return Part(
        (_quality_figure(usual, lives), _variants_figure(others)),
        controls=(LIVE,),
        choices=tuple({LIVE.name: live} for live in lives),
        data={name: frame for name, frame in data.items() if not frame.is_empty()},
    )


def _quality_figure(found: pl.DataFrame, lives: list[str]) -> Figure:
    if found.is_empty():
        return Figure("quality", QUALITY, None, {}, (), "", NO_QUALITY)
    first = found.row(0, named=True)
    reading = (
        f"The first {first['prompt']} tokens of a window at full precision, the next {first['decode']} decoded teacher-forced "
        "with hot experts at full precision and the others as their replica. Means over seeds, bands: least to most. Reversed "
        "order gives the most bits to the least important and is the control. By the table: the loss that the rule goes by, "
        "which need not be what the model loses."
    )
    said = {live: quality_answer(found.filter(pl.col("live") == live)) for live in lives}
    return Figure("quality", QUALITY, _quality_chart(found, lives[0]), said, (LIVE.name,), reading, NO_QUALITY)


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


def _quality_chart(found: pl.DataFrame, live: str) -> alt.VConcatChart:
    rules = [RULES[name][0] if name in RULES else name for name in known(RULES, found["rule"])]
    looks = colour(dict(RULES.values()), "said", rules, LEGEND)
    bits = found["bits"].unique().sort().to_list()
    panels = [_measure(name, title, looks, bits) for name, title in MEASURES.items() if found[name].drop_nulls().len()]
    return stacked([alt.hconcat(*panels, spacing=36)], source(menu=LIVE), params({LIVE.name: live}, LIVE.name))


def _measure(name: str, title: str, looks: alt.Color, bits: list[float]) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("quality")).transform_filter(f"datum.live === live && isValid(datum.{name})")
    x = alt.X(
        "bits:Q",
        title="average width in the NDP (bit)",
        scale=alt.Scale(nice=False, padding=14),
        axis=alt.Axis(values=bits, grid=False),
    )
    is_loss = name == "table_loss"
    scale = alt.Scale(type="log", nice=False, padding=12) if is_loss else alt.Scale(zero=True)
    y = alt.Y(f"{name}:Q", title=title, scale=scale, axis=alt.Axis(format=".0e" if is_loss else ".1~%", tickCount=6))
    tips = [
        alt.Tooltip("said:N", title="rule"), alt.Tooltip("bits:Q"),
        alt.Tooltip("value:Q", title="perplexity, or exact match", format=".4f"),
        alt.Tooltip("worse:Q", title="worse than full precision", format="+.2%"),
        alt.Tooltip("agreement:Q", title="tokens that stay", format=".1%"),
        alt.Tooltip("hot_frac:Q", title="selections on the GPU", format=".1%"), alt.Tooltip("seeds:Q"),
    ]  # fmt: skip
    line, marks = base.mark_line(strokeWidth=1.8).encode(x, y, looks), base.mark_point(size=50).encode(x, y, looks, tooltip=tips)
    layers = [line, marks]
    if name == "worse":
        layers.insert(0, base.mark_area(opacity=0.12).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), looks))
    return alt.layer(*layers).properties(width=310, height=260)


def _variants_figure(found: pl.DataFrame) -> Figure:
    if found.is_empty():
        return Figure("variants", VARIANTS, None, {}, (), "", NO_VARIANTS)
    reading = (
        "The selector under other placements and orders: alpha 1 goes by how often the prompt selected an expert, alpha 0 by "
        "the gate weights alone; the oracle knows decode. Rules: least to most of the seeds."
    )
    said = {str(live): variants_answer(of) for (live,), of in found.group_by(["live"], maintain_order=True)}
    return Figure("variants", VARIANTS, _variants_chart(found), said, (LIVE.name,), reading, NO_VARIANTS)


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


def _variants_chart(found: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("variants")).transform_filter("datum.live === live")
    y = alt.Y(
        "variant:N",
        title=None,
        sort=found["variant"].unique().sort().to_list(),
        axis=alt.Axis(ticks=False, domain=False, labelFontSize=12.5, grid=True, labelLimit=220),
    )
    x = alt.X("worse:Q", title="worse than full precision (%)", axis=alt.Axis(format=".1~%"), scale=alt.Scale(zero=True))
    widths = found.select("bits", "width").unique().sort("bits")["width"].to_list()
    looks = alt.Color("width:N", scale=alt.Scale(domain=widths, range=list(theme.colours(widths).values())), legend=LEGEND)
    tips = [
        alt.Tooltip("variant:N", title="placement"), alt.Tooltip("width:N"), alt.Tooltip("worse:Q", format="+.2%"),
        alt.Tooltip("hot_frac:Q", title="selections on the GPU", format=".1%"), alt.Tooltip("seeds:Q"),
    ]  # fmt: skip
    band = base.mark_rule(strokeWidth=6, opacity=0.35).encode(alt.X("low:Q"), y, looks, alt.X2("high:Q"))
    marks = base.mark_point(size=75).encode(x, y, looks, tooltip=tips)
    drawn = alt.layer(band, marks).properties(width=800, height=alt.Step(30))
    return stacked([drawn], source(menu=LIVE), params({LIVE.name: found["live"][0]}, LIVE.name))


def accuracy_part(accuracy: pl.DataFrame) -> Part:
    """The paper's Table 3 as a table whose cells are shaded by what they lose. accuracy: rows.accuracy."""
    if accuracy.is_empty():
        return Part((Figure("accuracy", ACCURACY, None, {}, (), "", NO_ACCURACY),))
    base = pl.col("accuracy").filter(pl.col("method") == "original_fp16").first().over("model", "task")
    found = accuracy.with_columns(
        lost=base - pl.col("accuracy"), setting=pl.col("method").replace(METHODS), named=pl.col("task").replace(TASKS)
    )
    reading = (
        "Accuracies (%) as the paper prints them in Table 3; shade: points below FP16. No model of this size is run here: its "
        "numbers stand beside the live model's above, and are not reproduced."
    )
    return Part(
        (Figure("accuracy", ACCURACY, _accuracy_chart(found), {"": accuracy_answer(found)}, (), reading, NO_ACCURACY),),
        data={"accuracy": found},
    )


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


def _accuracy_chart(found: pl.DataFrame) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("accuracy"))
    settings = [METHODS.get(name, name) for name in known(METHODS, found["method"])]
    tasks = [TASKS.get(name, name) for name in known(TASKS, found["task"])]
    x = alt.X(
        "setting:N",
        title=None,
        sort=settings,
        axis=alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False, labelFontSize=12.5),
    )
    y = alt.Y("named:N", title="task (accuracy in %)", sort=tasks, axis=alt.Axis(ticks=False, domain=False, labelFontSize=12.5))
    scale = alt.Scale(range=theme.HEAT[:3], interpolate="rgb", domainMin=0, clamp=True)
    shade = alt.Color("lost:Q", scale=scale, legend=alt.Legend(title="points below FP16", orient="right"))
    tips = [
        alt.Tooltip("model:N"), alt.Tooltip("named:N", title="task"), alt.Tooltip("setting:N"),
        alt.Tooltip("accuracy:Q", format=".2f"), alt.Tooltip("lost:Q", title="points below FP16", format=".2f"),
    ]  # fmt: skip
    cells = base.mark_rect(stroke="white").encode(x, y, shade, tooltip=tips)
    words = base.mark_text(fontSize=12.5, color=theme.INK).encode(x, y, text=alt.Text("accuracy:Q", format=".2f"))
    return stacked([alt.layer(cells, words).properties(width=640, height=alt.Step(25))], source("Table 3 of the paper"))
