"""Replays of expert caches: what ran, every step, and the hits of all capacities."""

from tokentape.warehouse.schema.table import View, names, places

TABLES = {
    "replays": View(
        names(
            "replay_id trace_id study policy policy_params is_bound hardware hardware_sha256 profile scope lookup recency "
            "prefill start overflow fetching expert_format capacity_bytes capacity_experts capacity_frac cycle_experts seed "
            "origin is_extrapolated outside_envelope assumed"
        ),
        names("replay_id"),
        "a replay: what ran, every parameter a column",
        engine="experts",
        values="",
        nullable=names("profile"),  # of replays before there were profiles
        facts=names("capacity_bytes capacity_experts capacity_frac cycle_experts seed"),
        decisions={"residency": "policy"},
        run_id="replay_id",
    ),
    "timeline": View(
        names("replay_id pass_id kind n_tokens start_s step_s energy_j n_lookups n_hits fast_bytes backing_bytes"),
        names("replay_id pass_id"),
        "a forward pass of a replay on the simulated clock",
        engine="experts",
        values="steps",
        at=places("pass_id kind n_tokens start_s step_s energy_j n_lookups n_hits fast_bytes backing_bytes"),
        of="replays",
        run_id="replay_id",
    ),
    "lru_curves": View(
        names("replay_id capacity_experts n_lookups n_hits hit_frac"),
        names("replay_id capacity_experts"),
        "hits of an LRU of every capacity, from one pass over the tape",
        engine="experts",
        values="curves",
        at={"capacity_experts": "x"},
        of="replays",
        run_id="replay_id",
    ),
}
