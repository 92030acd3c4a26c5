"""The Kelle page on lost bits inside a live model: by rate, token and bit (Figure 8), and by refresh interval (Table 4)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, sentences, some
from tokentape.dashboards.kelle import rows
from tokentape.dashboards.kelle.live_words import named
from tokentape.dashboards.kelle.words import GROUPS, WAYS
from tokentape.dashboards.units import highest, joined, signed

LARGE = 10.0  # ratios above want a logarithmic axis

PANELS = {
    "all bits alike (Fig. 8a)": ("all bits",),
    "by token (Fig. 8b)": ("HST", "LST"),
    "by bit (Fig. 8c)": ("MSB", "LSB"),
}
SAID = {"HST": "important tokens (HST)", "LST": "the others (LST)", "MSB": "high bits (MSB)", "LSB": "low bits (LSB)"}


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
