-- How much do consecutive tokens share experts, against chance, and how alike are prefill and decode?
select trace_id, phase, count(*) as n_layers, avg(overlap_frac order by layer) as overlap_frac, min(overlap_frac) as lowest_layer,
    max(overlap_frac) as highest_layer, any_value(chance_frac) as chance_frac, avg(cosine order by layer) as prefill_decode_cosine
from locality left join similarity using (trace_id, layer)
group by trace_id, phase
order by trace_id, phase;
