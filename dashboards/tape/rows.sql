-- tapes: Tapes in the order of the catalogue: captured and replayed ones first.
with counts as (select trace_id, count(*) as n_replays from replays group by trace_id)
select trace_id as trace, trace_id || ': ' || model_id || ', ' || dataset || ' (' || origin || ')' as words, model_id as model, dataset, origin,
    n_requests, n_tokens, n_layers, n_moe_layers, n_experts, top_k, top_k / nullif(n_experts, 0) as share, replace(tables, ',', ', ') as tables,
    coalesce(n_replays, 0) as n_replays
from traces left join counts using (trace_id) order by n_replays > 0 desc, origin = 'captured' desc, n_replays desc, created_utc desc, trace_id
limit $size

-- reuse: Histogram of reuse distances (low, high] in distinct experts, as shares of the lookups, with the running sum `within`.
-- Reuse distances: an LRU of capacity c hits what an LRU of c - 1 missed when the distance is c. At most 64 bins, never
-- narrower than the curve's own step (per-layer caches grow by one expert in every layer at a time).
with chosen as (
    select r.replay_id, r.trace_id, r.scope, r.start, {rules} as rules, r.cycle_experts
    from replays r semi join lru_curves c using (replay_id)
    where r.trace_id in (select trace from ({tapes}))
    qualify row_number() over (partition by r.trace_id, r.scope order by r.start <> 'persistent', rules, r.replay_id) = 1
),
steps as (
    select trace_id, scope, start, rules, cycle_experts, n_lookups, capacity_experts as distance,
        n_hits - lag(n_hits, 1, 0) over (partition by replay_id order by capacity_experts) as n,
        min(capacity_experts) over (partition by replay_id) as step,
        max(capacity_experts) over (partition by replay_id) as longest
    from lru_curves join chosen using (replay_id)
),
binned as (select *, greatest(1, ceil(longest / step / 64)) * step as width, ceil(distance / width) as bin from steps)
select trace_id as trace, scope, start, rules, any_value(cycle_experts) as cycle_experts,
    (bin - 1) * width as low, least(any_value(longest), bin * width) as high,
    round(sum(n) / any_value(n_lookups), 6) as share,
    round(sum(sum(n)) over (partition by trace_id, scope, rules order by bin) / any_value(n_lookups), 6) as within
from binned group by trace_id, scope, start, rules, width, bin
order by trace, scope, rules, low

-- popularity: Per trace, phase and layer: `times`, each expert's selections as a multiple of an even share.
-- Selections of each expert as a multiple of an even share of its layer; one row per layer, experts in order.
with layers as (select trace_id, phase, layer, sum(n_selected) as total from popularity group by all),
grid as (
    select l.*, t.n_experts, unnest(range(t.n_experts)) as expert from layers l join traces t using (trace_id)
    where trace_id in (select trace from ({tapes})) and total > 0
)
select trace_id as trace, phase, layer, list(round(coalesce(n_selected, 0) * n_experts / total, 2) order by expert) as times
from grid left join popularity using (trace_id, phase, layer, expert)
group by all order by trace, phase, layer

-- crowd: Per trace and phase: share of selections of the top tenth of the experts; experts never selected.
-- The share of selections that the most selected tenth of all experts takes, and how many are never selected.
with counts as (
    select trace_id, phase, n_selected,
        row_number() over (partition by trace_id, phase order by n_selected desc, layer, expert) as place
    from popularity where trace_id in (select trace from ({tapes}))
)
select trace_id as trace, phase,
    sum(n_selected) filter (place <= ceil(n_moe_layers * n_experts / 10.0)) / sum(n_selected) as top_tenth,
    n_moe_layers * n_experts - count(*) filter (n_selected > 0) as n_unused, n_moe_layers * n_experts as n_all,
    ceil(n_all / 10) / n_all as even
from counts join traces using (trace_id)
group by trace_id, phase, n_moe_layers, n_experts having sum(n_selected) > 0 order by trace, phase

-- locality: Per trace, phase and layer: overlap of consecutive tokens' experts, and what chance would give.
select trace_id as trace, phase, layer, round(overlap_frac, 7) as overlap, round(chance_frac, 7) as chance
from locality where trace_id in (select trace from ({tapes})) order by trace, phase, layer

-- similarity: Per trace and layer: cosine between prefill and decode expert frequencies.
select trace_id as trace, layer, round(cosine, 7) as cosine
from similarity where trace_id in (select trace from ({tapes})) order by trace, layer

-- touched: Share of a layer's experts that tokens touch together, means over layers: recorded, and what closed forms make of top-k and popularity.
with geometry as (select trace_id, n_experts, top_k from traces),
touched as (
    select trace_id, phase, layer, x::bigint as n_tokens, value as coverage_frac from profiles
    where metric = 'coverage_frac' and trace_id in (select trace from ({tapes}))
),
sizes as (select distinct trace_id, phase, n_tokens from touched),
used as (  -- chance that a token selects the expert
    select trace_id, phase, layer, n_selected * top_k / sum(n_selected) over (partition by trace_id, phase, layer) as chance
    from popularity join geometry using (trace_id)
),
every as (
    select trace_id, phase, n_tokens, 'recorded' as form, avg(coverage_frac order by layer) as covered, min(coverage_frac) as low, max(coverage_frac) as high
    from touched group by all
    union all by name
    select trace_id, phase, n_tokens, 'independent, as often as recorded' as form,
        sum(1 - pow(1 - least(1, chance), n_tokens) order by layer, chance) / (any_value(n_experts) * count(distinct layer)) as covered
    from sizes join used using (trace_id, phase) join geometry using (trace_id) group by all
    union all by name
    select trace_id, phase, n_tokens, 'independent, all alike' as form, 1 - pow(1 - top_k / n_experts, n_tokens) as covered
    from sizes join geometry using (trace_id)
    union all by name
    select trace_id, phase, n_tokens, 'no expert twice' as form, least(1, n_tokens * top_k / n_experts) as covered from sizes join geometry using (trace_id)
)
select trace_id as trace, phase, n_tokens, form, covered, low, high, list_position($FORMS, form) as place from every order by trace, phase, place, n_tokens

-- attended: Shares of the attention of last queries by part of the context, layer by layer.
select trace_id as trace, layer, map($CONTEXT, $CONTEXT_words)[part] as part, value as frac, n as n_queries, list_position($CONTEXT, part) as place
from profiles where metric = 'attention_frac' and trace_id in (select trace from ({tapes})) order by trace, layer, place

-- accepted: Drafted nodes verified and accepted, by depth.
select trace_id as trace, x::bigint as depth, n as n_verified, value as frac from profiles
where metric = 'accepted_frac' and trace_id in (select trace from ({tapes})) order by trace, depth
