-- What does a cache for half of the experts' bytes hit, by LRU, the best policy and the bound, on every tape, machine and scope?
-- The study's own replays, under its semantics and in its expert format; of policies that draw, the first seed.
select dataset as "data set", split_part(hardware, '-', 1) as machine, scope,
    printf('%.1f %%', 100 * any_value(lru_hit_frac)) as "LRU hits",
    printf('%.1f %%', 100 * max(hit_frac) filter (not is_bound)) as "best hits",
    first(policy order by hit_frac desc, policy) filter (not is_bound) as "best policy",
    printf('%.1f %%', 100 * max(hit_frac) filter (is_bound)) as "bound",
    printf('%.3f', 1e3 * min(decode_step_s) filter (policy = 'lru')) as "LRU ms/token",
    printf('%.3f', 1e3 * min(decode_energy_j_per_token) filter (policy = 'lru')) as "LRU mJ/token"
from baselines
where trace_id in ({tapes}) and study = 'baselines' and abs(capacity_frac - 0.5) < 0.01 and seed = 0
    and lookup = 'atomic' and recency = 'list-order' and prefill = 'layer-major' and start = 'persistent'
    and overflow = 'evict' and fetching = 'blocking'
group by trace_id, dataset, hardware, scope, expert_format order by 1, 2, 3
