"""What a tape records (docs/tape.md); written by capture, importers and synthesis."""

from tokentape.warehouse.schema.table import Table

TABLES = {
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
}
