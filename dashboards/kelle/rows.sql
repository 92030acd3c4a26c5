-- points: the cost model's points; part of others
with points as (
    select *, mode as reading, model_id as model, dram_overflow_bytes > 0 as is_beyond from kelle_points
)

-- parts: joules of a step, a row per part; part of others
{points},
split as (
    select series, setting, setting_value, model, workload, n_decode_tokens, system, reading, energy_j, unnest([
        {'part': 'DRAM', 'j': dram_j}, {'part': 'weight SRAM', 'j': weight_sram_j}, {'part': 'KV and inputs', 'j': kv_j},
        {'part': 'refresh', 'j': refresh_j}, {'part': 'array and special functions', 'j': array_j},
        {'part': 'leakage', 'j': leakage_j}], recursive := true)
    from points where energy_j is not null
)

-- readings: Readings that anything was computed in.
select distinct reading from (
    select mode as reading from kelle_points union select mode from kelle_requests
    union select mode from answers where study = $paper union select 'paper' from kelle_parts
) where reading is not null order by all

-- headline: Gains in speed and energy of every system, model and workload; null where it does not fit.
{points}
select reading, model, workload, system, speed_gain as speed, energy_gain as energy, is_beyond
from points where series = 'headline' order by all

-- published: The paper's average gains over Original+SRAM, by system.
select split_part(setting, ' over ', 1) as system, max(value) filter (metric = 'speedup') as speed,
    max(value) filter (metric = 'energy_efficiency_gain') as energy
from claims where paper = $paper and location similar to '8[.]1[.][23]' and setting like '% over Original+SRAM;%'
group by all order by all

-- means: Mean gains over the cells that both systems fit, a row per measure, with the paper's number.
with made as (
    select reading, system, avg(energy order by model, workload) as energy, avg(speed order by model, workload) as speed, count(*) as cells
    from ({headline}) where energy is not null group by all
)
select reading, m.system, cells, measure, if(measure = 'speed', m.speed, m.energy) as gain, if(measure = 'speed', p.speed, p.energy) as published
from made m left join ({published}) p using (system) cross join (values ('energy efficiency'), ('speed')) measures(measure)
order by reading, measure, m.system

-- chip: Shares of Kelle's energy on the chip, means over models.
{parts}
select reading, workload, part, avg(j / (energy_j - dram) order by model) as share, count(*) as models
from (select *, max(j) filter (part = 'DRAM') over (partition by reading, model, workload, system) as dram from split
    where series = 'headline' and system = 'Kelle+eDRAM')
where part <> 'DRAM' group by all order by all

-- memory: Shares of the energy of a larger eDRAM, with and without refresh, by decode length.
{parts}
select reading, series, setting, n_decode_tokens as decode, part, j / energy_j as share
from split where series = 'edram share' order by all

-- sram: A step with more SRAM over one with 4 MB, by decode length.
{points}
select reading, setting, n_decode_tokens as decode, step_s, step_s / max(step_s) filter (setting = '4 MB')
    over (partition by reading, n_decode_tokens) as over_small
from points where series = 'sram size' and step_s is not null order by all

-- settings: Energy by part with and without recomputation and by way of refresh, over that of the first setting.
-- Parts over the whole energy of the setting that a series starts from, at the same model and workload; means over models.
{parts}
select reading, series, setting, workload, part, avg(j / base order by model) as part_frac, count(*) as models
from (select *, max(energy_j) filter (setting in ('off', '45 us')) over (partition by reading, series, model, workload) as base
    from split where series in ('recompute', 'refresh policy') and system = 'Kelle+eDRAM')
where base is not null group by all order by all

-- in_full: part of others: of readings that have every series: a panel each, and none of them empty
qualify count(distinct p.series) over (partition by reading) = count(distinct p.series) over () order by all

-- series_order: part of others: of a series that is told apart by settings
list_position(['off', 'on', '45 us', 'uniform 360 us', '2D', '2D + scheduler'], setting)

-- tables: Tables 7 and 9 and the batches between, low and high: the typical error; published: the paper's number.
-- A table's own points and those around them, with its number where it prints one.
{points},
stated as (
    select lower(replace(location, ' ', '-')) as series, lower(model) as model, value,
        regexp_extract(setting, '([^ ]+) over', 1) as system, regexp_extract(setting, 'budget=([0-9]+)', 1) as budget,
        regexp_extract(setting, 'batch=([0-9]+)', 1) as batch
    from claims where paper = $paper and location in ('Table 7', 'Table 9')
)
select p.reading, p.series, p.model, p.system, p.batch, p.budget_tokens as budget, p.role, p.energy_gain as gain,
    p.energy_gain * (1 - typical_err_frac) as low, p.energy_gain * (1 + typical_err_frac) as high,
    p.energy_gain * (1 - worst_err_frac) as least, p.energy_gain * (1 + worst_err_frac) as most, s.value as published,
    map($ROLES, $ROLES_words)[if(s.value is null, 'report', p.role)] as role_words
from points p left join stated s on s.series = p.series and s.model = p.model and s.system = p.system
    and if(p.series = 'table-7', s.budget = p.budget_tokens::varchar, s.batch = p.batch::varchar)
where p.series in ('table-7', 'table-9') and p.system <> 'Original+SRAM' and p.energy_gain is not null {in_full}

-- sweeps: Refresh intervals and eDRAM bandwidths that the paper shows without numbers.
{points}
select reading, series, setting, setting_value as value, model, workload, system, energy_gain as gain, speed_gain as speed,
    energy_gain * (1 - typical_err_frac) as low, energy_gain * (1 + typical_err_frac) as high,
    energy_gain * (1 - worst_err_frac) as least, energy_gain * (1 + worst_err_frac) as most
from points p where series in ('refresh interval', 'edram bandwidth') and system <> 'Original+SRAM' and energy_gain is not null {in_full}

-- sensitivity: Kelle's mean gain with one thing changed, and the mean |ln| error over the paper's ratios that it then has.
{points},
means as (
    select reading, setting, avg(energy_gain order by model, workload) as energy,
        avg(speed_gain order by model, workload) as speed, count(energy_gain) as cells
    from points where series = 'sensitivity' and system = 'Kelle+eDRAM' and energy_gain is not null group by all
)
select m.*, c.value as error, energy / max(energy) filter (m.setting = 'as is') over (partition by reading) - 1 as change
from means m left join kelle_checks c on c.series = 'sensitivity' and c.setting = m.setting order by all

-- explorer: Gains over models, workloads, batches and budgets; a system that keeps everything has no budget.
{points}
select reading, model, workload, batch, system, budget_tokens as budget, speed_gain as speed, energy_gain as energy, is_beyond
from points where series = 'explorer' order by all

-- requests: Joules of a prompt and of its output.
select mode as reading, model_id as model, n_context_tokens as context, n_decode_tokens as decode, batch, system, prefill_j, decode_j,
    speed_gain as speed, energy_gain as gain, dram_overflow_bytes as over,
    if(context % 1024 = 0, context // 1024 || 'K', context::varchar) || ' in, '
        || if(decode % 1024 = 0, decode // 1024 || 'K', decode::varchar) || ' out' as lengths, prefill_j + decode_j as saved
from kelle_requests where prefill_j is not null order by all

-- recompute: Recomputed share against operations per byte, operations per second, and what the roofline allows.
select model_id as model, workload, batch, mode, recomputed_frac as frac, ops_per_byte, ops_per_s, roof_ops_per_s as roof,
    is_compute_bound, batch / step_s as tokens_per_s, label, map($MODES, $MODES_words)[mode] as said
from kelle_recompute order by all

-- roof: Corners of the roof: of the least intensity, where memory and array are as fast, and of the largest.
with ends as (
    select min(ops_per_byte) as least, max(ops_per_byte) as most, first(roof order by ops_per_byte, frac) as low,
        first(roof order by ops_per_byte desc, frac) as high from ({recompute})
)
select unnest([least, greatest(least, high / (low / least)), most]) as ops_per_byte, unnest([low, high, high]) as roof from ends

-- lifetimes: When a layer's transient data live, in ms.
select model_id as model, batch, budget_tokens as budget, schedule, tensor, start_s * 1e3 as start, seconds * 1e3 as ms,
    (start_s + seconds) * 1e3 as until, if(schedule = 'kelle', 'Kelle''s scheduler', 'in program order') as said
from kelle_lifetimes order by all

-- retention: Assumed failure rates by refresh interval; name: the group of a marked point; is_default: of the curve that is used.
select sigma, anchor_frac as anchor, interval_s * 1e6 as us, failure_frac as failures, refresh_group as name,
    abs(sigma - c.value) < 1e-6 as is_default,
    replace(format('{:.0e} at 45 us, sigma {:.2f}{}', anchor, sigma, if(is_default, ' (used)', '')), 'e-0', 'e-') as curve
from kelle_retention, (select max(value) as value from kelle_checks where "check" = 'width of the retention curve') c
order by anchor, us, name

-- chip_parts: Area and power of the parts beside the paper's shares.
select part, area_mm2 as area, published_area_mm2 as area_paper, power_w as power, published_power_w as power_paper, 'paper' as reading
from kelle_parts order by all

-- area: A row per part and measure; of power, array and special functions are one part.
with each as (
    select reading, measure, if(measure = 'power (W)' and part in ('array', 'special functions'), 'array and special functions',
        map($CHIP, $CHIP_words)[part]) as part, if(measure = 'power (W)', power, area) as ours,
        if(measure = 'power (W)', power_paper, area_paper) as theirs
    from ({chip_parts}) cross join (values ('area (mm2)'), ('power (W)')) measures(measure)
)
select reading, measure, part, sum(ours order by ours) as ours, sum(theirs order by theirs) as theirs from each group by all order by all

-- written: part of others: a number in three digits with its unit
trim(case when abs(x) < 0.01 then format('{:.2g}', x) when x >= 99.95 then format('{:,.0f}', x) || ' ' || unit
    else format('{:#.3g}', x) || ' ' || unit end)

-- checks: What was derived anew, beside what the paper says of it.
with told as (
    select "check" as name, value, published, unit as stated, if(unit = '1', '', unit) as unit, how, value / published as ratio
    from kelle_checks where series = 'derived'
)
select name, value, published, stated as unit, how, ratio, (select {written} from (select value as x)) as ours,
    coalesce((select {written} from (select published as x where published is not null)), '') as theirs,
    row_number() over (order by abs(ln(ratio)) desc nulls last, name) - 1 as "order"
from told order by "order"

-- errors: Errors by group of ratios, with the bar each is held to.
select "check" as name, value, published, unit, how, setting as "group", bar_high as bar
from kelle_checks where series = 'error' order by all

-- ours: part of others: claims but those of models that are not run here
select * from told where list_contains($ROLES, role) and location not in ('Table 2', 'Table 3', 'Table 4', 'Table 5', 'Table 6')

-- who: part of others: the policy as it is said, with its variant; ways to refresh are not told apart
coalesce(map($ALONE, $ALONE_words)[variant], coalesce(map($NAMES, $NAMES_words)[policy], policy)
    || if(variant = '' or policy = 'kelle', '', format(' ({})', variant))) as who

-- whos: part of others: policies of the rows in the house order
(select list(who order by list_position($LOOKS, who), who) from (select distinct who from told))

-- who_dash: part of others: which of them have a dashed line
(select {'condition': {'test': format('indexof([{}], datum.who) >= 0',
    coalesce(string_agg(format('''{}''', who), ', ' order by list_position($LOOKS, who)), '')), 'value': [5, 3]}, 'value': [1, 0]}
    from (select distinct who from told where list_contains($DASHED, who)))

-- every_quality: Perplexity over that without eviction or losses, or accuracy, of live models: mean over seeds, the least, the most.
select series, model_id as model, dataset, policy, setting as variant, setting_value as at, budget_tokens as budget, storage,
    n_seeds as seeds, metric, value, low, high, {who}
from kelle_quality where metric in ('perplexity_ratio', 'accuracy') order by all

-- every_pareto: Perplexity of live models beside their energy, in mJ per decoded token, on a machine.
select model_id as model, dataset, policy, setting as variant, setting_value as at, budget_tokens as budget, storage, hardware,
    perplexity, low, high, decode_energy_j_per_token * 1e3 as mj, kv_bytes / 1e3 as kb, is_front, {who}
from kelle_pareto order by all

-- lives: The first live models.
select distinct model from (select model from ({every_quality}) union select model from ({every_pareto})) order by model limit $size

-- quality: Quality of these models.
select * from ({every_quality}) where model in ({lives}) order by all

-- pareto: Costs of these models.
select * from ({every_pareto}) where model in ({lives}) order by all

-- flips: Rates above none, with the panel and the name of what loses bits.
select *, map($FLIPPED, $FLIPPED_words)[variant] as panel, if(variant = 'all bits', storage || ', all bits', variant) as "group"
from ({quality}) where series = 'errors' and metric = 'perplexity_ratio' and "at" > 0 and list_contains($FLIPPED, variant)
order by panel, "group", "at", model, dataset

-- variant: what tells parameters of one policy apart, as kelle_quality.setting; part of others
case when policy in ('aep', 'aerp') and (parameters ->> '$.importance') = 'mean' then 'mean score'
    when policy = 'random' and (parameters ->> '$.sink')::bigint = 0 and (parameters ->> '$.recent') = '0' then 'unprotected'
    when policy = 'streaming' and (parameters ->> '$.sink')::bigint = 0 then 'recent only' else '' end as variant

-- divergence: Tokens that a replayed tape and the live run both keep, by layer, over seeds.
select model_id as model, dataset, policy, {variant}, (parameters ->> '$.budget')::bigint as budget,
    layer, avg(same_frac order by seed) as same,
    min(same_frac) as low, max(same_frac) as high, count(*) as seeds, {who}
from kv_divergence group by all order by all

-- tapes: replayed tapes; part of others
-- One replay for each policy, variant and budget: rows scaled anew where both forms are there, then the first.
with chosen as (
    select *, {variant} from kv_replays
    qualify row_number() over (partition by trace_id, policy, variant, budget_tokens order by renorm desc, parameters) = 1
), first_tapes as (select distinct trace_id from kv_replays order by trace_id limit $size)

-- keeping: Menus of tapes and budgets: of every tape the middle one opens.
select tape, budget::varchar as keeping from (
    select *, list_sort(list(budget) over (partition by tape)) as budgets from (select distinct tape, budget from told where budget is not null))
order by tape, budget <> budgets[(len(budgets) - 1) // 2 + 1], budget

-- kept: Recorded attention mass that policies keep of a tape, and bytes of either form.
{tapes}
select trace_id as tape, policy, variant, budget_tokens as budget, is_bound, is_exact, kept_mass_frac as kept,
    kept_mass_high_frac as kept_high, popular_frac as popular, x_bytes, kv_bytes, full_bytes, {who}
from chosen where trace_id in (from first_tapes) order by all

-- timeline: Kept mass and popular tokens by query position, over all layers.
{tapes}
select c.trace_id as tape, c.policy, variant, budget_tokens as budget, c.is_bound,
    first_position + (bin_tokens - 1) / 2 as position,
    sum(t.kept_mass_frac * t.n_steps order by layer) / sum(t.n_steps) as kept,
    sum(t.popular_frac * t.n_steps order by layer) / sum(t.n_steps) as popular, {who}
from kv_timeline t join chosen c using (trace_id, policy, parameters, renorm)
where t.n_steps > 0 and trace_id in (from first_tapes) group by all order by all

-- table_3: The paper's accuracies (%) by task and budget.
select model, split_part(setting, ' ', 1) as task, nullif(regexp_extract(setting, 'budget=([0-9]+)', 1), '')::bigint as budget,
    value as accuracy
from claims where paper = 'kelle' and location = 'Table 3' order by all

-- table_4: The paper's accuracies (%) by task, mean interval and way to refresh.
select model, split_part(setting, ' ', 1) as task, regexp_extract(setting, 'interval=([0-9]+)', 1)::double as at,
    if(setting like '%2drp', '2DRP', 'uniform') as variant, value as accuracy
from claims where paper = 'kelle' and location = 'Table 4' order by all

