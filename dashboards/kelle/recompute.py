"""The Kelle page on recomputation under a roofline (Figure 16a), and on whole requests (Figure 16b)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.engine import Ask, Drawn, in_words, sentences, some
from tokentape.dashboards.kelle.words import BASELINE, KELLE, MODES, PAPER, ZERO, times
from tokentape.dashboards.units import highest, joined, percent, quantity


def roof(ask: Ask) -> Drawn:
    told = some(ask("recompute").with_columns(said=in_words("mode", MODES)))
    return Drawn({"recompute": told, "roof": corners(told)}, {"": roof_answer(told)})


def requests(ask: Ask) -> Drawn:
    told = ask("requests").with_columns(
        lengths=pl.format("{} in, {} out", _thousands("context"), _thousands("decode")),
        saved=pl.col("prefill_j") + pl.col("decode_j"),
    )
    found = some(told.filter(pl.col("reading").is_in([PAPER, ZERO])))
    own = {
        "lengths": found.sort("context", "decode")["lengths"].unique(maintain_order=True).to_list(),
    }
    return Drawn({"requests": told}, sentences(found, ["reading"], requests_answer), own)


def corners(recompute: pl.DataFrame) -> pl.DataFrame:
    """The roof's corners: of the least intensity, where memory and array are as fast, and of the largest."""
    ends = recompute.sort("ops_per_byte").select("ops_per_byte", "roof")
    first, last = ends.row(0, named=True), ends.row(-1, named=True)
    knee = last["roof"] / (first["roof"] / first["ops_per_byte"])
    return pl.DataFrame([first, {"ops_per_byte": max(knee, first["ops_per_byte"]), "roof": last["roof"]}, last])


def _thousands(column: str) -> pl.Expr:
    many = pl.format("{}K", pl.col(column) // 1024)
    return pl.when(pl.col(column) % 1024 == 0).then(many).otherwise(pl.col(column).cast(pl.String))


def roof_answer(recompute: pl.DataFrame) -> str:
    """Where throughput is highest in each mode, how far above the roof marks lie, and what too much costs."""
    said = []
    for mode, (words, *_) in MODES.items():
        of = recompute.filter(pl.col("mode") == mode).sort("frac")
        if of.is_empty():
            continue
        none, best, last = of.row(0, named=True), of.sort("tokens_per_s").row(-1, named=True), of.row(-1, named=True)
        gain = best["tokens_per_s"] / none["tokens_per_s"]
        above = highest(of["ops_per_s"] / of["roof"])
        roofed = f", which would take up to {above:.0f} × the array's peak" if above > 1.01 else ""
        said.append(
            f"by {words} recomputing {percent(best['frac'])} is best, {times(gain)} the tokens per second{roofed}; recomputing "
            f"all leaves {times(last['tokens_per_s'] / none['tokens_per_s'])}"
        )
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def requests_answer(found: pl.DataFrame) -> str:
    """Kelle's gain and the prompt's share of its energy at each length; rows of one reading."""
    ours = found.filter(pl.col("system") == KELLE).sort("context", "decode")
    if ours.is_empty():
        return f"{KELLE} was not computed."
    each = [f"{times(gain)} ({lengths}; the prompt is {percent(prompt / total, 0)} of it)" for gain, lengths, prompt, total in
            ours.select("gain", "lengths", "prefill_j", "saved").rows()]  # fmt: skip
    base = found.filter(pl.col("system") == BASELINE)["saved"]
    most = f", which takes up to {quantity(highest(base), 'J')}" if not base.is_empty() else ""
    return f"{KELLE} is {joined(each)} as efficient as {BASELINE}{most}."
