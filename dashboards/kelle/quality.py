"""The Kelle page inside a live model: quality against budget by policy (Table 3), `recall`, and energy against perplexity."""

from __future__ import annotations

import altair as alt
import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.answers import percent
from tokentape.dashboards.kelle.live_words import FOUR_BITS, RANGE, RECENT, SCORED, WHOLE, budget_axis, looks, named
from tokentape.dashboards.kelle.words import LEGEND, STUDY, source
from tokentape.dashboards.panels import colour, known, params, stacked
from tokentape.dashboards.shell import Figure, Part
from tokentape.dashboards.units import joined

NO_QUALITY = f"Nothing to draw: no policy has run inside a live model. {STUDY}"
NO_ORDERINGS = f"Nothing to draw: no ordering of KV policies is checked in a model. {STUDY}"
NO_PARETO = f"Nothing to draw: no energy stands beside a live model's perplexity. {STUDY}"
MACHINES = {"kelle-sram": "SRAM", "kelle-edram": "eDRAM"}
TASKS = {"A-c": theme.BLUE, "A-e": theme.ORANGE, "PQ": theme.PURPLE}
ALIKE = 1e-9


def part(quality: pl.DataFrame, table_3: pl.DataFrame, pareto: pl.DataFrame, start: dict[str, str]) -> Part:
    """quality: live_rows.quality, of the models that `live` chooses among, named; pareto: likewise."""
    budgets = _of(quality, "budget", "perplexity_ratio")
    recall = _of(quality, "recall", "accuracy")
    figures = (_budget_figure(budgets, table_3, start), _recall_figure(recall, start), _pareto_figure(pareto, start))
    data = {"budgets": budgets, "recall": recall, "pareto": pareto}
    if not budgets.is_empty():
        data["table_3"] = table_3
    return Part(figures, data={name: frame for name, frame in data.items() if not frame.is_empty()})


def _of(quality: pl.DataFrame, series: str, metric: str) -> pl.DataFrame:
    if quality.is_empty():
        return quality
    return named(quality.filter((pl.col("series") == series) & (pl.col("metric") == metric)))


def _by_model(found: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    return [(str(model), of) for (model,), of in found.group_by(["model"], maintain_order=True)]


def _budget_figure(found: pl.DataFrame, table_3: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What does a live model lose when each head keeps so many tokens?"
    if found.is_empty():
        return Figure("budgets", question, None, {}, (), "", NO_QUALITY)
    row = found.row(0, named=True)
    reading = (
        f"Left: perplexity on {row['dataset']} with the policy inside the model, over that with the whole cache; every token "
        "decoded after the prompt counts. AEP and AERP answer alike: what is recomputed is the same. Right, its form: Table 3 of "
        f"the paper, accuracy of Llama-2-7B with Kelle; short dashes: with the whole cache. Nothing is held against it. {RANGE}"
    )
    said = {model: f"{budget_answer(of)}{_table_3_answer(table_3)}" for model, of in _by_model(found)}
    return Figure("budgets", question, _budget_chart(found, table_3, start), said, ("live",), reading, NO_QUALITY)


def budget_answer(found: pl.DataFrame) -> str:
    """The best policy and AERP at the least and the largest budget, and where recent tokens win; rows of one model."""
    held = found.drop_nulls("budget")
    ends = list(dict.fromkeys((held["budget"].min(), held["budget"].max())))
    said = []
    for budget in ends:
        of = held.filter(pl.col("budget") == budget).sort("value", "who")
        best = of.row(0, named=True)
        aerp = of.filter(pl.col("who") == "AERP").select("who", "value").rows()
        others = {who: _more(value) for who, value in (*aerp, of.select("who", "value").row(-1)) if who != best["who"]}
        beside = joined([f"{who} {more}" for who, more in others.items()])
        said.append(
            f"With {budget} tokens per head {best['who']} loses least, {_more(best['value'])} in perplexity"
            + (f" ({beside})" if beside else "")
        )
    four = [f" 4-bit words lose {_more(value)}." for value in found.filter(pl.col("who") == FOUR_BITS)["value"].to_list()]
    return f"{'. '.join(said)}. {recent_answer(held, is_more_better=False)}{''.join(four)}"


def _more(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def recent_answer(found: pl.DataFrame, is_more_better: bool) -> str:
    """Budgets at which the better form of recent tokens beats every policy that accumulates scores; rows of one model."""
    best = pl.max("value") if is_more_better else pl.min("value")
    by_kind = found.with_columns(
        kind=pl.when(pl.col("who").is_in(RECENT)).then(pl.lit("recent")).when(pl.col("who").is_in(SCORED)).then(pl.lit("scored"))
    ).drop_nulls("kind")
    if by_kind["kind"].n_unique() < 2:
        return "Recent tokens and accumulated scores were not measured side by side."
    both = by_kind.group_by("budget", "kind").agg(best).pivot("kind", index="budget", values="value").drop_nulls().sort("budget")
    is_won = pl.col("recent") > pl.col("scored") + ALIKE if is_more_better else pl.col("recent") < pl.col("scored") - ALIKE
    won = [f"{budget}" for budget in both.filter(is_won)["budget"]]
    if not won:
        return "Recent tokens alone win over accumulated scores at no budget."
    where = "every budget" if len(won) == both.height else f"{'budgets' if len(won) > 1 else 'budget'} {joined(won)}"
    return (
        f"Recent tokens alone (StreamingLLM, with or without sinks) win over all accumulated scores (H2O, AEP, AERP) at {where}."
    )


def _table_3_answer(table_3: pl.DataFrame) -> str:
    """What the paper's accuracies fall by on average, at its largest and its least budget."""
    if table_3.is_empty():
        return ""
    whole = table_3.filter(pl.col("budget").is_null()).select("task", whole="accuracy")
    lost = table_3.drop_nulls("budget").join(whole, on="task").with_columns(lost=pl.col("whole") - pl.col("accuracy"))
    mean = lost.group_by("budget").agg(pl.mean("lost")).sort("budget")
    first, last = mean.row(0), mean.row(-1)
    ends = [f"{points:.1f} points on average with {budget} tokens" for budget, points in (last, first)]
    return f" In the paper accuracy falls by {joined(ends)}."


def _budget_chart(found: pl.DataFrame, table_3: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    left = _lines(
        "budgets",
        found,
        alt.Y(
            "value:Q",
            title="perplexity (over the whole cache's, ×, log scale)",
            scale=alt.Scale(type="log", nice=False, padding=10),
            axis=alt.Axis(format=".2f", tickCount=6),
        ),
        ".3f",
    ).properties(width=620, height=320)
    panels = [left, *([_table_3_chart(table_3)] if not table_3.is_empty() else [])]
    drawn = alt.hconcat(*panels, spacing=50).resolve_scale(color="independent", shape="independent", strokeDash="independent")
    return stacked([drawn], source("measured inside the model", reading=None), params(start, "live"))


def _lines(data: str, found: pl.DataFrame, y: alt.Y, form: str) -> alt.LayerChart:
    """A line per policy over budgets, and rules for what has no budget."""
    base = alt.Chart(alt.NamedData(data)).transform_filter("datum.model === live")
    hue, shape, dash = looks(found["who"])
    x = budget_axis(found["budget"].drop_nulls().unique().sort().to_list())
    tips = [
        alt.Tooltip("who:N", title="policy"),
        alt.Tooltip("budget:Q"),
        alt.Tooltip("value:Q", format=form),
        alt.Tooltip("low:Q", title="least of seeds", format=form),
        alt.Tooltip("high:Q", title="most of seeds", format=form),
        alt.Tooltip("seeds:Q"),
    ]
    held = base.transform_filter("isValid(datum.budget)")
    whole = (
        base.transform_filter("!isValid(datum.budget)").mark_rule(strokeWidth=1.5).encode(y, hue, strokeDash=dash, tooltip=tips)
    )
    line = held.mark_line(strokeWidth=1.8).encode(x, y, hue, strokeDash=dash)
    marks = held.mark_point(size=50).encode(x, y, hue, shape, tooltip=tips)
    return alt.layer(whole, line, marks)


def _table_3_chart(table_3: pl.DataFrame) -> alt.LayerChart:
    base = alt.Chart(alt.NamedData("table_3"))
    tasks = known(TASKS, table_3["task"])
    hue = colour(TASKS, "task", tasks, LEGEND)
    x = budget_axis(table_3["budget"].drop_nulls().unique().sort().to_list())
    y = alt.Y("accuracy:Q", title="accuracy (%; the paper's Llama-2-7B)", scale=alt.Scale(zero=False))
    tips = [alt.Tooltip("task:N"), alt.Tooltip("budget:Q"), alt.Tooltip("accuracy:Q", format=".2f")]
    line = base.transform_filter("isValid(datum.budget)").mark_line(point={"filled": False, "fill": "white", "size": 60})
    whole = base.transform_filter("!isValid(datum.budget)").mark_rule(strokeDash=[3, 3]).encode(y, hue, tooltip=tips)
    return alt.layer(whole, line.encode(x, y, hue, tooltip=tips)).properties(width=380, height=320)


def _recall_figure(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "What has a cache forgotten when it is asked for one line of the text?"
    if found.is_empty():
        return Figure("recall", question, None, {}, (), "", NO_QUALITY)
    reading = (
        "Exact match on `recall`: a passage of pairs, then a question for one of them. What the passage attended to before the "
        "question says nothing about the pair that it asks for; SnapKV sees the question before it evicts. Rules: without a "
        f"budget. {RANGE}"
    )
    said = {model: recall_answer(of) for model, of in _by_model(found)}
    y = alt.Y("value:Q", title="exact match (%)", scale=alt.Scale(domain=[0, 1.02], nice=False), axis=alt.Axis(format=".0%"))
    drawn = _lines("recall", found, y, ".1%").properties(width=760, height=300)
    chart = stacked([drawn], source("measured inside the model", reading=None), params(start, "live"))
    return Figure("recall", question, chart, said, ("live",), reading, NO_QUALITY)


def recall_answer(found: pl.DataFrame) -> str:
    """Best, AERP and worst at each budget, and where recent tokens win; rows of one model."""
    held, said = found.drop_nulls("budget"), []
    for (budget,), of in held.sort("budget").group_by(["budget"], maintain_order=True):
        ranked = of.sort("value", "who", descending=[True, False])
        aerp = ranked.filter(pl.col("who") == "AERP")["value"].to_list()
        beside = f", AERP {percent(aerp[0], 0)}" if aerp and ranked["who"][0] != "AERP" else ""
        said.append(f"with {budget} tokens per head {ranked['who'][0]} answers {percent(ranked['value'][0], 0)}{beside}")
    whole = found.filter(pl.col("who") == WHOLE)["value"].to_list()
    first = f"The whole cache answers {percent(whole[0], 0)}; " if whole else ""
    return f"{first}{'; '.join(said)}. {recent_answer(held, is_more_better=True)}"


def _pareto_figure(found: pl.DataFrame, start: dict[str, str]) -> Figure:
    question = "Which cache gives the least perplexity for its energy?"
    if found.is_empty():
        return Figure("pareto", question, None, {}, (), "", NO_PARETO)
    row = found.row(0, named=True)
    reading = (
        f"Perplexity on {row['dataset']}, measured; energy of a decoded token by the cost model, of the same model's own "
        "geometry and lengths, calibrated knobs, batch 16. On SRAM nothing is lost; lossless rows on eDRAM refresh every 45 us. "
        "Joined: what no other row beats in one and equals in the other."
    )
    said = {model: pareto_answer(of) for model, of in _by_model(found)}
    return Figure("pareto", question, _pareto_chart(found, start), said, ("live",), reading, NO_PARETO)


def pareto_answer(found: pl.DataFrame) -> str:
    """The ends of the front and how many of its rows are on each system; rows of one model."""
    front = found.filter("is_front").sort("mj", "perplexity")
    if front.is_empty():
        return "No row is on a front."
    ends = [front.row(0, named=True), front.row(-1, named=True)]
    said = [f"{_row_words(row)} has perplexity {row['perplexity']:.2f} for {row['mj']:.3g} mJ per token" for row in ends]
    on = front.group_by("hardware").len().sort("len", "hardware", descending=[True, False])
    counts = joined([f"{n} on {MACHINES.get(name, name)}" for name, n in on.rows()])
    return f"On the front ({counts} of {found.height} rows): {'; '.join(dict.fromkeys(said))}."


def _row_words(row: dict[str, object]) -> str:
    kept = f" of {row['budget']}" if row["budget"] is not None else ""
    every = f", {row['variant']} every {row['at']:,.0f} us" if row["at"] is not None else ""
    return f"{row['who']}{kept}{every} on {MACHINES.get(str(row['hardware']), row['hardware'])}"


def _pareto_chart(found: pl.DataFrame, start: dict[str, str]) -> alt.VConcatChart:
    base = alt.Chart(alt.NamedData("pareto")).transform_filter("datum.model === live")
    base = base.transform_calculate(machine=f"({theme.literal(MACHINES)})[datum.hardware]")
    hue, _, _ = looks(found["who"])
    words = list(MACHINES.values())
    shape = alt.Shape("machine:N", scale=alt.Scale(domain=words, range=["square", "circle"]), legend=LEGEND)
    x = alt.X("mj:Q", title="energy (mJ per decoded token)", scale=alt.Scale(zero=False, nice=False, padding=14))
    log = alt.Scale(type="log", nice=False, padding=12)
    y = alt.Y("perplexity:Q", title="perplexity (log scale)", scale=log, axis=alt.Axis(format=".3~g", tickCount=6))
    faint = alt.Opacity("is_front:O", scale=alt.Scale(domain=[True, False], range=[1, 0.4]), legend=None)
    tips = [
        alt.Tooltip("who:N", title="policy"),
        alt.Tooltip("budget:Q"),
        alt.Tooltip("variant:N", title="refresh or variant"),
        alt.Tooltip("at:Q", title="mean interval (us)"),
        alt.Tooltip("storage:N"),
        alt.Tooltip("machine:N"),
        alt.Tooltip("perplexity:Q", format=".3f"),
        alt.Tooltip("mj:Q", title="mJ per token", format=".4f"),
        alt.Tooltip("kb:Q", title="KV of a request (kB)", format=",.1f"),
    ]
    front = base.transform_filter("datum.is_front").mark_line(color=theme.INK, strokeWidth=1.2, interpolate="step-after")
    marks = base.mark_point(size=70).encode(x, y, hue, shape, faint, tooltip=tips)
    drawn = alt.layer(front.encode(x, y), marks).properties(width=900, height=360)
    return stacked([drawn], source("perplexity measured, energy modelled", reading=None), params(start, "live"))
