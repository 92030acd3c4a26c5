"""What every engine leaves: what ran, what was measured of it, and what is longer than a number."""

from tokentape.warehouse.columns import TEXT, Column
from tokentape.warehouse.schema.table import Table, names

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
OF_DECISIONS = {name: Column(TEXT, "", f"{meaning}: policy and parameters") for name, meaning in DECISIONS.items()}

TABLES = {
    "runs": Table(
        (
            *(*names("run_id view_name conditions engine study copy_of system"), *DECISIONS),
            *names("trace_id model_id hardware hardware_sha256 profile workload batch seed semantics origin is_bound"),
            *names("is_extrapolated outside_envelope facts sources_sha256 code_version"),
        ),
        names("run_id"),
        "what ran: the system by its decisions, tape, model, machine, workload, and what made it",
        nullable=(
            *(*names("study copy_of"), *DECISIONS),
            *names("trace_id model_id hardware hardware_sha256 profile workload batch seed semantics origin is_bound"),
            *names("is_extrapolated outside_envelope sources_sha256"),
        ),
        own=OF_DECISIONS
        | {
            "engine": Column(
                TEXT, "", "what computed it: experts, slicemoe, elmoe3d, kelle, cxl_ndp, serving, systems, kv, live, hardware"
            ),
            "system": Column(TEXT, "", "its decisions as JSON"),
        },
    ),
    "metrics": Table(
        names("run_id metric value low high denominator"),
        names("run_id metric"),
        "one number of a run; unit and meaning are in `metric_defs`",
        nullable=names("low high denominator"),
    ),
    "steps": Table(
        names(
            "run_id pass_id kind n_tokens start_s step_s energy_j n_lookups n_hits fast_bytes backing_bytes n_decodes "
            "n_prefill_tokens layer_group n_groups"
        ),
        names("run_id pass_id"),
        "a forward pass of a run on the simulated clock",
        nullable=names(
            "kind n_tokens energy_j n_lookups n_hits fast_bytes backing_bytes n_decodes n_prefill_tokens layer_group n_groups"
        ),
    ),
    "request_metrics": Table(
        names("run_id request_id ttft_s tbt_mean_s request_energy_j arrival_s finish_s n_restarts"),
        names("run_id request_id"),
        "a request of a run on the simulated clock",
        nullable=names("tbt_mean_s request_energy_j arrival_s finish_s n_restarts"),
    ),
    "busy": Table(
        names("run_id resource place operation op_layer expert request_id start_s seconds bytes ops"),
        names("run_id resource place request_id start_s"),
        "a stretch of time in which a resource of a run is busy, or a request in a state",
        nullable=names("place operation op_layer expert request_id bytes ops"),
    ),
    "curves": Table(
        names("run_id metric x value low high"),
        names("run_id metric x"),
        "a point of a curve: a metric of a run over what `x` says (cache size, tokens, time)",
        nullable=names("value low high"),
    ),
    "series": Table(
        names("run_id metric layer kv_head expert request_id place part label x y value low high"),
        names("run_id metric layer kv_head expert request_id place part label x y"),
        "a metric of a run by layer, expert, request or part; null where it is of all of them",
        nullable=names("layer kv_head expert request_id place part label x y value low high"),
        own={
            "part": Column(TEXT, "", "what the value is of: a part of energy or memory"),
            "label": Column(TEXT, "", "where that part lies"),
        },
    ),
    "checks": Table(
        names("run_id check value published unit bar_low bar_high n how"),
        names("run_id check"),
        "a number that is held to a bar, or that a paper derives a second way",
        nullable=names("published bar_low bar_high n how"),
    ),
    "metric_defs": Table(names("metric unit meaning"), names("metric"), "a metric: its unit and what it means, declared once"),
}
