"""The CXL GPU-NDP page on what the gain depends on: batch, link, NDP, models, its own assumptions; and what the memory holds."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import HEADLINE, MONDE, OURS, PLACEMENTS, RULES, SYSTEMS, setups, times
from tokentape.dashboards.engine import Ask, Drawn, known, some, turn_of
from tokentape.dashboards.units import highest, joined, lowest, percent

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
TIERS = {"hbm": "HBM of the GPU", "cxl": "memory of the NDP"}
HOT, EXPERTS = "hot experts", "FP16 experts"


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


def ablations(ask: Ask) -> Drawn:
    found = some(_changed(ask("points")))
    held = {str(group): of["said"].unique(maintain_order=True).to_list() for (group,), of in found.group_by(["group"])}
    groups = [{"group": SERIES[name], "names": held[SERIES[name]]} for name in known(SERIES, found["series"])]
    half = -(-len(groups) // 2)
    own = {
        "halves": [{"groups": of} for of in (groups[:half], groups[half:]) if of],
        "ends": [0.85 * lowest(found["decode_gain"]), 1.2 * highest(found["decode_gain"])],
        "systems": known(SYSTEMS, found["system"]),
        "setup": found["setup"][0],
    }
    return Drawn({"ablations": found}, {"": ablations_answer(found)}, own)


def _changed(points: pl.DataFrame) -> pl.DataFrame:
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


def ablations_answer(found: pl.DataFrame) -> str:
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


def capacity(ask: Ask) -> Drawn:
    whole = pl.col("gb").sum().over("hardware", "model", "hot", "tier")
    found = some(ask("capacity")).with_columns(
        tier_said=pl.col("tier").replace(TIERS), whole=whole, named=pl.format("{}, K = {}", "model", "hot"),
        place=turn_of("model", setups(ask("points"), ask("requests"))),
    ).sort("place", "model", "hot", "tier", "part")  # fmt: skip
    machines = joined(found["hardware"].unique().sort().to_list())
    return Drawn({"capacity": found}, {"": capacity_answer(found)}, {"machines": machines})


def capacity_answer(found: pl.DataFrame) -> str:
    """What is full, what does not fit, and which models would fit the GPU whole."""
    tiers = found.unique(["named", "tier"], maintain_order=True).with_columns(full=pl.col("whole") / pl.col("tier_gb"))
    over = tiers.filter(pl.col("full") > 1)
    said = []
    for tier, words in TIERS.items():
        most = tiers.filter(pl.col("tier") == tier).sort("full").tail(1).to_dicts()
        said += [
            f"the {words} is fullest with {row['named']}: {row['whole']:,.1f} of {row['tier_gb']:,.0f} GB "
            f"({percent(row['full'], 0)})"
            for row in most
        ]
    names = joined(over["named"].unique(maintain_order=True).to_list())
    first = f"{f'{names} does not fit' if names else 'Everything fits'}: {joined(said)}."
    needless = _needless(found)
    return first + (
        f" {joined(needless)} would fit the GPU whole at FP16 and need{'s' * (len(needless) == 1)} no NDP." if needless else ""
    )


def _needless(found: pl.DataFrame) -> list[str]:
    """Models whose HBM would hold all experts beside the rest."""
    said = []
    for (model,), of in found.group_by(["model"], maintain_order=True):
        hbm = of.filter(pl.col("tier") == "hbm")
        wanted = pl.concat([hbm.filter(pl.col("part") != HOT), of.filter(pl.col("part") == EXPERTS)])["gb"].sum()
        if wanted <= hbm["tier_gb"].max():  # type: ignore[operator]
            said.append(str(model))
    return said
