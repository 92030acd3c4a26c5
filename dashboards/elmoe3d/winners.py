"""The ELMoE-3D page's answer: which scheme is fastest where, and from which batch speculation pays."""

from __future__ import annotations

import polars as pl

from tokentape.dashboards.elmoe3d import rows
from tokentape.dashboards.elmoe3d.words import ELASTIC, MODES, PANELS, facts
from tokentape.dashboards.engine import Ask, Drawn, some
from tokentape.dashboards.units import highest

SETTING = ["law", "level", "machine", "model", "batch"]
NEVER = 2.0  # times the largest batch: where a scheme stands that never pays
LEAST_GAIN = 1e-9


def winners(ask: Ask) -> Drawn:
    table = some(ask.made(rows.table))
    ours = table.filter(pl.col("scheme") == ELASTIC).sort("gib", "batch", maintain_order=True)
    at = ours.group_by("law", "level", "model", "machine", maintain_order=True).agg(
        at=pays_from(pl.col("phi_sd") / pl.col("phi_ar"))
    )
    own = {"panels": list(PANELS.values()), "pays": at}
    return Drawn({"winners": _winners(table)}, facts=facts(table) | own, said=table)


def thresholds(ask: Ask) -> Drawn:
    swept = some(ask.made(rows.swept))
    found = _thresholds(ask.made(rows.table), swept)
    batches = swept["batch"].unique().sort().to_list()
    end = NEVER * batches[-1]
    ticks = [batches[0], *(b for b in batches[1:] if b & (b - 1) == 0), end]
    own = {"most": int(highest(found["most"])), "end": end, "domain": [batches[0], end], "ticks": ticks}
    return Drawn({"thresholds": found}, facts={**facts(found), **own, "levels": facts(swept)["levels"]})


def pays_from(gain: pl.Expr) -> pl.Expr:
    """Of a group: the least batch from which SD is the faster mode at every recorded one; null: it is not at the largest."""
    lost = pl.col("batch").filter(gain <= 1 + LEAST_GAIN).max().fill_null(0)
    return pl.col("batch").filter(pl.col("batch") > lost).min()


def _winners(table: pl.DataFrame) -> pl.DataFrame:
    """A row per setting and panel: our fastest scheme, the paper's, and whether ours has the paper's best number."""
    made = []
    for panel, words in PANELS.items():
        names = ["ar", "sd"] if panel == "best" else [panel]
        each = table.with_columns(
            value=pl.max_horizontal(f"phi_{n}" for n in names),
            published=pl.when(~pl.col("is_withheld")).then(pl.max_horizontal(f"published_{n}" for n in names)),
            shown_mode=pl.col("best_mode").replace(MODES) if panel == "best" else pl.lit(""),
        ).sort(*SETTING, rows.turn())
        best = each.group_by(SETTING, maintain_order=True).agg(
            pl.col("scheme", "value", "shown_mode", "published", "is_withheld").get(pl.col("value").round(3).arg_max()),
            theirs=pl.col("scheme").get(pl.col("published").fill_null(0).arg_max()),
            most=pl.col("published").max(),
        )
        made.append(best.with_columns(panel=pl.lit(words)))
    found = pl.concat(made)
    return found.with_columns(
        agrees=pl.col("published") >= pl.col("most"),
        said=pl.concat_str([pl.col("shown_mode"), pl.format("{}×", pl.col("value").round(1))], separator=" ").str.strip_chars(),
    )


def _thresholds(table: pl.DataFrame, swept: pl.DataFrame) -> pl.DataFrame:
    """From which batch SD pays, by law, machine, model and scheme: ours over the sweep, the paper's over its open batches."""
    keys = ["law", "machine", "model", "scheme"]
    ours = swept.group_by("law", "machine", "gib", "model", "scheme", maintain_order=True).agg(
        pl.first("fidelity"), ours=pays_from(pl.col("phi_sd") / pl.col("phi_ar")), most=pl.max("batch")
    )
    stated = table.filter(pl.col("level") == swept["level"][0]).drop_nulls("published_sd") if not table.is_empty() else table
    gain = pl.col("published_sd") / pl.col("published_ar")
    theirs = stated.group_by(keys).agg(theirs=pays_from(gain), until=pl.max("batch"), n=pl.len()).filter(pl.col("n") > 1)
    until = {"said": ("ours", "most"), "said_paper": ("theirs", "until")}
    said = {k: pl.coalesce(pl.format("from {}", at), pl.format("not up to {}", end)) for k, (at, end) in until.items()}
    shown = pl.col("ours").cast(pl.Float64).fill_null(NEVER * highest(swept["batch"]))
    both = ours.join(theirs, on=keys, how="left", maintain_order="left").with_columns(**said, shown=shown)
    return both.with_columns(pl.col("said_paper").fill_null("withheld")).drop("until", "n")
