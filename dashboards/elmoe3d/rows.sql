-- machines: capacity of the hybrid-bonded memory of a machine, in words
with machines as (
    select hardware, format('{:g} GiB', any_value(hb_bytes) / 1073741824) as machine from elmoe3d_points
    where study = $study and series = 'table-3' group by hardware
)

-- points: elmoe3d_points, with draft_ms and verify_ms of a round
{machines}
select p.* exclude (study, model_id, sd_scheme, hit_model, hb_bytes, hb_bytes_per_s), model_id as model, sd_scheme as scheme,
    hit_model as law, round(hb_bytes / 1073741824, 3) as gib, hb_bytes_per_s / 1e9 as hb_gb_per_s,
    coalesce(machine, hardware) as machine,
    n_draft_steps * draft_step_s * 1e3 as draft_ms, verify_s * 1e3 as verify_ms
from elmoe3d_points p left join machines using (hardware) where study = $study order by all

-- mapping: GB of every part in every tier; parts that take nothing are left out.
{machines}
select coalesce(machine, hardware) as machine, model_id as model, sd_scheme as scheme, batch, tier, part, placed_bytes / 1e9 as gb
from elmoe3d_mapping left join machines using (hardware) where study = $study and placed_bytes > 0 order by all

-- intensity: Operations per byte of a pass by part, and the knees of the rooflines.
{machines}
select coalesce(machine, hardware) as machine, model_id as model, batch, step_mode as mode, part, ops_per_byte
from elmoe3d_intensity left join machines using (hardware) where study = $study order by all

-- platforms: Speed-ups at the middle of what the paper does not give; low and high: over all of it.
-- The headline: verified nodes and near-memory inputs as the study answers claims with them, the middle of their ranges.
with headline as (
    select quantile_disc(verify_nodes, 0.5) over () as nodes, quantile_disc(nmp_ext_ratio, 0.5) over () as ratio, *
    from elmoe3d_platforms where study = $study
)
select platform, model_id as model, dataset, batch, hit_model as law, level, step_mode as mode, fidelity,
    any_value(speedup) filter (
        verify_nodes = nodes and (nmp_ext_ratio is null or nmp_ext_ratio = ratio) and coalesce(placement, 'dense') = 'dense'
    ) as speedup,
    min(speedup) as low, max(speedup) as high, any_value(nodes) as nodes, any_value(ratio) as ratio,
    min(verify_nodes) as least_nodes, max(verify_nodes) as most_nodes,
    min(nmp_ext_ratio) as least_ratio, max(nmp_ext_ratio) as most_ratio
from headline group by all order by all

-- energy: Joules of a token by part, in each platform's faster mode.
select platform, model_id as model, dataset, batch, hit_model as law, level, step_mode as mode, part, j_per_token, low, high
from elmoe3d_energy where study = $study and is_best order by all

-- misses: Missed lookups by batch and cached share, replayed and by every law.
select source, origin, model_id as model, dataset, batch, hit_model as law, cache_frac, cache_experts,
    miss_frac_lookups as missed, fidelity
from elmoe3d_misses where study = $study order by all

-- unions: Distinct experts of a layer that n tokens touch, of one request and of different ones.
select c.source, c.model_id as model, form, tokens_of, c.n_tokens, coverage_frac * n_experts as experts, low * n_experts as low,
    high * n_experts as high, n_experts, origin, dataset
from coverage_points c join traces t on c.source = t.trace_id where study = $study and layer_band = 'all' order by all

-- checks: Errors and means against the paper's open rows, and the bars they are held to.
select block, level, hit_model as law, fit, value, unit, n, bar_low, bar_high
from elmoe3d_checks where study = $study order by all

-- acceptance: What live models accept of drafted tokens, of any study.
select study, model_id as model, dataset, series, drafter, scheme, bits_high, bits_low, pool_policy, pool_frac,
    pool_experts, batch, depth, width, temperature, n_seeds, n_rounds, fidelity, metric, value, low, high
from acceptance_points order by all

-- published_gain_frac: What the paper says a hotness pool has accepted over a random one, less one.
select value / 100 as gain from claims
where paper = $study and metric = 'hotness_vs_random_pool_acceptance_gain' and unit = 'percent'

