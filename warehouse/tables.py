"""Every table, declared once: its columns (columns.py), its key, what a row is. Writers and readers enforce it.

Tape tables are written by capture, importers and synthesis; result tables by replay. Knows nothing of files or databases: see
tape.py, results.py and load.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from warehouse.columns import COLUMNS

SCHEMA_VERSION = 1


class BadTable(ValueError):
    """Rows that do not fit their declared table; the message names the table, the column and the remedy."""


@dataclass(frozen=True)
class Table:
    """Column names in order, the ones that may be absent, and the key that identifies a row."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    meaning: str
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()


TABLES: dict[str, Table] = {
    "requests": Table(
        ("request_id", "dataset", "arrival_s", "n_prompt_tokens", "n_output_tokens", "prompt_sha256"),
        ("request_id",),
        "a request",
        optional=("prefix_blocks",),
        nullable=("prompt_sha256",),
    ),
    "tokens": Table(
        ("request_id", "position", "token_id", "phase", "pass_id", "nll"),
        ("request_id", "position"),
        "a token of a request, or a draft node",
        optional=("round", "node"),
        nullable=("nll", "token_id"),
    ),
    "passes": Table(
        ("pass_id", "kind", "n_tokens", "request_ids", "policy_state"),
        ("pass_id",),
        "a forward pass of the engine",
        nullable=("policy_state",),
    ),
    "routing": Table(
        ("request_id", "position", "layer", "pass_id", "expert_ids", "gate_weights"),
        ("request_id", "position", "layer"),
        "a token in a MoE layer; rows ordered by pass, layer, then token as the pass held them",
        optional=("natural_ids", "residency", "round", "node"),
        nullable=("gate_weights",),
    ),
    "scores": Table(
        ("request_id", "position", "layer", "scores"),
        ("request_id", "position", "layer"),
        "a token in a MoE layer, same order as routing",
    ),
    "attention": Table(
        ("request_id", "pass_id", "position", "layer", "kv_head", "reduction", "n_queries", "key_positions", "mass", "rest"),
        ("request_id", "pass_id", "position", "layer", "kv_head", "reduction"),
        "the attention mass one query (row) or all queries of a pass (column_sum, position = last) put on earlier positions",
        nullable=("key_positions",),
    ),
    "acceptance": Table(
        (
            "request_id",
            "round",
            "node",
            "parent",
            "depth",
            "rank",
            "draft_token_id",
            "draft_prob",
            "target_prob",
            "is_verified",
            "is_accepted",
        ),
        ("request_id", "round", "node"),
        "a drafted node",
        nullable=("draft_prob", "target_prob"),
    ),
    "rounds": Table(
        (
            *("request_id", "round", "layer", "pool", "hotness", "next_pool", "entered"),
            *("n_drafted", "n_verified", "n_accepted", "bonus_token_id", "is_clipped"),
        ),
        ("request_id", "round", "layer"),
        "a draft-and-verify round in a MoE layer; one row with a null layer where the drafter has no pool",
        nullable=("layer", "pool", "hotness", "next_pool", "entered", "bonus_token_id"),
    ),
    "node_routing": Table(
        (
            *("request_id", "round", "phase", "node", "layer", "position", "pass_id"),
            *("expert_ids", "gate_weights", "natural_ids"),
        ),
        ("request_id", "round", "phase", "node", "layer"),
        "a node in a MoE layer, in the draft or the verify pass that had it as input; rejected nodes included",
        nullable=("natural_ids",),
    ),
    "node_scores": Table(
        ("request_id", "round", "phase", "node", "layer", "scores"),
        ("request_id", "round", "phase", "node", "layer"),
        "a node in a MoE layer, same order as node_routing",
    ),
    "losses": Table(
        ("layer", "expert", "bits", "method", "group", "mse", "heldout_mse", "n_tokens", "topped_up"),
        ("layer", "expert", "bits", "method", "group"),
        "an expert at a width against the expert at full precision, on tokens that were routed to it",
        nullable=("heldout_mse",),
    ),
    "quality": Table(
        (
            "model_id",
            "policy",
            "parameters",
            "dataset",
            "seed",
            "perplexity",
            "bits_per_byte",
            "accuracy",
            "acceptance",
            "kl",
            "agreement_frac",
            "miss_frac",
            "flash_bytes_per_token",
            "dram_bytes_per_token",
            "kv_bytes",
            "hot_frac",
            "table_loss",
            "n_items",
            "n_tokens",
        ),
        ("model_id", "policy", "parameters", "dataset", "seed"),
        "quality of a live model under a policy, measured closed loop",
        nullable=(
            "perplexity",
            "bits_per_byte",
            "accuracy",
            "acceptance",
            "kl",
            "agreement_frac",
            "miss_frac",
            "flash_bytes_per_token",
            "dram_bytes_per_token",
            "kv_bytes",
            "hot_frac",
            "table_loss",
        ),
    ),
    "traces": Table(
        (
            "trace_id",
            "model_id",
            "model_revision",
            "dataset",
            "origin",
            "n_requests",
            "n_tokens",
            "n_layers",
            "n_moe_layers",
            "n_experts",
            "top_k",
            "tables",
            "flags",
            "created_utc",
        ),
        ("trace_id",),
        "a tape in the store",
        nullable=("model_revision",),
    ),
    "replays": Table(
        (
            "replay_id",
            "trace_id",
            "study",
            "policy",
            "policy_params",
            "is_bound",
            "hardware",
            "hardware_sha256",
            "scope",
            "lookup",
            "prefill",
            "start",
            "overflow",
            "fetching",
            "expert_format",
            "capacity_bytes",
            "capacity_experts",
            "capacity_frac",
            "cycle_experts",
            "seed",
            "origin",
            "is_extrapolated",
            "outside_envelope",
            "assumed",
        ),
        ("replay_id",),
        "a replay: what ran, every parameter a column",
    ),
    "metrics": Table(
        ("replay_id", "metric", "unit", "value", "low", "high", "denominator"),
        ("replay_id", "metric"),
        "one number of a replay",
        nullable=("low", "high", "denominator"),
    ),
    "timeline": Table(
        (
            "replay_id",
            "pass_id",
            "kind",
            "n_tokens",
            "start_s",
            "step_s",
            "energy_j",
            "n_lookups",
            "n_hits",
            "fast_bytes",
            "backing_bytes",
        ),
        ("replay_id", "pass_id"),
        "a forward pass on the simulated clock",
    ),
    "request_metrics": Table(
        ("replay_id", "request_id", "ttft_s", "tbt_mean_s", "request_energy_j"),
        ("replay_id", "request_id"),
        "a request on the simulated clock",
        nullable=("tbt_mean_s",),
    ),
    "curves": Table(
        ("replay_id", "capacity_experts", "n_lookups", "n_hits", "hit_frac"),
        ("replay_id", "capacity_experts"),
        "hits of an LRU of every capacity, from one pass over the tape",
    ),
    "popularity": Table(
        ("trace_id", "layer", "expert", "phase", "n_selected"),
        ("trace_id", "layer", "expert", "phase"),
        "an expert of a layer that was selected in the phase; one never selected has no row",
    ),
    "locality": Table(
        ("trace_id", "layer", "phase", "overlap_frac", "chance_frac"),
        ("trace_id", "layer", "phase"),
        "a layer: the experts that consecutive tokens share; phase is the later token's",
    ),
    "similarity": Table(
        ("trace_id", "layer", "cosine"),
        ("trace_id", "layer"),
        "a layer: how alike prefill and decode use its experts",
    ),
    "early_popularity": Table(
        ("trace_id", "layer", "expert", "n_selected"),
        ("trace_id", "layer", "expert"),
        "an expert of a layer that was selected in the first ten decode steps of a request; one never selected has no row",
    ),
    "critical_experts": Table(
        ("trace_id", "layer", "tau", "first_position", "bin_tokens", "n_routed", "n_critical"),
        ("trace_id", "layer", "tau", "first_position"),
        "a bin of token positions in a layer: how many experts are critical; a tape without gate weights has none",
    ),
    "gate_curve": Table(
        ("trace_id", "layer", "phase", "gate_rank", "gate_frac", "n_routed"),
        ("trace_id", "layer", "phase", "gate_rank"),
        "a rank in a layer: what share of a token's gate weight it takes; a tape without gate weights has none",
    ),
    "machines": Table(
        ("hardware", "hardware_sha256", "title", "engine", "dtype", "fast_tier", "backing_tier", "n_devices"),
        ("hardware",),
        "a machine: shipped, or used by a replay",
    ),
    "hardware_numbers": Table(
        ("hardware", "key", "value", "low", "high", "unit", "source", "is_assumed"),
        ("hardware", "key"),
        "a number of a machine's file, with its range and source",
    ),
    "operations": Table(
        ("step_id", "title", "hardware", "place", "operation", "resource", "op_layer", "start_s", "seconds", "bytes", "ops"),
        ("step_id", "place"),
        "a named operation of a step on the clock",
    ),
    "validation": Table(
        ("check", "device", "framework", "version", "operator", "split", "n", "mape_frac", "median_frac", "p95_frac"),
        ("check", "device", "framework", "version", "operator", "split"),
        "the error of a cost model against measurements",
    ),
    "validation_points": Table(
        ("check", "device", "framework", "version", "operator", "split", "regime", "shape", "measured", "predicted", "unit"),
        ("check", "device", "framework", "version", "operator", "split", "shape", "measured"),
        "one measurement and the model's value for it; a sample where there are many",
    ),
    "fidelity": Table(
        (
            "model_id",
            "policy",
            "parameters",
            "dataset",
            "seed",
            "hardware",
            "n_tokens",
            "metric",
            "unit",
            "open_loop",
            "closed_loop",
        ),
        ("model_id", "policy", "parameters", "dataset", "seed", "hardware", "metric"),
        "a quantity of a policy on the same text, replayed and inside the model",
    ),
    "sliced_points": Table(
        (
            "study",
            "trace_id",
            "model_id",
            "seed",
            "hardware",
            "capacity_bytes",
            "pair",
            "configuration",
            "tau",
            "router",
            "warmup",
            "budget",
            "strength",
            "quality_frac",
            "high_bit_miss_frac",
            "critical_per_layer",
            "decode_step_s",
            "decode_energy_j_per_token",
            "flash_energy_frac",
            "early_step_s",
            "early_energy_j_per_token",
        ),
        (
            "study",
            "trace_id",
            "hardware",
            "capacity_bytes",
            "pair",
            "configuration",
            "tau",
            "router",
            "warmup",
            "budget",
            "strength",
        ),
        "a replay of a sliced system in a study's sweep",
        nullable=("tau", "critical_per_layer"),
    ),
    "warmup_points": Table(
        (
            "study",
            "trace_id",
            "model_id",
            "seed",
            "hardware",
            "capacity_bytes",
            "warmup",
            "budget",
            "strength",
            "window_steps",
            "decode_step_s",
            "decode_energy_j_per_token",
        ),
        ("study", "trace_id", "hardware", "capacity_bytes", "warmup", "budget", "strength", "window_steps"),
        "the first steps of every generation of a sliced replay, by what the cache held at first",
    ),
    "operating_points": Table(
        (
            "study",
            "claim",
            "model_id",
            "hardware",
            "origin",
            "energy_gain",
            "speed_gain",
            "lsb_frac",
            "baseline_miss_frac",
            "ours_miss_frac",
        ),
        ("study", "claim", "model_id", "hardware", "origin", "lsb_frac"),
        "the two miss rates that a gain in energy and one in speed imply together",
    ),
    "expert_losses": Table(
        ("trace_id", "layer", "expert", "bits", "method", "group", "mse", "heldout_mse", "n_tokens", "topped_up"),
        ("trace_id", "layer", "expert", "bits", "method", "group"),
        "an expert at a width, of a tape that holds table losses",
        nullable=("heldout_mse",),
    ),
    "orderings": Table(
        ("model_id", "dataset", "assertion", "margin", "mean", "low", "high", "n_seeds", "holds"),
        ("model_id", "dataset", "assertion"),
        "a ratio that a live model is expected to keep, and what it was",
    ),
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
    "serving_points": Table(
        (
            "study",
            "point_id",
            "series",
            "model_id",
            "workload",
            "arrival",
            "rate_per_s",
            "scheduler",
            "policy_params",
            "hardware",
            "coverage",
            "n_seeds",
            "outside_envelope",
            "metric",
            "unit",
            "value",
            "low",
            "high",
        ),
        ("study", "point_id", "metric"),
        "a metric of a serving engine at one rate: median and 5 to 95 % band over seeds",
        nullable=("rate_per_s", "outside_envelope", "low", "high"),
    ),
    "serving_attainment": Table(
        ("study", "point_id", "ttft_limit_s", "tbt_limit_s", "attained_frac"),
        ("study", "point_id", "ttft_limit_s", "tbt_limit_s"),
        "share of a serving point's requests that meet both limits, median over seeds",
    ),
    "serving_iterations": Table(
        ("study", "point_id", "iteration", "start_s", "seconds", "n_decodes", "n_prefill_tokens", "layer_group", "n_groups"),
        ("study", "point_id", "iteration"),
        "an iteration of a serving engine in the window that is drawn",
    ),
    "serving_spans": Table(
        ("study", "point_id", "request_id", "state", "start_s", "seconds", "layer_group"),
        ("study", "point_id", "request_id", "state", "start_s"),
        "a stretch of a request's life in the window that is drawn; layer_group where a prompt walks through groups of layers",
        nullable=("layer_group",),
    ),
    "serving_tokens": Table(
        ("study", "point_id", "request_id", "place", "time_s"),
        ("study", "point_id", "request_id", "place"),
        "an output token of one request, seconds after its arrival",
    ),
    "coverage_points": Table(
        (
            *("study", "source", "model_id", "form", "tokens_of", "layer_band", "n_tokens"),
            *("coverage_frac", "low", "high", "recorded_err_frac"),
        ),
        ("study", "source", "model_id", "form", "tokens_of", "layer_band", "n_tokens"),
        "share of a layer's experts that n tokens touch together, as a form states it or a tape recorded it",
        nullable=("low", "high", "recorded_err_frac"),
    ),
    "elastic_points": Table(
        (
            *("study", "series", "hardware", "model_id", "sd_scheme", "batch", "context_tokens", "hb_bytes", "hb_bytes_per_s"),
            *("hit_model", "level", "fit", "accepted_form", "alpha", "accepted_len", "fidelity"),
            *("resident_bytes", "resident_frac", "spill_bytes", "cold_bytes", "ar_hit_frac", "draft_hit_frac", "verify_hit_frac"),
            *("ar_experts", "draft_experts", "verify_experts", "ar_hb_bytes", "ar_ext_bytes", "draft_hb_bytes"),
            *("draft_ext_bytes", "verify_hb_bytes", "verify_ext_bytes", "xpu_step_s", "ar_step_s", "n_draft_steps"),
            *("draft_step_s", "verify_s", "phi_ar", "phi_sd", "best_mode"),
            *("published_ar", "published_sd", "role_ar", "role_sd", "is_withheld"),
        ),
        (
            *("study", "series", "hardware", "model_id", "sd_scheme", "batch", "context_tokens", "hb_bytes", "hb_bytes_per_s"),
            *("hit_model", "level", "fit", "accepted_form", "accepted_len"),
        ),
        "a model on a machine under a scheme, at a batch: AR, draft and verification in closed form",
        nullable=("alpha", "published_ar", "published_sd", "role_ar", "role_sd"),
    ),
    "elastic_mapping": Table(
        ("study", "hardware", "model_id", "sd_scheme", "batch", "context_tokens", "tier", "part", "placed_bytes"),
        ("study", "hardware", "model_id", "sd_scheme", "batch", "context_tokens", "tier", "part"),
        "what a part takes in a tier by first fit: static, kv, embedding, draft weights, draft kv, experts, free",
    ),
    "elastic_platforms": Table(
        (
            *("study", "platform", "model_id", "dataset", "batch", "level", "hit_model", "nmp_ext_ratio", "placement"),
            *("verify_nodes", "step_mode", "token_s", "speedup", "is_best", "fidelity"),
        ),
        (
            *("study", "platform", "model_id", "dataset", "batch", "level", "hit_model", "nmp_ext_ratio", "placement"),
            *("verify_nodes", "step_mode"),
        ),
        "a platform of the paper in one mode, with what the paper does not give as inputs",
        nullable=("nmp_ext_ratio", "placement"),
    ),
    "elastic_energy": Table(
        (
            *("study", "platform", "model_id", "dataset", "batch", "level", "hit_model", "step_mode", "is_best", "part"),
            *("j_per_token", "low", "high"),
        ),
        ("study", "platform", "model_id", "dataset", "batch", "level", "hit_model", "step_mode", "part"),
        "energy of a part per emitted token: compute, ext, hb, links, static; band over the machine file's ranges",
    ),
    "elastic_misses": Table(
        (
            *("study", "source", "origin", "model_id", "dataset", "batch", "hit_model", "cache_frac", "cache_experts"),
            *("miss_frac_lookups", "fidelity"),
        ),
        ("study", "source", "model_id", "dataset", "batch", "hit_model", "cache_frac"),
        "misses of a per-layer cache by batch: replayed from a tape whose requests are decoded side by side, or in closed form",
    ),
    "elastic_intensity": Table(
        ("study", "hardware", "model_id", "batch", "step_mode", "part", "ops_per_byte"),
        ("study", "hardware", "model_id", "batch", "step_mode", "part"),
        "operations per byte of a pass; part: static, experts, or the knee of a tier (`knee hb`, `knee ext`, at batch 1)",
    ),
    "elastic_checks": Table(
        ("study", "block", "level", "fit", "hit_model", "value", "unit", "n", "bar_low", "bar_high"),
        ("study", "block", "level", "fit", "hit_model"),
        "an error, a mean or a check over the paper's open rows, with the bar it is held to where there is one",
        nullable=("bar_low", "bar_high"),
    ),
    "acceptance_points": Table(
        (
            *("study", "model_id", "dataset", "series", "drafter", "scheme", "bits_high", "bits_low"),
            *("pool_policy", "pool_frac", "pool_experts", "batch", "depth", "width", "temperature"),
            *("n_seeds", "n_rounds", "fidelity", "metric", "unit", "value", "low", "high"),
        ),
        (
            *("study", "model_id", "dataset", "series", "drafter", "scheme", "bits_high", "bits_low"),
            *("pool_policy", "pool_frac", "batch", "depth", "width", "temperature", "fidelity", "metric"),
        ),
        "how much of what a drafter proposes a live model accepts, under one setting: mean and range over seeds",
    ),
    "kelle_points": Table(
        (
            *("series", "setting", "setting_value", "model_id", "workload", "n_context_tokens", "n_decode_tokens", "batch"),
            *("system", "budget_tokens", "mode", "knobs", "role", "step_s", "energy_j", "dram_j", "weight_sram_j", "kv_j"),
            *("refresh_j", "array_j", "leakage_j", "weight_bytes", "kv_read_bytes", "kv_dram_bytes", "speed_gain"),
            *("energy_gain", "typical_err_frac", "worst_err_frac", "dram_overflow_bytes", "notes"),
        ),
        (
            *("series", "setting", "model_id", "workload", "n_context_tokens", "n_decode_tokens", "batch", "system"),
            *("budget_tokens", "mode", "knobs"),
        ),
        "a decode step of a model on one of Kelle's systems; without time and energy where the mode says that it does not fit",
        nullable=(
            *("setting_value", "budget_tokens", "step_s", "energy_j", "dram_j", "weight_sram_j", "kv_j", "refresh_j", "array_j"),
            *("leakage_j", "weight_bytes", "kv_read_bytes", "kv_dram_bytes", "speed_gain", "energy_gain"),
        ),
    ),
    "kelle_requests": Table(
        (
            *("model_id", "n_context_tokens", "n_decode_tokens", "batch", "system", "budget_tokens", "mode", "knobs"),
            *("prefill_s", "prefill_j", "decode_s", "decode_j", "speed_gain", "energy_gain", "dram_overflow_bytes"),
        ),
        ("model_id", "n_context_tokens", "n_decode_tokens", "batch", "system", "mode", "knobs"),
        "a batch of requests from the first prompt token to the last output token on one of Kelle's systems",
        nullable=("budget_tokens", "prefill_s", "prefill_j", "decode_s", "decode_j", "speed_gain", "energy_gain"),
    ),
    "kelle_recompute": Table(
        (
            *("model_id", "workload", "batch", "mode", "recomputed_frac", "ops_per_byte", "ops_per_s", "roof_ops_per_s"),
            *("is_compute_bound", "step_s", "label"),
        ),
        ("model_id", "workload", "batch", "mode", "recomputed_frac"),
        "a share of recomputed KV vectors on the roofline of the 32 x 32 array",
    ),
    "kelle_lifetimes": Table(
        ("model_id", "batch", "budget_tokens", "schedule", "tensor", "start_s", "seconds"),
        ("model_id", "batch", "budget_tokens", "schedule", "tensor"),
        "how long a layer's data stays in eDRAM",
    ),
    "kelle_parts": Table(
        ("hardware", "part", "area_mm2", "published_area_mm2", "power_w", "published_power_w", "knobs"),
        ("hardware", "part", "knobs"),
        "a part of Kelle's chip: from Table 1 and the traffic of LLaMA2-7B on PG19, beside the published shares",
        nullable=("area_mm2", "published_area_mm2", "power_w", "published_power_w"),
    ),
    "kelle_retention": Table(
        ("sigma", "anchor_frac", "interval_s", "failure_frac", "refresh_group"),
        ("sigma", "anchor_frac", "interval_s", "refresh_group"),
        "share of eDRAM cells that lose their bit within an interval, by an assumed lognormal curve",
    ),
    "kelle_checks": Table(
        ("check", "value", "published", "unit", "how"),
        ("check",),
        "a number of the paper derived a second way",
        nullable=("published",),
    ),
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
    "answers": Table(
        ("claim_id", "study", "mode", "value", "low", "high", "how"),
        ("claim_id", "study", "mode"),
        "what a study computed for a number that a paper reports",
        nullable=("low", "high"),
    ),
    "claims": Table(
        ("claim_id", "paper", "location", "metric", "model", "setting", "statistic", "comparator", "value", "unit", "role"),
        ("claim_id",),
        "a number of a paper; value is null where it is withheld or the paper prints none",
        nullable=("value",),
    ),
}

# Routing and scores of a speculative tape's nodes, accepted or not; `routing` and `scores` hold the accepted path.
NODE_TABLES = ("node_routing", "node_scores")
TAPE_TABLES = (
    *("requests", "tokens", "passes", "routing", "scores", "attention", "acceptance", "rounds", "losses"),
    *NODE_TABLES,
)
RESULT_TABLES = ("replays", "metrics", "timeline", "request_metrics", "curves")
SUMMARY_TABLES = ("popularity", "locality", "similarity", "early_popularity", "critical_experts", "gate_curve", "expert_losses")
# Tables outside any replay; a later row replaces one of the same key.
SIDE_TABLES = (
    "quality",
    "fidelity",
    "machines",
    "hardware_numbers",
    "operations",
    "validation",
    "validation_points",
    "sliced_points",
    "warmup_points",
    "operating_points",
    "orderings",
    "kv_replays",
    "kv_heads",
    "kv_timeline",
    "kv_divergence",
    "serving_points",
    "serving_attainment",
    "serving_iterations",
    "serving_spans",
    "serving_tokens",
    "coverage_points",
    "elastic_points",
    "elastic_mapping",
    "elastic_platforms",
    "elastic_energy",
    "elastic_misses",
    "elastic_intensity",
    "elastic_checks",
    "acceptance_points",
    "kelle_points",
    "kelle_requests",
    "kelle_recompute",
    "kelle_lifetimes",
    "kelle_parts",
    "kelle_retention",
    "kelle_checks",
    "ndp_points",
    "ndp_requests",
    "ndp_hits",
    "ndp_similarity",
    "ndp_use",
    "ndp_lanes",
    "ndp_loss_tables",
    "ndp_bits",
    "ndp_losses",
    "bit_losses",
    "ndp_capacity",
    "ndp_checks",
    "ndp_accuracy",
    "answers",
)
WAREHOUSE_TABLES = ("traces", *SUMMARY_TABLES, *RESULT_TABLES, *SIDE_TABLES, "claims")


def schema(name: str, present: tuple[str, ...] = ()) -> pa.Schema:
    """Arrow schema of a table; `present` names the optional columns to include, in declared order."""
    table = TABLES[name]
    columns = table.columns + tuple(c for c in table.optional if c in present)
    return pa.schema([pa.field(c, COLUMNS[c].type, nullable=c in table.nullable) for c in columns])


def conform(name: str, rows: pa.Table) -> pa.Table:
    """`rows` cast to the declared schema, columns in declared order.

    Raises BadTable naming the column when one is missing, unknown, of a type that cannot be cast, or null where it must not be.
    """
    table = TABLES[name]
    known = set(table.columns) | set(table.optional)
    missing = [c for c in table.columns if c not in rows.column_names]
    unknown = [c for c in rows.column_names if c not in known]
    if missing:
        raise BadTable(f"table {name}: column {missing[0]} is missing; found {', '.join(rows.column_names) or 'none'}")
    if unknown:
        raise BadTable(f"table {name}: column {unknown[0]} is not declared in warehouse/columns.py; remove or declare it")
    wanted = schema(name, tuple(rows.column_names))
    arrays = []
    for field in wanted:
        column = rows.column(field.name)
        try:
            column = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadTable(f"table {name}: column {field.name} is not {field.type}: {error}") from error
        if column.null_count and not field.nullable:
            raise BadTable(f"table {name}: column {field.name} has {column.null_count} nulls; every row needs a value")
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=wanted)


def check_schema(name: str, found: pa.Schema, where: str) -> None:
    """Raises BadTable unless `found` (of the file `where`) is table `name` of this schema version."""
    wanted = schema(name, tuple(found.names))
    for field in wanted:
        if field.name not in found.names:
            raise BadTable(f"{where}: not a {name} table of schema {SCHEMA_VERSION}: column {field.name} is missing")
        if found.field(field.name).type != field.type:
            raise BadTable(
                f"{where}: column {field.name} is {found.field(field.name).type}, schema {SCHEMA_VERSION} says {field.type}; "
                "record or import the tape again with this version"
            )
