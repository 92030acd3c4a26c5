-- points: the study's serving points, a row per point and metric, with the scheduler's own parameters; a result of the engine has
-- them beside others
with told as (
    select *, coalesce(nullif(policy_params, '')::json -> '$.scheduler', nullif(policy_params, '')::json) as own
    from serving_points where study = $study
)
select point_id, series, model_id as model, workload, arrival, rate_per_s as rate, scheduler, policy_params, hardware, coverage,
    n_seeds, (own ->> '$.chunk_tokens')::bigint as chunk_tokens, (own ->> '$.n_max')::bigint as n_max, own ->> '$.n_lg_rule' as n_lg_rule,
    (own ->> '$.pass_tokens')::bigint as pass_tokens, metric, value, low, high
from told order by point_id, metric

-- attainment: shares of requests that meet both limits, of points with a rate
select * exclude (study) from serving_attainment
where study = $study and point_id in (select point_id from serving_points where rate_per_s is not null) order by all

-- iterations: the iterations of the drawn window
select * exclude (study) from serving_iterations where study = $study order by all

-- spans: what the requests of the drawn window did when
select * exclude (study) from serving_spans where study = $study order by all

-- tokens: when the tokens of drawn requests came
select * exclude (study) from serving_tokens where study = $study order by all

-- coverage: shares of a layer's experts that tokens touch together, by form and band of layers, of the first tapes; the paper's first
with told as (
    select source, model_id as model, form, tokens_of, layer_band as band, n_tokens, coverage_frac as covered, low, high,
        if(source = $study, model || ' (the paper)', source) as routed,
        coalesce(map($FORMS, $FORMS_words)[form], form) || if(band = 'all', '', ', ' || band) as line,
        coalesce(map($TOKENS_OF, $TOKENS_OF_words)[tokens_of], tokens_of) as panel,
        coalesce(list_position($FORMS, form) - 1, len($FORMS)) as place,
        coalesce(list_position(['all', 'first third', 'middle third', 'last third'], band), 5) as depth
    from coverage_points where study = $study and (layer_band = 'all' or form like 'recorded%')
)
select * exclude (source, depth) from told qualify dense_rank() over (order by source <> $study, routed) <= $size
order by source <> $study, routed, place, depth, line, tokens_of, n_tokens

-- lines: part of others: curves as found
select line, min(n) as n from (select *, row_number() over () as n from told) group by line

-- swept: part of others: points of a knob by setting and rate
select setting, format('{}, {}/s', setting, rate) as "at", scheduler, system, rate, if(scheduler = 'chunked', chunk_tokens, n_max) as knob,
    n_seeds, n_lg_rule, ttft_mean_s, ttft_mean_s_low, ttft_mean_s_high, ttft_p99_s, ttft_p99_s_low, ttft_p99_s_high, tbt_mean_s,
    tbt_mean_s_low, tbt_mean_s_high, tbt_p99_s, tbt_p99_s_low, tbt_p99_s_high
from told where knob is not null order by "at" desc, scheduler, knob

-- chunks: part of others: one prompt alone, larger chunks last, schedulers without chunks behind them
select columns('^(setting|system|size|chunk_tokens|expert_bytes_per_request|ttft_mean_s|(moe|attention|dense|communication|other)_frac)$')
from (select *, coalesce(chunk_tokens::varchar, system) as size from told)
where setting = (select setting from told where chunk_tokens is not null group by setting order by count(*) desc, setting desc limit 1)
order by chunk_tokens is null, chunk_tokens

-- best: part of others: is_best: no other point of the setting is as good in both TTFT and TBT and better in one
select p.*, not exists (select * from ({swept}) q where q."at" = p."at" and q.tbt_p99_s <= p.tbt_p99_s and q.ttft_mean_s <= p.ttft_mean_s
    and (q.tbt_p99_s < p.tbt_p99_s or q.ttft_mean_s < p.ttft_mean_s)) as is_best
from ({swept}) p order by "at" desc, scheduler, knob

-- one_rule: part of others: the fixed rule alone where it is swept: with another the number is the most that a batch may take
select * from ({swept}) where n_lg_rule = 'fixed' or not exists (from ({swept}) where n_lg_rule = 'fixed') order by "at" desc, scheduler, knob

-- split_energy: part of others: joules of a token, and the shares of what they go to
select setting, system, scheduler, rate, n_seeds, energy_j_per_token, energy_j_per_token_low, energy_j_per_token_high,
    energy_j_per_output_token, energy_j_per_output_token_low, energy_j_per_output_token_high,
    energy_static_j / (energy_ops_j + energy_bytes_j + energy_static_j) as static,
    energy_bytes_j / (energy_ops_j + energy_bytes_j + energy_static_j) as bytes,
    energy_ops_j / (energy_ops_j + energy_bytes_j + energy_static_j) as ops, format('{} at {}/s', system, rate) as label
from told where energy_j_per_token is not null and energy_j_per_output_token is not null order by setting desc, turn, rate

-- dense: layered over chunked in both means, where both were served
select o.setting, o.rate, o.ttft_mean_s / c.ttft_mean_s as ttft_mean_s, o.tbt_mean_s / c.tbt_mean_s as tbt_mean_s
from told o join told c on o.setting = c.setting and o.rate = c.rate
where o.scheduler = 'layered' and c.scheduler = 'chunked' order by o.rate

-- dense_gaps: what layered attains more, at three of the limits on gaps: the tightest, the middle and the loosest
with attained as (select setting, rate, scheduler, ttft_limit_s, tbt_limit_s, attained_frac from ({attainment}) join told using (point_id)),
limits as (select list(distinct tbt_limit_s order by tbt_limit_s) as of from attained)
select setting, rate, ttft_limit_s, tbt_limit_s, o.attained_frac, c.attained_frac as attained_frac_chunked,
    o.attained_frac - c.attained_frac as gap, 'no gap above '
        || if(tbt_limit_s < 1, format('{:.3g} ms', 1e3 * tbt_limit_s), format('{:.3g} s', tbt_limit_s)) as panel
from attained o join attained c using (setting, rate, ttft_limit_s, tbt_limit_s), limits
where o.scheduler = 'layered' and c.scheduler = 'chunked'
    and tbt_limit_s in (of[1], of[1 + round_even((len(of) - 1) / 2, 0)::int], of[len(of)])
order by tbt_limit_s, rate, ttft_limit_s

-- saturation: part of others: mean TTFT of an engine that takes so much more time for everything (exact: at the rate it takes as much
-- longer as at a higher rate it waits longer), beside the paper's; and where the paper's comes out
with stated as (
    select distinct t.setting, t.model, t.scheduler, t.chunk_tokens, t.rate as stated, c.value as paper_s
    from told t join claims c on c.paper = $study and c.metric = 'ttft_mean' and c.location in ('Table 8', 'Table 10')
        and lower(c.model) = t.model and contains(c.setting, t.scheduler)
        and c.setting in ('disaggregated (rate not stated)', format('arxiv {} rate={}', t.scheduler, t.rate))
    where t.series like 'table-%' and t.scheduler <> 'layered'
), slowed as (
    select format('{}, {} {} at {}/s', t.setting, t.scheduler, chunk_tokens, stated) as label, paper_s, rate / stated - 1 as slower,
        rate / stated * ttft_mean_s as ttft_s, rate / stated * ttft_mean_s_low as low, rate / stated * ttft_mean_s_high as high
    from told t join stated using (setting, model, scheduler, chunk_tokens)
), steps as (
    select *, lag(slower) over w as before, ln(lag(ttft_s) over w / paper_s) as off_before, ln(ttft_s / paper_s) as off
    from slowed window w as (partition by label order by slower)
)
select label, paper_s, slower, ttft_s, low, high, min(if(off * off_before <= 0, before + (slower - before) * off_before / (off_before - off),
    null)) over (partition by label) as needed, slower = 0 as is_stated
from steps qualify count(*) over (partition by label) > 1 order by label, slower  -- one speed is no sweep

-- placed: part of others: claims with their place in the paper, tables first and by number, rows of one in the order of their settings
select * exclude ("order", number), row_number() over (
    order by location not like 'Table%', number nulls last, setting, claim_id, "order") - 1 as "order"
from (select *, regexp_replace(location, '^Sec ', 'Section ') as "table",
    nullif(regexp_extract(location, '[0-9]+([.][0-9]+)?'), '')::double as number from told) order by "order"

-- placed_claims: part of others: those of places with an answered number
select * from ({placed}) where "table" in (select "table" from ({placed}) where replay is not null) order by "order"

-- named: part of others: points with `setting`: model and workload, and of the rest what differs between the points; and with `system`:
-- the scheduler, its chunk, and other parameters where they differ at the same setting and rate
with placed as (
    select *, row_number() over () as found, concat_ws(', ', model, workload,
        if((select count(distinct arrival) from told) > 1 and arrival <> 'poisson', arrival, null),
        if((select count(distinct hardware) from told) > 1, hardware, null),
        if((select count(distinct coverage) from told) > 1, coverage, null)) as setting
    from told
), alike as (
    select scheduler, bool_or(of_chunks > 1) as of_chunks, bool_or(of_n > 1) as of_n, bool_or(of_rules > 1) as of_rules,
        bool_or(of_passes > 1) as of_passes
    from (
        select scheduler, count(distinct coalesce(chunk_tokens, -1)) as of_chunks, count(distinct coalesce(n_max, -1)) as of_n,
            count(distinct coalesce(n_lg_rule, '')) as of_rules, count(distinct coalesce(pass_tokens, -1)) as of_passes
        from placed group by setting, rate, scheduler
    ) group by scheduler
), said as (
    select placed.*, list_filter([scheduler, if(scheduler = 'chunked' or of_chunks, chunk_tokens::varchar, null),
        if(of_n, 'N ' || n_max, null), if(of_rules, n_lg_rule || ' rule', null), if(of_passes, 'passes of ' || pass_tokens, null)],
        lambda part: part is not null) as parts
    from placed join alike using (scheduler)
)
select * exclude (found, parts), concat_ws(', ', array_to_string(parts[:2], ' '), nullif(array_to_string(parts[3:], ', '), '')) as system
from said order by found

-- ranked: part of others: settings by number: MoE models before dense ones, then by model, the paper's main one first, and workload
select *, dense_rank() over (order by is_dense, model desc, workload, setting) as place from told

-- capacities: part of others: of `shares` by rate, where frac first falls below the level, linear between two rates; kind: '', or 'at
-- least' (every rate keeps the level) or 'below' (none does): then it is the last rate or the first
with steps as (
    select *, frac < $ATTAINED_FRAC as is_below, lag(rate) over w as rate_before, lag(frac) over w as before
    from shares where frac is not null window w as (partition by "of" order by rate)
), found as (
    select unnest("of"), case when not bool_or(is_below) then 'at least' when first(is_below order by rate) then 'below' else '' end as kind,
        min(rate) as lowest, max(rate) as highest,
        first(rate_before + (before - $ATTAINED_FRAC) / (before - frac) * (rate - rate_before) order by rate) filter (is_below) as crossing
    from steps group by "of"
)
select * exclude (lowest, highest, crossing), case kind when 'below' then lowest when 'at least' then highest else crossing end as per_s,
    trim(format('{} {:.2f}', kind, per_s)) as said
from found

-- rates: part of others: points of the first four settings
select * from ({ranked}) where place <= 4 order by place, turn, rate

-- rate_looks: part of others: their systems
select list(system order by turn) as names, list(colour order by turn) as colours, list(shape order by turn) as shapes
from (select distinct system, turn, colour, shape from ({rates}))

-- rate_capacities: part of others: within both limits
with shares as (select {setting: setting, system: system, turn: turn} as "of", rate, slo_frac as frac from ({rates}))
from ({capacities}) order by setting, turn

-- halves: part of others: each limit alone
select setting, system, turn, rate, slo_ttft_frac as frac, slo_ttft_frac_low as low, slo_ttft_frac_high as high,
    'first token in time' as words from ({rates})
union all by name
select setting, system, turn, rate, slo_tbt_frac as frac, slo_tbt_frac_low as low, slo_tbt_frac_high as high, 'gaps in time' as words
from ({rates}) order by words, setting, turn, rate

-- half_capacities: part of others: within each limit alone
with shares as (select {setting: setting, system: system, words: words} as "of", rate, frac from ({halves}))
from ({capacities}) order by setting, system, words

-- gridded: part of others: what points attain within all limits
select setting, place, model, workload, system, turn, colour, shape, scheduler, rate, ttft_limit_s, tbt_limit_s, attained_frac
from ({ranked}) join ({attainment}) using (point_id) where place <= $size

-- grid_looks: part of others: their systems
select list(system order by turn) as names, list(colour order by turn) as colours, list(shape order by turn) as shapes
from (select distinct system, turn, colour, shape from ({gridded}))

-- grid_capacities: part of others: within all limits
with shares as (
    select {setting: setting, ttft_limit_s: ttft_limit_s, tbt_limit_s: tbt_limit_s, system: system, scheduler: scheduler, turn: turn} as "of",
        rate, attained_frac as frac
    from ({gridded})
)
from ({capacities}) order by setting, ttft_limit_s, tbt_limit_s, turn

-- beside: part of others: points of a figure, `of_figure`, named by place and rate in the order of its series; a trace is called as
-- its series, not as its tape
with ordered as (
    select *, row_number() over (order by first_of_series, model, hardware, arrival, rate, system) as n
    from (select *, min(found) over (partition by series) as first_of_series from (
        select *, row_number() over () as found from of_figure) where rate is not null)
), labelled as (
    select *, format('{}, {}/s', if(arrival <> 'trace', called, array_to_string([upper(w[1]) || lower(w[2:]) for w in split(series, ' ')], ' ')
        || ' trace' || if(contains(workload, 'prefix cache'), ' with prefix cache', '')), rate) as label
    from ordered
)
select label, system, scheduler, n_seeds, ttft_mean_s, ttft_mean_s_low, ttft_mean_s_high, tbt_p99_s, tbt_p99_s_low, tbt_p99_s_high,
    energy_j_per_token, energy_j_per_token_low, energy_j_per_token_high, jain, jain_low, jain_high, turn, colour, shape,
    dense_rank() over (order by first_of_label) - 1 as "order"
from (select *, min(n) over (partition by label) as first_of_label from labelled) order by n

-- arrivals: part of others: where requests came in several ways
with of_figure as (select * from told where (select count(distinct arrival) from told where rate is not null) > 1) from ({beside})

-- others: part of others: at the rates of other schedulers
with of_figure as (
    select * from told where rate in (
        select rate from told where scheduler not in ('chunked', 'layered') or series = 'other schedulers')
) from ({beside})

-- elsewhere: part of others: all
with of_figure as (from told) from ({beside})

-- measures: part of others: what is drawn of points side by side: title, what turns it into what is shown, form; times on logarithmic axes
select list({'of': "of", 'title': title, 'factor': factor, 'form': form, 'scale': scale} order by place) as measures from (values
    (1, 'ttft_mean_s', 'mean TTFT (s, log)', '1', '~s', 'log tight padding=16', (select count(ttft_mean_s) from told)),
    (2, 'tbt_p99_s', 'TBT p99 (ms, log)', '1000', '~s', 'log tight padding=16', (select count(tbt_p99_s) from told)),
    (3, 'energy_j_per_token', 'energy per token (mJ)', '1000', ',.0f', 'free padding=16 tight', (select count(energy_j_per_token) from told)),
    (4, 'jain', 'Jain index (1: all alike)', '1', '.2f', 'free padding=16 tight', (select count(jain) from told))
) m(place, "of", title, factor, form, scale, n) where n > 0

-- followed: part of others: points of the setting and rate that most systems share whose iterations are drawn
with held as (select * from told join (select point_id, count(*) as n from ({iterations}) group by point_id) using (point_id)),
best as (select setting, rate from held group by all order by count(distinct system) desc, sum(n) desc, setting desc limit 1)
select held.* from held join best on held.setting = best.setting and held.rate is not distinct from best.rate

-- followed_looks: part of others: their systems, and where that is
select list(system order by turn) as names, list(colour order by turn) as colours, list(shape order by turn) as shapes,
    any_value(setting || if(rate is null, '', format(' at {:g} requests per second', rate))) as place
from (select distinct system, turn, colour, shape, setting, rate from ({followed}))

-- stretch: part of others: the stretch that iterations and requests tell of every scheduler
select max(begins) as begins, min(ends) as ends from (
    select min(start_s) as begins, max(start_s + seconds) as ends
    from (select point_id, start_s, seconds, 'iterations' as "of" from ({iterations})
        union all select point_id, start_s, seconds, 'spans' as "of" from ({spans})) join ({followed}) using (point_id)
    group by system, "of"
)

-- schedule: part of others: iterations, cut at the ends of the stretch, from whose beginning start_s counts
select i.* exclude (point_id) replace (greatest(start_s, begins) - begins as start_s,
    least(start_s + seconds, ends) - greatest(start_s, begins) as seconds), setting, rate, system, i.seconds as whole_s
from ({iterations}) i join ({followed}) using (point_id), ({stretch})
where least(start_s + i.seconds, ends) - greatest(start_s, begins) > 1e-9 order by point_id, iteration

-- lives: part of others: what requests did, likewise
select s.* exclude (point_id) replace (greatest(start_s, begins) - begins as start_s,
    least(start_s + seconds, ends) - greatest(start_s, begins) as seconds), setting, rate, system, s.seconds as whole_s
from ({spans}) s join ({followed}) using (point_id), ({stretch})
where least(start_s + s.seconds, ends) - greatest(start_s, begins) > 1e-9 order by point_id, request_id, state, s.start_s

-- followed_tokens: part of others: tokens of the request that most schedulers have
with held as (select t.* exclude (point_id), setting, rate, system from ({tokens}) t join ({followed}) using (point_id))
from held where request_id = (
    select request_id from held group by request_id order by count(distinct system) desc, count(*) desc, request_id limit 1)
order by system, place
