"""The CXL GPU-NDP page on what the gain depends on: batch, link and NDP one at a time, then every other model and link."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import HEADLINE, MONDE, OURS, SYSTEMS, setups, times
from tokentape.dashboards.engine import Ask, Drawn, known, some
from tokentape.dashboards.units import joined

# Series with a number -> the panel's axis.
AXES = {
    "batch": "batch (requests, log scale)",
    "link bandwidth": "link bandwidth (GB/s, log scale)",
    "ndp macs": "NDP multiply-adds (× the paper's, log scale)",
    "ndp bandwidth": "NDP bandwidth (× the paper's, log scale)",
    "hot experts": "experts of a layer on the GPU (count)",
}
NAMED = {
    "batch": "batch",
    "link bandwidth": "link",
    "ndp macs": "NDP multiply-adds",
    "ndp bandwidth": "NDP bandwidth",
    "hot experts": "experts on the GPU",
}
UNITS = {"link bandwidth": " GB/s", "ndp macs": " ×", "ndp bandwidth": " ×"}
WITHIN = {"batch": "batch (requests, log scale)", "link": "link (GB/s, log scale)", "ndp size": "NDP devices (count, log scale)"}
COLUMNS = 3


def sweeps(ask: Ask) -> Drawn:
    """One thing changed at a time, on the models that were swept."""
    found = _swept(ask("points"), list(AXES))
    found = some(found.filter(pl.col("setup").is_in(found.filter(pl.col("series") != "batch")["setup"].implode())))
    names, swept = known(AXES, found["series"]), setups(found)
    panels = [
        {
            "setup": setup,
            "series": series,
            "title": AXES[series],
            "scale": "" if series == "hot experts" else "log2",
            "numbers": found.filter(pl.col("series") == series)["number"].unique().sort().to_list(),
            "heading": setup if len(swept) > 1 else "",
        }
        for setup in swept
        for series in names
    ]
    rows = [{"panels": panels[n : n + COLUMNS]} for n in range(0, len(panels), COLUMNS)]
    own = {"rows": rows, "swept": joined(swept), "ours": known(SYSTEMS, OURS)}
    return Drawn({"sweeps": found}, {"": sweeps_answer(found)}, own)


def others(ask: Ask) -> Drawn:
    """All models over batches, links and NDP sizes."""
    found = some(_swept(ask("points"), list(WITHIN)))
    system = next(name for name in OURS if name in set(found["system"]))
    kept = found.filter(pl.col("system") == system)
    base = ask("points").filter((pl.col("series") == HEADLINE) & (pl.col("system") == system)).drop_nulls("decode_gain")
    order = setups(kept)
    panels = [
        {
            "series": series,
            "title": WITHIN[series],
            "numbers": kept.filter(pl.col("series") == series)["number"].unique().sort().to_list(),
        }
        for series in known(WITHIN, kept["series"])
    ]
    own = {"panels": panels, "setups": order, "system": system}
    return Drawn({"others": kept}, {"": others_answer(kept, base)}, own)


def _swept(points: pl.DataFrame, series: list[str]) -> pl.DataFrame:
    """Our systems in the series, with their gain."""
    kept = points.filter(pl.col("series").is_in(series) & pl.col("system").is_in(OURS))
    columns = ("setup", "rank", "series", "setting", "number", "system", "batch")
    gains = ("decode_gain", "decode_gain_low", "decode_gain_high")
    return kept.drop_nulls(["number", "decode_gain"]).select(*columns, *gains)


def sweeps_answer(found: pl.DataFrame) -> str:
    """For each series: the gain at both ends, and where it is highest if that is between."""
    said = []
    for setup in setups(found):
        system = next(name for name in OURS if name in set(found["system"]))
        of = found.filter(pl.col("setup") == setup, pl.col("system") == system)
        told = [_ends(of.filter(pl.col("series") == series).sort("number"), series) for series in known(AXES, of["series"])]
        said.append(f"{system} over {MONDE} on {setup}: {'; '.join(told)}.")
    return " ".join(said)


def _ends(of: pl.DataFrame, series: str) -> str:
    """From the first to the last number of a series."""
    rows = of.to_dicts()
    first, last, best = rows[0], rows[-1], max(rows, key=lambda row: row["decode_gain"])
    between = (
        f", most at {best['number']:g}{UNITS.get(series, '')} ({times(best['decode_gain'])})" if best not in (first, last) else ""
    )
    unit = UNITS.get(series, "")
    gains = f"{first['decode_gain']:.1f} to {times(last['decode_gain'])}{between}"
    return f"{NAMED[series]} {first['number']:g} to {last['number']:g}{unit}: {gains}"


def others_answer(found: pl.DataFrame, base: pl.DataFrame) -> str:
    """Gain of every model from the slowest to the fastest link, and the most that any setting has. base: headline rows."""
    links = found.filter(pl.col("series") == "link").sort("number")
    said = []
    for setup in setups(found):
        of = links.filter(pl.col("setup") == setup).to_dicts()
        if of:
            said.append(f"{setup} {of[0]['decode_gain']:.1f} to {times(of[-1]['decode_gain'])}")
    words = f"From {links['setting'][0]} to {links['setting'][-1]}: {'; '.join(said)}. " if said else ""
    lost = found.filter(pl.col("decode_gain") < 1)
    never = f"{MONDE} is faster in {lost.height or 'none'} of {found.height} settings."
    best = base.sort("decode_gain").to_dicts()
    most = (
        f"{best[-1]['setup']} gains most as it is ({times(best[-1]['decode_gain'])}), {best[0]['setup']} least "
        f"({times(best[0]['decode_gain'])}). "
        if len(best) > 1
        else ""
    )
    return f"{most}{words}{never}"
