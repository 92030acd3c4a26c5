-- On which of these tapes does a policy miss more than a share of the bound's hits, and in which cache most?
select trace_id as tape, policy, scope, capacity_frac, hit_frac, belady_hit_frac as bound_hit_frac,
    1 - hit_frac / nullif(belady_hit_frac, 0) as short_frac, count(*) over (partition by trace_id) as n_short
from ({gap_to_belady}) where policy = '{policy}' and short_frac > {share} and trace_id in ({tapes})
qualify row_number() over (partition by trace_id order by short_frac desc, scope, capacity_frac) = 1 order by trace_id
