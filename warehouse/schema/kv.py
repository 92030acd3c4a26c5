"""KV policies on tapes, and how far their replay is from a live model."""

from tokentape.warehouse.schema.table import Table

TABLES = {
    "kv_replays": Table(
        (
            *("trace_id", "policy", "parameters", "renorm", "is_bound", "origin", "is_exact", "budget_tokens", "n_requests"),
            *("n_steps", "kept_mass_frac", "kept_mass_high_frac", "n_evicted", "n_updates", "popular_frac", "popular_stays_frac"),
            *("x_bytes", "kv_bytes", "full_bytes"),
        ),
        ("trace_id", "policy", "parameters", "renorm"),
        "a tape's attention through a KV policy",
        nullable=("budget_tokens", "popular_stays_frac"),
    ),
    "kv_heads": Table(
        (
            *("trace_id", "policy", "parameters", "renorm", "layer", "kv_head", "n_steps", "kept_mass_frac"),
            *("kept_mass_high_frac", "n_evicted"),
        ),
        ("trace_id", "policy", "parameters", "renorm", "layer", "kv_head"),
        "a KV head of a replay through a KV policy",
    ),
    "kv_timeline": Table(
        (
            *("trace_id", "policy", "parameters", "renorm", "layer", "first_position", "bin_tokens", "n_steps", "kept_mass_frac"),
            *("kept_mass_high_frac", "retained_tokens", "distinct_tokens", "popular_frac", "x_bytes", "kv_bytes"),
        ),
        ("trace_id", "policy", "parameters", "renorm", "layer", "first_position"),
        "a bin of query positions in a layer of a replay through a KV policy",
    ),
    "kv_divergence": Table(
        ("model_id", "policy", "parameters", "dataset", "seed", "layer", "n_steps", "same_frac", "identical_frac"),
        ("model_id", "policy", "parameters", "dataset", "seed", "layer"),
        "a layer: what a KV policy retains over recorded attention, against what it retains inside the model",
    ),
}
