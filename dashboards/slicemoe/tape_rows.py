"""What the SliceMoE page asks of the tapes' summaries: experts of the prompt and of early decode, critical experts, gate curves.

`layer` is text, and `all` stands for all layers together: menus compare texts. Values of a tape's layer are lists in one row, so
that a page stays small. Every function takes an open read-only DuckDB connection and returns a polars frame.
"""

from __future__ import annotations

import duckdb
import polars as pl

ALL = "all"  # sorted behind every layer

# Recorded tapes before drawn ones, the study's before others.
_TAPES = """
select trace_id, model_id, dataset, origin from traces
where trace_id in (select trace_id from early_popularity union select trace_id from critical_experts)
order by (origin <> 'synthetic') desc, (trace_id in (select trace_id from slicemoe_points)) desc, created_utc desc, trace_id
limit $size
"""

# Every expert of a layer with its selections in prefill (p) and early decode (d). Sums are of integers, or in a fixed order: the
# same warehouse gives the same page. Expert ids of two layers have nothing in common: all layers are averaged by rank in prefill.
_EARLY = f"""
with used as (
    select trace_id, layer, expert, n_selected as p, 0 as d from popularity where phase = 'prefill'
    union all select trace_id, layer, expert, 0, n_selected from early_popularity
),
grid as (
    select trace_id, layer, unnest(range(n_experts)) as expert
    from (select distinct trace_id, layer from used where trace_id in (select unnest($traces))) join traces using (trace_id)
),
counted as (
    select trace_id, layer, expert, coalesce(sum(p), 0)::hugeint as p, coalesce(sum(d), 0)::hugeint as d
    from grid left join used using (trace_id, layer, expert) group by all
),
ranked as (
    select *, 100 * p / sum(p) over l as p_share, 100 * d / sum(d) over l as d_share,
        row_number() over (l order by p desc, expert) - 1 as rank
    from counted window l as (partition by trace_id, layer) qualify sum(p) over l > 0 and sum(d) over l > 0
),
sums as (
    select trace_id, layer, count(*) as n, sum(p) as sp, sum(d) as sd, sum(p * p) as pp, sum(d * d) as dd, sum(p * d) as pd,
        sum(d) filter (rank < n_experts // 2) / sum(d) as of_first_half,
        list(round(p_share, 2) order by expert) as prefill, list(round(d_share, 2) order by expert) as early
    from ranked join traces using (trace_id) group by trace_id, layer
),
layers as (
    select *, pd / sqrt(pp::double * dd) as cosine,
        (n * pd - sp * sd) / nullif(sqrt((n * pp - sp * sp)::double * (n * dd - sd * sd)), 0) as correlation
    from sums
),
averaged as (
    select trace_id, rank, avg(p_share order by layer) as p_share, avg(d_share order by layer) as d_share
    from ranked group by trace_id, rank
),
together as (
    select trace_id, list(round(p_share, 2) order by rank) as prefill, list(round(d_share, 2) order by rank) as early
    from averaged group by trace_id
)
select trace_id as trace, layer::varchar as layer, layer as place, cosine, correlation, of_first_half, prefill, early from layers
union all
select trace_id, '{ALL}', null, avg(cosine order by l.layer), avg(correlation order by l.layer),
    avg(of_first_half order by l.layer), t.prefill, t.early
from layers l join together t using (trace_id) group by trace_id, t.prefill, t.early
order by trace, place nulls last
"""

# A bin of positions without any token is null.
_CRITICAL = f"""
with told as (
    select trace_id, layer::varchar as layer, layer as place, tau, first_position, bin_tokens, n_routed, n_critical
    from critical_experts where trace_id in (select unnest($traces))
    union all
    select trace_id, '{ALL}', null, tau, first_position, bin_tokens, sum(n_routed), sum(n_critical)
    from critical_experts where trace_id in (select unnest($traces)) group by all
),
grid as (
    select trace_id, layer, tau, unnest(range(0, max(first_position) + 1, any_value(bin_tokens))) as first_position
    from told group by trace_id, layer, tau
)
select trace_id as trace, layer, max(place) as place, tau::varchar as tau, max(bin_tokens) as bin_tokens,
    sum(n_critical) / sum(n_routed) as mean, list(round(n_critical / n_routed, 3) order by first_position) as critical
from grid left join told using (trace_id, layer, tau, first_position)
group by all order by trace, place nulls last, tau
"""

_GATES = f"""
with told as (
    select trace_id, layer::varchar as layer, layer as place, phase, gate_rank, gate_frac, n_routed
    from gate_curve where phase in ('prefill', 'decode') and trace_id in (select unnest($traces))
),
whole as (
    from told union all
    select trace_id, '{ALL}', null, phase, gate_rank, sum(gate_frac * n_routed order by place) / sum(n_routed), sum(n_routed)
    from told group by all
)
select trace_id as trace, layer, max(place) as place, phase, list(round(100 * gate_frac, 2) order by gate_rank) as share
from whole group by all order by trace, place nulls last, phase
"""


def tapes(connection: duckdb.DuckDBPyConnection, size: int) -> pl.DataFrame:
    """The first `size` tapes whose routing is summarised."""
    return connection.sql(_TAPES, params={"size": size}).pl()


def early(connection: duckdb.DuckDBPyConnection, trace_ids: list[str]) -> pl.DataFrame:
    """Per tape and layer: share (%) of the selections of every expert in prefill and in the first ten decode steps, how alike
    they are, and what the half of the experts that prefill used most takes of early decode. Layers without one have no row."""
    return connection.sql(_EARLY, params={"traces": trace_ids}).pl()


def critical(connection: duckdb.DuckDBPyConnection, trace_ids: list[str]) -> pl.DataFrame:
    """Per tape, layer and tau: critical experts of a token in every bin of positions, and over all."""
    return connection.sql(_CRITICAL, params={"traces": trace_ids}).pl()


def gates(connection: duckdb.DuckDBPyConnection, trace_ids: list[str]) -> pl.DataFrame:
    """Per tape, layer and phase: share (%) of a token's gate weight at every rank."""
    return connection.sql(_GATES, params={"traces": trace_ids}).pl()
