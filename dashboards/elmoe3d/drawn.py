"""What figures of the ELMoE-3D page are drawn from: the queries of rows.sql, and the facts that their files call by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import polars as pl

from tokentape.dashboards import claims, theme
from tokentape.dashboards.elmoe3d import words
from tokentape.dashboards.engine import Ask, Control, Drawn, known, options, some, turn_of
from tokentape.dashboards.units import highest, joined, percent, signed

CAPTURED_SHARE = 0.125  # a menu opens with the cached share nearest to the paper's machines
OPENS_AT = (8.0, 8)  # GiB and batch: on the paper's larger machine
HOTNESS, RUNS = "hotness", ("pool", "replay")
LOOKS = (theme.VERMILLION, theme.QUIET, theme.BLUE, theme.GREEN, theme.PURPLE, theme.INK)
SAME_FRAC = 1e-6  # values nearer than this are the same


def models(frame: pl.DataFrame) -> list[str]:
    """The models of the rows, the paper's first one before the others."""
    return frame["model"].unique().sort(descending=True).to_list()


def facts(found: pl.DataFrame) -> dict[str, Any]:
    """What files of figures call by name: fidelity, levels and laws in words; models, schemes and machines in order."""
    made: dict[str, Any] = {}
    for column, name in (("fidelity", "fidelity"), ("level", "levels"), ("law", "laws")):
        if column in found.columns:
            made[name] = joined([str(value).replace("_", " ") for value in found[column].unique().sort()])
    if {"machine", "gib"} <= set(found.columns):
        made["machines"] = found.sort("gib")["machine"].unique(maintain_order=True).to_list()
    made |= {"models": models(found)} if "model" in found.columns else {}
    return made | ({"schemes": known(words.SCHEMES, found["scheme"])} if "scheme" in found.columns else {})


def winners(ask: Ask) -> Drawn:
    table = some(ask("table3"))
    own = {"panels": list(words.PANELS.values()), "pays": ask("pays")}
    return Drawn({"winners": ask("winners")}, facts=facts(table) | own, said=table)


def thresholds(ask: Ask) -> Drawn:
    """A scheme that never pays stands at twice the largest batch."""
    swept, found = some(ask("swept")), ask("thresholds")
    batches = swept["batch"].unique().sort().to_list()
    end = 2.0 * batches[-1]
    ticks = [batches[0], *(b for b in batches[1:] if b & (b - 1) == 0), end]
    own = {"most": int(highest(found["most"])), "end": end, "domain": [batches[0], end], "ticks": ticks}
    return Drawn({"thresholds": found}, facts={**facts(found), **own, "levels": facts(swept)["levels"]})


def cells(ask: Ask) -> Drawn:
    found = some(ask("cells"))
    own = facts(ask("table3"))
    panels = [f"{mode}, {machine}" for mode in words.MODE_NAMES for machine in own["machines"]]
    return Drawn({"cells": found.drop("gib", "machine", "mode", "role")}, facts={**own, "panels": panels}, said=found)


def written(table: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The table below the chart, one per hit model and level: groups of a model and machine, rows of a scheme and batch."""
    for (law, level), of in table.group_by(["law", "level"], maintain_order=True):
        groups = [
            {"title": f"{model}, {machine}", "rows": [_row(row) for row in group.to_dicts()]}
            for (model, machine), group in of.group_by(["model", "machine"], maintain_order=True)
        ]
        title = joined([words.LAWS[str(law)], words.LEVEL.labels[str(level)]])
        yield {"law": law, "level": level, "title": title, "groups": groups}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    cells = []
    for mode in words.MODES:
        ours, published = row[f"phi_{mode}"], row[f"published_{mode}"]
        stated = ("withheld", "predicted") if published is None else (f"{published:.2f}", signed(ours / published - 1))
        cells += [stated[0], f"{ours:.2f}", stated[1], row[f"role_{mode}"] or ""]
    return {"scheme": row["scheme"], "batch": row["batch"], "alpha": f"{row['alpha']:.2f}", "cells": cells}


def checks(ask: Ask) -> Drawn:
    found = some(ask("checks"))
    panels = [
        {"item": panel, "scale": scale, "width": width, "names": found.filter(panel=panel)["block"].unique().sort().to_list()}
        for panel, width, scale in (
            (words.ERRORS, 290, f"domain=[0,{words.MOST_ERROR}]"),
            (words.SHARES, 230, "zero=no nice=yes"),
        )
    ]
    return Drawn({"checks": found}, facts=facts(found) | {"most": percent(words.MOST_ERROR, 0), "panels": panels})


def summary(ask: Ask) -> Drawn:
    """The paper's other numbers; Table 3 is shown cell by cell."""
    stated = claims.rows(ask.connection, words.PAPER).filter(pl.col("location") != "Table 3")
    return Drawn({"claims": some(stated.drop_nulls("replay"))}, facts={"ours": "replay (over what is not given)"}, said=stated)


def intensity(ask: Ask) -> Drawn:
    found, table, touched = some(ask("intensity")), some(ask("table3")), ask("touched")
    is_pass = pl.col("part").is_in(list(words.PASS_PARTS))
    data = {
        "passes": found.filter(is_pass).with_columns(pl.col("mode").str.to_uppercase()),
        "knees": found.filter(~is_pass).drop("batch", "mode", "part"),
        "touched": touched.drop("gain", "published"),
        "gained": touched.drop("ar", "verify"),
    }
    return Drawn(data, facts={**facts(touched), **facts(found), "intensity": found}, said=table)


def mapping(ask: Ask) -> Drawn:
    placed, rounds = some(ask("placed")), some(ask("rounds"))
    data = {"placed": placed.drop("part", "batch"), "rounds": rounds.drop("fidelity", "gib")}
    return Drawn(data, facts={**facts(rounds), "room": placed.filter(tier="hb", part="experts")}, said=rounds)


def latency(ask: Ask) -> Drawn:
    rounds = some(ask("rounds"))
    return Drawn({"rounds": rounds.drop("fidelity", "gib")}, facts=facts(rounds), said=rounds)


def platforms(ask: Ask) -> Drawn:
    told = some(ask("platforms"))
    inputs = [
        f", near-memory bandwidth {row['least_ratio']:g} to {row['most_ratio']:g} × EXT (line: {row['ratio']:g}), dense or "
        "experts placed there"
        for row in told.drop_nulls("least_ratio").head(1).to_dicts()
    ]
    own: dict[str, Any] = {name: f"{told[name][0]:g}" for name in ("least_nodes", "most_nodes", "nodes")}
    own["panels"] = told.sort("model", "dataset", descending=[True, False])["panel"].unique(maintain_order=True).to_list()
    kept = told.select("law", "panel", "words", "mode", "batch", "speedup", "low", "high")
    return Drawn({"platforms": kept}, facts=facts(told) | own | {"inputs": "".join(inputs)}, said=told)


def energy(ask: Ask) -> Drawn:
    found, totals = some(ask("energy")), ask("energy_totals")
    names, batches = models(found), found["batch"].unique().sort().to_list()
    each = [
        {
            "model": model,
            "each_batch": [
                {
                    "batch": batch,
                    "heading": f"batch {batch}" if model == names[0] else "",
                    "side": f"{model} (platform)" if batch == batches[0] else None,
                    "axis": "bare labelFontSize=11.5" if batch == batches[0] else "none",
                    "title": "energy per token (ELMoE-3D = 1)" if model == names[-1] else None,
                    "is_bottom": model == names[-1],
                }
                for batch in batches
            ],
        }
        for model in names
    ]
    platforms = totals.sort("place")["words"].unique(maintain_order=True).to_list()
    own = {"each_model": each, "domain": [0, highest(totals["relative"]) * 1.3], "platforms": platforms}
    parts = found.filter(pl.col("relative") > 0).drop("platform", "dataset", "level", "part", "low", "high")
    return Drawn({"energy": parts, "energy_totals": totals}, facts=facts(totals) | own, said=totals)


def misses(ask: Ask) -> Drawn:
    found = panels(some(ask("misses")), ask.size)
    shares = sorted(found["share"].unique(), key=lambda share: (abs(float(share) - CAPTURED_SHARE), float(share)))
    control = Control("share", "Cached share of a layer", {share: percent(float(share), 1) for share in shares})
    data = {"misses": found.drop("source", "origin")}
    return Drawn(data, facts=facts(found), controls=(control,), choices=options("share", shares))


def unions(ask: Ask) -> Drawn:
    counted = some(ask("unions"))
    of_one = counted.filter(tokens_of="one_request")
    most = highest((counted if of_one.is_empty() else of_one)["n_tokens"])
    found = panels(counted.filter(pl.col("n_tokens") <= most), ask.size)
    return Drawn({"unions": found.drop("source", "origin")}, facts=facts(found))


def panels(found: pl.DataFrame, size: int) -> pl.DataFrame:
    """With `panel`: model and data set, and the tape's end where several have both; the first `size`, captured ones first."""
    name, end = pl.format("{}, {}", "model", "dataset"), pl.col("source").str.tail(4)
    is_one = pl.col("source").n_unique().over("model", "dataset") == 1
    told = found.with_columns(
        panel=pl.when(is_one).then(name).otherwise(pl.format("{}, {}", name, end)), is_made=pl.col("origin") == "synthetic"
    )
    order = told.select("is_made", "model", "panel").unique().sort("is_made", "model", "panel", descending=[False, True, False])
    kept = order["panel"].head(size)
    return told.filter(pl.col("panel").is_in(kept.implode())).sort(turn_of("panel", kept), maintain_order=True)


def packed(found: pl.DataFrame, keys: list[str], *lists: Any, rounded: str) -> pl.DataFrame:
    """A row per line, its points as lists: a page stays small."""
    short = pl.col(rounded).round_sig_figs(words.DIGITS)
    return found.group_by(keys, maintain_order=True).agg(short, *lists)


def sweeps(ask: Ask) -> Drawn:
    found = some(ask("sweeps"))
    each = []
    for n, (series, (title, _)) in enumerate(words.SWEEPS.items()):
        at = found.filter(series=series)["at"].unique().sort().to_list()
        ticks = [value for value in at if abs(math.log2(value / at[0]) % 1) < SAME_FRAC]
        label = "datum.value / 1024 + 'k'" if series == "context" else "format(datum.value, ',.0f')"
        side = None if n else "speed-up over the xPU's AR (×, log)"
        each.append(
            {"series": series, "title": title, "what": title.split(" (")[0], "side": side, "ticks": ticks, "words": label}
        )
    stated, keys = pl.col("published").is_not_null(), ["series", "law", "model", "scheme", "batch_words", "mode"]
    own = [pl.col(name).filter(stated).first().alias(said) for name, said in (("at", "paper_at"), ("published", "published"))]
    return Drawn({"sweeps": packed(found, keys, "at", *own, rounded="speedup")}, facts={**facts(found), "each": each}, said=found)


def alpha(ask: Ask) -> Drawn:
    found = some(ask("alpha"))
    keys = ["model", "scheme", "batch_words", "phi_ar", "published_sd", "paper_alpha"]  # AR does not depend on alpha
    return Drawn(
        {"alpha": packed(found, keys, "alpha", rounded="phi_sd")}, facts=facts(found) | {"chain": ask("chain")}, said=found
    )


def explorer(ask: Ask) -> Drawn:
    found = some(ask("grid"))
    best = found.filter("is_winner").select(
        "law", "model", "gib", "batch", "scheme", "mode", "speedup", letter=pl.col("mode").str.head(1)
    )
    sizes = sorted(found["gib"].unique(), key=lambda gib: (abs(gib - OPENS_AT[0]), gib))
    there = found.select("gib", "batch").unique().sort((pl.col("batch") - OPENS_AT[1]).abs(), "batch")
    at = [{"size": f"{gib:g}", "at": f"{batch}"} for gib in sizes for batch in there.filter(gib=gib)["batch"]]
    return Drawn(
        {
            "grid": packed(found, ["law", "model", "scheme", "mode"], "gib", "batch", "published", rounded="speedup"),
            "grid_best": best,
        },
        facts={**facts(found), "chosen": "where datum.gib === toNumber(size) && datum.batch === toNumber(at)"},
        said=found,
        controls=(
            Control("size", "Size of HB", {f"{gib:g}": f"{gib:g} GiB" for gib in sizes}, "slider"),
            Control("at", "Batch, explored", {f"{b}": f"{b} requests" for b in there["batch"]}, "slider"),
        ),
        choices=(*({"size": f"{gib:g}"} for gib in sizes), *at),
    )


def measured(ask: Ask) -> Drawn:
    found = some(ask("points").filter(series="measured"))
    return Drawn({"measured": ask("measured")}, facts=facts(found), said=found)


def accepted(ask: Ask, name: str, series: str, metric: str, x: str, colour: str) -> Drawn:
    """What a live model accepts, one figure's lines: what varies along x and what a colour means. The first live models."""
    lives = some(ask("acceptance"))["live"].unique().sort().head(ask.size)
    is_of = pl.col("series") == series
    if colour == "run":  # a replay stands beside the live run of the same pools
        is_of = pl.col("series").is_in(RUNS) & (pl.col("pool_policy") == HOTNESS)
    is_single = series in ("bits", "drafters", "replay")  # else a panel per draft
    order = -pl.col("bits_low").cast(pl.Int64) if x == "bits" else pl.lit(0)
    kept = ["live", "n_seeds", "n_rounds", "fidelity", "value", "low", "high", colour]
    rows = ask("acceptance").filter(
        is_of, pl.col("metric").is_in([metric, f"tree_{metric}"]), pl.col("live").is_in(lives.implode())
    )
    told = rows.select(*kept, pl.col(x).alias("at"), panel=pl.lit("") if is_single else pl.col("how"), order=order)
    found = some(told.sort("live", "panel", colour, "order", "at", maintain_order=True))
    names = known(dict.fromkeys((*words.CUTS.values(), "live run", "replayed from a tape"), ""), found[colour])
    spare, n_panels = cycle(LOOKS), found["panel"].n_unique()
    own = {
        "of": colour,
        "names": names,
        "colours": [words.ACCEPTED[one] if one in words.ACCEPTED else next(spare) for one in names],
        "panels": found["panel"].unique(maintain_order=True).to_list(),
        "facet": "panel:N | - | sort=@panels | @HEADER" if n_panels > 1 else "",
        "width": 430 if n_panels > 1 else 680,
        "stated": ask("published_gain_frac").drop_nulls("gain"),
        "x_words": "batch {at:g}" if x == "batch" else "a pool of {at:percent 0}",
    }
    control, choices = Control("live", "Live model"), options("live", lives)
    return Drawn({f"accepted_{name}": found}, facts=facts(found) | own, controls=(control,), choices=choices)
