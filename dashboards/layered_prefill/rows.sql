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

-- attainment: shares of requests that meet both limits
select * exclude (study) from serving_attainment where study = $study order by all

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
