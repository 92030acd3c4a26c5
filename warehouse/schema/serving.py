"""Schedulers over workloads, and how many experts a batch covers."""

from tokentape.warehouse.schema.table import View, names, places

TABLES = {
    "serving_points": View(
        names(
            "study point_id series model_id workload arrival rate_per_s scheduler policy_params hardware profile coverage "
            "n_seeds outside_envelope metric unit value low high"
        ),
        names("study point_id metric"),
        "a metric of a serving engine at one rate: median and 5 to 95 % band over seeds",
        nullable=names("rate_per_s profile outside_envelope low high"),  # profile: of points before there were any
        engine="serving",
        facts=names("rate_per_s n_seeds"),
        decisions={"schedule": "scheduler"},
    ),
    "serving_attainment": View(
        names("study point_id ttft_limit_s tbt_limit_s attained_frac"),
        names("study point_id ttft_limit_s tbt_limit_s"),
        "share of a serving point's requests that meet both limits, median over seeds",
        engine="serving",
        of="serving_points",
        values="series",
        at={"ttft_limit_s": "x", "tbt_limit_s": "y"},
    ),
    "serving_iterations": View(
        names("study point_id iteration start_s seconds n_decodes n_prefill_tokens layer_group n_groups"),
        names("study point_id iteration"),
        "an iteration of a serving engine in the window that is drawn",
        engine="serving",
        of="serving_points",
        values="steps",
        at=places("iteration=pass_id start_s seconds=step_s n_decodes n_prefill_tokens layer_group n_groups"),
    ),
    "serving_spans": View(
        names("study point_id request_id state start_s seconds layer_group"),
        names("study point_id request_id state start_s"),
        "a stretch of a request's life in the window that is drawn; layer_group where a prompt walks through groups of layers",
        nullable=names("layer_group"),
        engine="serving",
        of="serving_points",
        values="busy",
        at=places("request_id state=resource start_s seconds layer_group=place"),
    ),
    "serving_tokens": View(
        names("study point_id request_id place time_s"),
        names("study point_id request_id place"),
        "an output token of one request, seconds after its arrival",
        engine="serving",
        of="serving_points",
        values="series",
        at={"request_id": "request_id", "place": "place"},
    ),
    "coverage_points": View(
        names("study source model_id form tokens_of layer_band n_tokens coverage_frac low high recorded_err_frac"),
        names("study source model_id form tokens_of layer_band n_tokens"),
        "share of a layer's experts that n tokens touch together, as a form states it or a tape recorded it",
        nullable=names("low high recorded_err_frac"),
        engine="serving",
        values="curves",
        at={"n_tokens": "x"},
        band="coverage_frac",
    ),
}
