-- cells: Per comparison, machine and system: median over seeds with the lowest and highest end, or the reason why there is none.
with told as (
    select c.comparison, c.trace_id, c.hardware, c.place, c.system, c.reason, m.metric, m.value, m.low, m.high
    from comparisons c left join metrics m on m.run_id = c.result_id
    where c.reason is not null or m.run_id is not null
)
select trace_id || ': ' || comparison as chosen, hardware as machine, system, any_value(place) as place, any_value(reason) as reason,
    median(value) filter (metric = 'tokens_per_s') as tokens, min(low) filter (metric = 'tokens_per_s') as tokens_low,
    max(high) filter (metric = 'tokens_per_s') as tokens_high,
    median(value) filter (metric = 'ttft_mean_s') as ttft, min(low) filter (metric = 'ttft_mean_s') as ttft_low,
    max(high) filter (metric = 'ttft_mean_s') as ttft_high,
    median(value) filter (metric = 'energy_j_per_output_token') as joules,
    min(low) filter (metric = 'energy_j_per_output_token') as joules_low,
    max(high) filter (metric = 'energy_j_per_output_token') as joules_high,
    median(value) filter (metric = 'hit_frac') as hits,
    first(replace(metric, '_frac', '') order by value desc, metric)
        filter (metric in ('moe_frac', 'dense_frac', 'attention_frac', 'communication_frac', 'other_frac')) as busiest
from told group by all order by chosen, machine, place

-- points: Per panel of a study's figure, line and x: median over seeds and tapes with the lowest and highest end of these and the machine.
select p.study || ': ' || p.series || ', ' || p.panel as finding, p.panel, p.line, p.x, min(p.place) as place, count(distinct p.result_id) as n_runs,
    median(value) filter (metric = 'tokens_per_s') as tokens, min(low) filter (metric = 'tokens_per_s') as tokens_low,
    max(high) filter (metric = 'tokens_per_s') as tokens_high,
    median(value) filter (metric = 'ttft_mean_s') as ttft, min(low) filter (metric = 'ttft_mean_s') as ttft_low,
    max(high) filter (metric = 'ttft_mean_s') as ttft_high,
    median(value) filter (metric = 'largest_gap_s') as gap, min(low) filter (metric = 'largest_gap_s') as gap_low,
    max(high) filter (metric = 'largest_gap_s') as gap_high,
    median(value) filter (metric = 'fetched_bytes_per_token') / 1e6 as fetched,
    min(low) filter (metric = 'fetched_bytes_per_token') / 1e6 as fetched_low,
    max(high) filter (metric = 'fetched_bytes_per_token') / 1e6 as fetched_high
from study_points p join metrics m on m.run_id = p.result_id group by all order by finding, place
