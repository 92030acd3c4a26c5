-- What a tape looks like, computed once per tape at load. `tape` (one row: trace_id, n_experts, top_k), `tape_routing` and
-- `tape_passes` are the tape at hand. Sums are of integers, so that the result does not depend on the order of threads.

insert into popularity
with selected as (
    select layer, kind as phase, unnest(expert_ids) as expert
    from tape_routing join tape_passes using (pass_id)
)
select trace_id, layer, expert, phase, count(*)
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

insert into similarity
with counts as (
    select layer, expert,
        coalesce(sum(n_selected) filter (phase = 'prefill'), 0)::hugeint as p,
        coalesce(sum(n_selected) filter (phase = 'decode'), 0)::hugeint as d
    from popularity join tape using (trace_id) group by layer, expert
)
select trace_id, layer, sum(p * d)::double / sqrt(sum(p * p)::double * sum(d * d)::double) as cosine
from tape, counts group by trace_id, layer having sum(p) > 0 and sum(d) > 0 order by layer;
