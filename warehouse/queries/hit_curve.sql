-- What is the hit rate of every policy against capacity, and where is one token cycle (L x k)?
-- Hits are the same on every machine; the mean over machines shows each once.
select trace_id, scope, lookup, recency, prefill, start, overflow, fetching, expert_format, policy, policy_params, is_bound,
    capacity_experts, round(capacity_frac, 4) as capacity_frac, capacity_experts < cycle_experts as is_below_cycle, cycle_experts,
    avg(hit_frac order by hardware) as hit_frac, avg(hit_frac_prefill order by hardware) as hit_frac_prefill,
    avg(hit_frac_decode order by hardware) as hit_frac_decode
from methods
group by all
order by trace_id, scope, lookup, recency, prefill, start, overflow, fetching, expert_format, policy, policy_params,
    capacity_experts;
