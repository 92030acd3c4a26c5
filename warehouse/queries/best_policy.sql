-- Which policy gives the fastest decode step at each capacity, per tape and hardware?
select trace_id, hardware, profile, lookup, recency, prefill, start, overflow, fetching, expert_format,
    round(capacity_frac, 4) as capacity_frac,
    capacity_bytes / 1e9 as capacity_gb, policy, policy_params, scope, n_seeds, hit_frac_decode,
    decode_step_s * 1e3 as decode_step_ms, decode_energy_j_per_token * 1e3 as decode_energy_mj_per_token
from methods
where not is_bound and decode_step_s is not null
qualify row_number() over (
    partition by trace_id, hardware_sha256, profile, lookup, recency, prefill, start, overflow, fetching, expert_format, capacity_bytes
    order by decode_step_s, decode_energy_j_per_token, policy, policy_params, scope
) = 1
order by trace_id, hardware, profile, lookup, recency, prefill, start, overflow, fetching, expert_format, capacity_bytes, hardware_sha256;
