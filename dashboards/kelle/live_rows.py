"""What the Kelle page asks of the warehouse about eviction and lost bits: recorded attention replayed, live models measured.

As rows.py. policy: as typed; variant: what tells parameters of one policy apart, as kelle_quality.setting; budget: tokens
per head, null: all.
"""

from __future__ import annotations

import duckdb
import polars as pl

_QUALITY = """
select series, model_id as model, dataset, policy, setting as variant, setting_value as at, budget_tokens as budget, storage,
    n_seeds as seeds, metric, value, low, high
from kelle_quality where metric in ('perplexity_ratio', 'accuracy') order by all
"""
_PARETO = """
select model_id as model, dataset, policy, setting as variant, setting_value as at, budget_tokens as budget, storage, hardware,
    perplexity, low, high, decode_energy_j_per_token * 1e3 as mj, kv_bytes / 1e3 as kb, is_front
from kelle_pareto order by all
"""
_VARIANT = """
case when policy in ('aep', 'aerp') and parameters ->> '$.importance' = 'mean' then 'mean score'
    when policy = 'random' and (parameters ->> '$.sink')::bigint = 0 and parameters ->> '$.recent' = '0' then 'unprotected'
    when policy = 'streaming' and (parameters ->> '$.sink')::bigint = 0 then 'recent only' else '' end as variant
"""
_DIVERGENCE = f"""
select model_id as model, dataset, policy, {_VARIANT.strip()}, (parameters ->> '$.budget')::bigint as budget,
    layer, avg(same_frac order by seed) as same,
    min(same_frac) as low, max(same_frac) as high, count(*) as seeds
from kv_divergence group by all order by all
"""
# One replay for each policy, variant and budget: rows scaled anew where both forms are there, then the first.
_TAPES = f"""
with chosen as (
    select *, {_VARIANT} from kv_replays
    qualify row_number() over (partition by trace_id, policy, variant, budget_tokens order by renorm desc, parameters) = 1
)"""
_KEPT = f"""{_TAPES}
select trace_id as tape, policy, variant, budget_tokens as budget, is_bound, is_exact, kept_mass_frac as kept,
    kept_mass_high_frac as kept_high, popular_frac as popular, x_bytes, kv_bytes, full_bytes
from chosen order by all
"""
_TIMELINE = f"""{_TAPES}
select c.trace_id as tape, c.policy, variant, budget_tokens as budget, c.is_bound,
    first_position + (bin_tokens - 1) / 2 as position,
    sum(t.kept_mass_frac * t.n_steps order by layer) / sum(t.n_steps) as kept,
    sum(t.popular_frac * t.n_steps order by layer) / sum(t.n_steps) as popular
from kv_timeline t join chosen c using (trace_id, policy, parameters, renorm)
where t.n_steps > 0 group by all order by all
"""
_TABLE_3 = """
select model, split_part(setting, ' ', 1) as task, nullif(regexp_extract(setting, 'budget=([0-9]+)', 1), '')::bigint as budget,
    value as accuracy
from claims where paper = 'kelle' and location = 'Table 3' order by all
"""
_TABLE_4 = """
select model, split_part(setting, ' ', 1) as task, regexp_extract(setting, 'interval=([0-9]+)', 1)::double as at,
    if(setting like '%2drp', '2DRP', 'uniform') as variant, value as accuracy
from claims where paper = 'kelle' and location = 'Table 4' order by all
"""


def quality(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Perplexity over that without eviction or losses, or accuracy, of live models: mean over seeds, the least, the most."""
    return connection.sql(_QUALITY).pl()


def pareto(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Perplexity of live models beside their energy, in mJ per decoded token, on a machine."""
    return connection.sql(_PARETO).pl()


def divergence(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Tokens that a replayed tape and the live run both keep, by layer, over seeds."""
    return connection.sql(_DIVERGENCE).pl()


def kept(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Recorded attention mass that policies keep of a tape, and bytes of either form."""
    return connection.sql(_KEPT).pl()


def timeline(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Kept mass and popular tokens by query position, over all layers."""
    return connection.sql(_TIMELINE).pl()


def table_3(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The paper's accuracies (%) by task and budget."""
    return connection.sql(_TABLE_3).pl()


def table_4(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The paper's accuracies (%) by task, mean interval and way to refresh."""
    return connection.sql(_TABLE_4).pl()
