-- rules: a replay's semantics as one text, part of others
concat_ws('|', r.lookup, r.recency, r.prefill, r.start, r.overflow, r.fetching, r.expert_format)

-- reuse: Histogram of reuse distances (low, high] in distinct experts, as shares of the lookups, with the running sum `within`.
-- Reuse distances: an LRU of capacity c hits what an LRU of c - 1 missed when the distance is c. At most 64 bins, never
-- narrower than the curve's own step (per-layer caches grow by one expert in every layer at a time).
with chosen as (
    select r.replay_id, r.trace_id, r.scope, {rules} as rules, r.cycle_experts
    from replays r semi join lru_curves c using (replay_id)
    where r.trace_id in (select unnest($traces))
    qualify row_number() over (partition by r.trace_id, r.scope, rules order by r.replay_id) = 1
),
steps as (
    select trace_id, scope, rules, cycle_experts, n_lookups, capacity_experts as distance,
        n_hits - lag(n_hits, 1, 0) over (partition by replay_id order by capacity_experts) as n,
        min(capacity_experts) over (partition by replay_id) as step,
        max(capacity_experts) over (partition by replay_id) as longest
    from lru_curves join chosen using (replay_id)
),
binned as (select *, greatest(1, ceil(longest / step / 64)) * step as width, ceil(distance / width) as bin from steps)
select trace_id as trace, scope, rules, any_value(cycle_experts) as cycle_experts,
    (bin - 1) * width as low, least(any_value(longest), bin * width) as high,
    round(sum(n) / any_value(n_lookups), 6) as share,
    round(sum(sum(n)) over (partition by trace_id, scope, rules order by bin) / any_value(n_lookups), 6) as within
from binned group by trace_id, scope, rules, width, bin
order by trace, scope, rules, low

-- popularity: Per trace, phase and layer: `times`, each expert's selections as a multiple of an even share.
-- Selections of each expert as a multiple of an even share of its layer; one row per layer, experts in order.
with layers as (select trace_id, phase, layer, sum(n_selected) as total from popularity group by all),
grid as (
    select l.*, t.n_experts, unnest(range(t.n_experts)) as expert from layers l join traces t using (trace_id)
    where trace_id in (select unnest($traces)) and total > 0
)
select trace_id as trace, phase, layer, list(round(coalesce(n_selected, 0) * n_experts / total, 2) order by expert) as times
from grid left join popularity using (trace_id, phase, layer, expert)
group by all order by trace, phase, layer

-- crowd: Per trace and phase: share of selections of the top tenth of the experts; experts never selected.
-- The share of selections that the most selected tenth of all experts takes, and how many are never selected.
with counts as (
    select trace_id, phase, n_selected,
        row_number() over (partition by trace_id, phase order by n_selected desc, layer, expert) as place
    from popularity where trace_id in (select unnest($traces))
)
select trace_id as trace, phase,
    sum(n_selected) filter (place <= ceil(n_moe_layers * n_experts / 10.0)) / sum(n_selected) as top_tenth,
    n_moe_layers * n_experts - count(*) filter (n_selected > 0) as n_unused, n_moe_layers * n_experts as n_all
from counts join traces using (trace_id)
group by trace_id, phase, n_moe_layers, n_experts having sum(n_selected) > 0 order by trace, phase

-- locality: Per trace, phase and layer: overlap of consecutive tokens' experts, and what chance would give.
select trace_id as trace, phase, layer, round(overlap_frac, 4) as overlap, round(chance_frac, 4) as chance
from locality where trace_id in (select unnest($traces)) order by trace, phase, layer

-- similarity: Per trace and layer: cosine between prefill and decode expert frequencies.
select trace_id as trace, layer, round(cosine, 4) as cosine
from similarity where trace_id in (select unnest($traces)) order by trace, layer
