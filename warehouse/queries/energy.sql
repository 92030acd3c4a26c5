-- What does a decoded token cost in energy, by policy and hardware?
select trace_id, hardware, profile, scope, lookup, recency, prefill, start, overflow, fetching, expert_format, policy, policy_params,
    is_bound, round(capacity_frac, 4) as capacity_frac, n_seeds, decode_energy_j_per_token * 1e3 as decode_energy_mj_per_token,
    backing_bytes / 1e9 as fetched_gb, total_energy_j
from methods
where decode_energy_j_per_token is not null
order by trace_id, hardware, profile, scope, lookup, recency, prefill, start, overflow, fetching, expert_format, capacity_bytes,
    decode_energy_mj_per_token, policy, policy_params, hardware_sha256;
