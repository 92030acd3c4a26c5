-- What a tape looks like, computed once per tape at load. `tape` (one row: trace_id, n_experts, top_k), `tape_routing` and
-- `tape_passes` are the tape at hand. Sums are of integers, so that the result does not depend on the order of threads.

-- The first ten decode steps are counted by position: passes of a batch hold steps of several requests.
insert into popularity
with routed as (select request_id, position, layer, kind as phase, expert_ids from tape_routing join tape_passes using (pass_id)),
early as (
    from (select distinct request_id, position from routed where phase = 'decode')
    qualify row_number() over (partition by request_id order by position) <= 10
),
selected as (
    select layer, phase, phase = 'decode' and e.position is not null as is_early, unnest(expert_ids) as expert
    from routed left join early e using (request_id, position)
)
select trace_id, layer, expert, phase, count(*), count(*) filter (is_early)
from tape, selected group by all order by layer, expert, phase;

-- Consecutive tokens of a request in the same layer; tokens of a draft have no single predecessor and are left out.
insert into locality
with pairs as (
    select layer, kind as phase, position, expert_ids,
        lag(position) over earlier as last_position, lag(expert_ids) over earlier as last_ids
    from tape_routing join tape_passes using (pass_id)
    where kind in ('prefill', 'decode')
    window earlier as (partition by request_id, layer order by position)
)
select trace_id, layer, phase,
    sum(len(list_filter(expert_ids, lambda e: list_contains(last_ids, e))))::double / (count(*) * top_k) as overlap_frac,
    top_k / n_experts as chance_frac
from tape, pairs where last_position = position - 1
group by trace_id, layer, phase, top_k, n_experts order by layer, phase;

-- Gate weights of a token in a layer, largest first; where an import has none there is no row.
create or replace temp view tape_gates as
select layer, position, pass_id, list_reverse_sort(gate_weights::double[]) as weights, list_sum(weights) as total
from tape_routing where total > 0 and isfinite(total);

-- tau: the thresholds of the SliceMoE study. At most 32 bins, so that a long tape stays small.
insert into critical_experts
with binned as (select greatest(1, ceil((max(position) + 1) / 32))::integer as bin_tokens from tape_gates)
select trace_id, layer, tau, position // bin_tokens * bin_tokens as first_position, bin_tokens, count(*) as n_routed,
    sum(len(list_filter(weights, lambda w: w / total > tau)))
from tape, tape_gates, binned, (select unnest([0.35, 0.5, 0.7])::double as tau)
group by all order by layer, tau, first_position;

-- Shares in billionths, which are integers.
insert into gate_curve
with shares as (
    select layer, kind as phase, unnest(range(1, len(weights) + 1)) as gate_rank,
        unnest(list_transform(weights, lambda w: round(w / total * 1e9)::bigint)) as billionths
    from tape_gates join tape_passes using (pass_id)
)
select trace_id, layer, phase, gate_rank, sum(billionths)::double / count(*) / 1e9 as gate_frac, count(*) as n_routed
from tape, shares group by all order by layer, phase, gate_rank;
