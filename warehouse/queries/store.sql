-- What is in the store, and how much of it was replayed?
select t.trace_id, t.origin, t.model_id, t.dataset, t.n_requests, t.n_tokens, t.n_moe_layers, t.n_experts, t.top_k, t.tables, t.flags,
    count(r.replay_id) as n_replays
from traces t left join replays r using (trace_id)
group by all
order by t.trace_id;
