"""What a tape records (docs/tape.md); written by capture, importers and synthesis."""

from tokentape.warehouse.schema.table import Table, names

TABLES = {
    "requests": Table(
        names("request_id dataset arrival_s n_prompt_tokens n_output_tokens prompt_sha256"),
        names("request_id"),
        "a request",
        optional=names("prefix_blocks"),
        nullable=names("prompt_sha256"),
    ),
    "tokens": Table(
        names("request_id position token_id phase pass_id nll"),
        names("request_id position"),
        "a token of a request, or a draft node",
        optional=names("round node"),
        nullable=names("nll token_id"),
    ),
    "passes": Table(
        names("pass_id kind n_tokens request_ids policy_state"),
        names("pass_id"),
        "a forward pass of the engine",
        nullable=names("policy_state"),
    ),
    "routing": Table(
        names("request_id position layer pass_id expert_ids gate_weights"),
        names("request_id position layer"),
        "a token in a MoE layer; rows ordered by pass, layer, then token as the pass held them",
        optional=names("natural_ids residency round node"),
        nullable=names("gate_weights"),
    ),
    "scores": Table(
        names("request_id position layer scores"),
        names("request_id position layer"),
        "a token in a MoE layer, same order as routing",
    ),
    "attention": Table(
        names("request_id pass_id position layer kv_head reduction n_queries key_positions mass rest"),
        names("request_id pass_id position layer kv_head reduction"),
        "the attention mass one query (row) or all queries of a pass (column_sum, position = last) put on earlier positions",
        nullable=names("key_positions"),
    ),
    "acceptance": Table(
        names("request_id round node parent depth rank draft_token_id draft_prob target_prob is_verified is_accepted"),
        names("request_id round node"),
        "a drafted node",
        nullable=names("draft_prob target_prob"),
    ),
    "rounds": Table(
        names("request_id round layer pool hotness next_pool entered n_drafted n_verified n_accepted bonus_token_id is_clipped"),
        names("request_id round layer"),
        "a draft-and-verify round in a MoE layer; one row with a null layer where the drafter has no pool",
        nullable=names("layer pool hotness next_pool entered bonus_token_id"),
    ),
    "node_routing": Table(
        names("request_id round phase node layer position pass_id expert_ids gate_weights natural_ids"),
        names("request_id round phase node layer"),
        "a node in a MoE layer, in the draft or the verify pass that had it as input; rejected nodes included",
        nullable=names("natural_ids"),
    ),
    "node_scores": Table(
        names("request_id round phase node layer scores"),
        names("request_id round phase node layer"),
        "a node in a MoE layer, same order as node_routing",
    ),
    "losses": Table(
        names("layer expert bits method group mse heldout_mse n_tokens topped_up"),
        names("layer expert bits method group"),
        "an expert at a width against the expert at full precision, on tokens that were routed to it",
        nullable=names("heldout_mse"),
    ),
}
