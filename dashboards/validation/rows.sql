-- setups: devices and what they were measured in, part of others
-- The vendor's name says nothing here; a setup names the software only where a device was measured in several.
with setups as (
    select distinct device, framework, version, regexp_replace(device, '^(NVIDIA|AMD|Intel) ', '') as short
    from validation where "check" in ('gpu_operator', 'gpu_operator_regime')
)
select device, framework, version,
    short || case when count(*) over (partition by device) > 1 then ', ' || framework || ' ' || version else '' end as setup
from setups

-- errors: mean, median and 95th percentile of the error per operator, split and setup
with setups as ({setups})
select split_part(v.operator, ': ', 1) as operator, split_part(v.operator, ': ', 2) as regime, s.setup, v.framework, v.version,
    v.split, v.n, v.mape_frac as mape, v.median_frac as median, v.p95_frac as p95
from validation v join setups s using (device, framework, version)
where v."check" = 'gpu_operator'
order by operator, split, setup, regime

-- regimes: the same per regime
with setups as ({setups})
select split_part(v.operator, ': ', 1) as operator, split_part(v.operator, ': ', 2) as regime, s.setup, v.framework, v.version,
    v.split, v.n, v.mape_frac as mape, v.median_frac as median, v.p95_frac as p95
from validation v join setups s using (device, framework, version)
where v."check" = 'gpu_operator_regime'
order by operator, split, setup, regime

-- points: Measured and predicted seconds of an even sample of measurements per operator, split and setup.
-- An even sample over the measured values: twelve points of each operator, split and setup per unit of the page's size.
with setups as ({setups}),
ranked as (
    select p.*, s.setup, count(*) over w as n, row_number() over (w order by measured, shape) as place
    from validation_points p join setups s using (device, framework, version)
    where p."check" = 'gpu_operator' and measured > 0 and predicted > 0
    window w as (partition by p.operator, p.split, p.device, p.framework, p.version)
)
select operator, split, setup, regime, shape, measured, predicted from ranked
where n <= 12 * $size or place * 12 * $size // n > (place - 1) * 12 * $size // n
order by operator, split, setup, place

-- dram: Measured and predicted share of the peak bandwidth per preset and pattern, and the signed error.
select device as preset, replace(operator, '_', ' ') as pattern, regime = 'covered' as covered, measured, predicted,
    predicted / measured - 1 as error
from validation_points where "check" = 'dram' and measured > 0 order by all

-- engines: mean error per set of measurements, simulator and metric; how many stages or settings each ran
select device as data, framework as simulator, operator as metric, n, split_part(version, ' of ', 2)::bigint as n_of,
    split = 'closed_form' as nothing_fitted, mape_frac as mape, printf('%.0f%%, %d of %d', 100 * mape, n, n_of) as word
from validation where "check" = 'engine' order by data, metric, simulator <> 'tokentape', simulator

-- stages: predicted / measured - 1 of the means of every stage, log or setting
select device as data, operator as metric, shape as stage, split, measured, predicted, predicted / measured - 1 as error, unit
from validation_points where "check" = 'engine' and regime = 'mean' and measured > 0 order by all

-- over_time: measured and predicted of every moment of a log, in rows of their own
unpivot (
    select shape as log, operator as metric, start_s as start, measured, predicted, unit from validation_points
    where "check" = 'engine' and regime = 'moment'
) on measured, predicted into name what value value
order by log, metric, what, start
