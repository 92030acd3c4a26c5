"""The CXL GPU-NDP page on its own assumptions: what the gain is when one of them is another."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import HEADLINE, MONDE, OURS, PLACEMENTS, RULES, SYSTEMS, setups, times
from tokentape.dashboards.engine import Ask, Drawn, known, some, turn_of
from tokentape.dashboards.units import highest, joined, lowest, percent

SERIES = {
    "mac rate": "NDP multiply-adds",
    "monde": f"{MONDE}'s migration",
    "overlap": f"{MONDE}'s transfers",
    "placement": "placement",
    "alpha": "alpha (counts against weights)",
    "bits rule": "bit widths",
}
SAME_FRAC = 0.05  # a gain that moves less is said to be the same
WORDS = {name: words for name, (words, _) in RULES.items()} | PLACEMENTS


def ablations(ask: Ask) -> Drawn:
    found = some(rows(ask("points")))
    held = {str(group): of["said"].unique(maintain_order=True).to_list() for (group,), of in found.group_by(["group"])}
    groups = [{"group": SERIES[name], "names": held[SERIES[name]]} for name in known(SERIES, found["series"])]
    half = -(-len(groups) // 2)
    own = {
        "halves": [{"groups": of} for of in (groups[:half], groups[half:]) if of],
        "ends": [0.85 * lowest(found["decode_gain"]), 1.2 * highest(found["decode_gain"])],
        "systems": known(SYSTEMS, found["system"]),
        "setup": found["setup"][0],
    }
    return Drawn({"ablations": found}, {"": answer(found)}, own)


def rows(points: pl.DataFrame) -> pl.DataFrame:
    """A row per changed assumption and system of ours, on the first model that has them: gain, band, and the gain as it is."""
    ours = points.filter(pl.col("system").is_in(OURS))
    changed = ours.filter(pl.col("series").is_in(list(SERIES)))
    swept = setups(changed) if not changed.is_empty() else []
    if not swept:
        return changed
    here = pl.col("setup") == swept[0]
    base = ours.filter(here & (pl.col("series") == HEADLINE)).select("system", "step_s", pl.col("decode_gain").alias("as_is"))
    others = (
        points.filter(here & (pl.col("series") == HEADLINE) & pl.col("system").str.starts_with(MONDE))
        .select(pl.lit("monde").alias("series"), pl.col("system").alias("setting"), pl.col("step_s").alias("theirs"))
        .join(base, how="cross")
        .with_columns(decode_gain=pl.col("theirs") / pl.col("step_s"), setup=pl.lit(swept[0]))
        .with_columns(setting=pl.when(pl.col("setting") == MONDE).then(pl.lit(f"{MONDE} average (ema)")).otherwise("setting"))
    )
    kept = changed.filter(here).join(base.drop("step_s"), on="system", how="left")
    columns = ("setup", "series", "setting", "system", "decode_gain", "decode_gain_low", "decode_gain_high", "as_is")
    both = pl.concat(
        [kept.select(*columns, "number"), others.select(*(c for c in columns if c in others.columns))], how="diagonal"
    )
    return (
        both.drop_nulls("decode_gain")
        .with_columns(said=pl.col("setting").replace(WORDS), group=pl.col("series").replace(SERIES))
        .sort(
            turn_of("series", SERIES),
            "number",
            "setting",
            "system",
        )
    )


def answer(found: pl.DataFrame) -> str:
    """Of the system of fewer bits: the gain as it is, what each assumption makes of it at worst, and which do not matter."""
    system = next(name for name in OURS if name in set(found["system"]))
    of = found.filter(pl.col("system") == system).drop_nulls("as_is")
    said, same = [], []
    for series in known(SERIES, of["series"]):
        rows = of.filter(pl.col("series") == series).sort("decode_gain").to_dicts()
        least, most, as_is = rows[0], rows[-1], rows[0]["as_is"]
        if max(as_is - least["decode_gain"], most["decode_gain"] - as_is) < SAME_FRAC * as_is:
            same.append(SERIES[series])
        else:
            said.append(
                f"{SERIES[series]} from {least['decode_gain']:.1f} ({least['said']}) to "
                f"{times(most['decode_gain'])} ({most['said']})"
            )
    if of.is_empty():
        return f"{system} was not computed as it is."
    moved = f" It moves with {'; '.join(said)}." if said else ""
    unmoved = f" It changes by less than {percent(SAME_FRAC, 0)} with {joined(same)}." if same else ""
    return f"{system} gains {times(of['as_is'][0])} on {of['setup'][0]}.{moved}{unmoved}"
