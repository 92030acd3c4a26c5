"""What the SliceMoE page asks of the warehouse about replays: one SQL question per function, with the charts' names.

Every function takes an open read-only DuckDB connection and returns a polars frame; fractions stay fractions. `low` and `high`
are the least and the most of the seeds.
"""

from __future__ import annotations

import duckdb
import polars as pl

MATCHED_FRAC = 0.95  # kept gate mass at which the study reads its sweeps (flows/systems/slicemoe/study.toml)

# tau is text, empty where the precision has none: menus and charts compare texts. A router other than Cache-Prior names the line.
_SWEPT = """
swept as (
    select p.* replace (coalesce(tau::varchar, '') as tau, case when router = 'cache_prior' then configuration
            when configuration = 'high-bit' then router else configuration || ' ' || router end as configuration),
        if(capacity_bytes >= 1e9, round(capacity_bytes / 1e9, 2) || ' GB', round(capacity_bytes / 1e6, 2) || ' MB') as cache,
        capacity_bytes / 1e9 as gb, coalesce(origin, '') = 'captured' as is_captured
    from slicemoe_points p left join traces using (trace_id)
    where study = 'slicemoe' and budget = 'none' and (p.model_id, capacity_bytes) in
        (select (model_id, capacity_bytes) from slicemoe_points where configuration = 'dbsc' and budget = 'none')
)
"""

# Where a sweep first falls to the quality, linear between two strengths; a sweep that starts below it is read at its first point,
# one that stays above at its last: such a reading is not `matched`.
_GAINS = f"""
with {_SWEPT},
stepped as (
    select *, quality_frac < $quality as is_below, row_number() over w as place, count(*) over s as n,
        count(*) filter (quality_frac < $quality) over w as n_below,
        (lag(quality_frac) over w - $quality) / (lag(quality_frac) over w - quality_frac) as share,
        lag(decode_energy_j_per_token) over w as energy_before, lag(decode_step_s) over w as step_before,
        lag(high_bit_miss_frac) over w as miss_before
    from swept
    window s as (partition by trace_id, hardware, capacity_bytes, pair, configuration, tau, warmup),
        w as (s order by strength)
),
read_off as (
    select model_id as model, seed, hardware, gb, cache, is_captured, pair, tau, is_below and place > 1 as matched,
        configuration || if(warmup = 'last_layer', '', ' + ' || warmup) as series,
        case when matched then energy_before + (decode_energy_j_per_token - energy_before) * share
            else decode_energy_j_per_token end as energy,
        case when matched then step_before + (decode_step_s - step_before) * share else decode_step_s end as step,
        case when matched then miss_before + (high_bit_miss_frac - miss_before) * share else high_bit_miss_frac end as miss
    from stepped where (is_below and n_below = 1) or (n_below = 0 and place = n)
),
compared as (
    select o.* exclude (step, matched), o.matched, b.matched as matched_high_bit, b.energy as energy_high_bit,
        b.miss as miss_high_bit, b.energy / o.energy as energy_gain, b.step / o.step as speedup
    from read_off o join read_off b using (model, seed, hardware, gb, pair)
    where b.series = 'high-bit' and o.series <> 'high-bit'
)
select model, gb, cache, is_captured, pair, tau, series, metric, bool_and(matched) as matched,
    bool_and(matched_high_bit) as matched_high_bit, count(*) as seeds, avg(gain order by seed) as gain, min(gain) as low,
    max(gain) as high, avg(miss order by seed) as miss, avg(miss_high_bit order by seed) as miss_high_bit,
    avg(energy order by seed) as energy, avg(energy_high_bit order by seed) as energy_high_bit
from (unpivot compared on energy_gain, speedup into name metric value gain)
group by all order by all
"""

_PAPER_GAINS = """
select lower(model) as model, model as name, replace(metric, 'decode_', '') as metric, max(value) as paper from claims
where paper = 'slicemoe' and location like '%Fig 9%' and metric in ('decode_energy_gain', 'decode_speedup') and value is not null
group by all order by all
"""

_SWEEPS = f"""
with {_SWEPT}
select model_id as model, gb, cache, is_captured, pair, tau, configuration, strength, count(*) as seeds,
    avg(quality_frac order by seed) as kept, min(quality_frac) as kept_low, max(quality_frac) as kept_high,
    avg(high_bit_miss_frac order by seed) as miss, min(high_bit_miss_frac) as miss_low, max(high_bit_miss_frac) as miss_high,
    avg(decode_energy_j_per_token order by seed) as energy, min(decode_energy_j_per_token) as energy_low,
    max(decode_energy_j_per_token) as energy_high
from swept where warmup = 'last_layer' group by all order by all
"""

# Under a hard budget the high-bit cache is swept twice: as it is, and with its router pulled towards resident experts.
_BUDGETS = """
select model_id as model, capacity_bytes / 1e9 as gb, pair, if(configuration = 'high-bit' and strength > 0, 'cache_prior',
        configuration) as configuration, regexp_extract(budget, '^hard (.+)$', 1)::double as target,
    max(strength) over (partition by model_id) as strength, seed, flash_energy_frac, high_bit_miss_frac
from slicemoe_points where study = 'slicemoe' and budget like 'hard %' and warmup = 'last_layer' and router = 'cache_prior'
"""

_FLASH = f"""
select * exclude (seed, flash_energy_frac, high_bit_miss_frac), count(*) as seeds, avg(flash_energy_frac order by seed) as flash,
    min(flash_energy_frac) as low, max(flash_energy_frac) as high, avg(high_bit_miss_frac order by seed) as miss,
    min(high_bit_miss_frac) as miss_low, max(high_bit_miss_frac) as miss_high
from ({_BUDGETS}) group by all order by all
"""

_WARMUPS = """
with relative as (
    select o.model_id as model, o.warmup, o.budget, o.capacity_bytes / 1e9 as gb, o.strength, o.window_steps as steps, o.seed,
        o.decode_energy_j_per_token / e.decode_energy_j_per_token as energy, o.decode_step_s / e.decode_step_s as latency
    from warmup_points o
    join warmup_points e using (study, trace_id, hardware, capacity_bytes, budget, strength, window_steps)
    where study = 'slicemoe' and e.warmup = 'empty'
)
select model, warmup, budget, gb, strength, steps, metric, avg(ratio order by seed) as ratio, min(ratio) as low,
    max(ratio) as high, count(*) as seeds
from (unpivot relative on energy, latency into name metric value ratio) group by all order by all
"""


def gains(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """How many times less energy and time than the high-bit cache, at equal kept gate mass, per place and series."""
    return connection.sql(_GAINS, params={"quality": MATCHED_FRAC}).pl()


def paper_gains(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The paper's largest gains per model and metric."""
    return connection.sql(_PAPER_GAINS).pl()


def sweeps(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Kept gate mass, misses and joules per token of every configuration at every strength, over seeds."""
    return connection.sql(_SWEEPS).pl()


def flash(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Share of a decoded token's energy that Flash takes under hard budgets, over seeds."""
    return connection.sql(_FLASH).pl()


def warmups(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Energy and latency of every initial cache over those of an empty one, seed by seed, for every window."""
    return connection.sql(_WARMUPS).pl()
