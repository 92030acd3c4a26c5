"""The SliceMoE page's menus."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards.engine import Ask, Control, options
from tokentape.dashboards.slicemoe import rows


def own(ask: Ask) -> dict[str, Any]:
    """Every swept model, cache, pair and tau, the tau that the study chose first; every live setup; every window of steps."""
    warmups, chosen = ask.made(rows.warmups), ask("operating")["tau"]
    is_swept = pl.col("configuration") == "DBSC"
    swept = ask.made(rows.swept).filter(is_swept).select("model", "cache", "pair", "tau").unique(maintain_order=True)
    swept = swept.sort(pl.col("tau").is_in(chosen.unique().implode()), descending=True, maintain_order=True)
    controls = (
        Control("model", "Model", ask.made(rows.names)),
        Control("cache", "Cache"),
        Control("pair", "Bit pair"),
        Control("tau", "Threshold tau of DBSC"),
        Control("steps", "Steps from the start", {name: f"first {name}" for name in warmups["steps"].unique()}, "slider"),
        Control("setup", "Live model"),
    )
    choices = (
        *swept.to_dicts(),
        *options("steps", sorted(warmups["steps"].unique(), key=int)),
        *options("setup", ask.made(rows.live)["setup"].unique(maintain_order=True)),
    )
    return {"controls": controls, "choices": choices}
