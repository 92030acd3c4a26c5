-- systems: part of others: runs of whole systems
select run_id, hardware_sha256 as sha256, trace_id as trace, hardware || coalesce(' ' || nullif(array_to_string(list_transform(map_entries(
        (asked::json->'numbers')::map(varchar, varchar)), lambda e: e.key || '=' || e.value), ' '), ''), '') as machine, system,
    system || if((asked::json->>'name') <> '', '', coalesce(' ' || nullif(array_to_string(changes, ' '), ''), '')) as method,
    if(w.requests = 0, 'all requests', w.requests || ' requests') || if(w.repeats > 0, ', ' || w.repeats || ' times again', '')
        || if(w.output > 0, ', ' || w.output || ' tokens of each at most', '')
        || if(w.batch > 0, ', at most ' || w.batch || ' at once', '') || if(w.rate > 0, ', ' || w.rate || ' arriving per second', ', all there at once')
        || if(w."order" = 'tape', '', ', shuffled') || if(profile = 'physical', '', ', priced by ' || profile)
        || if((asked::json->>'expert_format') = 'auto', '', ', experts ' || (asked::json->>'expert_format'))
        || coalesce(', widths of ' || (asked::json->>'model'), '') as terms,
    capacity_frac as share, is_bound, residency is null and place is null and route is null as holds_all,
    system = 'lru_offload' and list_has_all(['residency=lru', 'residency.scope=global', 'residency.share_kv=false'], changes) as is_lru,
    route is null and precision is null and kv is null and refresh is null as is_exact, outside_envelope as care, 1 as is_system,
    concat_ws('; ', 'schedule ' || schedule, 'draft ' || draft, 'route ' || route, 'precision ' || precision, 'residency ' || residency,
        'prefetch ' || prefetch, 'place ' || place, 'kv ' || kv, 'refresh ' || refresh) as decisions, w.seed as seed,
    concat_ws('; ', 'route ' || route, 'precision ' || precision, 'kv ' || kv, 'refresh ' || refresh) as changed,
    coalesce(system_sha256, sha256(replace(decisions, coalesce(' budget=' || budget, ''), ''))[:20]) as version  -- of runs from before it was told: the same
from (select *, json_merge_patch('{"output": 0}', asked::json->'workload')  -- which runs of before it lack
            ::struct(requests int, repeats int, output int, batch int, rate double, seed int, "order" varchar) as w,
        list_transform(list_filter(map_entries((asked::json->'changes')::map(varchar, varchar)), lambda e: e.key not in ('residency.budget', 'place.budget')),
            lambda e: e.key || '=' || e.value) as changes,
        coalesce(asked::json->>'budget', asked::json->>'$.changes."residency.budget"', asked::json->>'$.changes."place.budget"') as budget from system_runs
    where capacity_frac is not null)

-- caches: part of others: replays of expert caches, one request after the other
select replay_id as run_id, hardware_sha256 as sha256, trace_id as trace, hardware as machine, policy as system,
    if(min(policy) over alike = max(policy) over alike, split_part(policy, '/', -1), policy)  -- without the folder that no other file shares
        || if(policy_params in ('', '{}'), '', ' ' || policy_params) || ', ' || scope as method,
    concat_ws(', ', 'one after the other', lookup, recency, prefill, start, overflow, fetching, expert_format,
        'priced by ' || nullif(profile, 'physical')) as terms,
    capacity_frac as share, is_bound, false as holds_all, policy = 'lru' and scope = 'global' as is_lru, true as is_exact,
    outside_envelope as care, 0 as is_system, 'residency ' || policy || ', ' || scope as decisions, seed, '' as changed, '' as version
from draws where policy <> 'lru-all-capacities' and hardware <> '' window alike as (partition by split_part(policy, '/', -1))

-- numbers: part of others: of every run times in ms and energies in mJ per output token
select run_id, max(1e3 / value) filter (metric = 'tokens_per_s') as token_ms, max(1e3 / high) filter (metric = 'tokens_per_s') as token_low,
    max(1e3 / low) filter (metric = 'tokens_per_s') as token_high, max(1e3 * value) filter (of = 'gap') as gap_ms,
    max(1e3 * low) filter (of = 'gap') as gap_low, max(1e3 * high) filter (of = 'gap') as gap_high,
    max(1e3 * value) filter (metric = 'ttft_mean_s') as ttft_ms, max(1e3 * low) filter (metric = 'ttft_mean_s') as ttft_low,
    max(1e3 * high) filter (metric = 'ttft_mean_s') as ttft_high, max(1e3 * value) filter (of = 'energy') as mj,
    max(1e3 * low) filter (of = 'energy') as mj_low, max(1e3 * high) filter (of = 'energy') as mj_high,
    max(value) filter (metric = 'hit_frac') as hits, max(value / 1e6) filter (metric = 'fetched_bytes_per_token') as fetched,
    max(value) filter (metric = 'total_s') as total_s, max(value) filter (metric = 'total_energy_j') as total_j
from (select *, case when metric in ('tbt_mean_s', 'decode_step_s') then 'gap'
    when metric in ('energy_j_per_output_token', 'decode_energy_j_per_token') then 'energy' else '' end as of from metrics) group by run_id

-- named: part of others: what ran; of a machine or a system that changed: which version
select * exclude (sha256, version) replace (machine || if(
    min(sha256) over of_machine is distinct from max(sha256) over of_machine, ' ' || sha256[:8], '') as machine, method || if(
    min(version) over of_method is distinct from max(version) over of_method, ' ' || version[:8], '') as method)
from (from ({systems}) union all by name from ({caches}))
window of_machine as (partition by machine), of_method as (partition by trace, terms, machine, method)

-- shown: part of others: runs with their numbers, of the tapes that most methods ran on; a seed once, in however many words its room was told: the newest
with every as materialized (from ({named}) join ({numbers}) using (run_id) join (select run_id, written from runs) using (run_id)
    qualify row_number() over (partition by trace, terms, machine, method, round(share, 3), seed order by written desc, run_id) = 1)
select *, count(*) over (partition by trace, terms, machine, method, round(share, 3)) as n_runs
from every where trace in (select trace from every group by trace order by max(is_system) desc, count(*) desc, trace limit $size)

-- ran: part of others: medians over seeds (of a token's time, that of tokens per second), with the lowest and highest end of machine and seeds
select trace, terms, machine, method, min(share) as share, bool_or(holds_all) as holds_all, bool_and(is_exact) as is_exact,
    min(care) as care, min(system) as system, min(decisions) as decisions, min(changed) as changed, max(is_system) as is_system,
    case when bool_or(is_bound) then 'a bound' when bool_or(holds_all) then 'holds all experts' when bool_or(is_lru) then 'LRU'
        else 'a method' end as role,
    1e3 / median(1e3 / token_ms) as token_ms, min(token_low) as token_low, max(token_high) as token_high, median(gap_ms) as gap_ms, min(gap_low) as gap_low,
    max(gap_high) as gap_high, median(ttft_ms) as ttft_ms, min(ttft_low) as ttft_low, max(ttft_high) as ttft_high, median(mj) as mj,
    min(mj_low) as mj_low, max(mj_high) as mj_high, median(hits) as hits, median(fetched) as fetched
from ({shown}) group by trace, terms, machine, method, round(share, 3)

-- placed: part of others: a method in a room; what holds all experts in the fast tier stands in every room
with ran as materialized ({ran}),
rooms as (
    select trace, terms, machine, printf('%g %%', round(100 * share, 1)) as room, min(share) as held, count(distinct method) as n_methods
    from ran where not holds_all group by all
)
select r.* exclude (share), o.room, o.n_methods, o.held as share, r.share as holds, role in ('a method', 'LRU') as competes
from ran r join rooms o on r.trace = o.trace and r.terms = o.terms and r.machine = o.machine
    and (r.holds_all or printf('%g %%', round(100 * r.share, 1)) = o.room)

-- cells: What ran, by tape, requests, machine and room. best_...: no other method of the room is as good in this time and in energy and better in one.
with placed as materialized ({placed}),
quality as (
    select t.trace_id as trace, q.policy as system, concat_ws('; ', 'route ' || (q.parameters::json->>'route'),
            'precision ' || (q.parameters::json->>'precision'), 'kv ' || (q.parameters::json->>'kv'), 'refresh ' || (q.parameters::json->>'refresh')) as changed,
        avg(q.perplexity / p.perplexity order by q.dataset, q.seed, q.parameters, p.seed) as perplexity
    from quality q join quality p on q.model_id = p.model_id and q.dataset = p.dataset and q.dtype is not distinct from p.dtype and q.policy not in ('none', 'full')
        and (p.policy = 'none' or p.policy = 'full' and (p.parameters::json->>'storage') = 'plain' and (p.parameters::json->>'rate') is null
            and (p.parameters::json->>'intervals') is null) and q.n_tokens = p.n_tokens  -- of the same text
    join traces t on t.model_id = q.model_id where q.perplexity is not null group by all
    having count(distinct (q.parameters, q.dtype)) = 1  -- of several settings, whose it is no run says
),
lru as (select trace, terms, machine, room, min(coalesce(token_ms, gap_ms)) as ms, min(mj) as mj from placed where role = 'LRU' group by all),
beaten as (
    select p.trace, p.terms, p.machine, p.room, p.method, bool_or(o.token_ms <= p.token_ms and (o.token_ms < p.token_ms or o.mj < p.mj)) as token_ms,
        bool_or(o.gap_ms <= p.gap_ms and (o.gap_ms < p.gap_ms or o.mj < p.mj)) as gap_ms,
        bool_or(o.ttft_ms <= p.ttft_ms and (o.ttft_ms < p.ttft_ms or o.mj < p.mj)) as ttft_ms
    from placed p join placed o using (trace, terms, machine, room) where p.competes and o.competes and o.mj <= p.mj group by all
)
select p.* exclude (changed), coalesce(p.token_ms, p.gap_ms) as ms, lru.ms / coalesce(p.token_ms, p.gap_ms) as gain, p.mj / nullif(lru.mj, 0) as energy, 1e3 / p.token_ms as tokens,
    not coalesce(b.token_ms, true) as best_token_ms, not coalesce(b.gap_ms, true) as best_gap_ms, not coalesce(b.ttft_ms, true) as best_ttft_ms,
    if(is_exact, 1, perplexity) as perplexity, case when is_exact then 'as the model' when perplexity is null then 'changed, not measured'
        else printf('perplexity × %.3f', perplexity) end as quality
from placed p left join lru using (trace, terms, machine, room) left join beaten b using (trace, terms, machine, room, method)
    left join quality using (trace, system, changed)
where coalesce(p.token_ms, p.gap_ms) is not null  -- a tape of prompts alone has no time per token
order by p.trace, p.terms, p.machine, p.share, ms, p.method

-- winners: Per tape, requests, machine and room, of each time and of energy: the method that is best, and LRU over it.
with each as (
    unpivot (select trace, terms, machine, room, share, method, role, token_ms, gap_ms, ttft_ms, mj from ({placed}) where competes)
    on token_ms, gap_ms, ttft_ms, mj into name of value value
)
select trace, terms, machine, room, min(share) as share, of, first(method order by value, role <> 'LRU', method) as method,
    min(value) filter (role = 'LRU') / nullif(min(value), 0) as gain, count(*) as n
from each group by trace, terms, machine, room, of order by trace, terms, machine, share, of

-- reasons: Why a system cannot be had in a room of a machine: where what it was compared with stands, and it does not.
with ran as materialized (select *, printf('%g %%', round(100 * share, 1)) as room from ({named}))
select distinct r.trace, r.terms, r.machine, r.room, c.system, c.reason
from comparisons c join comparisons o using (comparison, trace_id, hardware) join ran r on r.run_id = o.result_id
where c.reason is not null and not r.holds_all and not exists (from ran s where s.trace = r.trace and s.terms = r.terms
    and s.machine = r.machine and s.system = c.system and (s.holds_all or s.room = r.room))
order by all

-- spent: part of others: seconds and joules of a run by part; of caches by phase, and by where they go
select run_id, if(metric = 'part_s', 'time', 'energy') as of, part, value from series where metric in ('part_s', 'part_j')
union all
select run_id, if(metric like '%_s', 'time', 'energy'), case metric when 'prefill_s' then 'prompts' when 'total_s' then 'decoding'
        when 'energy_fast_j' then 'weights, keys and values'
        when 'energy_compute_j' then 'operations' when 'energy_background_j' then 'power drawn all the time'
        else if(bool_or(metric = 'energy_backing_j') over of_run, 'experts fetched', 'sums over devices') end,
    if(metric = 'total_s', value - coalesce(sum(value) filter (metric = 'prefill_s') over of_run, 0), value)  -- tapes may lack prompts
from metrics where run_id in (select replay_id from replays)
    and metric in ('prefill_s', 'total_s', 'energy_fast_j', 'energy_backing_j', 'energy_link_j', 'energy_compute_j', 'energy_background_j')
window of_run as (partition by run_id)

-- parts: What time and energy go to, as shares of LRU's in the same room: lists, the greatest first.
with each as (
    select r.trace, r.terms, r.machine, r.method, round(r.share, 3) as share, s.of, s.part, sum(s.value order by run_id, s.value) / any_value(n_runs) as value
    from ({shown}) r join ({spent}) s using (run_id) group by all
),
of_all as (
    select * exclude (part, value, frac), if(large, part, 'everything else') as part, sum(value order by part) as value
    from (select *, max(frac) over (partition by part) > 0.05 as large
        from (select *, value / nullif(sum(value) over (partition by trace, terms, machine, method, share, of order by part rows between unbounded preceding and unbounded following), 0) as frac from each)) group by all
),
here as (
    select o.* exclude (share), p.room, p.role from of_all o
    join ({placed}) p on o.trace = p.trace and o.terms = p.terms and o.machine = p.machine and o.method = p.method and round(p.holds, 3) = o.share
),
lru as (
    select trace, terms, machine, room, of, min(whole) as whole
    from (select *, sum(value) over (partition by trace, terms, machine, room, of, method order by part rows between unbounded preceding and unbounded following) as whole from here where role = 'LRU') group by all
)
select trace, terms, machine, room, method, role, of, list(part order by value desc, part) as part, list(round(value / whole, 4) order by value desc, part) as value,
    round(sum(value / whole order by part), 4) as whole
from here join lru using (trace, terms, machine, room, of) where whole > 0 and value / whole > 0.0005 group by all
order by trace, terms, machine, room, of, whole, method

-- looks: part of others: parts in the order of PARTS, others behind them, with a colour each
select part, coalesce(list_position($PARTS, part), 99) as place, coalesce(map($PARTS, $PARTS_words)[part],
    $SPARE_COLOURS[1 + (row_number() over (partition by list_contains($PARTS, part) order by part) - 1) % len($SPARE_COLOURS)]) as colour
from (select distinct unnest(part) as part from told)

-- resources: Of every resource, the share of the run's time that is asked of it. An engine and a tier of one name have their kinds.
with labelled as (
    select r.trace, r.terms, r.machine, r.method, round(r.share, 3) as share, run_id, n_runs, label, split_part(label, '.', 2) as name,
        sum(value order by part) / min(total_s) as frac
    from ({shown}) r join series s using (run_id) where s.metric = 'asked_s' group by all
),
each as (
    select *, name || if(min(label) over alike = max(label) over alike, '', ' (' || split_part(label, '.', 1)[:-2] || ')') as resource
    from labelled window alike as (partition by machine, name)
)
select e.trace, e.terms, e.machine, p.room, e.method, p.role, p.ms, resource, sum(frac order by run_id) / any_value(n_runs) as frac
from each e join (select *, coalesce(token_ms, gap_ms) as ms from ({placed})) p
    on e.trace = p.trace and e.terms = p.terms and e.machine = p.machine and e.method = p.method and round(p.holds, 3) = e.share
group by all order by e.trace, e.terms, e.machine, p.room, p.ms, e.method, frac desc, resource

-- points: Per panel of a study's figure, line and x: median over seeds and tapes with the lowest and highest end of these and the machine.
select p.study || ': ' || p.series || ', ' || p.panel as finding, p.panel, p.line, p.x, min(p.place) as place, count(distinct p.result_id) as n_runs,
    median(value) filter (metric = 'tokens_per_s') as tokens, min(low) filter (metric = 'tokens_per_s') as tokens_low,
    max(high) filter (metric = 'tokens_per_s') as tokens_high,
    median(value) filter (metric = 'ttft_mean_s') as ttft, min(low) filter (metric = 'ttft_mean_s') as ttft_low,
    max(high) filter (metric = 'ttft_mean_s') as ttft_high,
    median(value) filter (metric = 'largest_gap_s') as gap, min(low) filter (metric = 'largest_gap_s') as gap_low,
    max(high) filter (metric = 'largest_gap_s') as gap_high,
    median(value) filter (metric = 'fetched_bytes_per_token') / 1e6 as fetched,
    min(low) filter (metric = 'fetched_bytes_per_token') / 1e6 as fetched_low,
    max(high) filter (metric = 'fetched_bytes_per_token') / 1e6 as fetched_high
from (select study, series, panel, line, x, result_id, min(place) as place from study_points group by all) p  -- a run that is asked for twice is one
join metrics m on m.run_id = p.result_id group by all order by finding, place
