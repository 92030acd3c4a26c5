-- machines: capacity of the hybrid-bonded memory of a machine, in words
with machines as (
    select hardware, format('{:g} GiB', any_value(hb_bytes) / 1073741824) as machine from elmoe3d_points
    where study = $study and series = 'table-3' group by hardware
)

-- by_size: part of others: machines of the rows, those with less memory first
(select list(machine order by gib) from (select machine, min(gib) as gib from told group by all))

-- panelled: part of others: rows of `named` as `turned`: panels by model and data set, with the end of the tape where several have both, captured ones first
panelled as (
    select *, origin = 'synthetic' as is_made, model || ', ' || dataset
        || if(count(distinct source) over (partition by model, dataset) = 1, '', ', ' || right(source, 4)) as panel
    from named
), turned as (select *, dense_rank() over (order by is_made, model desc, panel) as turn from panelled)

-- points: elmoe3d_points, to other questions `shown`, with draft_ms and verify_ms of a round; can_draft: not where Elastic-SD has fewer experts in HB than a token selects
{machines}
select p.* exclude (study, model_id, sd_scheme, hit_model, hb_bytes, hb_bytes_per_s), model_id as model, sd_scheme as scheme,
    hit_model as law, round(hb_bytes / 1073741824, 3) as gib, hb_bytes_per_s / 1e9 as hb_gb_per_s,
    coalesce(machine, hardware) as machine, list_position($SCHEME_NAMES, sd_scheme) as turn, batch::varchar as batch_words,
    n_draft_steps * draft_step_s * 1e3 as draft_ms, verify_s * 1e3 as verify_ms,
    sd_scheme <> 'Elastic-SD' or draft_experts >= coalesce(map($models, $top_k)[model_id], 0) as can_draft
from elmoe3d_points p left join machines using (hardware) where study = $study order by all

-- table3: Table 3 under the hit models of the menu and every level, at constants fitted on no predicted row.
select * from shown where series = 'table-3' and fit = 'calibrate' and law in ('paper_law', 'physical', 'events')
order by law, level desc, model desc, gib, turn, batch

-- of_menu: what the page's menus are of: Table 3, or all points at the constants of its rows where there is none of it.
select * from ({table3})
union all select * from shown where fit = 'calibrate' and not exists (from ({table3}))

-- modes: a point by mode, in words.
select * exclude (published_ar, published_sd), case mode when 'AR' then phi_ar else phi_sd end as speedup,
    case mode when 'AR' then published_ar else published_sd end as published,
    case mode when 'AR' then role_ar else role_sd end as role
from shown, (values ('AR'), ('SD')) m(mode)

-- paper: the paper's numbers, once per machine, model, scheme and batch.
select distinct hardware, gib, model, scheme, batch, mode, published from ({modes}) where series = 'table-3' and fit = 'calibrate'

-- winners: Our fastest scheme of a setting and panel, the paper's, and whether ours has the paper's best number.
with each as (
    select t.*, panel, case when panel = 'best' then upper(best_mode) else '' end as shown_mode,
        case panel when 'ar' then phi_ar when 'sd' then phi_sd else greatest(phi_ar, phi_sd) end as value,
        case when not is_withheld then
            case panel when 'ar' then published_ar when 'sd' then published_sd else greatest(published_ar, published_sd) end
        end as published
    from ({table3}) t, (select unnest($PANELS) as panel)
), placed as (
    select *, max(published) over setting as most, row_number() over (setting order by round(value, 3) desc, turn) as place,
        first_value(scheme) over (setting order by coalesce(published, 0) desc, turn) as theirs
    from each window setting as (partition by law, level, machine, model, batch, panel)
)
select law, level, machine, model, batch, scheme, value, shown_mode, published, is_withheld, theirs, most,
    map($PANELS, $PANELS_words)[panel] as panel, published >= most as agrees,
    concat_ws(' ', nullif(shown_mode, ''), format('{:.1f}×', value)) as said
from placed where place = 1 order by list_position($PANELS, placed.panel), law, level, machine, model, batch

-- pays: From which batch Elastic-SD's SD stays the faster mode; null: it is not at the largest.
select law, level, model, machine, min(batch) filter (batch > lost) as "at" from (
    select *, coalesce(max(batch) filter (phi_sd / phi_ar <= 1 + 1e-9) over (partition by law, level, model, machine), 0) as lost
    from ({table3}) where scheme = 'Elastic-SD'
) group by all order by any_value(gib), law, level desc, model desc

-- swept: The sweep over batches, where a scheme can draft.
select * from shown where series = 'batch' and can_draft order by all

-- never: part of others: where a scheme that never pays stands, at twice the largest batch
2e0 * (select max(batch) from ({swept}))

-- thresholds: From which batch SD pays, by law, machine, model and scheme: ours over the sweep, the paper's over its open batches.
with ours as (
    select law, machine, gib, model, scheme, any_value(fidelity) as fidelity, min(batch) filter (batch > lost) as ours,
        max(batch) as most
    from (
        select *, coalesce(max(batch) filter (phi_sd / phi_ar <= 1 + 1e-9) over (partition by law, machine, model, scheme), 0) as lost
        from ({swept})
    ) group by law, machine, gib, model, scheme
), theirs as (
    select law, machine, model, scheme, min(batch) filter (batch > lost) as theirs, max(batch) as until
    from (
        select *, coalesce(max(batch) filter (published_sd / published_ar <= 1 + 1e-9)
            over (partition by law, machine, model, scheme), 0) as lost
        from ({table3}) where published_sd is not null and level in (select level from ({swept}))
    ) group by law, machine, model, scheme having count(*) > 1
)
select * exclude until, coalesce('from ' || ours, 'not up to ' || most) as said,
    coalesce('from ' || theirs, 'not up to ' || until, 'withheld') as said_paper,
    coalesce(ours, 2 * max(most) over ())::double as shown
from ours left join theirs using (law, machine, model, scheme) order by law, machine, gib, model, scheme

-- cells: Error of a cell of Table 3 and mode, or the prediction where the paper's number is withheld.
select law, level, machine, gib, model, scheme, batch, mode, fidelity, speedup as value, published, role, mode || ', ' || machine as "row",
    speedup / published - 1 as error,
    coalesce(regexp_replace(printf('%+.0f', 100 * error), '^[+-]0$', '0'), format('{:.1f}×', speedup)) as said
from ({modes}) where series = 'table-3' and fit = 'calibrate' and law in ('paper_law', 'physical', 'events')
order by mode, law, level desc, model desc, gib, turn, batch

-- sweeps: What varies past the paper as `at`; the paper's number where the point is the paper's.
with own as (
    select max(gib) as gib, max(hb_gb_per_s) as hb_gb_per_s, max(context_tokens) as context_tokens from shown
    where series = 'table-3' and hardware in (select hardware from shown where series in ('hb-capacity', 'hb-bandwidth', 'context'))
), told as (
    select *, case series when 'hb-capacity' then gib when 'hb-bandwidth' then hb_gb_per_s else context_tokens end::double as "at"
    from ({modes}) where series in ('hb-capacity', 'hb-bandwidth', 'context') and (can_draft or mode = 'AR')
)
select series, law, level, model, scheme, batch, batch_words, fidelity, "at", mode, speedup, case when abs("at" / case series
    when 'hb-capacity' then own.gib when 'hb-bandwidth' then own.hb_gb_per_s else own.context_tokens end - 1) < 1e-6
    then p.published end as published
from told left join ({paper}) p using (hardware, model, scheme, batch, mode), own
order by law, model desc, batch, series, scheme, mode, "at"

-- alpha: The sweep over acceptance, with the paper's; needs: the acceptance at which SD equals AR, between two recorded ones.
with paper as (
    select hardware, law, level, model, scheme, batch, published_sd, alpha as paper_alpha from shown
    where series = 'table-3' and fit = 'calibrate'
), told as (
    select *, phi_sd / phi_ar as gain, lag(alpha) over line as before, lag(phi_sd / phi_ar) over line as low from shown
    where series = 'alpha' window line as (partition by model, batch, scheme order by alpha)
)
select law, level, model, scheme, batch, batch_words, alpha, phi_sd, phi_ar, p.published_sd, paper_alpha, fidelity, coalesce(
    min(before + (1 - low) / (gain - low) * (alpha - before)) filter (low < 1 and gain >= 1) over line,
    min(alpha) filter (gain >= 1 and before is null) over line) as needs
from told left join paper p using (hardware, law, level, model, scheme, batch)
window line as (partition by model, batch, scheme) order by model desc, batch, scheme, alpha

-- chain: Acceptance as a chain, where the paper has a number.
select * from shown where series = 'accepted-form' and published_sd is not null order by all

-- grid: Every size, batch, scheme and mode on the machine of the sweep over capacity; is_winner: the first of the fastest.
with there as (select hardware from shown where series = 'hb-capacity'), once as (
    select *, row_number() over (partition by law, model, gib, batch, scheme, mode order by series) as n from ({modes})
    where series in ('hb-capacity', 'batch') and hardware in (from there) and (can_draft or mode = 'AR')
), beside as (
    select o.* exclude published, p.published, round(speedup, 4 - floor(log10(speedup))::int) as size
    from once o left join ({paper}) p using (hardware, model, scheme, batch, gib, mode) where n = 1
)
select law, model, gib, batch, scheme, level, fidelity, mode, speedup, published,
    row_number() over (partition by law, model, gib, batch order by size desc, turn, mode) = 1 as is_winner
from beside order by law, model desc, gib, batch, size desc, turn, mode

-- measured: A tape's own acceptance through the machine.
select model, machine, scheme, batch, law, fidelity, accepted_len, mode, speedup,
    format('{}, {}, batch {}: {}', model, machine, batch, map($LAWS, $LAWS_words)[law]) as label
from ({modes}) where series = 'measured' order by mode, hardware, model, scheme, batch, law

-- checks: Errors and means of the fit that predicts against the paper's open rows, whether they hold their bars, and their panel.
select block, level, hit_model as law, fit, value, unit, n, bar_low, bar_high, value between bar_low and bar_high as inside,
    map($LAWS, $LAWS_words)[hit_model] as law_words, map($LAWS, $LAWS_words)[hit_model] || ', ' || level as form,
    case when how = 'relative error' then $ERRORS when unit = '1' then $SHARES end as panel,
    case panel when $ERRORS then least(value, $MOST_ERROR) else value end as shown
from elmoe3d_checks where study = $study and fit = 'calibrate' and unit in ('1', 'x') order by all

-- intensity: Operations per byte of a pass by part, and the knees of the rooflines.
{machines}
select coalesce(machine, hardware) as machine, model_id as model, batch, step_mode as mode, part, ops_per_byte,
    map($PART_NAMES, $PART_NAMES_words)[part] as words
from elmoe3d_intensity left join machines using (hardware) where study = $study order by all

-- touched: Experts of a layer in AR and in verification, and SD over AR, of EAGLE3.
select law, level, machine, gib, model, batch, fidelity, is_withheld, ar_experts as ar, verify_experts as verify,
    phi_sd / phi_ar as gain, published_sd / published_ar as published
from ({table3}) where scheme = 'EAGLE3' order by law, level desc, model desc, gib, batch

-- rounds: Accept length and latencies of a round.
select law, level, machine, gib, model, scheme, batch, accepted_len, draft_ms, verify_ms, phi_sd, published_sd, fidelity, is_withheld,
    batch_words
from ({table3}) order by law, level desc, model desc, gib, turn, batch

-- placed: GB of every part in every tier; parts that take nothing are left out.
{machines}
select coalesce(machine, hardware) as machine, model_id as model, sd_scheme as scheme, batch, tier, part, placed_bytes / 1e9 as gb,
    map($TIERS, $TIERS_words)[tier] as tier_words, map($PARTS, $PARTS_words)[part] as words, list_position($PARTS, part) - 1 as place,
    batch::varchar as batch_words
from elmoe3d_mapping left join machines using (hardware) where study = $study and placed_bytes > 0
order by machine, model, scheme, batch, tier, part

-- platforms: Speed-ups at the middle of what the paper does not give; low and high: over all of it.
-- The headline: verified nodes and near-memory inputs as the study answers claims with them, the middle of their ranges.
with headline as (
    select quantile_disc(verify_nodes, 0.5) over () as nodes, quantile_disc(nmp_ext_ratio, 0.5) over () as ratio, *
    from elmoe3d_platforms where study = $study
)
select platform, model_id as model, dataset, batch, hit_model as law, level, upper(step_mode) as mode, fidelity,
    map($PLATFORMS, $PLATFORMS_words)[platform] as words, model_id || ', ' || dataset as panel,
    any_value(speedup) filter (
        verify_nodes = nodes and (nmp_ext_ratio is null or nmp_ext_ratio = ratio) and coalesce(placement, 'dense') = 'dense'
    ) as speedup,
    min(speedup) as low, max(speedup) as high, any_value(nodes) as nodes, any_value(ratio) as ratio,
    min(verify_nodes) as least_nodes, max(verify_nodes) as most_nodes,
    min(nmp_ext_ratio) as least_ratio, max(nmp_ext_ratio) as most_ratio
from headline group by platform, model_id, dataset, batch, hit_model, level, step_mode, fidelity order by all

-- energy: Joules of a token by part in each platform's faster mode, over ours at the same law, model and batch.
select platform, e.model_id as model, dataset, batch, hit_model as law, level, step_mode as mode, part, j_per_token,
    map($PLATFORMS, $PLATFORMS_words)[platform] as words, map($JOULES, $JOULES_words)[part] as said, list_position($JOULES, part) - 1 as turn,
    list_position($PLATFORMS, platform) - 1 as place, j_per_token / own as relative, low / own as low, high / own as high
from elmoe3d_energy e join (
    select model_id, batch, hit_model, sum(j_per_token) as own from elmoe3d_energy
    where study = $study and is_best and platform = 'elmoe3d' group by all
) using (model_id, batch, hit_model) where study = $study and is_best order by law, model, batch, place, turn

-- energy_totals: The same, all parts together.
select law, model, batch, level, dataset, platform, words, place, mode, sum(relative) as relative, sum(j_per_token) as j_per_token,
    sum(low) as low, sum(high) as high
from ({energy}) group by all order by law, model, batch, place

-- misses: Missed lookups by batch and cached share, replayed and by every law, of the first tapes.
with named as (
    select source, origin, model_id as model, dataset, batch, hit_model as law, cache_frac, cache_experts,
        miss_frac_lookups as missed, fidelity, map($LAWS, $LAWS_words)[hit_model] as law_words, format('{:g}', cache_frac) as share
    from elmoe3d_misses where study = $study
), {panelled}
select * exclude turn from turned where turn <= $size order by turn, source, batch, law, cache_frac

-- unions: Distinct experts of a layer that n tokens touch, of one request, of as many of different ones, of the first tapes.
with counted as (
    select c.source, c.model_id as model, form, tokens_of, c.n_tokens, coverage_frac * n_experts as experts, low * n_experts as low,
        high * n_experts as high, n_experts, origin, dataset, case tokens_of when 'decode' then 'of different requests'
        when 'one_request' then 'of one request' else 'of one prompt' end as whose,
        case form when 'recorded' then 'exact' else 'approximate' end as fidelity
    from coverage_points c join traces t on c.source = t.trace_id where study = $study and layer_band = 'all'
), named as (
    select * from counted where n_tokens <= (
        select coalesce(max(n_tokens) filter (tokens_of = 'one_request'), max(n_tokens)) from counted)
), {panelled}
select * exclude turn from turned where turn <= $size order by turn, source, form, tokens_of, n_tokens

-- acceptance: What live models accept of drafted tokens, of any study.
select study, model_id || ', ' || dataset as live, series, drafter, coalesce(map($CUTS, $CUTS_words)[scheme], scheme) as scheme_words, bits_low,
    format('{} to {} bits', bits_high, bits_low) as bits, pool_policy, pool_frac, batch, n_seeds, n_rounds, fidelity, metric, value,
    low, high, case series when 'pool' then 'live run' when 'replay' then 'replayed from a tape' else series end as run,
    case when width > 1 then format('tree of width {}', width) else 'chain' end || ', ' ||
    case when temperature > 0 then format('sampled at {:.1f}', temperature) else 'greedy' end as how
from acceptance_points order by all

-- published_gain_frac: What the paper says a hotness pool has accepted over a random one, less one.
select value / 100 as gain from claims
where paper = $study and metric = 'hotness_vs_random_pool_acceptance_gain' and unit = 'percent'
