"""The CXL GPU-NDP page on the clock: what GPU, NDP and link are busy with in one layer-step."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.cxl_ndp.words import MAIN, MONDE, OURS, SYSTEMS
from tokentape.dashboards.engine import Ask, Drawn, known, sentences, some
from tokentape.dashboards.units import joined, percent, significant

LANES = {"gpu": "GPU", "ndp": "NDP", "pcie": "link"}
_KIND = (
    pl.when(pl.col("lane") == "ndp")
    .then(pl.lit("experts in the NDP"))
    .when(pl.col("label").str.starts_with("activations"))
    .then(pl.lit("activations over the link"))
    .when(pl.col("lane") == "pcie")
    .then(pl.lit("experts over the link"))
    .when(pl.col("label").str.contains("expert"))
    .then(pl.lit("experts on the GPU"))
    .otherwise(pl.lit("attention and KV"))
)


def lanes(ask: Ask) -> Drawn:
    found = some(ask("lanes").filter(pl.col("system").is_in(MAIN)))
    end = (pl.col("start_ms") + pl.col("ms")).max().over("model", "system")
    found = found.with_columns(
        setup="model", kind=_KIND, end=end, lane=pl.col("lane").replace(LANES), short=pl.col("label").str.replace("expert ", "e")
    )
    lists = [pl.col(name) for name in ("short", "start_ms", "ms")]  # a row per segment would be most of the page
    data = found.group_by("setup", "system", "lane", "kind", "end", maintain_order=True).agg(lists)
    systems = [{"system": name, "heading": f"{name}: "} for name in known(SYSTEMS, found["system"])]
    pairs = [{"systems": systems[n : n + 2]} for n in range(0, len(systems), 2)]
    return Drawn({"lanes": data}, sentences(found, ["model"], answer), {"pairs": pairs, "setup": found["model"][0]})


def answer(found: pl.DataFrame) -> str:
    """Length of the step in every system, and the busiest lane of each; rows of one model."""
    said, lengths = [], {}
    for system in known(SYSTEMS, found["system"]):
        of = found.filter(pl.col("system") == system)
        lengths[system] = length = float(of["end"][0])
        busy = of.group_by("lane").agg(pl.col("ms").sum()).sort("ms", "lane", descending=[True, False]).row(0)
        said.append(f"{significant(length)} ms on {system} ({busy[0]} busy for {percent(busy[1] / length, 0)})")
    ours = next((name for name in OURS if name in lengths), None)
    over = (
        f" {ours} is through before {MONDE} has done {percent(lengths[ours] / lengths[MONDE], 0)} of its step."
        if (ours and MONDE in lengths)
        else ""
    )
    return f"The step takes {joined(said)}.{over}"
