-- Which decode steps took longest, and what did they have to fetch?
select r.trace_id, r.hardware, r.profile, r.scope, r.lookup, r.recency, r.prefill, r.start, r.overflow, r.fetching, r.expert_format,
    r.policy, r.policy_params, r.seed, round(r.capacity_frac, 4) as capacity_frac, s.pass_id, s.step_s * 1e3 as step_ms,
    s.n_lookups, s.n_lookups - s.n_hits as n_misses, s.backing_bytes / 1e6 as fetched_mb, s.energy_j * 1e3 as energy_mj
from timeline s join draws r using (replay_id)
where s.kind = 'decode' and not r.is_bound
order by s.step_s desc, r.replay_id, s.pass_id
limit 50;
