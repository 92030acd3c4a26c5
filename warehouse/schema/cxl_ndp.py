"""Experts on GPU and NDP: steps, requests, placement, losses and bit widths."""

from tokentape.warehouse.schema.table import Table

TABLES = {
    "ndp_points": Table(
        (
            *("study", "series", "setting", "setting_value", "model_id", "source", "origin", "hardware", "system", "batch"),
            *("hot_experts", "mean_bits", "n_seeds", "role", "notes", "metric", "unit", "value", "low", "high"),
        ),
        ("study", "series", "setting", "model_id", "source", "system", "metric"),
        "a metric of a decode step on a GPU-NDP system: median and range over seeds",
        nullable=("setting_value", "low", "high"),
    ),
    "ndp_requests": Table(
        (
            *("study", "setting", "model_id", "source", "origin", "hardware", "system", "batch", "n_context_tokens"),
            *("n_decode_tokens", "streamed_experts", "prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s", "ndp_s", "e2e_s"),
            *("e2e_gain", "low", "high", "gain_over_hobbit", "is_extrapolated", "n_seeds"),
        ),
        ("study", "setting", "model_id", "source", "system", "n_context_tokens", "n_decode_tokens"),
        "a batch from the first prompt token to the last output token on a GPU-NDP system: mean times, median gains over seeds",
    ),
    "ndp_hits": Table(
        (
            *("study", "model_id", "source", "origin", "batch", "placement", "is_bound", "hot_experts", "layer"),
            *("gpu_hit_frac", "low", "high", "n_seeds"),
        ),
        ("study", "model_id", "source", "batch", "placement", "hot_experts", "layer"),
        "how often decode finds its experts on the GPU under a placement; all layers together where none is named",
        nullable=("layer",),
    ),
    "ndp_similarity": Table(
        (
            *("study", "model_id", "source", "origin", "layer", "own_cosine", "shuffled_cosine", "static_cosine"),
            *("flat_cosine", "flat_shuffled_cosine", "static_frac", "n_requests", "n_seeds"),
        ),
        ("study", "model_id", "source", "layer"),
        "how alike prompt and decode use a layer's experts, and how much of it is popularity; mean of layers where none is named",
        nullable=("layer", "static_frac"),
    ),
    "ndp_use": Table(
        (*("study", "model_id", "source", "origin", "request_id", "layer", "first_step", "bin_steps", "expert", "use_frac"),),
        ("study", "model_id", "source", "request_id", "layer", "first_step", "expert"),
        "an expert's share of a request's selections in a bin of decode steps; one never selected in it has no row",
    ),
    "ndp_lanes": Table(
        ("study", "model_id", "system", "lane", "place", "label", "start_s", "seconds"),
        ("study", "model_id", "system", "lane", "place"),
        "a stretch of one layer-step in which GPU, NDP or link are busy",
    ),
    "ndp_loss_tables": Table(
        ("study", "model_id", "source", "method", "layer", "expert", "bits", "mse"),
        ("study", "model_id", "source", "method", "layer", "expert", "bits"),
        "the loss of an expert at a width, as the study's bit widths follow from it: measured, or a stand-in",
    ),
    "ndp_bits": Table(
        (
            *("study", "model_id", "source", "method", "rule", "mean_bits", "batch", "importance_rank", "n_ranked"),
            *("bits_mean", "bits_p05", "bits_p95"),
        ),
        ("study", "model_id", "source", "method", "rule", "mean_bits", "batch", "importance_rank"),
        "bits that a rule gives to a rank of importance",
    ),
    "ndp_losses": Table(
        ("study", "model_id", "source", "method", "rule", "mean_bits", "batch", "loss_ratio", "low", "high", "loss_gain", "n"),
        ("study", "model_id", "source", "method", "rule", "mean_bits", "batch"),
        "table loss of a rule against uniform bits of the same mean",
    ),
    "bit_losses": Table(
        (
            *("study", "model_id", "source", "method", "ranking", "hot_experts", "layer", "rule", "mean_bits", "loss"),
            *("uniform_loss", "optimum_loss"),
        ),
        ("study", "source", "method", "ranking", "hot_experts", "layer", "rule", "mean_bits"),
        "the table loss of a rule in a layer of a measured model; all layers together where none is named",
        nullable=("layer",),
    ),
    "ndp_capacity": Table(
        ("study", "hardware", "model_id", "hot_experts", "tier", "part", "placed_bytes", "tier_bytes"),
        ("study", "hardware", "model_id", "hot_experts", "tier", "part"),
        "what a part takes in HBM or in the NDP's memory",
    ),
    "ndp_checks": Table(
        ("study", "check", "value", "published", "unit", "bar_low", "bar_high", "how"),
        ("study", "check"),
        "a bar of the GPU-NDP model, what the paper's ratios force, or a number of the paper derived a second way",
        nullable=("published", "bar_low", "bar_high"),
    ),
    "ndp_accuracy": Table(
        ("model_id", "method", "task", "accuracy_pct"),
        ("model_id", "method", "task"),
        "Table 3 of the CXL GPU-NDP paper, as printed: no model of that size is run here",
    ),
}
