"""ELMoE-3D's Table 3 as the claims hold it: what is an input, what may be fitted on, what is predicted, what is withheld."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

PAPER = "elmoe3d"
TABLE = "Table 3"
CALIBRATE = "calibrate"
SCENARIO = ("hb_gb", "model", "batch")  # what the schemes are compared at
IS_OPEN = pl.col("published_ar").is_not_null() & pl.col("published_sd").is_not_null()
METRICS = ("alpha", "phi_ar", "phi_sd")


def cells(claims: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of Table 3 in the claims' order: hb_gb, model (as those that ship are named), scheme, batch and alpha; of Phi_AR and
    Phi_SD the published value (null where withheld, never 0), its role and its claim.

    Raises ValueError for a row that lacks its alpha or one of its speed-ups' claims.
    """
    kept = ("model", "setting", "metric", "value", "role", "claim_id")
    told = [{name: c[name] for name in kept} for c in claims if c["paper"] == PAPER and c["location"] == TABLE]
    wide = pl.DataFrame(told).pivot("metric", index=("model", "setting"), values=("value", "role", "claim_id"))
    for metric in METRICS:
        for model, setting in wide.filter(pl.col(f"claim_id_{metric}").is_null()).select("model", "setting").rows():
            raise ValueError(f"{TABLE}, {model}, {setting}: no claim of {metric}")
    for claim_id in wide.filter(pl.col("value_alpha").is_null())["claim_id_alpha"]:
        raise ValueError(f"{claim_id}: alpha is an input and has no value")
    where = pl.col("setting").str
    return wide.select(
        hb_gb=where.extract(r"hb_gb=(\d+)").cast(pl.Int64),
        model=pl.col("model").str.to_lowercase(),
        scheme=where.extract(r"scheme=(\S+)"),
        batch=where.extract(r"batch=(\d+)").cast(pl.Int64),
        alpha="value_alpha",
        **{f"published_{mode}": f"value_phi_{mode}" for mode in ("ar", "sd")},
        **{f"role_{mode}": f"role_phi_{mode}" for mode in ("ar", "sd")},
        **{f"{mode}_claim": f"claim_id_phi_{mode}" for mode in ("ar", "sd")},
    )
