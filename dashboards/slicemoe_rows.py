"""What the SliceMoE page asks of the warehouse: one SQL question per function, with the names the charts use.

Every function takes an open read-only DuckDB connection and returns a polars frame; fractions stay fractions. `low` and `high`
are the least and the most of the seeds.
"""

from __future__ import annotations

import duckdb
import polars as pl

MATCHED_FRAC = 0.95  # kept gate mass at which the study reads its sweeps (flows/systems/slicemoe/study.toml)

# A claim that states a bound says so by its comparator, or in words where it has none.
_CLAIMS = """
select c.claim_id, location, role, replace(metric, '_', ' ') as quantity, coalesce(model, '') as model, setting, unit, statistic,
    c.value as paper, a.value as replay, low, high, a.value / nullif(c.value, 0) - 1 as error, coalesce(how, '') as how,
    case when comparator in ('<=', '<') then '<=' when comparator in ('>=', '>') or setting similar to '.*(at least|more than).*'
        then '>=' else '' end as bound
from claims c left join answers a using (claim_id)
where paper = 'slicemoe' order by claim_id, mode
"""

# tau is text, empty where the precision has none: menus and charts compare texts.
_SWEPT = """
swept as (
    select * replace (coalesce(tau::varchar, '') as tau), (capacity_bytes / 1e9)::varchar || ' GB' as cache,
        capacity_bytes / 1e9 as gb
    from sliced_points
    where study = 'slicemoe' and budget = 'none'
        and capacity_bytes in (select capacity_bytes from sliced_points where configuration = 'dbsc' and budget = 'none')
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
    window s as (partition by trace_id, hardware, capacity_bytes, configuration, tau, warmup), w as (s order by strength)
),
read_off as (
    select model_id as model, seed, hardware, gb, cache, tau, is_below and place > 1 as matched,
        case when configuration = 'dbsc' and warmup = 'pcw' then 'DBSC + PCW' else configuration end as series,
        case when matched then energy_before + (decode_energy_j_per_token - energy_before) * share
            else decode_energy_j_per_token end as energy,
        case when matched then step_before + (decode_step_s - step_before) * share else decode_step_s end as step,
        case when matched then miss_before + (high_bit_miss_frac - miss_before) * share else high_bit_miss_frac end as miss
    from stepped where (is_below and n_below = 1) or (n_below = 0 and place = n)
),
compared as (
    select o.* exclude (step, matched), o.matched and b.matched as matched, b.energy as energy_high_bit,
        b.miss as miss_high_bit, b.energy / o.energy as energy_gain, b.step / o.step as speedup
    from read_off o join read_off b using (model, seed, hardware, gb)
    where b.series = 'high-bit' and o.series in ('dbsc', 'DBSC + PCW', 'low-bit')
)
select model, gb, cache, tau, if(series = 'dbsc', 'DBSC', series) as series, metric, bool_and(matched) as matched,
    count(*) as seeds, avg(gain) as gain, min(gain) as low, max(gain) as high, avg(miss) as miss,
    avg(miss_high_bit) as miss_high_bit, avg(energy) as energy, avg(energy_high_bit) as energy_high_bit
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
select model_id as model, cache, tau, configuration, strength, count(*) as seeds, avg(quality_frac) as kept,
    min(quality_frac) as kept_low, max(quality_frac) as kept_high, avg(high_bit_miss_frac) as miss,
    min(high_bit_miss_frac) as miss_low, max(high_bit_miss_frac) as miss_high, avg(decode_energy_j_per_token) as energy,
    min(decode_energy_j_per_token) as energy_low, max(decode_energy_j_per_token) as energy_high
from swept where warmup = 'last_layer' group by all order by all
"""

_WARMUPS = """
with held as (select * from sliced_points where study = 'slicemoe' and budget <> 'none'),
relative as (
    select o.model_id as model, o.warmup, o.seed, o.budget, o.capacity_bytes / 1e9 as gb, o.strength,
        o.early_energy_j_per_token / e.early_energy_j_per_token as "energy, first ten steps",
        o.early_step_s / e.early_step_s as "latency, first ten steps",
        o.decode_energy_j_per_token / e.decode_energy_j_per_token as "energy, whole decode",
        o.decode_step_s / e.decode_step_s as "latency, whole decode"
    from held o join held e using (trace_id, hardware, capacity_bytes, configuration, tau, budget, strength)
    where e.warmup = 'empty'
)
select model, warmup, budget, gb, strength, panel, avg(ratio) as ratio, min(ratio) as low, max(ratio) as high, count(*) as seeds
from (unpivot relative on columns('energy,.*|latency,.*') into name panel value ratio)
group by all order by all
"""

# A setup is everything but the precision and the budget, which the chart varies.
_QUALITY = """
with told as (
    select *, json_merge_patch(parameters::json, '{"precision": null, "precision.tau": null, "budget": null,
            "budget.target_frac": null, "budget.gain": null}'::json)::varchar as rest,
        coalesce(parameters ->> '$.precision', 'dbsc') as configuration,
        coalesce(parameters ->> '$."precision.tau"', '') as tau, coalesce(parameters ->> '$.budget', 'none') as budget,
        (parameters ->> '$."budget.target_frac"')::double as target
    from quality where policy = 'slicemoe' and miss_frac is not null and coalesce(perplexity, accuracy) is not null
)
select model_id as model, dataset, rest, configuration, tau, budget, target, perplexity is null as is_accuracy,
    count(*) as seeds, avg(coalesce(perplexity, accuracy)) as value, min(coalesce(perplexity, accuracy)) as low,
    max(coalesce(perplexity, accuracy)) as high, avg(miss_frac) as miss, min(miss_frac) as miss_low, max(miss_frac) as miss_high
from told group by all order by all
"""

_FIDELITY = """
select model_id as model, dataset, parameters as rest, hardware, metric, unit, count(*) as seeds, avg(open_loop) as opened,
    avg(closed_loop) as closed, avg(open_loop / closed_loop - 1) as error, min(open_loop / closed_loop - 1) as low,
    max(open_loop / closed_loop - 1) as high
from fidelity where closed_loop <> 0 group by all order by all
"""


def claims(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Every number of the paper, with the study's answer where there is one; bound: <= or >= where the paper states no value."""
    return connection.sql(_CLAIMS).pl()


def gains(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """How many times less energy and time than the high-bit cache, at equal kept gate mass, per model, cache, tau and series."""
    return connection.sql(_GAINS, params={"quality": MATCHED_FRAC}).pl()


def paper_gains(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The paper's largest gains per model and metric."""
    return connection.sql(_PAPER_GAINS).pl()


def sweeps(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Kept gate mass, misses and joules per token of every configuration at every strength, over seeds."""
    return connection.sql(_SWEEPS).pl()


def warmups(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Energy and latency of every initial cache over those of an empty one, seed by seed."""
    return connection.sql(_WARMUPS).pl()


def quality(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Perplexity, or accuracy where there is none, and misses that were measured inside a model, over seeds."""
    return connection.sql(_QUALITY).pl()


def fidelity(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Open loop over closed loop - 1, per setup and quantity, over seeds."""
    return connection.sql(_FIDELITY).pl()
