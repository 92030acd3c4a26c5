"""Rows that figures of the Layered Prefill page share: the study's serving points, one row each.

A metric's band over seeds is beside it as `metric_low` and `metric_high` (5th and 95th percentile).
"""

import polars as pl

from tokentape.dashboards.engine import Ask
from tokentape.warehouse import models

SETTING = ("model", "workload", "arrival", "hardware", "coverage")  # all but the rate and the scheduler
ASKED = (  # metrics whose columns are there though no point has them
    *("ttft_mean_s", "ttft_p99_s", "tbt_mean_s", "tbt_p99_s", "energy_j_per_token", "energy_j_per_output_token"),
    *("energy_static_j", "energy_bytes_j", "energy_ops_j"),
    *("slo_frac", "slo_ttft_frac", "slo_tbt_frac", "decode_batch_mean", "jain"),
)
KINDS = ("value", "low", "high")
KNOBS = ("chunk_tokens", "n_max", "n_lg_rule", "pass_tokens")  # of a scheduler


def points(ask: Ask) -> pl.DataFrame:
    """A row per point with a column per metric, is_dense, and the scheduler's knobs (null where it has none)."""
    long = ask("points")
    if long.is_empty():
        return pl.DataFrame()
    metrics = long["metric"].unique().sort().to_list()
    kept = [name for name in long.columns if name not in ("metric", "value", "low", "high")]
    wide = long.pivot("metric", index=kept, values=["value", "low", "high"])
    renamed = {f"{kind}_{name}": name + ("" if kind == "value" else f"_{kind}") for name in metrics for kind in KINDS}
    absent = {f"{name}{end}" for name in ASKED for end in ("", "_low", "_high")} - set(wide.columns) - set(renamed.values())
    shipped = models.names()
    dense = {of: of in shipped and not models.load(of).geometry.n_experts for of in wide["model"].unique()}
    return wide.rename(renamed).with_columns(
        **dict.fromkeys(sorted(absent), pl.lit(None, pl.Float64)),
        is_dense=pl.col("model").replace_strict(dense, return_dtype=pl.Boolean),
    )
