"""The CXL GPU-NDP page on what the gain depends on: batch, link, NDP, models, its own assumptions; and what the memory holds."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import AXES, HEADLINE, OURS, PLACEMENTS, RULES, SERIES, SYSTEMS, TIERS, setups
from tokentape.dashboards.engine import Ask, Drawn, known, some, turn_of
from tokentape.dashboards.units import highest, joined, lowest

WITHIN = {"batch": "batch (requests, log scale)", "link": "link (GB/s, log scale)", "ndp size": "NDP devices (count, log scale)"}
COLUMNS = 3
WORDS = {name: words for name, (words, _) in RULES.items()} | PLACEMENTS


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
    return Drawn({"sweeps": found}, facts=own)


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
    return Drawn({"others": kept}, facts=own | {"base": base})


def _swept(points: pl.DataFrame, series: list[str]) -> pl.DataFrame:
    """Our systems in the series, with their gain."""
    kept = points.filter(pl.col("series").is_in(series) & pl.col("system").is_in(OURS))
    columns = ("setup", "rank", "series", "setting", "number", "system", "batch")
    gains = ("decode_gain", "decode_gain_low", "decode_gain_high")
    return kept.drop_nulls(["number", "decode_gain"]).select(*columns, *gains)


def ablations(ask: Ask) -> Drawn:
    found = some(ask("changed")).with_columns(said=pl.col("setting").replace(WORDS), group=pl.col("series").replace(SERIES))
    found = found.sort(turn_of("series", SERIES), "number", "setting", "system")
    held = {str(group): of["said"].unique(maintain_order=True).to_list() for (group,), of in found.group_by(["group"])}
    groups = [{"group": SERIES[name], "names": held[SERIES[name]]} for name in known(SERIES, found["series"])]
    half = -(-len(groups) // 2)
    own = {
        "halves": [{"groups": of} for of in (groups[:half], groups[half:]) if of],
        "ends": [0.85 * lowest(found["decode_gain"]), 1.2 * highest(found["decode_gain"])],
        "systems": known(SYSTEMS, found["system"]),
        "setup": found["setup"][0],
    }
    return Drawn({"ablations": found}, facts=own)


def capacity(ask: Ask) -> Drawn:
    whole = pl.col("gb").sum().over("hardware", "model", "hot", "tier")
    found = some(ask("capacity")).with_columns(
        tier_said=pl.col("tier").replace(TIERS), whole=whole, named=pl.format("{}, K = {}", "model", "hot"),
        place=turn_of("model", setups(ask("points"), ask("requests"))),
    ).sort("place", "model", "hot", "tier", "part")  # fmt: skip
    machines = joined(found["hardware"].unique().sort().to_list())
    hbm, is_part = pl.col("tier") == "hbm", pl.col("part")
    wanted = pl.col("gb").filter((hbm & (is_part != "hot experts")) | (is_part == "FP16 experts")).sum()
    held = found.group_by("model", maintain_order=True).agg(wanted=wanted, room=pl.col("tier_gb").filter(hbm).max())
    return Drawn({"capacity": found}, facts={"machines": machines, "needless": held.filter(pl.col("wanted") <= pl.col("room"))})
