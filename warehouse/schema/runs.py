"""What every engine leaves: what ran, what was measured of it, and what is longer than a number."""

from tokentape.warehouse.columns import TEXT, Column
from tokentape.warehouse.schema.table import Table

# What decides in a system, each a policy with its parameters; null: nothing decides there, or the engine does not tell.
DECISIONS = {
    "schedule": "which requests, tokens and layers run next",
    "draft": "what is speculated",
    "route": "which experts a token takes",
    "precision": "how many bits each expert gets",
    "residency": "what enters and leaves the fast tier",
    "place": "which engine computes what",
    "kv": "which keys and values are kept, at which width",
    "refresh": "how often cells are refreshed",
}
_OWN = {name: Column(TEXT, "", f"{meaning}: policy and parameters") for name, meaning in DECISIONS.items()}
_ID, _METRIC, _VALUES = "run_id", "metric", ("value", "low", "high")

TABLES = {
    "runs": Table(
        (
            *(_ID, "view_name", "conditions", "engine", "study", "copy_of", "system", *DECISIONS),
            *(
                "trace_id",
                "model_id",
                "hardware",
                "hardware_sha256",
                "profile",
                "workload",
                "batch",
                "seed",
                "semantics",
                "origin",
            ),
            *("is_bound", "is_extrapolated", "outside_envelope", "facts", "sources_sha256", "code_version"),
        ),
        (_ID,),
        "what ran: the system by its decisions, tape, model, machine, workload, and what made it",
        nullable=(
            *(
                "study",
                "copy_of",
                *DECISIONS,
                "trace_id",
                "model_id",
                "hardware",
                "hardware_sha256",
                "profile",
                "workload",
                "batch",
                "seed",
            ),
            *("semantics", "origin", "is_bound", "is_extrapolated", "outside_envelope", "sources_sha256"),
        ),
        own=_OWN
        | {
            "engine": Column(
                TEXT, "", "what computed it: experts, slicemoe, elmoe3d, kelle, cxl_ndp, serving, kv, live, hardware"
            ),
            "system": Column(TEXT, "", "its decisions as JSON"),
        },
    ),
    "metrics": Table(
        (_ID, _METRIC, *_VALUES, "denominator"),
        (_ID, _METRIC),
        "one number of a run; unit and meaning are in `metric_defs`",
        nullable=("low", "high", "denominator"),
    ),
    "steps": Table(
        (
            *(_ID, "pass_id", "kind", "n_tokens", "start_s", "step_s", "energy_j", "n_lookups", "n_hits", "fast_bytes"),
            *("backing_bytes", "n_decodes", "n_prefill_tokens", "layer_group", "n_groups"),
        ),
        (_ID, "pass_id"),
        "a forward pass of a run on the simulated clock",
        nullable=(
            *("kind", "n_tokens", "energy_j", "n_lookups", "n_hits", "fast_bytes", "backing_bytes", "n_decodes"),
            *("n_prefill_tokens", "layer_group", "n_groups"),
        ),
    ),
    "request_metrics": Table(
        (_ID, "request_id", "ttft_s", "tbt_mean_s", "request_energy_j"),
        (_ID, "request_id"),
        "a request of a run on the simulated clock",
        nullable=("tbt_mean_s",),
    ),
    "busy": Table(
        (_ID, "resource", "place", "operation", "op_layer", "request_id", "start_s", "seconds", "bytes", "ops"),
        (_ID, "resource", "place", "request_id", "start_s"),
        "a stretch of time in which a resource of a run is busy, or a request in a state",
        nullable=("place", "operation", "op_layer", "request_id", "bytes", "ops"),
    ),
    "curves": Table(
        (_ID, _METRIC, "x", *_VALUES),
        (_ID, _METRIC, "x"),
        "a point of a curve: a metric of a run over what `x` says (cache size, tokens, time)",
        nullable=_VALUES,
    ),
    "series": Table(
        (_ID, _METRIC, "layer", "kv_head", "expert", "request_id", "place", "part", "label", "x", "y", *_VALUES),
        (_ID, _METRIC, "layer", "kv_head", "expert", "request_id", "place", "part", "label", "x", "y"),
        "a metric of a run by layer, expert, request or part; null where it is of all of them",
        nullable=("layer", "kv_head", "expert", "request_id", "place", "part", "label", "x", "y", *_VALUES),
        own={
            "part": Column(TEXT, "", "what the value is of: a part of energy or memory"),
            "label": Column(TEXT, "", "where that part lies"),
        },
    ),
    "checks": Table(
        (_ID, "check", "value", "published", "unit", "bar_low", "bar_high", "n", "how"),
        (_ID, "check"),
        "a number that is held to a bar, or that a paper derives a second way",
        nullable=("published", "bar_low", "bar_high", "n", "how"),
    ),
    "metric_defs": Table((_METRIC, "unit", "meaning"), (_METRIC,), "a metric: its unit and what it means, declared once"),
}
