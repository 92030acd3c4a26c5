-- How far off is each study from its paper, by role and way of counting?
-- Rows that are inputs or derived cannot miss and are not counted. Percentages count in points; bounds hold or fail. The physical
-- way of counting is a row of its own, as every other one is.
select system, role, mode, count(*) as n_answers, count(error) as n_values,
    avg(abs(error) order by claim_id) as mean_error, median(abs(error)) as median_error,
    first(error order by abs(error) desc, claim_id) filter (error is not null) as worst_error,
    first(claim_id order by abs(error) desc, claim_id) filter (error is not null) as worst_claim_id,
    count(is_inside) filter (bound = '') as n_banded, count(*) filter (bound = '' and is_inside) as n_inside,
    count(*) filter (bound = '' and is_inside) / nullif(count(is_inside) filter (bound = ''), 0) as inside_frac,
    count(holds) as n_bounds, count(*) filter (holds) as n_hold
from claim_answers
where replay is not null and is_counted
group by all
order by system, role, mode;
