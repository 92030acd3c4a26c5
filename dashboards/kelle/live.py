"""The Kelle page inside a live model: quality by budget (Table 3), `recall`, energy, and lost bits (Figure 8, Table 4)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, sentences, some
from tokentape.dashboards.kelle import rows
from tokentape.dashboards.kelle.words import FOUR_BITS, GROUPS, RECENT, SCORED, WAYS, WHOLE, named, whos
from tokentape.dashboards.units import highest, joined, lowest, percent, signed

MACHINES = {"kelle-sram": "SRAM", "kelle-edram": "eDRAM"}
ALIKE = 1e-9
LARGE = 10.0  # ratios above want a logarithmic axis

PANELS = {
    "all bits alike (Fig. 8a)": ("all bits",),
    "by token (Fig. 8b)": ("HST", "LST"),
    "by bit (Fig. 8c)": ("MSB", "LSB"),
}
SAID = {"HST": "important tokens (HST)", "LST": "the others (LST)", "MSB": "high bits (MSB)", "LSB": "low bits (LSB)"}


def budgets(ask: Ask) -> Drawn:
    found, paper = some(_of(ask, "budget", "perplexity_ratio")), ask("table_3")
    fall = _table_3_answer(paper)
    own = whos(found) | {"paper": [] if paper.is_empty() else [{}]}
    said = sentences(found, ["model"], lambda of: f"{budget_answer(of)}{fall}")
    return Drawn({"budgets": found, "table_3": paper}, said, own)


def recall(ask: Ask) -> Drawn:
    found = some(_of(ask, "recall", "accuracy"))
    return Drawn({"recall": found}, sentences(found, ["model"], recall_answer), whos(found))


def pareto(ask: Ask) -> Drawn:
    found = some(ask.made(rows.pareto))
    return Drawn({"pareto": found}, sentences(found, ["model"], pareto_answer), whos(found))


def _of(ask: Ask, series: str, metric: str) -> pl.DataFrame:
    return named(ask.made(rows.quality).filter((pl.col("series") == series) & (pl.col("metric") == metric)))


def budget_answer(found: pl.DataFrame) -> str:
    """The best policy and AERP at the least and the largest budget, and where recent tokens win; rows of one model."""
    held = found.drop_nulls("budget")
    ends = list(dict.fromkeys((int(lowest(held["budget"])), int(highest(held["budget"])))))
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


def flips(ask: Ask) -> Drawn:
    """Rates above none, with the panel and the name of what loses bits."""
    panel = {variant: name for name, variants in PANELS.items() for variant in variants}
    is_row = (pl.col("series") == "errors") & (pl.col("metric") == "perplexity_ratio") & (pl.col("at") > 0)
    told = some(named(ask.made(rows.quality).filter(is_row, pl.col("variant").is_in(list(panel)))))
    group = pl.when(pl.col("variant") == "all bits").then(pl.format("{}, all bits", "storage")).otherwise("variant")
    panels = pl.col("variant").replace_strict(panel, default="")
    found = told.with_columns(panel=panels, group=group).sort("panel", "group", "at")
    each = []
    for name in PANELS:
        of = found.filter(pl.col("panel") == name)
        is_large = not of.is_empty() and highest(of["high"]) > LARGE
        ticks = ",~g values=[1,10,100,1000,10000,100000,1000000]" if is_large else "~g tickCount=6"
        held = set(of["group"])
        each += [{"name": name, "ticks": ticks, "groups": [one for one in GROUPS if one in held]}] if held else []
    return Drawn({"flips": found}, sentences(found, ["model"], errors_answer), {"panels": each})


def refresh(ask: Ask) -> Drawn:
    is_row = (pl.col("series") == "refresh") & (pl.col("metric") == "perplexity_ratio") & pl.col("variant").is_in(list(WAYS))
    found, paper = some(ask.made(rows.quality).filter(is_row).sort("model", "at", "variant")), ask("table_4")
    storages = []
    for storage in found["storage"].unique().sort(descending=True):
        is_large = highest(found.filter(pl.col("storage") == storage)["high"]) > LARGE
        log, scale = (", log", "log tight padding=10") if is_large else ("", "free")
        storages.append({"storage": storage, "log": log, "scale": scale})
    answers = _table_4_answer(paper)
    said = sentences(found, ["model"], lambda of: f"{refresh_answer(of)}{answers}")
    own = {
        "ways": [way for way in WAYS if way in set(found["variant"])],
        "storages": storages,
    }
    return Drawn({"refresh": found, "table_4": paper}, said, own)


def errors_answer(found: pl.DataFrame) -> str:
    """int16 at 1e-3, fp16 at 1e-4 where measured, and both comparisons at their largest common rate; rows of one model."""
    at = {(row["group"], float(f"{row['at']:.3g}")): row["value"] for row in found.to_dicts()}
    said = []
    for group, rate in (("int16, all bits", 1e-3), ("fp16, all bits", 1e-4)):
        if (group, rate) in at:
            said.append(f"losing {rate:.0e} of all bits costs {group.split(',')[0]} words {_cost(at[group, rate])}")
    for worse, better in (("HST", "LST"), ("MSB", "LSB")):
        rates = sorted({r for g, r in at if g == worse} & {r for g, r in at if g == better})
        if rates:
            pair = [f"{_cost(at[name, rates[-1]])} from {SAID[name]}" for name in (worse, better)]
            said.append(f"at {rates[-1]:.0e}, {joined(pair)}")
    text = "; ".join(said).replace("e-0", "e-")
    return f"{text[:1].upper()}{text[1:]}." if said else "No rate was measured that says it."


def _cost(ratio: float) -> str:
    """A ratio of perplexities as a person says it."""
    return signed(ratio - 1) if ratio < 2 else f"{ratio:,.0f} × the perplexity" if ratio >= 10 else f"{ratio:.1f} ×"


def refresh_answer(found: pl.DataFrame) -> str:
    """2DRP beside uniform refresh at each interval, for each way to store a word; rows of one model."""
    said = []
    for (storage,), held in found.sort("storage", descending=True).group_by(["storage"], maintain_order=True):
        pairs, won = [], 0
        for (at,), of in held.sort("at").group_by(["at"], maintain_order=True):
            value = dict(of.select("variant", "value").rows())
            if set(WAYS) <= value.keys():
                won += value["2DRP"] <= value["uniform"]
                pairs.append(f"{_cost(value['2DRP'])} against {_cost(value['uniform'])} every {at:,.0f} us")
        if pairs:
            said.append(f"with {storage} words at {won} of {len(pairs)} mean intervals ({joined(pairs)})")
    return f"2DRP loses no more than uniform refresh {joined(said)}." if said else "Both ways were not measured at one interval."


def _table_4_answer(table_4: pl.DataFrame) -> str:
    if table_4.is_empty():
        return ""
    both = table_4.pivot("variant", index=["task", "at"], values="accuracy").drop_nulls()
    won = both.filter(pl.col("2DRP") > pl.col("uniform")).height
    return f" In the paper it answers better in {won} of {both.height} cells."
