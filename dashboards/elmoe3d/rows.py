"""What the ELMoE-3D page asks of the warehouse: the study's rows, with the names the charts use.

Every function takes an open read-only DuckDB connection and returns a polars frame. machine: capacity of the hybrid-bonded memory
in words; law: the hit model; mode: ar or sd. Bytes become GB and seconds ms where a person reads them.
"""

from __future__ import annotations

import duckdb
import polars as pl

from tokentape.warehouse import models

STUDY = PAPER = "elmoe3d"
ELASTIC = "Elastic-SD"

_MACHINES = """
with machines as (
    select hardware, format('{:g} GiB', any_value(hb_bytes) / 1073741824) as machine from elmoe3d_points
    where study = $study and series = 'table-3' group by hardware
)
"""
_POINTS = f"""{_MACHINES}
select p.* exclude (study, model_id, sd_scheme, hit_model, hb_bytes, hb_bytes_per_s), model_id as model, sd_scheme as scheme,
    hit_model as law, round(hb_bytes / 1073741824, 3) as gib, hb_bytes_per_s / 1e9 as hb_gb_per_s,
    coalesce(machine, hardware) as machine,
    n_draft_steps * draft_step_s * 1e3 as draft_ms, verify_s * 1e3 as verify_ms
from elmoe3d_points p left join machines using (hardware) where study = $study order by all
"""
_MAPPING = f"""{_MACHINES}
select coalesce(machine, hardware) as machine, model_id as model, sd_scheme as scheme, batch, tier, part, placed_bytes / 1e9 as gb
from elmoe3d_mapping left join machines using (hardware) where study = $study and placed_bytes > 0 order by all
"""
_INTENSITY = f"""{_MACHINES}
select coalesce(machine, hardware) as machine, model_id as model, batch, step_mode as mode, part, ops_per_byte
from elmoe3d_intensity left join machines using (hardware) where study = $study order by all
"""
# The headline: verified nodes and near-memory inputs as the study answers claims with them, the middle of their ranges.
_PLATFORMS = """
with headline as (
    select quantile_disc(verify_nodes, 0.5) over () as nodes, quantile_disc(nmp_ext_ratio, 0.5) over () as ratio, *
    from elmoe3d_platforms where study = $study
)
select platform, model_id as model, dataset, batch, hit_model as law, level, step_mode as mode, fidelity,
    any_value(speedup) filter (
        verify_nodes = nodes and (nmp_ext_ratio is null or nmp_ext_ratio = ratio) and coalesce(placement, 'dense') = 'dense'
    ) as speedup,
    min(speedup) as low, max(speedup) as high, any_value(nodes) as nodes, any_value(ratio) as ratio,
    min(verify_nodes) as least_nodes, max(verify_nodes) as most_nodes,
    min(nmp_ext_ratio) as least_ratio, max(nmp_ext_ratio) as most_ratio
from headline group by all order by all
"""
_ENERGY = """
select platform, model_id as model, dataset, batch, hit_model as law, level, step_mode as mode, part, j_per_token, low, high
from elmoe3d_energy where study = $study and is_best order by all
"""
_MISSES = """
select source, origin, model_id as model, dataset, batch, hit_model as law, cache_frac, cache_experts,
    miss_frac_lookups as missed, fidelity
from elmoe3d_misses where study = $study order by all
"""
_UNIONS = """
select c.source, c.model_id as model, form, tokens_of, c.n_tokens, coverage_frac * n_experts as experts, low * n_experts as low,
    high * n_experts as high, n_experts, origin, dataset
from coverage_points c join traces t on c.source = t.trace_id where study = $study and layer_band = 'all' order by all
"""
_CHECKS = """
select block, level, hit_model as law, fit, value, unit, n, bar_low, bar_high
from elmoe3d_checks where study = $study order by all
"""
_ACCEPTANCE = """
select study, model_id as model, dataset, series, drafter, scheme, bits_high, bits_low, pool_policy, pool_frac,
    pool_experts, batch, depth, width, temperature, n_seeds, n_rounds, fidelity, metric, value, low, high
from acceptance_points order by all
"""

_GAIN = """
select value / 100 as gain from claims
where paper = $study and metric = 'hotness_vs_random_pool_acceptance_gain' and unit = 'percent'
"""


def points(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """elmoe3d_points, with draft_ms and verify_ms of a round.

    can_draft: not where Elastic-SD has fewer experts in HB than a token selects; an alpha taken over from elsewhere means nothing
    there, and neither does phi_sd.
    """
    found = _ask(connection, _POINTS)
    top_k = {name: models.load(name).geometry.top_k for name in found["model"].unique() if name in models.names()}
    selected = pl.col("model").replace_strict(top_k, default=0, return_dtype=pl.Float64)
    return found.with_columns(can_draft=(pl.col("scheme") != ELASTIC) | (pl.col("draft_experts") >= selected))


def mapping(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """GB of every part in every tier; parts that take nothing are left out."""
    return _ask(connection, _MAPPING)


def intensity(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Operations per byte of a pass by part, and the knees of the rooflines."""
    return _ask(connection, _INTENSITY)


def platforms(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Speed-ups at the middle of what the paper does not give; low and high: over all of it."""
    return _ask(connection, _PLATFORMS)


def energy(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Joules of a token by part, in each platform's faster mode."""
    return _ask(connection, _ENERGY)


def misses(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Missed lookups by batch and cached share, replayed and by every law."""
    return _ask(connection, _MISSES)


def unions(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Distinct experts of a layer that n tokens touch, of one request and of different ones."""
    return _ask(connection, _UNIONS)


def checks(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Errors and means against the paper's open rows, and the bars they are held to."""
    return _ask(connection, _CHECKS)


def acceptance(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """What live models accept of drafted tokens, of any study."""
    return connection.sql(_ACCEPTANCE).pl()


def published_gain_frac(connection: duckdb.DuckDBPyConnection) -> float | None:
    """What the paper says a hotness pool has accepted over a random one, less one."""
    found = _ask(connection, _GAIN)["gain"].drop_nulls()
    return float(found[0]) if found.len() else None


def _ask(connection: duckdb.DuckDBPyConnection, sql: str) -> pl.DataFrame:
    return connection.sql(sql, params={"study": STUDY}).pl()
