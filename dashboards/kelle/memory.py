"""The Kelle page on memory: more SRAM, plain eDRAM (Figure 3), recomputation and ways to refresh (Figures 15 and 16), and what
refresh answers to: the assumed retention curve (Figure 4) and how long data live (Figure 12)."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Drawn, in_words, rows_like, sentences, some
from tokentape.dashboards.kelle.words import BASELINE, KELLE, MODES, PAPER, ZERO, times
from tokentape.dashboards.units import highest, joined, lowest, mean_of, percent, quantity, significant

RECOMPUTE, REFRESH = "recompute", "refresh policy"
ORDER = {RECOMPUTE: ("off", "on"), REFRESH: ("45 us", "uniform 360 us", "2D", "2D + scheduler")}
TITLES = {RECOMPUTE: "Recomputation", REFRESH: "Refresh"}
SCHEDULES = {"baseline": "in program order", "kelle": "Kelle's scheduler"}
CURVES = (theme.SKY, theme.ORANGE, theme.VERMILLION, theme.PURPLE)


def memory(ask: Ask) -> Drawn:
    sram, shares = some(ask("sram")), some(ask("memory"))
    both = sram.filter(pl.col("reading").is_in(shares["reading"].implode()))
    said = sentences(both, ["reading"], lambda of: memory_answer(of, rows_like(shares, of, "reading")))
    return Drawn({"sram": sram, "memory": shares}, said, {"settings": shares["setting"].unique().sort().to_list()})


def settings(ask: Ask) -> Drawn:
    found = some(ask("settings"))
    held = {series: set(of["setting"]) for (series,), of in found.group_by(["series"])}
    each = [
        {"series": series, "title": TITLES[series], "settings": [name for name in order if name in held[series]]}
        for series, order in ORDER.items()
        if series in held
    ]
    return Drawn({"settings": found}, sentences(found, ["reading"], settings_answer), {"series": each})


def memory_answer(sram: pl.DataFrame, memory: pl.DataFrame) -> str:
    """What twice the SRAM saves, and the range of the refresh's share; rows of one reading."""
    gains = (1 / sram.filter(pl.col("setting") == "8 MB")["over_small"]).to_list()
    shares = memory.filter((pl.col("part") == "refresh") & (pl.col("setting") == "8 MB at 45 us"))["share"].to_list()
    if not gains or not shares:
        return "It was not computed for both sizes."
    span = " to ".join(dict.fromkeys(percent(share, 0) for share in (min(shares), max(shares))))
    return (
        f"8 MB of SRAM instead of 4 MB make a step at most {max(gains):.3f} × as fast. eDRAM of 8 MB, refreshed every 45 us, "
        f"spends {span} of the energy on refresh."
    )


def settings_answer(found: pl.DataFrame) -> str:
    """Each setting's energy over the first one's, means over tasks; rows of one reading."""
    whole = found.group_by("series", "setting", "workload").agg(pl.sum("part_frac")).group_by("series", "setting")
    energy = {(series, setting): value for series, setting, value in whole.agg(pl.mean("part_frac")).rows()}
    said = []
    if (RECOMPUTE, "on") in energy:
        change = energy[RECOMPUTE, "on"] - 1
        said.append(f"Recomputation {'saves' if change <= 0 else 'adds'} {percent(abs(change), 0)} of the energy on average")
    steps = [(setting, 1 - energy[REFRESH, setting]) for setting in ORDER[REFRESH][1:] if (REFRESH, setting) in energy]
    if steps:
        each = joined([f"{percent(saved)} ({setting})" for setting, saved in steps])
        said.append(f"against a refresh every 45 us, Llama-2-7B saves {each}")
    return f"{'; '.join(said)}." if said else "Nothing of it fits into the DRAM."


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


def retention(ask: Ask) -> Drawn:
    found = _named(some(ask("retention")))
    names = found["curve"].unique(maintain_order=True).to_list()
    colours = [*CURVES, *theme.SPARE_COLOURS * 4][: len(names)]
    return Drawn({"retention": found}, {"": curve_answer(found)}, {"curves": names, "colours": colours})


def lifetimes(ask: Ask) -> Drawn:
    found = some(ask("lifetimes").with_columns(said=pl.col("schedule").replace(SCHEDULES)))
    return Drawn({"lifetimes": found}, {"": lives_answer(found)}, {"schedules": list(SCHEDULES.values())})


def _named(retention: pl.DataFrame) -> pl.DataFrame:
    """With `curve`: its failures at 45 us, in words."""
    words = [
        f"{anchor:.0e} at 45 us, sigma {sigma:.2f}{' (used)' if used else ''}".replace("e-0", "e-")
        for anchor, sigma, used in retention.select("anchor", "sigma", "is_default").rows()
    ]
    return retention.with_columns(pl.Series("curve", words, pl.String)).sort("anchor", "us")


def curve_answer(curves: pl.DataFrame) -> str:
    """Failures of each group on the curve that is used, their mean, and the range over the assumed curves."""
    marked = curves.filter(pl.col("name") != "").sort("us")
    used = marked.filter("is_default")
    if used.is_empty():
        return "No interval is marked on the curve that is used."
    each = [f"{_rate(rate)} ({name}, {us:,.0f} us)" for name, us, rate in used.select("name", "us", "failures").rows()]
    first = marked.filter(pl.col("name") == used["name"][0])["failures"]
    mean = _rate(mean_of(used["failures"]))
    return (
        f"By the assumed curve {joined(each)} of the bits; {mean} on average. Other curves that agree on this average have "
        f"{_rate(lowest(first))} to {_rate(highest(first))} for {used['name'][0]}."
    )


def _rate(value: float) -> str:
    """A rate of failure, in per cent or as a power of ten."""
    return f"{significant(100 * value)} %" if value >= 1e-4 else f"{value:.1e}".replace("e-0", "e-")


def lives_answer(lives: pl.DataFrame) -> str:
    """The sum of lives under both schedules, model by model."""
    said = []
    for (model,), of in lives.group_by(["model"], maintain_order=True):
        total = {name: float(of.filter(pl.col("schedule") == name)["ms"].sum()) for name in SCHEDULES}
        if total["kelle"]:
            ratio = total["baseline"] / total["kelle"]
            said.append(f"{total['baseline']:.2f} ms in all becomes {total['kelle']:.2f} ms, {ratio:.2f} × less, on {model}")
    return f"{'; '.join(said)}." if said else "Both schedules were not computed."
