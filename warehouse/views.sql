-- A number to n digits.
create macro short(x, n) as round(x, if(x = 0, 0, n - 1 - floor(log10(abs(x))))::int);

-- A layer: how alike prefill and decode use its experts, as the cosine between their selections per expert. Sums of integers.
create view similarity as
with counts as (
    select trace_id, layer, expert,
        coalesce(sum(n_selected) filter (phase = 'prefill'), 0)::hugeint as p,
        coalesce(sum(n_selected) filter (phase = 'decode'), 0)::hugeint as d
    from popularity group by trace_id, layer, expert
)
select trace_id, layer, sum(p * d)::double / sqrt(sum(p * p)::double * sum(d * d)::double) as cosine
from counts group by trace_id, layer having sum(p) > 0 and sum(d) > 0 order by trace_id, layer;

-- A layer: the experts that consecutive tokens share, and what chance gives; phase is the later token's.
create view locality as
select p.trace_id, p.layer, p.phase, p.value as overlap_frac, t.top_k / t.n_experts as chance_frac
from profiles p join traces t using (trace_id) where p.metric = 'overlap_frac' order by p.trace_id, p.layer, p.phase;

-- An expert of a layer that was selected in the first ten decode steps of a request; one never selected has no row.
create view early_popularity as
select trace_id, layer, expert, n_early as n_selected from popularity where n_early > 0 order by trace_id, layer, expert;

-- The standing questions. A replay is one row; its metrics are columns.

create view policy_summary as
with pivoted as (
    select run_id as replay_id,
        max(value) filter (metric = 'hit_frac') as hit_frac,
        max(denominator) filter (metric = 'hit_frac') as hit_denominator,
        max(value) filter (metric = 'hit_frac_prefill') as hit_frac_prefill,
        max(value) filter (metric = 'hit_frac_decode') as hit_frac_decode,
        max(value) filter (metric = 'n_lookups')::bigint as n_lookups,
        max(value) filter (metric = 'n_hits')::bigint as n_hits,
        max(value) filter (metric = 'backing_bytes')::bigint as backing_bytes,
        max(value) filter (metric = 'decode_step_s') as decode_step_s,
        max(value) filter (metric = 'decode_step_p99_s') as decode_step_p99_s,
        max(value) filter (metric = 'decode_tokens_per_s') as decode_tokens_per_s,
        max(value) filter (metric = 'decode_energy_j_per_token') as decode_energy_j_per_token,
        max(value) filter (metric = 'prefill_s') as prefill_s,
        max(value) filter (metric = 'total_s') as total_s,
        max(value) filter (metric = 'total_energy_j') as total_energy_j
    from metrics where run_id in (select run_id from runs where view_name = 'replays') group by run_id
)
select r.*, t.model_id, t.dataset, p.* exclude (replay_id)
from replays r join traces t using (trace_id) left join pivoted p using (replay_id);

-- A replay once, whatever studies it ran in: the newest, for the code may have changed since.
-- is_studied: a study asked for it too.
create view draws as
select r.*, bool_or(study <> 'adhoc') over same as is_studied
from replays r join (select run_id as replay_id, written from runs) using (replay_id)
window same as (
    partition by trace_id, hardware_sha256, profile, scope, lookup, recency, prefill, start, overflow, fetching, expert_format,
        capacity_bytes, policy, policy_params, seed
)
qualify row_number() over (same order by written desc, study, replay_id) = 1;

-- A method: a policy with its parameters in a scope, under the same replay rules, machine, cost profile and capacity. Its numbers are means
-- over its seeds, so that none wins by a lucky draw, added up in the seeds' order, which the last digit depends on; a replay that
-- ran in several studies counts once (`draws`). The replay of all LRU capacities in one pass has no capacity of its own and is left out.
create view methods as
select trace_id, model_id, dataset, hardware, hardware_sha256, profile, scope, lookup, recency, prefill, start, overflow, fetching,
    expert_format, capacity_bytes, capacity_experts, capacity_frac, cycle_experts, policy, policy_params, is_bound,
    count(*) as n_seeds,
    avg(hit_frac order by seed) as hit_frac, avg(hit_frac_prefill order by seed) as hit_frac_prefill,
    avg(hit_frac_decode order by seed) as hit_frac_decode,
    avg(n_lookups) as n_lookups, avg(n_hits) as n_hits, avg(backing_bytes) as backing_bytes,
    avg(decode_step_s order by seed) as decode_step_s, avg(decode_step_p99_s order by seed) as decode_step_p99_s,
    avg(decode_tokens_per_s order by seed) as decode_tokens_per_s,
    avg(decode_energy_j_per_token order by seed) as decode_energy_j_per_token,
    avg(prefill_s order by seed) as prefill_s, avg(total_s order by seed) as total_s,
    avg(total_energy_j order by seed) as total_energy_j
from policy_summary semi join draws using (replay_id) where policy <> 'lru-all-capacities' group by all;

-- Policies side by side: every replay next to the LRU and Belady that ran under the same conditions at the same bytes of cache,
-- within 1 %: those of its own expert format, else those nearest in bytes, whose format is beside them.
-- gap_captured_frac = (policy - lru) / (belady - lru): 0 is LRU, 1 is the bound, negative is worse than LRU; null where hits are
-- shares of other things (hit_denominator). Belady takes every missed expert in; a policy that streams some past the cache (static)
-- can exceed 1.
create view baselines as
with ran as (select * from policy_summary where policy <> 'lru-all-capacities'),
beside as (
    select r.replay_id, o.policy, o.expert_format, o.hit_denominator, o.hit_frac, o.decode_step_s, o.decode_energy_j_per_token
    from ran r join ran o using (trace_id, hardware_sha256, scope, lookup, recency, prefill, start, overflow, fetching)
    where o.policy in ('lru', 'belady') and o.profile is not distinct from r.profile
        and abs(o.capacity_bytes - r.capacity_bytes) <= 0.01 * r.capacity_bytes
    qualify row_number() over (
        partition by r.replay_id, o.policy
        order by o.expert_format <> r.expert_format, abs(o.capacity_bytes - r.capacity_bytes), o.expert_format, o.replay_id
    ) = 1
)
select r.trace_id, r.model_id, r.dataset, r.hardware, r.profile, r.scope, r.lookup, r.recency, r.prefill, r.start, r.overflow,
    r.fetching, r.expert_format, r.capacity_bytes, r.capacity_experts, r.capacity_frac, r.cycle_experts, r.study, r.policy,
    r.policy_params, r.seed, r.is_bound, r.hit_frac, r.hit_denominator, lru.hit_frac as lru_hit_frac,
    belady.hit_frac as belady_hit_frac,
    case when r.hit_denominator is not distinct from lru.hit_denominator
        then (r.hit_frac - lru.hit_frac) / nullif(belady.hit_frac - lru.hit_frac, 0) end as gap_captured_frac,
    r.hit_frac_prefill, r.hit_frac_decode, r.decode_step_s, r.decode_tokens_per_s, r.decode_energy_j_per_token, r.backing_bytes,
    lru.expert_format as lru_expert_format, lru.decode_step_s as lru_decode_step_s,
    lru.decode_energy_j_per_token as lru_decode_energy_j_per_token, r.replay_id
from ran r
left join (from beside where policy = 'lru') lru using (replay_id)
left join (from beside where policy = 'belady') belady using (replay_id);

-- Methods that no other method beats in both latency and energy, per tape, hardware and capacity under the same replay rules.
-- Capacities are the same within 1 % of their bytes. Rows are means over seeds. Bounds see the future and take no part. The scope and
-- the format of the experts are a method's own choice; what a format costs in quality is not in here.
create view pareto as
with timed as (
    select * from methods
    where not is_bound and decode_step_s is not null and decode_energy_j_per_token is not null
)
select m.* from timed m
where not exists (
    from timed o
    where o.trace_id = m.trace_id and o.hardware_sha256 = m.hardware_sha256 and o.profile is not distinct from m.profile
        and abs(o.capacity_bytes - m.capacity_bytes) <= 0.01 * m.capacity_bytes
        and o.lookup = m.lookup and o.recency = m.recency and o.prefill = m.prefill and o.start = m.start
        and o.overflow = m.overflow and o.fetching = m.fetching
        and o.decode_step_s <= m.decode_step_s and o.decode_energy_j_per_token <= m.decode_energy_j_per_token
        and (o.decode_step_s < m.decode_step_s or o.decode_energy_j_per_token < m.decode_energy_j_per_token)
);

-- The papers' numbers beside ours, answered ones only: a study answers a claim by writing a row of `answers` under the claim's id. A
-- claim whose value is withheld has a replay and no error. error: rel_err, in points over 100 for a percentage, null for a bound.
create view paper_vs_replay as
select claim_id, location, metric, setting, role, unit, paper, replay, band_low, band_high, rel_err, mode, comparator, study, how,
    error, bound, holds, is_inside, is_counted
from claim_answers where study is not null;
