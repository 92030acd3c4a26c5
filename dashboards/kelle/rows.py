"""What the Kelle page asks of the cost model's rows: one SQL question per function, with the names the charts use.

Every function takes an open read-only DuckDB connection and returns a polars frame. reading: as answers.mode, how a step is
counted and whether knobs are fitted; rows that are physical without a fit are not asked for. Gains are over Original+SRAM at the
same model, workload and batch.
"""

from __future__ import annotations

import duckdb
import polars as pl

PAPER = "kelle"

_READING = """
case when mode = 'paper' and knobs = 'calibrated' then 'paper' when mode = 'paper' and knobs = 'zero' then 'paper, nothing fitted'
    when mode = 'physical' and knobs = 'calibrated' then 'physical' end as reading"""
_IS_READ = "not (mode = 'physical' and knobs = 'zero')"
_POINTS = f"""
with points as (
    select *, {_READING}, model_id as model, dram_overflow_bytes > 0 as is_beyond from kelle_points where {_IS_READ}
)"""
# Energy by part: joules of a step, a row per part.
_PARTS = f"""{_POINTS},
split as (
    select series, setting, setting_value, model, workload, n_decode_tokens, system, reading, energy_j, unnest([
        {{'part': 'DRAM', 'j': dram_j}}, {{'part': 'weight SRAM', 'j': weight_sram_j}}, {{'part': 'KV memory', 'j': kv_j}},
        {{'part': 'refresh', 'j': refresh_j}}, {{'part': 'array and special functions', 'j': array_j}},
        {{'part': 'leakage', 'j': leakage_j}}], recursive := true)
    from points where energy_j is not null
)"""

_READINGS = f"""
select distinct reading from (
    select {_READING} from kelle_points union select {_READING} from kelle_requests
    union select mode from answers where study = $paper union select {_READING.replace("mode", "'paper'")} from kelle_parts
) where reading is not null order by all
"""
_HEADLINE = f"""{_POINTS}
select reading, model, workload, system, speed_gain as speed, energy_gain as energy, is_beyond
from points where series = 'headline' order by all
"""
_PUBLISHED = """
select split_part(setting, ' over ', 1) as system, max(value) filter (metric = 'speedup') as speed,
    max(value) filter (metric = 'energy_efficiency_gain') as energy
from claims where paper = $paper and location similar to '8[.]1[.][23]' and setting like '% over Original+SRAM;%'
group by all order by all
"""
_CHIP = f"""{_PARTS}
select reading, workload, part, avg(j / (energy_j - dram) order by model) as share, count(*) as models
from (select *, max(j) filter (part = 'DRAM') over (partition by reading, model, workload, system) as dram from split
    where series = 'headline' and system = 'Kelle+eDRAM')
where part <> 'DRAM' group by all order by all
"""
_MEMORY = f"""{_PARTS}
select reading, series, setting, n_decode_tokens as decode, part, j / energy_j as share
from split where series = 'edram share' order by all
"""
_SRAM = f"""{_POINTS}
select reading, setting, n_decode_tokens as decode, step_s, step_s / max(step_s) filter (setting = '4 MB')
    over (partition by reading, n_decode_tokens) as over_small
from points where series = 'sram size' and step_s is not null order by all
"""
# Parts over the whole energy of the setting that a series starts from, at the same model and workload; means over models.
_SETTINGS = f"""{_PARTS}
select reading, series, setting, workload, part, avg(j / base order by model) as part_frac, count(*) as models
from (select *, max(energy_j) filter (setting in ('off', '45 us')) over (partition by reading, series, model, workload) as base
    from split where series in ('recompute', 'refresh policy') and system = 'Kelle+eDRAM')
where base is not null group by all order by all
"""
# A table's own points and those around them, with its number where it prints one.
_TABLES = f"""{_POINTS},
stated as (
    select lower(replace(location, ' ', '-')) as series, lower(model) as model, value,
        regexp_extract(setting, '([^ ]+) over', 1) as system, regexp_extract(setting, 'budget=([0-9]+)', 1) as budget,
        regexp_extract(setting, 'batch=([0-9]+)', 1) as batch
    from claims where paper = $paper and location in ('Table 7', 'Table 9')
)
select p.reading, p.series, p.model, p.system, p.batch, p.budget_tokens as budget, p.role, p.energy_gain as gain,
    p.energy_gain * (1 - typical_err_frac) as low, p.energy_gain * (1 + typical_err_frac) as high,
    p.energy_gain * (1 - worst_err_frac) as least, p.energy_gain * (1 + worst_err_frac) as most, s.value as published
from points p left join stated s on s.series = p.series and s.model = p.model and s.system = p.system
    and if(p.series = 'table-7', s.budget = p.budget_tokens::varchar, s.batch = p.batch::varchar)
where p.series in ('table-7', 'table-9') and p.system <> 'Original+SRAM' and p.energy_gain is not null order by all
"""
_SWEEPS = f"""{_POINTS}
select reading, series, setting, setting_value as value, model, workload, system, energy_gain as gain, speed_gain as speed,
    energy_gain * (1 - typical_err_frac) as low, energy_gain * (1 + typical_err_frac) as high,
    energy_gain * (1 - worst_err_frac) as least, energy_gain * (1 + worst_err_frac) as most
from points where series in ('refresh interval', 'edram bandwidth') and system <> 'Original+SRAM' and energy_gain is not null
order by all
"""
_SENSITIVITY = f"""{_POINTS},
means as (
    select reading, setting, avg(energy_gain order by model, workload) as energy,
        avg(speed_gain order by model, workload) as speed, count(energy_gain) as cells
    from points where series = 'sensitivity' and system = 'Kelle+eDRAM' and energy_gain is not null group by all
)
select m.*, c.value as error, energy / max(energy) filter (setting = 'as is') over (partition by reading) - 1 as change
from means m left join kelle_checks c on c."check" = 'mean |ln| error, ' || setting order by all
"""
_EXPLORER = f"""{_POINTS}
select reading, model, workload, batch, system, budget_tokens as budget, speed_gain as speed, energy_gain as energy, is_beyond
from points where series = 'explorer' order by all
"""
_REQUESTS = f"""
select {_READING}, model_id as model, n_context_tokens as context, n_decode_tokens as decode, batch, system, prefill_j, decode_j,
    speed_gain as speed, energy_gain as gain, dram_overflow_bytes as over
from kelle_requests where prefill_j is not null and {_IS_READ} order by all
"""
_RECOMPUTE = """
select model_id as model, workload, batch, mode, recomputed_frac as frac, ops_per_byte, ops_per_s, roof_ops_per_s as roof,
    is_compute_bound, batch / step_s as tokens_per_s, label
from kelle_recompute order by all
"""
_LIFETIMES = """
select model_id as model, batch, budget_tokens as budget, schedule, tensor, start_s * 1e3 as start, seconds * 1e3 as ms,
    (start_s + seconds) * 1e3 as until
from kelle_lifetimes order by all
"""
_RETENTION = """
select sigma, anchor_frac as anchor, interval_s * 1e6 as us, failure_frac as failures, refresh_group as name,
    abs(sigma - (select value from kelle_checks where "check" = 'width of the retention curve')) < 1e-6 as is_default
from kelle_retention order by all
"""
_CHIP_PARTS = """
select part, area_mm2 as area, published_area_mm2 as area_paper, power_w as power, published_power_w as power_paper, knobs
from kelle_parts order by all
"""
_CHECKS = """
select "check" as name, value, published, unit, how from kelle_checks order by all
"""


def readings(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Readings that anything was computed in."""
    return set(_ask(connection, _READINGS)["reading"])


def headline(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Gains in speed and energy of every system, model and workload; null where it does not fit."""
    return _ask(connection, _HEADLINE)


def published(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The paper's average gains over Original+SRAM, by system."""
    return _ask(connection, _PUBLISHED)


def chip(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Shares of Kelle's energy on the chip, means over models."""
    return _ask(connection, _CHIP)


def memory(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Shares of the energy of a larger eDRAM, with and without refresh, by decode length."""
    return _ask(connection, _MEMORY)


def sram(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """A step with more SRAM over one with 4 MB, by decode length."""
    return _ask(connection, _SRAM)


def settings(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Energy by part with and without recomputation and by way of refresh, over that of the first setting."""
    return _ask(connection, _SETTINGS)


def tables(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Tables 7 and 9 and the batches between, low and high: the typical error; published: the paper's number."""
    return _ask(connection, _TABLES)


def sweeps(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Refresh intervals and eDRAM bandwidths that the paper shows without numbers."""
    return _ask(connection, _SWEEPS)


def sensitivity(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Kelle's mean gain with one thing changed, and the mean |ln| error over the paper's ratios that it then has."""
    return _ask(connection, _SENSITIVITY)


def explorer(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Gains over models, workloads, batches and budgets; a system that keeps everything has no budget."""
    return _ask(connection, _EXPLORER)


def requests(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Joules of a prompt and of its output."""
    return _ask(connection, _REQUESTS)


def recompute(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Recomputed share against operations per byte, operations per second, and what the roofline allows."""
    return _ask(connection, _RECOMPUTE)


def lifetimes(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """When a layer's transient data live, in ms."""
    return _ask(connection, _LIFETIMES)


def retention(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Assumed failure rates by refresh interval; name: the group of a marked point; is_default: of the curve that is used."""
    return _ask(connection, _RETENTION)


def chip_parts(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Area and power of the parts beside the paper's shares."""
    return _ask(connection, _CHIP_PARTS)


def checks(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """What was derived anew, beside what the paper says of it."""
    return _ask(connection, _CHECKS)


def _ask(connection: duckdb.DuckDBPyConnection, sql: str) -> pl.DataFrame:
    # An unused parameter is an error to DuckDB.
    return connection.sql(sql, params={"paper": PAPER} if "$paper" in sql else {}).pl()
