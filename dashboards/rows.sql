-- rules: a replay's semantics as one text, part of others
concat_ws('|', r.lookup, r.recency, r.prefill, r.start, r.overflow, r.fetching, r.expert_format, coalesce(r.profile, 'physical'))

-- lived: part of others: quality inside models, each named with its dtype where there are several of it
select * replace (if(count(distinct dtype) over (partition by model_id) > 1, concat_ws(', ', model_id, dtype), model_id) as model_id) from quality

-- traces: The catalogue with n_replays and n_studied, those of a study; the trace a page opens with first.
-- The catalogue, the trace a page opens with first: captured, with most replays, newest. Replays of no study are one-offs.
with counts as (
    select trace_id, count(*) as n_replays, count(*) filter (study <> 'adhoc') as n_studied from replays group by trace_id
)
select t.*, coalesce(n_replays, 0) as n_replays, coalesce(n_studied, 0) as n_studied
from traces t left join counts using (trace_id)
order by (n_replays > 0) desc nulls last, (origin = 'captured') desc, n_replays desc, created_utc desc, trace_id

-- runs: Replayed settings: capacity, hit rates, milliseconds and millijoules per decoded token; `policy` is the display name. studied: of studies alone, without one-off replays.
-- One row per replayed setting: seeds averaged, the band the widest of the seeds' and the hardware's.
with wide as (
    select run_id as replay_id,
        max(value) filter (metric = 'hit_frac_decode') as hit_decode,
        max(value) filter (metric = 'hit_frac_prefill') as hit_prefill,
        max(denominator) filter (metric in ('hit_frac_decode', 'hit_frac_prefill')) as denominator,
        max(value) filter (metric = 'decode_step_s') * 1e3 as step_ms,
        max(coalesce(low, value)) filter (metric = 'decode_step_s') * 1e3 as step_low_ms,
        max(coalesce(high, value)) filter (metric = 'decode_step_s') * 1e3 as step_high_ms,
        max(value) filter (metric = 'decode_step_p99_s') * 1e3 as p99_ms,
        max(value) filter (metric = 'decode_tokens_per_s') as tokens_per_s,
        max(value) filter (metric = 'decode_energy_j_per_token') * 1e3 as energy_mj,
        max(coalesce(low, value)) filter (metric = 'decode_energy_j_per_token') * 1e3 as energy_low_mj,
        max(coalesce(high, value)) filter (metric = 'decode_energy_j_per_token') * 1e3 as energy_high_mj
    from metrics group by run_id
)
select r.trace_id as trace, r.hardware, r.scope, {rules} as rules, r.policy as family, r.policy_params, r.is_bound as bound,
    bool_or(r.is_extrapolated) as extrapolated, count(*) as n_replays,
    round(r.capacity_frac, 5) as capacity, round(r.capacity_experts, 1) as experts, round(r.capacity_bytes / 1e9, 4) as gb,
    r.cycle_experts, round(r.cycle_experts * r.capacity_frac / nullif(r.capacity_experts, 0), 5) as cycle,
    round(avg(hit_decode order by seed), 8) as hit_decode, round(avg(hit_prefill order by seed), 8) as hit_prefill,
    any_value(denominator) as denominator,
    avg(step_ms order by seed) as step_ms, min(step_low_ms) as step_low_ms, max(step_high_ms) as step_high_ms,
    avg(p99_ms order by seed) as p99_ms, avg(tokens_per_s order by seed) as tokens_per_s,
    avg(energy_mj order by seed) as energy_mj, min(energy_low_mj) as energy_low_mj, max(energy_high_mj) as energy_high_mj
from (
    select * replace (hardware || if(min(hardware_sha256) over (partition by hardware) = max(hardware_sha256) over (partition by hardware), '', ' ' || hardware_sha256[:8]) as hardware)
    from draws where is_studied or not $studied
) r join wide using (replay_id)
where r.trace_id in (select unnest($traces)) and (hit_decode is not null or hit_prefill is not null)
group by all
order by trace, hardware, scope, rules, family, policy_params, capacity

-- provenance: Which origin, hardware file and semantics the replays of the store have.
select r.origin, r.hardware, r.hardware_sha256, r.scope, {rules} as rules, count(*) as n_replays,
    any_value(r.assumed) as assumed, count(*) filter (r.is_extrapolated) as n_extrapolated,
    string_agg(distinct r.study, ', ' order by r.study) as studies
from replays r where r.hardware <> '' group by all order by all

-- verdicts: On each machine and for each quantity the best method, LRU and the bound, each in its better scope; `told` are replayed settings of one capacity.
with long as (
    from (select hardware, policy, scope, family, turn, bound, capacity, extrapolated, step_ms, energy_mj, hit_decode from told)
    unpivot (value for metric in (step_ms, energy_mj, hit_decode))
),
placed as (select *, short(if(metric = 'hit_decode', -value, value), 3) as cost from long)
select hardware, metric, any_value(capacity) as capacity, bool_or(extrapolated) as is_extrapolated,
    first(policy || ' (' || scope || ')' order by cost, turn, scope) filter (not bound) as method,
    first(value order by cost, turn, scope) filter (not bound) as best,
    first(value order by cost, scope) filter (family = 'lru') as lru, first(scope order by cost, scope) filter (family = 'lru') as lru_scope,
    first(value order by cost, scope) filter (bound) as bound, first(scope order by cost, scope) filter (bound) as bound_scope
from placed group by hardware, metric order by hardware, list_position(['step_ms', 'energy_mj', 'hit_decode'], metric)

-- standings: Of each paper's system the errors of what was fitted and predicted; `told` is query claim_errors.
with papers as (
    select paper as system, count(*) filter (role in ('calibrate', 'predict')) as n_claims from claims where location <> 'project' group by all
),
roles as (from told where mode = 'paper'),
found as (
    select system, n_claims, p.worst_error, w.unit as worst_unit,
        concat_ws(', ', replace(w.metric, '_', ' '), nullif(w.model, ''), w.setting) as worst_row,
        f.n_values as n_fitted, f.median_error as fitted, p.n_values as n_predicted, p.median_error as predicted,
        p.n_banded, p.n_inside, n_answered
    from papers left join (
        select system, count(distinct claim_id) as n_answered from claim_answers
        where mode = 'paper' and role in ('calibrate', 'predict') and location <> 'project' group by all
    ) using (system) left join (from roles where role = 'calibrate') f using (system)
    left join (from roles where role = 'predict') p using (system)
    left join (from claim_answers where mode = 'paper') w on w.claim_id = p.worst_claim_id
)
from found order by system

-- ran: part of others: what ran; the other rows of `runs` say where a run stands, or why there is none
(from runs where view_name not in ('study_points', 'failed_runs', 'comparisons'))

-- held: How many runs of each study there are, and a number that changes with them: what a later load is compared with.
select coalesce(study, view_name) as study, count(*) as n, bit_xor(md5_number_lower(run_id))::varchar as ids from {ran} group by all
union all select 'tapes', count(*), bit_xor(md5_number_lower(trace_id))::varchar from traces order by all

-- health: What of the store to know before trusting it.
select count(*) as n_runs, count(*) filter (is_extrapolated or outside_envelope <> '') as n_outside,
    count(distinct code_version) as n_versions, (select count(*) from traces) as n_tapes,
    (select count(*) from traces where flags <> '{}') as n_flagged
from {ran}
