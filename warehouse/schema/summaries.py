"""What the loader says of the tapes: their catalogue, and what the pages need of them."""

from tokentape.warehouse.schema.table import Table, names

TABLES = {
    "traces": Table(
        names(
            "trace_id model_id model_revision dataset origin n_requests n_tokens n_layers n_moe_layers n_experts top_k tables "
            "flags created_utc"
        ),
        names("trace_id"),
        "a tape in the store",
        nullable=names("model_revision"),
    ),
    "popularity": Table(
        names("trace_id layer expert phase n_selected n_early"),
        names("trace_id layer expert phase"),
        "an expert of a layer that was selected in the phase; one never selected has no row",
    ),
    "locality": Table(
        names("trace_id layer phase overlap_frac chance_frac"),
        names("trace_id layer phase"),
        "a layer: the experts that consecutive tokens share; phase is the later token's",
    ),
    "critical_experts": Table(
        names("trace_id layer tau first_position bin_tokens n_routed n_critical"),
        names("trace_id layer tau first_position"),
        "a bin of token positions in a layer: how many experts are critical; a tape without gate weights has none",
    ),
    "gate_curve": Table(
        names("trace_id layer phase gate_rank gate_frac n_routed"),
        names("trace_id layer phase gate_rank"),
        "a rank in a layer: what share of a token's gate weight it takes; a tape without gate weights has none",
    ),
    "expert_losses": Table(
        names("trace_id layer expert bits method group mse heldout_mse n_tokens topped_up"),
        names("trace_id layer expert bits method group"),
        "an expert at a width, of a tape that holds table losses",
        nullable=names("heldout_mse"),
    ),
}
