-- What does a decoded token cost in energy, by policy and hardware?
select trace_id, hardware, scope, policy, policy_params, is_bound, round(capacity_frac, 4) as capacity_frac,
    avg(decode_energy_j_per_token) * 1e3 as decode_energy_mj_per_token, avg(backing_bytes) / 1e9 as fetched_gb,
    avg(total_energy_j) as total_energy_j
from policy_summary
where decode_energy_j_per_token is not null
group by all
order by trace_id, hardware, scope, capacity_frac, decode_energy_mj_per_token, policy, policy_params;
