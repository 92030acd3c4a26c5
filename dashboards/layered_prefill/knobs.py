"""The Layered Prefill page on what a scheduler costs: TTFT against TBT over its knobs, energy per token, and a dense model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tokentape.dashboards.engine import Ask, Control, Drawn, Nothing, options, sentences, some, turn_of
from tokentape.dashboards.layered_prefill import rows
from tokentape.dashboards.layered_prefill.rates import grid
from tokentape.dashboards.layered_prefill.words import drawing_order, of_series
from tokentape.dashboards.units import joined, percent, quantity, signed

FRONT, GROUPS = "pareto", ("n-sweep", "table-11")  # series
MEASURES = {"ttft_mean_s": "TTFT, mean", "ttft_p99_s": "TTFT, p99", "tbt_mean_s": "TBT, mean", "tbt_p99_s": "TBT, p99"}
PAPER_GROUPS = 16  # most groups of the paper's main model
FIELDS = ("setting", "at", "scheduler", "system", "rate", "knob", "n_seeds")
MEASURED = ("table-2", "table-6", "table-8")
JOULES = ("static", "bytes", "ops")
MEANINGS = ("energy_j_per_token", "energy_j_per_output_token")
DENSE = "dense"
MEANS = {"ttft_mean_s": "mean TTFT", "tbt_mean_s": "mean TBT"}
CLOSED_FRAC = 0.02  # a gap in attainment that is called closed
N_LIMITS = 3  # TBT limits that are drawn: the tightest, the middle and the loosest


def front(ask: Ask) -> Drawn:
    found = some(_swept(ask.made(rows.points), FRONT))
    return Drawn(
        {"front": _with_front(found)},
        sentences(_with_front(found), ["at"], front_answer),
        controls=(Control("at", "Front at"),),
        choices=options("at", found["at"].unique(maintain_order=True)),
    )


def groups(ask: Ask) -> Drawn:
    found = some(_rule_apart(_swept(ask.made(rows.points), *GROUPS)))
    own = {"legend": "title=null orient=top labelLimit=300" if found["at"].n_unique() > 1 else "none"}
    said = " ".join(groups_answer(of) for _, of in found.group_by(["at"], maintain_order=True))
    return Drawn({"groups": found}, {"": said}, own)


def _swept(points: pl.DataFrame, *series: str) -> pl.DataFrame:
    found = of_series(points, *series)
    if found.is_empty():
        return found
    knob = pl.when(pl.col("scheduler") == "chunked").then("chunk_tokens").otherwise("n_max")
    told = found.with_columns(knob=knob, at=pl.format("{}, {}/s", "setting", "rate")).drop_nulls("knob")
    bands = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    return told.select(*FIELDS, "n_lg_rule", *bands).sort("at", "scheduler", "knob", descending=[True, False, False])


def _with_front(found: pl.DataFrame) -> pl.DataFrame:
    """is_best: no other point of the setting is as good in both TTFT and TBT and better in one."""
    best = []
    for row in found.to_dicts():
        x, y = pl.col("tbt_p99_s"), pl.col("ttft_mean_s")
        as_good = (x <= row["tbt_p99_s"]) & (y <= row["ttft_mean_s"])
        better = (x < row["tbt_p99_s"]) | (y < row["ttft_mean_s"])
        best.append(found.filter((pl.col("at") == row["at"]) & as_good & better).is_empty())
    return found.with_columns(pl.Series("is_best", best, pl.Boolean))


def _rule_apart(found: pl.DataFrame) -> pl.DataFrame:
    """The fixed rule alone where it is swept: with another the number is the most that a batch may take."""
    fixed = found.filter(pl.col("n_lg_rule") == "fixed") if not found.is_empty() else found
    return fixed if not fixed.is_empty() else found


def front_answer(found: pl.DataFrame) -> str:
    """What lies on the front, from short gaps to short waits, and how many of each scheduler do not."""
    best = found.filter("is_best").sort("tbt_p99_s").to_dicts()
    told = [f"{_named(row)} ({quantity(row['tbt_p99_s'], 's')}, {quantity(row['ttft_mean_s'], 's')})" for row in best]
    if len(told) > 4:
        told = [*told[:2], f"{len(told) - 4} more", *told[-2:]]
    beaten = [
        f"{of.filter(~pl.col('is_best')).height} of {of.height} {name}"
        for (name,), of in found.sort("scheduler").group_by(["scheduler"], maintain_order=True)
    ]
    return f"On the front (TBT p99, mean TTFT): {joined(told)}. Off it: {joined(beaten)} settings."


def _named(row: Mapping[str, object]) -> str:
    return f"{'chunks of' if row['scheduler'] == 'chunked' else 'N ='} {row['knob']}"


def groups_answer(found: pl.DataFrame) -> str:
    """From the least to the largest number of groups of one setting."""
    rows = found.sort("knob")
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    told = [
        f"mean TTFT goes from {quantity(first['ttft_mean_s'], 's')} to {quantity(last['ttft_mean_s'], 's')}",
        f"TBT p99 from {quantity(first['tbt_p99_s'], 's')} to {quantity(last['tbt_p99_s'], 's')}",
    ]
    steps = rows.select(up=pl.col("ttft_mean_s").diff() > 0, down=pl.col("tbt_p99_s").diff() < 0).drop_nulls()
    kept = steps.filter(pl.col("up") & pl.col("down")).height
    every = "with every step" if kept == steps.height else f"in {kept} of {steps.height} steps"
    between = [
        f" N = {row['knob']} has {quantity(row['ttft_mean_s'], 's')} and {quantity(row['tbt_p99_s'], 's')}."
        for row in rows.filter(pl.col("knob") == PAPER_GROUPS).to_dicts()
    ]
    return (
        f"{found['at'][0]}: from N = {first['knob']} to {last['knob']}, {joined(told)}; the one rises and the other falls "
        f"{every}." + "".join(between)
    )


def energy(ask: Ask) -> Drawn:
    found = of_series(ask.made(rows.points), *MEASURED)
    if not set(MEANINGS) <= set(found.columns):
        raise Nothing
    order = ["setting", turn_of("system", drawing_order(found["system"])), "rate"]
    told = found.drop_nulls(MEANINGS).sort(order, descending=[True, False, False])
    split = pl.sum_horizontal(f"energy_{name}_j" for name in JOULES)
    told = told.select(
        "setting",
        "system",
        "rate",
        "n_seeds",
        *(f"{name}{end}" for name in MEANINGS for end in ("", "_low", "_high")),
        *((pl.col(f"energy_{name}_j") / split).alias(name) for name in JOULES),
        label=pl.format("{} at {}/s", "system", "rate"),
    )
    settings = [{"setting": name} for name in told["setting"].unique(maintain_order=True)]
    return Drawn({"energy": told}, {"": energy_answer(told)}, {"settings": settings})


def energy_answer(found: pl.DataFrame) -> str:
    """Per setting: each scheduler at the rate that most share, layered against chunked, and the share of the bytes."""
    said = []
    for (setting,), of in found.group_by(["setting"], maintain_order=True):
        shared = of.group_by("rate").len().sort(["len", "rate"], descending=[True, False])["rate"][0]
        rows = of.filter(pl.col("rate") == shared).to_dicts()
        told = [
            f"{quantity(row['energy_j_per_token'], 'J')} ({row['system']}; {quantity(row['energy_j_per_output_token'], 'J')} "
            f"per output token; bytes {percent(row['bytes'], 0)})"
            for row in rows
        ]
        said.append(f"{setting} at {shared:g}/s takes {joined(told)} per prompt and output token{_change(rows)}")
    return f"{'; '.join(said)}."


def _change(rows: Sequence[dict[str, float | str]]) -> str:
    """Layered's over chunked's, where both were served at the rate."""
    by_kind = {str(row["system"]).split(" ", 1)[0]: float(row["energy_j_per_token"]) for row in rows}
    if not {"layered", "chunked"} <= by_kind.keys():
        return ""
    return f" (layered {signed(by_kind['layered'] / by_kind['chunked'] - 1)})"


def dense(ask: Ask) -> Drawn:
    held = of_series(ask.made(rows.points), DENSE)
    ratios = some(_ratios(held))
    gaps = _gaps(grid(ask, held))
    gapped: list[dict[str, str]] = [] if gaps.is_empty() else [{}]
    return Drawn({"dense": ratios, "dense_gaps": gaps}, {"": dense_answer(ratios, gaps)}, {"gapped": gapped})


def _ratios(held: pl.DataFrame) -> pl.DataFrame:
    """setting, rate and layered over chunked in every measure, where both were served."""
    if held.is_empty():
        return held
    ours, theirs = (held.filter(pl.col("scheduler") == name) for name in ("layered", "chunked"))
    both = ours.join(theirs, on=["setting", "rate"], suffix="_chunked").drop_nulls("rate")
    return both.select("setting", "rate", *((pl.col(name) / pl.col(f"{name}_chunked")).alias(name) for name in MEANS)).sort(
        "rate"
    )


def _gaps(found: pl.DataFrame) -> pl.DataFrame:
    """rate, both limits and what layered attains more, at N_LIMITS of the TBT limits."""
    if found.is_empty():
        return found
    keys = ["setting", "rate", "ttft_limit_s", "tbt_limit_s"]
    kind = pl.col("system").str.split(" ").list.first()
    ours, theirs = (found.filter(kind == name).select(*keys, "attained_frac") for name in ("layered", "chunked"))
    both = ours.join(theirs, on=keys, suffix="_chunked").with_columns(
        gap=pl.col("attained_frac") - pl.col("attained_frac_chunked")
    )
    limits = both["tbt_limit_s"].unique().sort().to_list()
    kept = sorted({limits[round(n * (len(limits) - 1) / (N_LIMITS - 1))] for n in range(N_LIMITS)}) if limits else []
    panel = pl.col("tbt_limit_s").map_elements(lambda limit: f"no gap above {quantity(limit, 's')}", pl.String)
    return both.filter(pl.col("tbt_limit_s").is_in(kept)).with_columns(panel=panel).sort("tbt_limit_s", "rate", "ttft_limit_s")


def dense_answer(ratios: pl.DataFrame, gaps: pl.DataFrame) -> str:
    """At how many rates layered is slower and by how much at the highest; the gap at the tightest and the loosest limits."""
    slower = ratios.filter(pl.all_horizontal(pl.col(name) > 1 for name in MEANS)).height
    last = ratios.row(-1, named=True)
    by = joined([f"{last[name]:.2f} × the {said}" for name, said in MEANS.items()])
    verdict = "No" if slower else "It is not slower"
    said = f"{verdict}: layered is slower in both at {slower} of {ratios.height} rates; at {last['rate']:g}/s it has {by}."
    if gaps.is_empty():
        return said
    by_limit = gaps.filter(pl.col("rate") == last["rate"]).sort("tbt_limit_s", "ttft_limit_s")
    loosest = by_limit.row(-1, named=True)
    worst = gaps.sort("gap").row(0, named=True)
    told = (
        f" Its worst gap is {_points(worst['gap'])} at {worst['rate']:g}/s (first token within "
        f"{quantity(worst['ttft_limit_s'], 's')}, {worst['panel']})"
    )
    closes = "closes" if abs(loosest["gap"]) <= CLOSED_FRAC else "does not close"
    return f"{said}{told}; at the loosest limits it is {_points(loosest['gap'])} at {last['rate']:g}/s: the gap {closes}."


def _points(gap: float) -> str:
    return f"{100 * gap:+.0f} points" if abs(gap) >= 0.005 else "0 points"
