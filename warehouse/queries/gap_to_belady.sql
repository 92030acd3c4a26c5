-- How much of the gap between LRU and Belady does each policy capture?
select trace_id, scope, lookup, recency, prefill, start, overflow, fetching, expert_format,
    round(capacity_frac, 4) as capacity_frac,
    policy, policy_params, avg(hit_frac order by seed) as hit_frac, any_value(lru_hit_frac) as lru_hit_frac,
    any_value(belady_hit_frac) as belady_hit_frac, avg(gap_captured_frac order by seed) as gap_captured_frac,
    count(distinct seed) as n_seeds
from (
    from baselines where not is_bound and belady_hit_frac is not null  -- which no machine changes
    qualify row_number() over (partition by trace_id, scope, lookup, recency, prefill, start, overflow, fetching, expert_format,
        capacity_bytes, policy, policy_params, seed order by hardware, profile, study, replay_id) = 1
)
group by trace_id, scope, lookup, recency, prefill, start, overflow, fetching, expert_format, capacity_bytes, capacity_frac,
    policy, policy_params
order by trace_id, scope, lookup, recency, prefill, start, overflow, fetching, expert_format, capacity_bytes,
    gap_captured_frac desc, policy, policy_params;
