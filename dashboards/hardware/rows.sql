-- machines: Machines with n_steps, n_numbers and n_assumed, those with recorded steps first.
-- Machines with recorded steps come first: a page opens with what it can show in full.
with steps as (select hardware, count(distinct step_id) as n_steps from operations group by hardware),
sourced as (
    select hardware, count(*) as n_numbers, count(*) filter (is_assumed) as n_assumed from hardware_numbers group by hardware
)
select m.*, coalesce(n_steps, 0) as n_steps, coalesce(n_numbers, 0) as n_numbers, coalesce(n_assumed, 0) as n_assumed
from machines m left join steps using (hardware) left join sourced using (hardware)
order by n_steps desc, hardware

-- numbers: Every number of every machine, by key.
-- Grouped by what they belong to: engines, tiers, links, then the whole machine; key: within its group.
with parts as (
    select *, split_part(key, '.', 2) as part,
        list_position(['engines', 'tiers', 'links'], split_part(key, '.', 1)) as place from hardware_numbers
)
select hardware, if(place is null, key, array_to_string(string_split(key, '.')[3:], '.')) as key, value, low, high, unit, source,
    is_assumed, if(place is null, 'whole machine', part || ' (' || ['engine', 'tier', 'link'][place] || ')') as title
from parts order by hardware, coalesce(place, 9), title, parts.key

-- ceilings: Per machine: peak and reached operations/s of engines, bytes/s of tiers and links; is_main: the two that make its roof.
-- One row per engine, tier and link: its peak, and the share of it that is reached. An engine that reads its memory in another
-- way than through the tier's own interface (in-memory compute) has a row of its own for that.
with parts as (
    select hardware, split_part(key, '.', 1) as kind, split_part(key, '.', 2) as name, split_part(key, '.', 3) as field,
        split_part(key, '.', 4) as dtype, value
    from hardware_numbers
),
shares as (select hardware, kind, name, value as reached from parts where field = 'efficiency_frac'),
peaks as (
    select hardware, kind, name, parts.dtype as dtype, value as peak from parts join machines m using (hardware)
    where field = 'ops_per_s' qualify row_number() over (
        partition by hardware, kind, name order by parts.dtype = m.dtype desc, value desc) = 1
    union all
    select hardware, kind, name, '', value from parts where field = 'peak_bytes_per_s'
    union all
    select hardware, 'memory', name, '', value from parts where field = 'memory_bytes_per_s'
),
own as (select hardware, name from parts join machines m using (hardware) where field = 'memory_bytes_per_s' and name = m.engine)
select p.hardware, p.kind, p.name, p.dtype, p.peak, p.peak * coalesce(reached, 1) as reached,
    (p.kind in ('engines', 'memory') and p.name = m.engine)
        or (p.kind = 'tiers' and p.name = m.fast_tier and own.name is null) as is_main
from peaks p join machines m using (hardware) left join shares using (hardware, kind, name) left join own using (hardware)
order by p.hardware, is_main desc, p.kind, p.name

-- steps: At most n recorded steps, spread over the machines.
-- The steps a page shows: the first of every machine, then the second of every machine, and so on.
with steps as (
    select hardware, step_id as step, any_value(title) as title, max(start_s + seconds) as seconds,
        count(distinct op_layer) filter (op_layer >= 0) as n_layers
    from operations semi join machines using (hardware) group by all
),
ranked as (select *, row_number() over (partition by hardware order by step) as turn from steps)
select * exclude (turn) from ranked qualify row_number() over (order by turn, hardware) <= $size order by hardware, step

-- pairs: Machines with their steps; without one, '' of no layer.
select hardware, m.title, n_steps, coalesce(step, '') as step, s.title as step_title, coalesce(n_layers, 0) as n_layers
from ({machines}) m left join ({steps}) s using (hardware) order by n_steps desc, hardware, step

-- points: Per step and operation: seconds, share of the step, bytes of the fast tier, operations.
-- An operation of a step is summed over its layers on every resource; the slowest resource tells its time.
with summed as (
    select step_id, operation, resource, sum(seconds order by place) as seconds, sum(bytes order by place) as bytes,
        sum(ops order by place) as ops, resource = fast_tier or sum(ops) > 0 as is_roof
    from operations join machines using (hardware)
    where list_contains($steps, step_id) group by step_id, operation, resource, fast_tier
),
whole as (select step_id, max(start_s + seconds) as step_s from operations group by step_id)
select step_id as step, operation, max(seconds) as seconds, sum(bytes order by resource) filter (is_roof) as bytes,
    sum(ops order by resource) as ops, max(seconds) / any_value(step_s) as share
from summed join whole using (step_id) group by step_id, operation
order by step, seconds desc, operation

-- bars: Per step: operations on the clock; adds_s: what a bar adds to the time its resource works, any_adds_s: any does; lane: order of the resources.
-- Bars of the clock, and how long each resource works: spans that overlap on one resource count once. An estimated operation has
-- its bytes and its operations in one row of the engine; here, as under the roof, memory and engine are each busy with their own
-- at the rate they reach, and what is left of its time is neither's: launches, and what the operator loses.
with main as (
    select hardware, kind = 'engines' as is_engine, name || if(kind = 'memory', $OWN_MEMORY, '') as name, reached
    from ({ceilings}) where is_main
),
listed as (
    select o.*, resource = m.engine and bytes > 0 and ops > 0 as is_both, m.engine, m.fast_tier, m.backing_tier
    from operations o join machines m using (hardware) where list_contains($steps, step_id) and seconds > 0
),
working as (
    select * exclude (is_both), resource as busy_on, seconds as busy_s from listed where not is_both
    union all
    select l.* exclude (is_both), r.name, least(seconds, if(is_engine, ops, bytes) / reached)
    from listed l join main r using (hardware) where is_both
),
spans as (
    select step_id as step, place, operation, busy_on as resource, op_layer, start_s, start_s + busy_s as end_s,
        max(start_s + busy_s) over (
            partition by step_id, busy_on order by start_s, place rows between unbounded preceding and 1 preceding) as before_s,
        max(start_s + busy_s) over (
            partition by step_id order by start_s, place, busy_on rows between unbounded preceding and 1 preceding) as any_before_s,
        case busy_on when engine then 0 when fast_tier then 1 when engine || $OWN_MEMORY then 1 when backing_tier then 3 else 2 end
            as lane
    from working
)
select * exclude (before_s, any_before_s), greatest(0, end_s - greatest(start_s, coalesce(before_s, 0))) as adds_s,
    greatest(0, end_s - greatest(start_s, coalesce(any_before_s, 0))) as any_adds_s
from spans order by step, place, lane

-- energy: pJ/bit of every tier or link with its band, a row for each side (read, write, transfer), equal read and write costs as one.
-- Tiers and links that cost the same on several machines are one; `place` names it with its first machines.
with parts as (
    select hardware, split_part(key, '.', 2) as name, split_part(key, '.', 3) as field, value, low, high, is_assumed
    from hardware_numbers where key like '%_pj_per_bit' and value > 0
),
sides as (
    select hardware, name, case field when 'read_pj_per_bit' then 'read' when 'write_pj_per_bit' then 'write' else 'transfer' end
        as side, value, low, high, is_assumed
    from parts
),
places as (
    select hardware, name, first(value order by side) as first_pj,
        list((side, value, low, high)::struct(side varchar, value double, low double, high double) order by side) as costs,
        bool_or(is_assumed) as assumed
    from sides group by all
),
shared as (
    select name, first_pj, costs, bool_or(assumed) as assumed, list(hardware order by hardware) as machines
    from places group by name, first_pj, costs
),
shown as (
    select name, assumed, machines, row_number() over (order by first_pj, name, machines) - 1 as "order",
        if(len(costs) = 2 and costs[1].value = costs[2].value and costs[1].low = costs[2].low and costs[1].high = costs[2].high,
            [struct_update(costs[1], side := 'read and write')], costs) as sides
    from shared
),
said as (
    select *, list_transform(sides, lambda one: if(len(sides) > 1, one.side || ' ', '') || format('{:.3g}', one.value)
        || if(format('{:.3g}', one.low) = format('{:.3g}', one.high), '', format(' ({:.3g} to {:.3g})', one.low, one.high))) as words
    from shown
),
each as (select * exclude (sides, words), array_to_string(words, ', ') as word, unnest(sides) as one, generate_subscripts(sides, 1) as nth from said)
select name, name || ' · ' || array_to_string(machines[:2], ', ') || if(len(machines) > 2, ' and ' || len(machines) - 2 || ' more', '') as place,
    "order", machines, array_to_string(machines, ', ') as everywhere, assumed, word, nth = 1 as is_first,
    one.side as side, one.value as value, one.low as low, one.high as high
from each order by "order", nth

