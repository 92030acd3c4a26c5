-- One row per system that was studied: rows fitted and predicted, their errors, the worst predicted one. As the paper counts.
-- Null errors where no row is predicted.
with counted as (from claim_errors where mode = 'paper')
select systems.system, coalesce(f.n_values, 0) as n_fitted, f.median_error as fitted_median, f.mean_error as fitted_mean,
    coalesce(p.n_values, 0) as n_predicted, p.median_error as median, p.mean_error as mean, p.worst_error as worst,
    c.unit as worst_unit,
    concat_ws(', ', nullif(c.metric, ''), nullif(c.model, ''), nullif(c.setting, '')) as worst_row
from (select distinct system from claim_errors) systems
    left join counted f on f.system = systems.system and f.role = 'calibrate'
    left join counted p on p.system = systems.system and p.role = 'predict'
    left join claims c on c.claim_id = p.worst_claim_id
order by systems.system
