-- Every number of a paper with each answer to it, and how far off that is. One select: the view claim_answers, the command
-- `claims` and the pages read it, so that all count alike.
with said as (
    select c.claim_id, c.paper as system, c.location, c.metric, coalesce(c.model, '') as model, c.setting, c.statistic, c.unit,
        c.comparator,
        -- An answer that nothing was fitted for predicts what others are fitted to.
        c.role,
        -- Some bounds are said in words alone.
        case when c.comparator in ('<=', '<') then '<='
            when c.comparator in ('>=', '>') or c.setting similar to '.*(at least|more than).*' then '>=' else '' end as bound,
        c.value as paper, a.value as replay, a.low as band_low, a.high as band_high, a.mode, a.study, a.how,
        (a.value - c.value) / abs(nullif(c.value, 0)) as rel_err
    from claims c left join answers a using (claim_id)
)
-- error: as it is counted. A percentage is off by points, here over 100; a bound is not off, it holds or fails.
select *,
    case when bound <> '' then null when unit = 'percent' then (replay - paper) / 100 else rel_err end as error,
    case bound when '<=' then replay <= paper when '>=' then replay >= paper end as holds,
    paper between band_low and band_high as is_inside,
    role in ('calibrate', 'predict', 'report') as is_counted
from said
