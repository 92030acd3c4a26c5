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
insert into profiles
with pairs as (
    select layer, kind as phase, position, expert_ids,
        lag(position) over earlier as last_position, lag(expert_ids) over earlier as last_ids
    from tape_routing join tape_passes using (pass_id)
    where kind in ('prefill', 'decode')
    window earlier as (partition by request_id, layer order by position)
)
select trace_id, 'overlap_frac', phase, layer, null, null,
    sum(len(list_filter(expert_ids, lambda e: list_contains(last_ids, e))))::double / (count(*) * top_k), count(*)
from tape, pairs where last_position = position - 1
group by trace_id, layer, phase, top_k order by layer, phase;

-- Batches of decoded tokens are of different requests as far as there are any: the first token of each, then the second.
insert into profiles
with stepped as (
    select layer, kind as phase, request_id, position, expert_ids,
        row_number() over (partition by request_id, layer, kind order by position) as step
    from tape_routing join tape_passes using (pass_id) where kind in ('prefill', 'decode')
),
turns as (
    select layer, phase, expert_ids, row_number() over (
        partition by layer, phase order by if(phase = 'decode', step, 0), request_id, position) - 1 as turn,
        least(4096, count(*) over (partition by layer, phase)) as n_turns
    from stepped qualify turn < 4096
),
sizes as (select unnest([1, 2, 4, 8, 16, 32, 64, 128, 256]) as n_tokens),
whole as (
    select layer, phase, n_tokens, turn // n_tokens as batch, expert_ids from turns, sizes
    where (turn // n_tokens + 1) * n_tokens <= n_turns
),
distinct_experts as (
    select layer, phase, n_tokens, batch, count(distinct expert) as n
    from (select layer, phase, n_tokens, batch, unnest(expert_ids) as expert from whole) group by all
)
select trace_id, 'coverage_frac', phase, layer, null, n_tokens, sum(n)::double / (count(*) * n_experts), count(*)
from tape, distinct_experts group by trace_id, layer, phase, n_tokens, n_experts order by layer, phase, n_tokens;

-- Parts of the context by the last query of each request that has a row of its own, if it is whole: of one that lists its largest
-- masses alone nobody knows how many make a tenth. Shares in billionths.
insert into profiles
with last_rows as (
    from tape_attention where reduction = 'row'
    qualify row_number() over (partition by request_id, layer, kv_head order by position desc) = 1 and rest = 0
),
cells as (
    select request_id, layer, kv_head, position, unnest(mass)::double as mass, list_sum(mass::double[]) + rest as whole,
        unnest(coalesce(key_positions::bigint[], range(len(mass)))) as key_position
    from last_rows
),
placed as (
    select *, case when key_position = 0 then 'first' when key_position < 4 then 'sinks' when key_position > position - 32 then 'recent' end as near
    from cells where whole > 0
),
parted as (
    select layer, round(mass / whole * 1e9)::bigint as billionths, request_id, kv_head, coalesce(near, if(row_number() over (
        partition by request_id, layer, kv_head, near order by mass desc, key_position)
        <= ceil(0.1 * count(*) over (partition by request_id, layer, kv_head, near)), 'heavy', 'others')) as context_part
    from placed
)
select trace_id, 'attention_frac', null, layer, context_part, null, sum(billionths)::double / 1e9 / n, n
from tape, parted join (select layer, count(*) as n from last_rows group by layer) using (layer)
group by trace_id, layer, context_part, n order by layer, context_part;

insert into profiles
select trace_id, 'accepted_frac', null, null, null, depth, count(*) filter (is_accepted)::double / count(*), count(*)
from tape, tape_acceptance where is_verified group by trace_id, depth order by depth;

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
