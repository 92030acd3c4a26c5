-- swept: part of others
-- tau is text, empty where the precision has none: menus and charts compare texts. A router other than Cache-Prior names the line.
swept as (
    select p.* replace (coalesce(tau::varchar, '') as tau, case when router = 'cache_prior' then configuration
            when configuration = 'high-bit' then router else configuration || ' ' || router end as configuration),
        if(capacity_bytes >= 1e9, round(capacity_bytes / 1e9, 2) || ' GB', round(capacity_bytes / 1e6, 2) || ' MB') as cache,
        capacity_bytes / 1e9 as gb, coalesce(origin, '') = 'captured' as is_captured
    from slicemoe_points p left join traces using (trace_id)
    where study = 'slicemoe' and budget = 'none' and (p.model_id, capacity_bytes) in
        (select (model_id, capacity_bytes) from slicemoe_points where configuration = 'dbsc' and budget = 'none')
)

-- gains: How many times less energy and time than a high-bit cache whose output strays as far, per place and series, at the strength that gains most.
-- Every point of a sweep against the high-bit cache pulled until it strays as far, linear between two strengths, the first that do;
-- a point that no pull of the high-bit cache reaches on every seed is left out.
with {swept},
high as (
    select *, lag(strayed_frac) over w as strayed_before, lag(decode_energy_j_per_token) over w as energy_before,
        lag(decode_step_s) over w as step_before, lag(high_bit_miss_frac) over w as miss_before
    from swept where configuration = 'high-bit' and warmup = 'last_layer'
    window w as (partition by trace_id, hardware, capacity_bytes, pair order by strength)
),
compared as (
    select o.model_id as model, o.seed, o.gb, o.cache, o.is_captured, pair, o.tau, o.strength, o.strayed_frac as strayed,
        o.configuration || if(o.warmup = 'last_layer', '', ' + ' || o.warmup) as series, o.high_bit_miss_frac as miss,
        o.decode_energy_j_per_token as energy, (o.strayed_frac - strayed_before) / (b.strayed_frac - strayed_before) as share,
        energy_before + (b.decode_energy_j_per_token - energy_before) * share as energy_high_bit,
        miss_before + (b.high_bit_miss_frac - miss_before) * share as miss_high_bit, energy_high_bit / energy as energy_gain,
        (step_before + (b.decode_step_s - step_before) * share) / o.decode_step_s as speedup
    from swept o join high b using (trace_id, hardware, capacity_bytes, pair)
    where o.configuration <> 'high-bit' and strayed_before < o.strayed_frac and o.strayed_frac <= b.strayed_frac
    qualify row_number() over (partition by trace_id, hardware, capacity_bytes, pair, series, o.tau, o.strength order by b.strength) = 1
),
means as (
    select model, gb, cache, is_captured, pair, tau, series, metric, strength, count(*) as seeds, avg(gain order by seed) as gain,
        min(gain) as low, max(gain) as high, avg(strayed order by seed) as strayed, avg(miss order by seed) as miss,
        avg(miss_high_bit order by seed) as miss_high_bit, avg(energy order by seed) as energy,
        avg(energy_high_bit order by seed) as energy_high_bit
    from (unpivot compared on energy_gain, speedup into name metric value gain) group by all
)
from means qualify seeds = max(seeds) over (partition by model)
    and row_number() over (partition by model, cache, pair, tau, series, metric order by seeds desc, gain desc, strength) = 1
order by all

-- paper_gains: The paper's largest gains per model and metric.
select lower(model) as model, model as name, replace(metric, 'decode_', '') as metric, max(value) as paper from claims
where paper = 'slicemoe' and location like '%Fig 9%' and metric in ('decode_energy_gain', 'decode_speedup') and value is not null
group by all order by all

-- names: part of others: models as the paper has them
select distinct model, name from ({paper_gains})

-- sweeps: Output error, misses and joules per token of every configuration at every strength, over seeds; drawn models first, wide
-- pairs first, configurations in drawing order.
with {swept}
select * exclude (gb, is_captured) from (
    select model_id as model, gb, cache, is_captured, pair, tau,
        coalesce(map($CONFIGURATIONS, $CONFIGURATIONS_words)[configuration], configuration) as configuration, strength,
        count(*) as seeds, avg(strayed_frac order by seed) as strayed, min(strayed_frac) as strayed_low,
        max(strayed_frac) as strayed_high, avg(high_bit_miss_frac order by seed) as miss, min(high_bit_miss_frac) as miss_low,
        max(high_bit_miss_frac) as miss_high, avg(decode_energy_j_per_token order by seed) as energy,
        min(decode_energy_j_per_token) as energy_low, max(decode_energy_j_per_token) as energy_high
    from swept where warmup = 'last_layer' group by all
)
order by is_captured, model, gb, pair desc, list_position($LOOKS, configuration), tau, configuration, strength

-- budgets: part of others
-- Under a hard budget the high-bit cache is swept twice: as it is, and with its router pulled towards resident experts.
select model_id as model, capacity_bytes / 1e9 as gb, pair, if(configuration = 'high-bit' and strength > 0, 'cache_prior',
        configuration) as configuration, target_frac as target,
    max(strength) over (partition by model_id) as strength, seed, flash_energy_frac, high_bit_miss_frac
from slicemoe_points where study = 'slicemoe' and target_frac is not null and warmup = 'last_layer' and router = 'cache_prior'

-- flash: Share of a decoded token's energy that Flash takes under hard budgets, over seeds; a panel for each model, cache and pair.
with shares as (
    select * exclude (seed, flash_energy_frac, high_bit_miss_frac)
            replace (coalesce(map($CONFIGURATIONS, $CONFIGURATIONS_words)[configuration], configuration) as configuration),
        count(*) as seeds, avg(flash_energy_frac order by seed) as flash, min(flash_energy_frac) as low,
        max(flash_energy_frac) as high, avg(high_bit_miss_frac order by seed) as miss, min(high_bit_miss_frac) as miss_low,
        max(high_bit_miss_frac) as miss_high
    from ({budgets}) group by all
)
select shares.*, coalesce(name, model) as name, coalesce(name, model) || ', ' || gb || ' GB, ' || pair as panel
from shares left join ({names}) using (model)
order by list_position($LOOKS, configuration), model, gb, pair, configuration, target, strength

-- warmups: Energy and latency of every initial cache over those of an empty one, seed by seed, for every window; beside them the
-- paper's own where it speaks of them: its gains, turned over, for the first ten steps.
with relative as (
    select o.model_id as model, o.warmup, o.budget, o.capacity_bytes / 1e9 as gb, o.strength, o.window_steps as steps, o.seed,
        o.decode_energy_j_per_token / e.decode_energy_j_per_token as energy, o.decode_step_s / e.decode_step_s as latency
    from warmup_points o
    join warmup_points e using (study, trace_id, hardware, capacity_bytes, budget, strength, window_steps)
    where study = 'slicemoe' and e.warmup = 'empty'
),
ratios as (
    select model, warmup, budget, gb, strength, steps, metric, avg(ratio order by seed) as ratio, min(ratio) as low,
        max(ratio) as high, count(*) as seeds
    from (unpivot relative on energy, latency into name metric value ratio) group by all
),
stated as (
    select if(metric = 'decode_speedup', 'latency', 'energy') as metric, max(1 / value) as paper from claims
    where paper = 'slicemoe' and claim_id like '%pcw-over-empty%' and metric in ('decode_energy_gain', 'decode_speedup') group by all
)
select ratios.* replace (coalesce(map($WARMUPS, $WARMUPS_words)[warmup], warmup) as warmup, steps::varchar as steps),
    if(steps = $EARLY_STEPS, paper, null) as paper, coalesce(name, model) as name, coalesce(name, model) || ': ' || metric as panel
from ratios left join stated using (metric) left join ({names}) using (model)
order by ratios.model, ratios.warmup, ratios.budget, ratios.gb, ratios.strength, ratios.steps, ratios.metric

-- quality: Perplexity, or accuracy where there is none, and misses that were measured inside a model, over seeds; level, least, most: on
-- one axis, accuracy in per cent; is_drawn: the panel has budgets, or none of its setup has.
-- A panel is a pair and a cache, a setup everything else but the precision and the budget, which the chart varies. `worse`: than
-- the high-bit cache of the same seed, which read the same text.
with told as (
    select *, json_merge_patch(parameters::json, '{"precision": null, "precision.tau": null, "budget": null, "pair": null,
            "budget.target_frac": null, "budget.gain": null, "cache_frac": null}'::json)::varchar as rest,
        coalesce(parameters ->> '$.precision', 'dbsc') as configuration, coalesce(parameters ->> '$.pair', 'MAT84') as pair,
        (parameters ->> '$.cache_frac')::double as cache,
        coalesce(parameters ->> '$."precision.tau"', '') as tau, coalesce(parameters ->> '$.budget', 'none') as budget,
        (parameters ->> '$."budget.target_frac"')::double as target, perplexity is null as is_accuracy,
        coalesce(perplexity, accuracy) as level, max(level) filter (configuration = 'high-bit')
            over (partition by model_id, dataset, rest, pair, cache, budget, target, seed, is_accuracy) as base,
        if(is_accuracy, base / nullif(level, 0), level / base) - 1 as worse
    from ({lived}) where policy = 'slicemoe' and miss_frac is not null and coalesce(perplexity, accuracy) is not null
)
select means.* replace (coalesce(map($CONFIGURATIONS, $CONFIGURATIONS_words)[configuration], configuration)
        || if(tau = '', '', ', tau ' || tau) as configuration),
    pair || coalesce(format(', {:g} % cached', 100 * cache), '') as panel, budget || coalesce(' ' || 100 * target || ' %', '') as budget_words,
    if(is_accuracy, 100, 1) * value as level, if(is_accuracy, 100, 1) * low as least, if(is_accuracy, 100, 1) * high as most,
    bool_or(target is not null) over (partition by model, dataset, rest, pair, cache)
        or not bool_or(target is not null) over (partition by model, dataset, rest) as is_drawn
from (
    select model_id as model, dataset, rest, pair, cache, configuration, tau, budget, target, is_accuracy, count(*) as seeds,
        avg(level order by seed) as value, min(level) as low, max(level) as high, avg(miss_frac order by seed) as miss,
        min(miss_frac) as miss_low, max(miss_frac) as miss_high, avg(worse order by seed) as worse, min(worse) as worse_low,
        max(worse) as worse_high
    from told group by all
) means
order by list_position($LOOKS, coalesce(map($CONFIGURATIONS, $CONFIGURATIONS_words)[means.configuration], means.configuration)),
    model, dataset, rest, pair, cache, means.configuration, tau, budget, target, is_accuracy

-- sparing: part of others: DBSC beside the high-bit cache where neither has a budget: how much worse, at which misses; fewest misses first
with free as (from told where budget = 'none' and worse is not null)
select d.setup, d.panel, d.is_accuracy, d.miss, h.miss as miss_high_bit, d.worse, d.worse_low, d.worse_high, d.seeds,
    format('{:.1f} % and {:.1f} %', 100 * h.miss, 100 * d.miss) as said_misses,
    case when d.worse_low > 0 then 'loses' when d.worse_high < 0 then 'wins' else 'depends on the seed' end as said_verdict,
    row_number() over (order by round_even(h.miss, 2), d.panel) - 1 as "order"
from free d join free h using (setup, panel) where d.configuration = 'DBSC' and h.configuration = 'high-bit' order by "order"

-- proxies: What two proxies of a replay, and the model itself, lost at every strength of the router, over seeds; r: of a proxy with KL, of each seed's own text.
with pulled as (
    select model_id as model, dataset, seed, coalesce(parameters ->> '$.pair', 'MAT84') as pair, parameters ->> '$.precision' as configuration,
        coalesce(parameters ->> '$."precision.tau"', '') as tau, (parameters ->> '$."router.strength"')::double as strength, kl,
        strayed_frac as strayed, 1 - kept_gate_mass_frac as lost
    from ({lived}) where (parameters ->> '$.router') = 'cache_prior' and kl is not null and strayed_frac is not null
),
points as (unpivot pulled on strayed, lost into name proxy value deviation),
correlated as (
    select model, dataset, proxy, avg(r order by seed) as r, min(r) as r_low, max(r) as r_high
    from (select model, dataset, proxy, seed, corr(deviation, kl) as r from points group by all) group by all
)
select means.* replace (coalesce(map($CONFIGURATIONS, $CONFIGURATIONS_words)[configuration], configuration)
        || if(tau = '', '', ', tau ' || tau) as configuration),
    coalesce(map($PROXIES, $PROXIES_words)[proxy], proxy) as proxy_name, '{}' as rest
from (
    select model, dataset, proxy, pair, configuration, tau, strength, count(*) as seeds, avg(deviation order by seed) as deviation,
        avg(kl order by seed) as kl, min(kl) as kl_low, max(kl) as kl_high, max(r) as r, max(r_low) as r_low, max(r_high) as r_high
    from points join correlated using (model, dataset, proxy) where isfinite(r) group by all
) means
order by list_position($LOOKS, coalesce(map($CONFIGURATIONS, $CONFIGURATIONS_words)[means.configuration], means.configuration)),
    model, dataset, proxy, pair, means.configuration, tau, strength

-- fidelity: Open loop over closed loop - 1, per setup and quantity, over seeds.
select model_id as model, dataset, parameters as rest, hardware, metric, unit, count(*) as seeds,
    avg(open_loop order by seed) as opened, avg(closed_loop order by seed) as closed,
    avg(open_loop / closed_loop - 1 order by seed) as error, min(open_loop / closed_loop - 1) as low,
    max(open_loop / closed_loop - 1) as high
from fidelity where closed_loop <> 0 group by all order by all

-- schemes: Perplexity with every expert at the low width of a pair, by scheme; over_base: over the asymmetric base's. Of the model with most rows.
-- A perplexity that is no number or endless has diverged: it is counted, takes no part in the mean, and has no mark alone.
with told as (
    select *, parameters ->> '$.scheme' as code, coalesce(parameters ->> '$.pair', '') as pair,
        if(isfinite(perplexity), perplexity, null) as finite,
        max(finite) filter (code = 'base_asym') over (partition by model_id, dataset, seed, pair) as base
    from ({lived}) where policy = 'precision' and perplexity is not null
),
of_models as (
    select model_id as model, dataset, coalesce(map($SCHEMES, $SCHEMES_words)[code], code) as scheme, pair, count(*) as seeds,
        count(*) - count(finite) as diverged, avg(finite order by seed) as value, min(finite) as low, max(finite) as high,
        avg(finite / base order by seed) as over_base, min(finite / base) as over_base_low, max(finite / base) as over_base_high, code
    from told group by all
)
select * exclude (code), if(pair = '', '- - - as loaded: ', '') || case when value >= 1e3 then format('{:.1f}k', value / 1e3)
        when value >= 99.95 then format('{:,.0f}', value) else format('{:#.3g}', value) end as words,
    coalesce(list_position($SCHEMES, code) - 1, len($SCHEMES)) as "order", code
from of_models semi join (select model, dataset from of_models group by all order by count(*) desc, model, dataset limit 1) using (model, dataset)
qualify bool_or(pair <> '') over () order by "order", scheme, pair

-- paper_schemes: The paper's perplexity of AMAT over that of the asymmetric base, per model and pair.
-- The paper's own ratio, at the low width of each pair.
with stated as (
    select model, value, regexp_extract(setting, '^asym (AMAT|Base) (MAT[0-9]+) ([0-9])-bit$', ['scheme', 'pair', 'bits']) as s
    from claims where paper = 'slicemoe' and location = 'Table 1' and value is not null
)
select model, s.pair as pair, max(value) filter (s.scheme = 'AMAT') / max(value) filter (s.scheme = 'Base') as ratio
from stated where s.scheme <> '' and s.bits = right(s.pair, 1) group by all having ratio is not null order by all

-- tapes: The first `size` tapes whose routing is summarised.
-- Recorded tapes before drawn ones, the study's before others.
select trace_id, model_id, dataset, origin from traces
where trace_id in (select trace_id from early_popularity union select trace_id from critical_experts)
order by (origin <> 'synthetic') desc, (trace_id in (select trace_id from slicemoe_points)) desc, created_utc desc, trace_id
limit $size

-- early: Per tape and layer: share (%) of the selections of every expert in prefill and in the first ten decode steps, how alike they are, and what the half of the experts that prefill used most takes of early decode. Layers without one have no row.
-- Every expert of a layer with its selections in prefill (p) and early decode (d). Sums are of integers, or in a fixed order: the
-- same warehouse gives the same page. Expert ids of two layers have nothing in common: all layers are averaged by rank in prefill.
with used as (
    select trace_id, layer, expert, n_selected as p, 0 as d from popularity where phase = 'prefill'
    union all select trace_id, layer, expert, 0, n_selected from early_popularity
),
grid as (
    select trace_id, layer, unnest(range(n_experts)) as expert
    from (select distinct trace_id, layer from used where trace_id in (select trace_id from ({tapes}))) join traces using (trace_id)
),
counted as (
    select trace_id, layer, expert, coalesce(sum(p), 0)::hugeint as p, coalesce(sum(d), 0)::hugeint as d
    from grid left join used using (trace_id, layer, expert) group by all
),
ranked as (
    select *, 100 * p / sum(p) over l as p_share, 100 * d / sum(d) over l as d_share,
        row_number() over (l order by p desc, expert) - 1 as rank
    from counted window l as (partition by trace_id, layer) qualify sum(p) over l > 0 and sum(d) over l > 0
),
sums as (
    select trace_id, layer, count(*) as n, sum(p) as sp, sum(d) as sd, sum(p * p) as pp, sum(d * d) as dd, sum(p * d) as pd,
        sum(d) filter (rank < n_experts // 2) / sum(d) as of_first_half,
        list(round(p_share, 2) order by expert) as prefill, list(round(d_share, 2) order by expert) as early
    from ranked join traces using (trace_id) group by trace_id, layer
),
layers as (
    select *, pd / sqrt(pp::double * dd) as cosine,
        (n * pd - sp * sd) / nullif(sqrt((n * pp - sp * sp)::double * (n * dd - sd * sd)), 0) as correlation
    from sums
),
averaged as (
    select trace_id, rank, avg(p_share order by layer) as p_share, avg(d_share order by layer) as d_share
    from ranked group by trace_id, rank
),
together as (
    select trace_id, list(round(p_share, 2) order by rank) as prefill, list(round(d_share, 2) order by rank) as early
    from averaged group by trace_id
)
select trace_id as trace, layer::varchar as layer, layer as place, cosine, correlation, of_first_half, prefill, early from layers
union all
select trace_id, 'all', null, avg(cosine order by l.layer), avg(correlation order by l.layer),
    avg(of_first_half order by l.layer), t.prefill, t.early
from layers l join together t using (trace_id) group by trace_id, t.prefill, t.early
order by trace, place nulls last

-- critical: Per tape, layer and tau: critical experts of a token in every bin of positions, and over all.
-- A bin of positions without any token is null.
with told as (
    select trace_id, layer::varchar as layer, layer as place, tau, first_position, bin_tokens, n_routed, n_critical
    from critical_experts where trace_id in (select trace_id from ({tapes}))
    union all
    select trace_id, 'all', null, tau, first_position, bin_tokens, sum(n_routed), sum(n_critical)
    from critical_experts where trace_id in (select trace_id from ({tapes})) group by all
),
grid as (
    select trace_id, layer, tau, unnest(range(0, max(first_position) + 1, any_value(bin_tokens))) as first_position
    from told group by trace_id, layer, tau
)
select trace_id as trace, layer, max(place) as place, tau::varchar as tau, max(bin_tokens) as bin_tokens,
    sum(n_critical) / sum(n_routed) as mean, list(round(n_critical / n_routed, 3) order by first_position) as critical
from grid left join told using (trace_id, layer, tau, first_position)
group by all order by trace, place nulls last, tau

-- gates: Per tape, layer and phase: share (%) of a token's gate weight at every rank.
with told as (
    select trace_id, layer::varchar as layer, layer as place, phase, gate_rank, gate_frac, n_routed
    from gate_curve where phase in ('prefill', 'decode') and trace_id in (select trace_id from ({tapes}))
),
whole as (
    from told union all
    select trace_id, 'all', null, phase, gate_rank, sum(gate_frac * n_routed order by place) / sum(n_routed), sum(n_routed)
    from told group by all
)
select trace_id as trace, layer, max(place) as place, phase, list(round(100 * gate_frac, 5) order by gate_rank) as share
from whole group by all order by trace, place nulls last, phase

-- operating: a row per pair of gains; the band is over the assumed shares of accesses that read the LSB slice
with names as (select distinct lower(model) as model, model as name from claims where paper = 'slicemoe' and model <> ''),
pairs as (
    select claim, method, model_id as model, hardware, origin, tau::varchar as tau, energy_gain, speed_gain,
        min(lsb_frac) as lsb_low, max(lsb_frac) as lsb_high,
        min(baseline_miss_frac) as baseline_low, max(baseline_miss_frac) as baseline_high,
        min(ours_miss_frac) as ours_low, max(ours_miss_frac) as ours_high,
        bool_or(least(baseline_miss_frac, ours_miss_frac) >= 0 and greatest(baseline_miss_frac, ours_miss_frac) <= 1) as possible
    from operating_points where study = 'slicemoe' group by all
)
select *, row_number() over (order by origin, claim, model, hardware) - 1 as "order", 150 / (dense_rank() over (order by model) - 0.5e0) as area,
    format('{}, {}|{}: energy {:.2f} ×, speed {:.2f} ×', model, origin, regexp_replace(claim, ' at (matched|equal).*', ''), energy_gain, speed_gain) as label
from (select pairs.* replace (coalesce(name, model) as model) from pairs left join names using (model)) order by "order"

-- operating_end: part of others: end of the axis: past 1, so that the impossible is seen to be
greatest(1.25, 1.05e0 * max(greatest(baseline_high, ours_high)))

-- tape_menus: Every tape with its layers, then all layers.
select trace, layer, tapes.trace_id || ': ' || model_id || ', ' || dataset || ' (' || origin || ')' as trace_words,
    if(layer = 'all', 'all layers', null) as layer_words
from (select trace, layer, place from ({early}) union select trace, layer, place from ({critical}))
left join (select *, row_number() over () as n from ({tapes})) tapes on trace = tapes.trace_id order by n nulls last, trace, place nulls last

-- sweep_menus: part of others: every swept model, cache, pair and tau, the tau that the study chose first
select model, name as model_words, cache, pair, tau
from (select model, cache, pair, tau, min(n) as n from (select *, row_number() over () as n from ({sweeps})) where configuration = 'DBSC' group by all)
left join ({names}) using (model) order by tau in (select tau from ({operating})) desc, n
