"""What the SliceMoE page asks of the warehouse about measurements inside a model: one SQL question per function.

As rows.py: polars frames, fractions, `low` and `high` the least and the most of the seeds.
"""

from __future__ import annotations

import duckdb
import polars as pl

# A panel is a pair and a cache, a setup everything else but the precision and the budget, which the chart varies. `worse`: than
# the high-bit cache of the same seed, which read the same text.
_QUALITY = """
with told as (
    select *, json_merge_patch(parameters::json, '{"precision": null, "precision.tau": null, "budget": null, "pair": null,
            "budget.target_frac": null, "budget.gain": null, "cache_frac": null}'::json)::varchar as rest,
        coalesce(parameters ->> '$.precision', 'dbsc') as configuration, coalesce(parameters ->> '$.pair', 'MAT84') as pair,
        (parameters ->> '$.cache_frac')::double as cache,
        coalesce(parameters ->> '$."precision.tau"', '') as tau, coalesce(parameters ->> '$.budget', 'none') as budget,
        (parameters ->> '$."budget.target_frac"')::double as target, perplexity is null as is_accuracy,
        coalesce(perplexity, accuracy) as level, max(level) filter (configuration = 'high-bit')
            over (partition by model_id, dataset, rest, pair, cache, budget, target, seed, is_accuracy) as base,
        if(is_accuracy, base / nullif(level, 0), level / base) - 1 as worse
    from quality where policy = 'slicemoe' and miss_frac is not null and coalesce(perplexity, accuracy) is not null
)
select model_id as model, dataset, rest, pair, cache, configuration, tau, budget, target, is_accuracy, count(*) as seeds,
    avg(level order by seed) as value, min(level) as low, max(level) as high, avg(miss_frac order by seed) as miss,
    min(miss_frac) as miss_low, max(miss_frac) as miss_high, avg(worse order by seed) as worse, min(worse) as worse_low,
    max(worse) as worse_high
from told group by all order by all
"""

_FIDELITY = """
select model_id as model, dataset, parameters as rest, hardware, metric, unit, count(*) as seeds,
    avg(open_loop order by seed) as opened, avg(closed_loop order by seed) as closed,
    avg(open_loop / closed_loop - 1 order by seed) as error, min(open_loop / closed_loop - 1) as low,
    max(open_loop / closed_loop - 1) as high
from fidelity where closed_loop <> 0 group by all order by all
"""

# A perplexity that is no number or endless has diverged: it is counted, and takes no part in the mean.
_SCHEMES = """
with told as (
    select *, parameters ->> '$.scheme' as scheme, coalesce(parameters ->> '$.pair', '') as pair,
        if(isfinite(perplexity), perplexity, null) as finite,
        max(finite) filter (scheme = 'base_asym') over (partition by model_id, dataset, seed, pair) as base
    from quality where policy = 'precision' and perplexity is not null
)
select model_id as model, dataset, scheme, pair, count(*) as seeds, count(*) - count(finite) as diverged,
    avg(finite order by seed) as value, min(finite) as low, max(finite) as high,
    avg(finite / base order by seed) as over_base, min(finite / base) as over_base_low, max(finite / base) as over_base_high
from told group by all order by all
"""

# The paper's own ratio, at the low width of each pair.
_PAPER_SCHEMES = """
with stated as (
    select model, value, regexp_extract(setting, '^asym (AMAT|Base) (MAT[0-9]+) ([0-9])-bit$', ['scheme', 'pair', 'bits']) as s
    from claims where paper = 'slicemoe' and location = 'Table 1' and value is not null
)
select model, s.pair as pair, max(value) filter (s.scheme = 'AMAT') / max(value) filter (s.scheme = 'Base') as ratio
from stated where s.scheme <> '' and s.bits = right(s.pair, 1) group by all having ratio is not null order by all
"""


def quality(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Perplexity, or accuracy where there is none, and misses that were measured inside a model, over seeds."""
    return connection.sql(_QUALITY).pl()


def schemes(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Perplexity with every expert at the low width of a pair, by scheme; over_base: over the asymmetric base's."""
    return connection.sql(_SCHEMES).pl()


def paper_schemes(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The paper's perplexity of AMAT over that of the asymmetric base, per model and pair."""
    return connection.sql(_PAPER_SCHEMES).pl()


def fidelity(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Open loop over closed loop - 1, per setup and quantity, over seeds."""
    return connection.sql(_FIDELITY).pl()
