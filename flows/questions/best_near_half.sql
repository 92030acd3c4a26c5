-- Which policy is the fastest of every tape and machine, at the capacity nearest to half of the experts' bytes?
select trace_id as tape, hardware as machine, profile as "priced by",
    printf('%.0f %%', 100 * capacity_frac) as capacity, policy, scope,
    printf('%.1f %%', 100 * hit_frac_decode) as hits, printf('%.3f', decode_step_ms) as "ms per token"
from ({best_policy})
qualify row_number() over (partition by trace_id, hardware, profile order by abs(capacity_frac - 0.5), decode_step_ms) = 1
order by 1, 2, 3
