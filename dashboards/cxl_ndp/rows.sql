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

-- published: What the paper says a system gains, and whether it was fitted on.
-- The paper's ratios of a system: over MoNDE or HOBBIT while decoding, over MoNDE end to end.
select lower(model) as model, if(setting like 'ours 2-bit%', 'OURS-2', 'OURS-3') as system,
    case when metric = 'e2e_speedup' then 'e2e' when setting like '%HOBBIT%' then 'hobbit' else 'monde' end as over, statistic,
    value as published, role
from claims where paper = $paper and metric in ('decode_throughput_gain', 'speedup', 'e2e_speedup') and value is not null
order by all

-- first_setup: part of others: of the paper's models the smaller one
(select setup from told order by rank, setup desc limit 1)

-- systems: part of others: systems of the rows, ours first, by number
(select system, row_number() over (order by list_position($SYSTEMS, system), system) as n from (select distinct system from told))

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

-- throughput: The headline's systems with the paper's ratios of the same model.
with over as (from ({published}))
select p.*, m.published as paper_monde, m.role as role_monde, h.published as paper_hobbit, h.role as role_hobbit
from ({points}) p left join over m on m.over = 'monde' and m.system = p.system and m.model = p.setup
left join over h on h.over = 'hobbit' and h.system = p.system and h.model = p.setup
where p.series = 'headline' and list_contains($MAIN, p.system) order by p.rank, p.setup desc, list_position($MAIN, p.system)

-- swept: Our systems in series with a number, with their gain.
select setup, rank, series, setting, number, system, batch, decode_gain, decode_gain_low, decode_gain_high
from ({points}) where list_contains($OURS, system) and number is not null and decode_gain is not null

-- sweeps: One thing changed at a time, on the models that were swept.
select * from ({swept}) where list_contains($AXES, series) and setup in (
    select setup from ({swept}) where list_contains($AXES, series) and series <> 'batch')

-- others: All models over batches, links and NDP sizes, on the first of our systems.
select * from ({swept}) where list_contains($WITHIN, series) and system = (
    select system from ({swept}) where list_contains($WITHIN, series) order by list_position($OURS, system) limit 1)

-- changed: An assumption that was changed, on the first setup of which some were: the gain of ours, its band, and as it is.
-- Where MoNDE itself is another, the ratio of median steps.
with everything as ({points}), ours as (select * from everything where system in ('OURS-2', 'OURS-3')),
changed as (
    select * from ours where series in ('mac rate', 'placement', 'alpha', 'bits rule') order by rank, setup desc
), here as (select setup from changed limit 1),
base as (select system, step_s, decode_gain as as_is from ours semi join here using (setup) where series = 'headline')
select setup, series, setting, system, c.decode_gain, decode_gain_low, decode_gain_high, as_is, number
from changed c semi join here using (setup) left join base using (system) where c.decode_gain is not null
union all by name
select setup, 'monde' as series, if(m.system = 'MoNDE', 'MoNDE as published', m.system) as setting, base.system,
    m.step_s / base.step_s as decode_gain, as_is
from everything m semi join here using (setup) cross join base
where series = 'headline' and m.system like 'MoNDE%' and decode_gain is not null

-- ablations: The same in words.
select *, coalesce(map($PLACEMENTS, $PLACEMENTS_words)[setting], map($RULES, $RULES_words)[setting], setting) as said,
    coalesce(map($SERIES, $SERIES_words)[series], series) as "group"
from ({changed}) order by list_position($SERIES, series), number, setting, system

-- answered: Seconds of a batch from prompt to last token, by part.
select {setup}, p.setting as lengths, system, batch, n_context_tokens as prompt, n_decode_tokens as answer,
    streamed_experts as streamed, prefill_s, transfer_s, other_s, gpu_s, wait_s, ndp_s, e2e_s, e2e_gain, low, high,
    gain_over_hobbit, is_extrapolated
from cxl_ndp_requests p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- requests: Those of the systems that are compared.
select *, format('{} → {}', prompt, answer) as "at", list_position($MAIN, system) - 1 as turn from ({answered})
where list_contains($MAIN, system) order by setup, lengths, prompt, answer, turn

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

-- hit_shares: Those of all layers together, in words.
select *, coalesce(map($PLACEMENTS, $PLACEMENTS_words)[placement], placement) as said,
    if(batch = 1, $ALONE, $TOGETHER) as "group" from ({hits}) where layer is null

-- similarity: Cosines of prompt and decode by layer; layer null: mean of layers.
select {setup}, layer, own_cosine as own, shuffled_cosine as shuffled, static_cosine as popular, flat_cosine as flat,
    static_frac, p.n_requests
from cxl_ndp_similarity p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- recorded_use: A row per request and layer. steps: first of each bin; experts, used: experts selected in it, and their shares.
-- What a layer's requests use in every bin of steps, as lists: a page with a row per cell would be too large.
with of_bins as (
    select {setup}, p.request_id, p.layer, first_step, bin_steps, list(expert order by expert) as experts,
        list(round(use_frac, 4) order by expert) as used
    from cxl_ndp_use p left join traces t on p.source = t.trace_id where p.study = $study group by all
)
select setup, rank, model, layer, request_id as request, any_value(bin_steps) as bin_steps,
    list(first_step order by first_step) as steps,
    list(experts order by first_step) as experts, list(used order by first_step) as used
from of_bins group by all order by all

-- use: Two prompts of every setup, in so many layers.
with placed as (
    select *, dense_rank() over (partition by setup order by request) - 1 as which,
        dense_rank() over (partition by setup order by layer) - 1 as place from ({recorded_use})
), turned as (
    select *, floor(place / ceil((max(place) over (partition by setup) + 1) / $size)) as turn from placed
)
select * exclude place from turned where which < 2
qualify layer = min(layer) over (partition by setup, turn) order by setup, rank, model, turned.layer, request

-- cosines: How alike are the uses of two requests of a layer, and the two halves of one request, mean over both.
with bins as (
    select setup, layer, which, len(steps) // 2 as half, unnest(experts) as experts, unnest(used) as used,
        generate_subscripts(steps, 1) as i from told
), shares as (select setup, layer, which, half, i > half as part, unnest(experts) as expert, unnest(used) as used from bins),
whole as (select setup, layer, which, expert, sum(used order by part, used) as used from shares group by all),
halves as (select setup, layer, which, part, expert, sum(used order by used) as used from shares where half > 0 group by all),
across as (
    select setup, layer, sum(a.used * b.used order by expert) as dot from whole a join whole b using (setup, layer, expert)
    where a.which = 0 and b.which = 1 group by all
), within as (
    select setup, layer, which, sum(a.used * b.used order by expert) as dot
    from halves a join halves b using (setup, layer, which, expert) where not a.part and b.part group by all
), sizes as (select setup, layer, which, sqrt(sum(used ** 2 order by expert)) as size from whole group by all),
half_sizes as (select setup, layer, which, part, sqrt(sum(used ** 2 order by expert)) as size from halves group by all),
each as (
    select w.setup, w.layer, avg(dot / (a.size * b.size) order by which) as within from within w
    join half_sizes a using (setup, layer, which) join half_sizes b using (setup, layer, which) where not a.part and b.part group by all
)
select setup, layer, dot / (a.size * b.size) as across, within from across join sizes a using (setup, layer)
join sizes b using (setup, layer) join each using (setup, layer) where a.which = 0 and b.which = 1

-- every_table: A row per layer and width of a loss table, measured ones first; mse: by expert.
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

-- tables: Those of the first tables, a quarter of the page's size: measured ones, then stand-ins of the paper's models.
select * from ({every_table})
qualify dense_rank() over (order by 2 * rank + (method = 'rtn')::int, "table" desc) <= greatest(1, $size // 4) order by all

-- won: Of every tape with both quantisers: share of cells in which GPTQ loses at most as much as round-to-nearest.
select trace_id, any_value(model_id) as model, count(*) as cells, avg((g.mse <= r.mse)::int) as won,
    avg((g.heldout_mse <= r.heldout_mse)::int) as won_heldout
from expert_losses g join expert_losses r using (trace_id, layer, expert, bits, "group") join traces using (trace_id)
where g.method = 'gptq' and r.method = 'rtn' group by trace_id order by all

-- shared: part of others: the rule as it is said, the panel of its mean width, and how many sequences share the bits
coalesce(map($RULES, $RULES_words)[rule], rule) as said, format('{:g} bits', mean_bits) as panel, batch::varchar as shared

-- bits: A row per rule and mean width; bits, low, high: by importance rank from 1.
-- A list by rank in a row of its own: of 128 experts, a row per rank would make the page too large.
select {given}, rule, mean_bits, batch, {shared}, n_ranked, list(round(bits_mean, 3) order by importance_rank) as bits,
    list(round(bits_p05, 3) order by importance_rank) as low, list(round(bits_p95, 3) order by importance_rank) as high
from cxl_ndp_bits p left join traces t on p.source = t.trace_id where p.study = $study group by all order by all

-- losses: Table loss of a rule over that of uniform bits.
select {given}, rule, mean_bits, batch, {shared}, loss_ratio as ratio, low, high, n
from cxl_ndp_losses p left join traces t on p.source = t.trace_id where p.study = $study order by all

-- bit_menus: Whose bits, given to how many: menus of both figures; the paper's models come first.
select given, shared, if(batch = 1, 'each sequence', format('{} sequences together', batch)) as shared_words
from (select given, rank, batch, shared from ({bits}) union select given, rank, batch, shared from ({losses}))
order by rank % 2, rank, given desc, batch

-- measured: Quality of live models with their experts placed and at the widths of a rule, over seeds.
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
    from ({lived}) where policy = 'cxl_ndp' and coalesce(perplexity, accuracy) is not null
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

-- ruled: The same at the widths of a rule; the selector with losses by use is a rule of its own.
select *, format('{}, {}, {}, {} hot', model, dataset, method, hot) as live, 1 - agreement as disagreement,
    coalesce(map($RULES, $RULES_words)[rule], rule) as said
from (select * replace (if(rule = 'prefix_split' and loss_weight <> 'none', 'by_use', rule) as rule) from ({measured})) where rule <> 'full'

-- quality: Those of experts placed as usual.
select * from ({ruled}) where placement = 'prefill_guided' and alpha = 0.5

-- lives: Live models that were measured so.
select distinct live, model, dataset, method, hot from ({quality}) order by model, dataset, method, hot

-- variants: The selector under other placements and orders.
with told as (
    select *, case when placement <> 'prefill_guided' then coalesce(map($PLACEMENTS, $PLACEMENTS_words)[placement], placement)
        when rule = 'by_use' then 'by the prompt, losses by use' else 'by the prompt, alpha ' || alpha end as variant,
        format('{:g} bits', bits) as width from ({ruled}) where rule in ('prefix_split', 'by_use')
)
select * from told qualify count(distinct variant) over (partition by live, bits) > 1

-- capacity: GB of every part in HBM and in the NDP's memory.
with ranks as (select setup, min(rank) as rank from (
    select setup, rank from ({points}) union select setup, rank from ({answered})) group by all)
select hardware, model_id as model, hot_experts as hot, tier, part, placed_bytes / 1e9 as gb, tier_bytes / 1e9 as tier_gb,
    coalesce(map($TIERS, $TIERS_words)[tier], tier) as tier_said, format('{}, K = {}', model, hot) as named,
    sum(gb order by part) over (partition by hardware, model, hot, tier) as whole,
    coalesce(place, (select count(*) from ranks)) as place
from cxl_ndp_capacity left join (select setup as model_id, row_number() over (order by rank, setup desc) - 1 as place from ranks)
using (model_id) where study = $study order by place, model, hot, tier, part

-- checks: Bars of the model, missed ones first, and numbers derived a second way; of the rest nothing is known to be near to.
with told as (
    select "check", value, published, unit, bar_low, bar_high, how, case when bar_low is null and bar_high is null then ''
        when coalesce(bar_low <= value, true) and coalesce(value <= bar_high, true) then 'held' else 'missed' end as verdict,
        case unit when 'x' then '{:.4g} ×' when '1' then '{:.4g}' when '%' then '{:.3g} %' else '{:.3g} points' end as form,
        coalesce(format(form, bar_low), '') as low, coalesce(format(form, bar_high), '') as high
    from cxl_ndp_checks where study = $study
)
select * exclude (form, low, high), format(form, value) as value_said, coalesce(format(form, published), '') as published_said,
    case when verdict = '' then '' when high = '' then '≥ ' || low when low = '' then '≤ ' || high else low || ' to ' || high end as bar_said,
    map($VERDICTS, $VERDICTS_words)[verdict] as verdict_said,
    row_number() over (order by list_position(['missed', 'held', ''], verdict), "check") - 1 as "order"
from told where verdict <> '' or published is not null order by "order"

-- accuracy: The paper's Table 3.
select model_id as model, method, task, accuracy_pct as accuracy, any_value(accuracy_pct) filter (method = 'original_fp16')
    over (partition by model_id, task) - accuracy_pct as lost, coalesce(map($METHODS, $METHODS_words)[method], method) as setting,
    coalesce(map($TASKS, $TASKS_words)[task], task) as named
from cxl_ndp_accuracy order by all
