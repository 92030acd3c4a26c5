-- setups: devices and what they were measured in, part of others
-- The vendor's name says nothing here; a setup names the software only where a device was measured in several.
with setups as (
    select distinct device, framework, version, regexp_replace(device, '^(NVIDIA|AMD|Intel) ', '') as short
    from validation where "check" in ('gpu_operator', 'gpu_operator_regime')
)
select device, framework, version,
    short || case when count(*) over (partition by device) > 1 then ', ' || framework || ' ' || version else '' end as setup
from setups

-- said: operators and splits as people say them, part of others
replace (
    replace(coalesce(map($OPERATORS, $OPERATORS_words)[operator], operator), '_', ' ') as operator,
    coalesce(map($SPLITS, $SPLITS_words)[split], split) as split
)

-- off: what is off by how much, part of others
select "check", split_part(v.operator, ': ', 1) as operator, split_part(v.operator, ': ', 2) as regime, s.setup,
    v.framework || ' ' || v.version as measured_in, v.split, v.n, v.mape_frac as mape, v.median_frac as median, v.p95_frac as p95
from validation v join setups s using (device, framework, version)

-- errors: mean, median and 95th percentile of the error per operator, split and setup
with setups as ({setups}), found as ({off})
select * exclude "check" {said} from found where "check" = 'gpu_operator'
order by found.operator, found.split, setup, regime

-- regimes: the same per regime
with setups as ({setups}), found as ({off})
select * exclude "check" {said} from found where "check" = 'gpu_operator_regime'
order by found.operator, found.split, setup, regime

-- points: Measured and predicted seconds of an even sample of measurements per operator, split and setup.
-- An even sample over the measured values: twelve points of each operator, split and setup per unit of the page's size.
with setups as ({setups}),
ranked as (
    select p.*, s.setup, count(*) over w as n, row_number() over (w order by measured, shape) as place
    from validation_points p join setups s using (device, framework, version)
    where p."check" = 'gpu_operator' and measured > 0 and predicted > 0
    window w as (partition by p.operator, p.split, p.device, p.framework, p.version)
)
select * exclude place {said} from (select operator, split, setup, regime, shape, measured, predicted, place from ranked
    where n <= 12 * $size or place * 12 * $size // n > (place - 1) * 12 * $size // n) p
order by p.operator, p.split, setup, place

-- dram: Measured and predicted share of the peak bandwidth per preset and pattern, and the signed error.
select device as preset, replace(operator, '_', ' ') as pattern, regime = 'covered' as covered, measured, predicted,
    predicted / measured - 1 as error
from validation_points where "check" = 'dram' and measured > 0 order by all

-- metric: a metric as people say it, part of others
coalesce(map($METRICS, $METRICS_words)[operator], operator)

-- data: a known set of measurements, part of others
coalesce(map($DATA, $DATA_words)[device], device)

-- engines: mean error per set of measurements, simulator and metric, ours first; how many stages or settings each ran
select {data} as data, framework as simulator, {metric} as metric, n, split_part(version, ' of ', 2)::bigint as n_of,
    split = 'closed_form' as nothing_fitted, mape_frac as mape, printf('%.0f%%, %d of %d', 100 * mape, n, n_of) as word,
    least(mape, $CUT) as cut, metric || ', ' || simulator || ': ' || word as what,
    row_number() over (order by device, operator, framework <> 'tokentape', framework) - 1 as "order"
from validation where "check" = 'engine' order by "order"

-- stages: predicted / measured - 1 of the means of every stage, log or setting
select {data} as data, {metric} as metric, shape as stage, coalesce(map($RESTS_ON, $RESTS_ON_words)[v.split], v.split) as split,
    measured, predicted, predicted / measured - 1 as error, unit
from validation_points v where "check" = 'engine' and regime = 'mean' and measured > 0
order by device, operator, stage, v.split, measured, predicted, unit

-- over_time: measured and predicted of every moment of a log, in rows of their own
with moments as (
    unpivot (
        select shape as log, operator, start_s as start, measured, predicted, unit from validation_points
        where "check" = 'engine' and regime = 'moment'
    ) on measured, predicted into name what value value
)
select log, {metric} as metric, start, unit, what, value, log || ': ' || metric || ' (' || unit || ')' as panel
from moments order by log, operator, what, start
