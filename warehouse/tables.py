"""Every column of every table, declared once: name, type, unit, one-line meaning. Writers and readers enforce it.

A table is a list of column names plus its key. Tape tables are written by capture, importers and synthesis; result tables by
replay. Knows nothing of files or databases: see tape.py, results.py and load.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 1


class BadTable(ValueError):
    """Rows that do not fit their declared table; the message names the table, the column and the remedy."""


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, unit (empty for ids, counts and names), meaning."""

    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """Column names in order, the ones that may be absent, and the key that identifies a row."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    meaning: str
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()


U8, U16, U32, I32, I64, F16, F32, F64 = (
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.int32(),
    pa.int64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
)
TEXT, FLAG = pa.string(), pa.bool_()

COLUMNS: dict[str, Column] = {
    # keys
    "request_id": Column(U32, "", "request within the trace, from 0"),
    "position": Column(I32, "tokens", "token position within its request, from 0"),
    "layer": Column(U16, "", "absolute layer index in the model"),
    "pass_id": Column(U32, "", "forward pass of the engine, in the order executed"),
    "round": Column(U32, "", "draft-and-verify round within the request"),
    "node": Column(U32, "", "node of the draft tree; 0 is the accepted path's root"),
    # requests
    "dataset": Column(TEXT, "", "data set the prompt came from"),
    "arrival_s": Column(F64, "s", "arrival time from the start of the trace; 0 where requests were run back to back"),
    "n_prompt_tokens": Column(U32, "tokens", "prompt length"),
    "n_output_tokens": Column(U32, "tokens", "tokens generated, or teacher-forced after the prompt"),
    "prompt_sha256": Column(TEXT, "", "SHA-256 of the prompt's token ids as little-endian int32"),
    "prefix_blocks": Column(
        pa.list_(U32),
        "",
        "id of each block of prompt tokens and all before it: equal ids, equal prefixes; block size in the manifest",
    ),
    # tokens
    "token_id": Column(I32, "", "vocabulary id of the token that is the INPUT at this position"),
    "phase": Column(TEXT, "", "prefill, decode, draft or verify"),
    "nll": Column(F32, "nats", "negative log-likelihood of this token given the earlier ones; null for a request's first token"),
    # passes
    "kind": Column(TEXT, "", "prefill, decode, draft or verify"),
    "n_tokens": Column(U32, "tokens", "tokens processed"),
    "request_ids": Column(pa.list_(U32), "", "members of the batch"),
    "policy_state": Column(TEXT, "", "policy in force during the pass; null when the model ran as it is"),
    # routing and scores
    "expert_ids": Column(pa.list_(U16), "", "logical ids of the experts applied, by falling weight"),
    "gate_weights": Column(pa.list_(F32), "1", "weights as the model applied them, after its own normalisation and scaling"),
    "natural_ids": Column(pa.list_(U16), "", "ids the router chose before a policy rerouted"),
    "residency": Column(pa.list_(U8), "", "1 where the recording engine found the expert resident, 0 where it read it"),
    "scores": Column(pa.list_(F32), "1", "raw router logits of all experts, before any softmax, sigmoid, bias or group mask"),
    # attention
    "kv_head": Column(U16, "", "key-value head; query heads of its group are summed"),
    "reduction": Column(TEXT, "", "row (one query), column_sum (all queries of a pass), block_sum (rows summed by key block)"),
    "n_queries": Column(U32, "", "queries summed into the row"),
    "key_positions": Column(
        pa.list_(I32), "tokens", "positions the masses belong to (block starts for block_sum); null: all, from 0"
    ),
    "mass": Column(pa.list_(F32), "1", "attention probability received, over the group's query heads and the row's queries"),
    "rest": Column(F32, "1", "mass on positions that are not listed"),
    # acceptance and rounds
    "parent": Column(U32, "", "parent node in the draft tree"),
    "depth": Column(U16, "tokens", "depth of the node, from 1"),
    "rank": Column(U16, "", "rank among its siblings by draft probability, from 0"),
    "draft_token_id": Column(I32, "", "token proposed"),
    "draft_prob": Column(F32, "1", "probability the drafter gave it"),
    "target_prob": Column(F32, "1", "probability the target gave it"),
    "is_verified": Column(FLAG, "", "the target scored this node"),
    "is_accepted": Column(FLAG, "", "the target accepted this node"),
    "pool": Column(pa.list_(U16), "", "experts the drafter may use"),
    "hotness": Column(pa.list_(U32), "", "accumulated selections per expert"),
    "entered": Column(pa.list_(U16), "", "experts that entered the pool after the round"),
    "n_accepted": Column(U16, "tokens", "drafted tokens accepted, without the bonus token"),
    # losses and quality
    "expert": Column(U16, "", "expert within the layer"),
    "bits": Column(U8, "bit", "weight width"),
    "method": Column(TEXT, "", "quantiser"),
    "group": Column(U32, "", "weights that share a scale"),
    "mse": Column(F32, "1", "output mean squared error against full precision, calibration tokens"),
    "heldout_mse": Column(F32, "1", "the same on held-out tokens"),
    "topped_up": Column(FLAG, "", "calibration tokens were added from other experts"),
    "policy": Column(TEXT, "", "policy and its parameters"),
    "parameters": Column(TEXT, "", "parameters as JSON"),
    "seed": Column(I64, "", "random seed"),
    "perplexity": Column(F64, "1", "exp of the mean nll per token"),
    "bits_per_byte": Column(F64, "bit/B", "nll per byte of UTF-8 text"),
    "accuracy": Column(F64, "1", "share of items answered exactly"),
    "acceptance": Column(F64, "1", "mean over tokens of sum_v min(p, q) against the unmodified model"),
    "kl": Column(F64, "nats", "KL divergence from the unmodified model, mean per token"),
    "miss_frac": Column(F64, "1", "bytes fetched over accesses x high-precision expert bytes, of decoded tokens; closed loop"),
    "flash_bytes_per_token": Column(F64, "B", "bytes fetched per decoded token; closed loop"),
    "dram_bytes_per_token": Column(F64, "B", "bytes of experts read per decoded token; closed loop"),
    "n_items": Column(I64, "", "items scored"),
    "model_id": Column(TEXT, "", "hub id, directory or 'embedded'"),
    # results
    "trace_id": Column(TEXT, "", "tape the row belongs to"),
    "replay_id": Column(TEXT, "", "hash of trace, policies, hardware, semantics, seed and sources of policies/, hw/, replay/"),
    "study": Column(TEXT, "", "study that asked for the replay; 'adhoc' for a single one"),
    "policy_params": Column(TEXT, "", "policy fields as JSON"),
    "is_bound": Column(FLAG, "", "sees the future: drawn as a bound, never as a method"),
    "hardware": Column(TEXT, "", "hardware spec name"),
    "hardware_sha256": Column(TEXT, "", "hash of the hardware spec file"),
    "scope": Column(TEXT, "", "global (one cache) or per-layer"),
    "lookup": Column(TEXT, "", "serial (experts one by one) or atomic (the experts of one event together)"),
    "prefill": Column(TEXT, "", "token-major, or layer-major with one load per unique expert of the pass"),
    "start": Column(TEXT, "", "persistent across requests, or cold per request"),
    "overflow": Column(TEXT, "", "evict: an event larger than the cache keeps what fits; keep: it stays until the next event"),
    "fetching": Column(TEXT, "", "blocking: a layer waits for its misses; overlapped: they hide behind the pass's other work"),
    "expert_format": Column(TEXT, "", "storage format of an expert; 'recorded' is the tape's own size"),
    "capacity_bytes": Column(I64, "B", "bytes of the cache, all layers together"),
    "capacity_experts": Column(F64, "experts", "capacity in mean-sized experts, all layers together"),
    "capacity_frac": Column(F64, "1", "capacity as a share of all experts' bytes"),
    "cycle_experts": Column(I64, "experts", "L x k: lookups of one decode token; a global LRU below it is flooded by the layers"),
    "origin": Column(TEXT, "", "captured, imported or synthetic"),
    "assumed": Column(TEXT, "", "numbers of the hardware file whose source is 'assumed', comma-separated"),
    "is_extrapolated": Column(FLAG, "", "outside the range the costs were measured or fitted on"),
    "outside_envelope": Column(TEXT, "", "what lies outside that range, sentences separated by semicolons; empty: nothing"),
    "metric": Column(TEXT, "", "name of the metric"),
    "unit": Column(TEXT, "", "unit of the value"),
    "value": Column(F64, "", "value, in the unit beside it"),
    "low": Column(F64, "", "lower end of the band (hardware ranges or seeds); null when there is none"),
    "high": Column(F64, "", "upper end of the band; null when there is none"),
    "denominator": Column(TEXT, "", "what a ratio is divided by"),
    "start_s": Column(F64, "s", "start of the step on the simulated clock"),
    "step_s": Column(F64, "s", "duration of the step"),
    "energy_j": Column(F64, "J", "energy of the step"),
    "n_lookups": Column(I64, "", "unique expert lookups"),
    "n_hits": Column(I64, "", "lookups found resident"),
    "fast_bytes": Column(I64, "B", "bytes read from the fast tier"),
    "backing_bytes": Column(I64, "B", "bytes fetched from the backing tier"),
    "ttft_s": Column(F64, "s", "time to first token"),
    "tbt_mean_s": Column(F64, "s", "mean time between tokens"),
    "request_energy_j": Column(F64, "J", "energy of the request"),
    "hit_frac": Column(F64, "1", "hits / unique lookups"),
    # traces (catalogue)
    "model_revision": Column(TEXT, "", "revision of the model, where known"),
    "n_requests": Column(I64, "", "requests in the tape"),
    "n_layers": Column(I64, "", "layers of the model"),
    "n_moe_layers": Column(I64, "", "layers with routed experts"),
    "n_experts": Column(I64, "", "routed experts per MoE layer"),
    "top_k": Column(I64, "", "experts chosen per token"),
    "tables": Column(TEXT, "", "tables recorded, comma-separated"),
    "flags": Column(TEXT, "", "contamination findings as JSON"),
    "created_utc": Column(TEXT, "", "when the manifest was written"),
    # summaries of tapes
    "n_selected": Column(I64, "", "tokens that were routed to the expert"),
    "overlap_frac": Column(F64, "1", "experts a token shares with the token before it in its request, over top-k; mean"),
    "chance_frac": Column(F64, "1", "the same for uniform random routing: top-k / experts"),
    "cosine": Column(F64, "1", "cosine between the selections per expert in prefill and in decode"),
    # machines and steps
    "title": Column(TEXT, "", "what a person calls it"),
    "engine": Column(TEXT, "", "engine that experts run on"),
    "dtype": Column(TEXT, "", "what its operations are rated in"),
    "fast_tier": Column(TEXT, "", "tier the model runs from"),
    "backing_tier": Column(TEXT, "", "tier that missing experts come from; empty: none"),
    "n_devices": Column(I64, "", "devices that share the work"),
    "key": Column(TEXT, "", "dotted key in the hardware file"),
    "source": Column(TEXT, "", "URL, DOI, paper with its table, or 'assumed' with a reason"),
    "is_assumed": Column(FLAG, "", "the value or an end of its range rests on no measured or cited source"),
    "step_id": Column(TEXT, "", "replay_id/pass_id of a replayed step, or model/hardware/batch/context of an estimated one"),
    "place": Column(I64, "", "order of the operation in the step, from 0"),
    "operation": Column(TEXT, "", "what runs"),
    "resource": Column(TEXT, "", "engine, tier or link that it occupies"),
    "op_layer": Column(I32, "", "absolute layer index; -1 outside the layers"),
    "seconds": Column(F64, "s", "duration"),
    "bytes": Column(F64, "B", "bytes that it moves on one device"),
    "ops": Column(F64, "1", "operations that it computes on one device; a multiply-add is two"),
    # validation
    "check": Column(TEXT, "", "gpu_operator, gpu_operator_regime or dram"),
    "device": Column(TEXT, "", "device or preset the measurement was taken on"),
    "framework": Column(TEXT, "", "software the operator ran in, or the simulator"),
    "version": Column(TEXT, "", "its version"),
    "operator": Column(TEXT, "", "operator, with its regime after a colon; access pattern for DRAM"),
    "split": Column(TEXT, "", "fitted (constants fitted on these rows), held_out, other_device, or closed_form (nothing fitted)"),
    "n": Column(I64, "", "rows compared"),
    "mape_frac": Column(F64, "1", "mean of abs(predicted / measured - 1)"),
    "median_frac": Column(F64, "1", "its median"),
    "p95_frac": Column(F64, "1", "its 95th percentile"),
    "regime": Column(TEXT, "", "term of the model that binds"),
    "shape": Column(TEXT, "", "arguments of the operator"),
    "measured": Column(F64, "", "measured value, in the unit beside it"),
    "predicted": Column(F64, "", "the model's value"),
    # fidelity
    "open_loop": Column(F64, "", "by replaying the scores that the unmodified model had, in the unit beside it"),
    "closed_loop": Column(F64, "", "with the policy inside the model"),
    # systems
    "mode": Column(TEXT, "", "paper (as the paper counts) or physical"),
    "how": Column(TEXT, "", "what was computed, in one sentence"),
    "configuration": Column(TEXT, "", "precision of the system: high-bit, low-bit, amat or dbsc"),
    "warmup": Column(TEXT, "", "what the cache holds when decoding starts"),
    "budget": Column(TEXT, "", "how misses are held, with its target"),
    "tau": Column(F64, "1", "gate share above which an expert is critical; null where precision does not depend on it"),
    "strength": Column(F64, "1", "of the router's pull towards resident experts"),
    "quality_frac": Column(F64, "1", "gate mass kept, less a charge for low precision: a proxy, no accuracy"),
    "high_bit_miss_frac": Column(F64, "1", "Flash bytes over accesses x high-bit expert bytes, after the free steps"),
    "critical_per_layer": Column(F64, "experts", "critical experts of a token in a layer"),
    "decode_step_s": Column(F64, "s", "mean decode step"),
    "decode_energy_j_per_token": Column(F64, "J", "energy of a decoded token"),
    "early_step_s": Column(F64, "s", "the same over the first ten steps"),
    "early_energy_j_per_token": Column(F64, "J", "the same over the first ten tokens"),
    # claims
    "claim_id": Column(TEXT, "", "paper/location/metric/statistic/model/setting; a metric of this name answers the claim"),
    "paper": Column(TEXT, "", "short name of the paper"),
    "location": Column(TEXT, "", "table, figure or section"),
    "model": Column(TEXT, "", "model, as the paper calls it"),
    "setting": Column(TEXT, "", "what the number was measured under"),
    "statistic": Column(TEXT, "", "value, mean, min or max"),
    "comparator": Column(TEXT, "", "= (stated), ~ (about), <= or >="),
    "role": Column(TEXT, "", "input, calibrate (may be fitted on), predict (never fitted on) or report"),
}

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
        nullable=("target_prob",),
    ),
    "rounds": Table(
        ("request_id", "round", "layer", "pool", "hotness", "entered", "n_accepted"),
        ("request_id", "round", "layer"),
        "a draft-and-verify round in a layer",
    ),
    "losses": Table(
        ("layer", "expert", "bits", "method", "group", "mse", "heldout_mse", "n_tokens", "topped_up"),
        ("layer", "expert", "bits", "method", "group"),
        "quantisation loss of an expert",
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
            "miss_frac",
            "flash_bytes_per_token",
            "dram_bytes_per_token",
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
            "miss_frac",
            "flash_bytes_per_token",
            "dram_bytes_per_token",
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
            "configuration",
            "tau",
            "warmup",
            "budget",
            "strength",
            "quality_frac",
            "high_bit_miss_frac",
            "critical_per_layer",
            "decode_step_s",
            "decode_energy_j_per_token",
            "early_step_s",
            "early_energy_j_per_token",
        ),
        (
            "study",
            "trace_id",
            "hardware",
            "capacity_bytes",
            "configuration",
            "tau",
            "warmup",
            "budget",
            "strength",
        ),
        "a replay of a sliced system in a study's sweep",
        nullable=("tau", "critical_per_layer"),
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

TAPE_TABLES = ("requests", "tokens", "passes", "routing", "scores", "attention", "acceptance", "rounds", "losses")
RESULT_TABLES = ("replays", "metrics", "timeline", "request_metrics", "curves")
SUMMARY_TABLES = ("popularity", "locality", "similarity")
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
        raise BadTable(f"table {name}: column {unknown[0]} is not declared in warehouse/tables.py; remove or declare it")
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
