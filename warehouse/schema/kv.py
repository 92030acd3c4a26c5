"""KV policies on tapes, and how far their replay is from a live model."""

from tokentape.warehouse.schema.table import View, names

TABLES = {
    "kv_replays": View(
        names(
            "trace_id policy parameters renorm is_bound origin is_exact budget_tokens n_requests n_steps kept_mass_frac "
            "kept_mass_high_frac n_evicted n_updates popular_frac popular_stays_frac x_bytes kv_bytes full_bytes"
        ),
        names("trace_id policy parameters renorm"),
        "a tape's attention through a KV policy",
        nullable=names("budget_tokens popular_stays_frac"),
        engine="kv",
        facts=names("budget_tokens"),
        decisions={"kv": "policy"},
    ),
    "kv_heads": View(
        names("trace_id policy parameters renorm layer kv_head n_steps kept_mass_frac kept_mass_high_frac n_evicted"),
        names("trace_id policy parameters renorm layer kv_head"),
        "a KV head of a replay through a KV policy",
        engine="kv",
        of="kv_replays",
        values="series",
        at={"layer": "layer", "kv_head": "kv_head"},
    ),
    "kv_timeline": View(
        names(
            "trace_id policy parameters renorm layer first_position bin_tokens n_steps kept_mass_frac kept_mass_high_frac "
            "retained_tokens distinct_tokens popular_frac x_bytes kv_bytes"
        ),
        names("trace_id policy parameters renorm layer first_position"),
        "a bin of query positions in a layer of a replay through a KV policy",
        engine="kv",
        of="kv_replays",
        values="series",
        at={"layer": "layer", "first_position": "place"},
    ),
    "kv_divergence": View(
        names("model_id policy parameters dataset seed layer n_steps same_frac identical_frac"),
        names("model_id policy parameters dataset seed layer"),
        "a layer: what a KV policy retains over recorded attention, against what it retains inside the model",
        engine="live",
        values="series",
        at={"layer": "layer"},
        facts=names("seed"),
        decisions={"kv": "policy"},
    ),
}
