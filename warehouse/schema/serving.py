"""Schedulers over workloads, and how many experts a batch covers."""

from tokentape.warehouse.schema.table import Table

TABLES = {
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
}
