-- Which experts are selected most, and how far above an even share?
select trace_id, phase, layer, expert, n_selected,
    n_selected * n_experts / sum(n_selected) over (partition by trace_id, phase, layer) as times_even_share
from popularity join traces using (trace_id)
qualify row_number() over (partition by trace_id, phase order by n_selected desc, layer, expert) <= 20
order by trace_id, phase, n_selected desc, layer, expert;
