-- setup: a setup, and its rank, part of others: drawn routing before recorded, the paper's models before others.
if(p.origin = 'synthetic', p.model_id, format('{}, {}', p.model_id, coalesce(t.dataset, p.source))) as setup,
    2 * (p.origin <> 'synthetic')::int
        + (p.model_id not in (select lower(model) from claims where paper = $paper and model <> ''))::int as rank,
    p.model_id as model

-- rank: part of others: measured losses before stand-ins, the paper's models before others.
2 * (method = 'stand-in')::int
    + (p.model_id not in (select lower(model) from claims where paper = $paper and model <> ''))::int as rank

-- given: part of others: whose experts got bits by which losses.
if(method = 'stand-in', format('{}, {}', p.model_id, method),
    format('{}, {}, {}', p.model_id, coalesce(t.dataset, p.source), method)) as given, {rank}

-- points: A row per system under a setting of a series, with a column per metric; NAME_low, NAME_high: over seeds.
select {setup}, p.series, p.setting, setting_value as number, system, batch, hot_experts as hot, mean_bits,
    max(value) filter (metric = 'step_s') as step_s,
    max(value) filter (metric = 'tokens_per_s') as tokens_per_s, max(value) filter (metric = 'decode_gain') as decode_gain,
    max(value) filter (metric = 'gain_over_hobbit') as gain_over_hobbit,
    max(low) filter (metric = 'tokens_per_s') as tokens_per_s_low,
    max(high) filter (metric = 'tokens_per_s') as tokens_per_s_high, max(low) filter (metric = 'decode_gain') as decode_gain_low,
    max(high) filter (metric = 'decode_gain') as decode_gain_high,
    max(low) filter (metric = 'gain_over_hobbit') as gain_over_hobbit_low,
    max(high) filter (metric = 'gain_over_hobbit') as gain_over_hobbit_high
from cxl_ndp_points p left join traces t on p.source = t.trace_id where p.study = $study group by all order by all

-- changed: An assumption that was changed, on the first setup of which some were: the gain of ours, its band, and as it is.
-- Where MoNDE itself is another, the ratio of median steps.
with everything as ({points}), ours as (select * from everything where system in ('OURS-2', 'OURS-3')),
changed as (
    select * from ours where series in ('mac rate', 'overlap', 'placement', 'alpha', 'bits rule') order by rank, setup desc
), here as (select setup from changed limit 1),
base as (select system, step_s, decode_gain as as_is from ours semi join here using (setup) where series = 'headline')
select setup, series, setting, system, c.decode_gain, decode_gain_low, decode_gain_high, as_is, number
from changed c semi join here using (setup) left join base using (system) where c.decode_gain is not null
union all by name
select setup, 'monde' as series, if(m.system = 'MoNDE', 'MoNDE average (ema)', m.system) as setting, base.system,
    m.step_s / base.step_s as decode_gain, as_is
from everything m semi join here using (setup) cross join base
where series = 'headline' and m.system like 'MoNDE%' and decode_gain is not null

-- requests: Seconds of a batch from prompt to last token, by part.
select {setup}, p.setting as lengths, system, batch, n_context_tokens as prompt, n_decode_tokens as answer,
    streamed_experts as streamed, prefill_s, transfer_s, other_s, gpu_s, wait_s, ndp_s, e2e_s, e2e_gain, low, high,
    gain_over_hobbit, is_extrapolated
from cxl_ndp_requests p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- lanes: Busy stretches of one layer-step; kind: what is worked on.
select model_id as setup, system, map {'gpu': 'GPU', 'ndp': 'NDP', 'pcie': 'link'}[lane] as lane, place,
    coalesce('e' || expert, operation) as short, round(start_s * 1e3, 5) as start_ms, round(seconds * 1e3, 5) as ms,
    case when lane = 'ndp' then 'experts in the NDP' when operation in ('activations out', 'activations back')
        then 'activations over the link' when lane = 'pcie' then 'experts over the link'
        when operation in ('expert', 'shared experts') then 'experts on the GPU' else operation end as kind,
    max(start_ms + ms) over (partition by model_id, system) as "end", model_id as model
from cxl_ndp_lanes where study = $study order by all

-- hits: Hit shares by placement; layer null: of all layers.
select {setup}, batch, placement, is_bound, hot_experts as hot, layer, gpu_hit_frac as hit, low, high
from cxl_ndp_hits p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- similarity: Cosines of prompt and decode by layer; layer null: mean of layers.
select {setup}, layer, own_cosine as own, shuffled_cosine as shuffled, static_cosine as popular, flat_cosine as flat,
    static_frac, p.n_requests
from cxl_ndp_similarity p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- use: A row per request and layer. steps: first of each bin; experts, used: experts selected in it, and their shares.
-- What a layer's two requests use in every bin of steps, as lists: a page with a row per cell would be too large.
with of_bins as (
    select {setup}, p.request_id, p.layer, first_step, bin_steps, list(expert order by expert) as experts,
        list(round(use_frac, 4) order by expert) as used
    from cxl_ndp_use p left join traces t on p.source = t.trace_id where p.study = $study group by all
)
select setup, rank, model, layer, request_id as request, any_value(bin_steps) as bin_steps,
    list(first_step order by first_step) as steps,
    list(experts order by first_step) as experts, list(used order by first_step) as used
from of_bins group by all order by all

-- tables: A row per layer and width of a loss table, measured ones first; mse: by expert.
-- Where the study used a measured table the same one is in expert_losses, with held-out losses beside it.
with named as (
    select model_id, source, method, layer, expert, bits, mse from cxl_ndp_loss_tables where study = $study
    union all
    select model_id, trace_id, method, layer, expert, bits, mse from expert_losses join traces using (trace_id)
    where (trace_id, method) not in (select (source, method) from cxl_ndp_loss_tables where study = $study)
)
select p.model_id as model, p.source, method, {rank}, format('{}, {}', p.model_id,
    if(method = 'stand-in', method, format('{} ({} {})', method, coalesce(t.dataset, ''), right(p.source, 4)))
    ) as "table", bits, layer, list(mse::double order by expert) as mse
from named p left join traces t on p.source = t.trace_id group by all order by all

-- won: Of every tape with both quantisers: share of cells in which GPTQ loses at most as much as round-to-nearest.
select trace_id, any_value(model_id) as model, count(*) as cells, avg((g.mse <= r.mse)::int) as won,
    avg((g.heldout_mse <= r.heldout_mse)::int) as won_heldout
from expert_losses g join expert_losses r using (trace_id, layer, expert, bits, "group") join traces using (trace_id)
where g.method = 'gptq' and r.method = 'rtn' group by trace_id order by all

-- bits: A row per rule and mean width; bits, low, high: by importance rank from 1.
-- A list by rank in a row of its own: of 128 experts, a row per rank would make the page too large.
select {given}, rule, mean_bits, batch, n_ranked, list(round(bits_mean, 3) order by importance_rank) as bits,
    list(round(bits_p05, 3) order by importance_rank) as low, list(round(bits_p95, 3) order by importance_rank) as high
from cxl_ndp_bits p left join traces t on p.source = t.trace_id where p.study = $study group by all order by all

-- losses: Table loss of a rule over that of uniform bits.
select {given}, rule, mean_bits, batch, loss_ratio as ratio, low, high, n from cxl_ndp_losses p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- quality: Quality of live models with their experts placed and at the widths of a rule, over seeds.
-- Worse: than full precision on the same text, as perplexity above it or exact match below it. Ahead: seeds in which a rule is at
-- least as good as uniform bits of the same width, or as the reversed order.
with told as (
    select model_id as model, dataset, seed, parameters ->> '$.method' as method, parameters ->> '$.rule' as rule,
        (parameters ->> '$.bits')::double as bits, (parameters ->> '$.hot')::bigint as hot,
        (parameters ->> '$.alpha')::double as alpha, parameters ->> '$.placement' as placement,
        coalesce(parameters ->> '$.loss_weight', 'none') as loss_weight,
        (parameters ->> '$.prompt_tokens')::bigint as prompt, (parameters ->> '$.decode_tokens')::bigint as decode,
        perplexity is null as is_accuracy, coalesce(perplexity, accuracy) as level, agreement_frac, hot_frac, table_loss,
        max(level) filter (rule = 'full') over (partition by model_id, dataset, seed, prompt, decode, is_accuracy) as base,
        if(is_accuracy, base - level, level / base - 1) as worse
    from quality where policy = 'cxl_ndp' and coalesce(perplexity, accuracy) is not null
), beside as (
    select *, max(worse) filter (rule = 'uniform') over same as uniform,
        max(worse) filter (rule = 'reversed') over same as reversed
    from told window same as (
        partition by model, dataset, seed, method, bits, hot, alpha, placement, loss_weight, prompt, decode, is_accuracy
    )
)
select model, dataset, method, rule, bits, hot, alpha, placement, loss_weight, prompt, decode, is_accuracy, count(*) as seeds,
    avg(level order by seed) as value, avg(worse order by seed) as worse, min(worse) as low, max(worse) as high,
    avg(agreement_frac order by seed) as agreement, avg(hot_frac order by seed) as hot_frac,
    avg(table_loss order by seed) as table_loss, count(*) filter (worse <= uniform) as ahead_of_uniform,
    count(*) filter (worse <= reversed) as ahead_of_reversed
from beside group by all order by all

-- capacity: GB of every part in HBM and in the NDP's memory.
select hardware, model_id as model, hot_experts as hot, tier, part, placed_bytes / 1e9 as gb, tier_bytes / 1e9 as tier_gb
from cxl_ndp_capacity where study = $study order by all

-- checks: Bars of the model and numbers derived a second way.
select "check", value, published, unit, bar_low, bar_high, how from cxl_ndp_checks where study = $study order by all

-- accuracy: The paper's Table 3.
select model_id as model, method, task, accuracy_pct as accuracy from cxl_ndp_accuracy order by all

-- published: What the paper says a system gains, and whether it was fitted on.
-- The paper's ratios of a system: over MoNDE or HOBBIT while decoding, over MoNDE end to end.
select lower(model) as model, if(setting like 'ours 2-bit%', 'OURS-2', 'OURS-3') as system,
    case when metric = 'e2e_speedup' then 'e2e' when setting like '%HOBBIT%' then 'hobbit' else 'monde' end as over, statistic,
    value as published, role
from claims where paper = $paper and metric in ('decode_throughput_gain', 'speedup', 'e2e_speedup') and value is not null
order by all

