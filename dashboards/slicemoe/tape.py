"""The SliceMoE page on tapes: does the prompt tell which experts decoding uses, and how many of a token's are critical?"""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, Drawn, some, turn_of

ALL = "all"  # sorted behind every layer
TAUS = (theme.SKY, theme.BLUE, theme.INK)  # rising


def early(ask: Ask) -> Drawn:
    return Drawn({"early": some(ask("early"))}, **_menus(ask))


def critical(ask: Ask) -> Drawn:
    found, gates = some(ask("critical")), ask("gates")
    taus = found["tau"].unique().sort().to_list()
    own = {"taus": taus, "colours": list(TAUS[: len(taus)])}
    return Drawn({"critical": found, "gates": gates}, facts=own, **_menus(ask))


def _menus(ask: Ask) -> dict[str, Any]:
    """Menus of both figures: every tape with its layers, then all layers."""
    tapes = ask("tapes").to_dicts()
    named = {tape["trace_id"]: "{trace_id}: {model_id}, {dataset} ({origin})".format(**tape) for tape in tapes}
    controls = Control("trace", "Tape", named), Control("layer", "Layer of the tape", {ALL: "all layers"})
    return {"controls": controls, "choices": tuple(_choices(list(named), ask("early"), ask("critical")))}


def _choices(trace_ids: list[str], *frames: pl.DataFrame) -> list[dict[str, str]]:
    """Every tape with its layers, then all layers."""
    told = pl.concat([frame.select("trace", "layer", pl.col("place").cast(pl.Int64)) for frame in frames]).unique()
    order = turn_of("trace", trace_ids)
    return told.sort(order, "place", nulls_last=True).select("trace", "layer").to_dicts()
