"""A tape as engines read it: with the router's scores, and what its gates say of experts that are alike; its attention; the
rounds of its drafts."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.policies.kv import KVPolicy
from tokentape.policies.resolve import Value, resolve
from tokentape.policies.sliced import SliceMoE
from tokentape.policies.sliced.buddy import gate_similarity
from tokentape.policies.speculation.accept import acceptance_metrics
from tokentape.replay.kv.replay import KVReplay, replay_kv
from tokentape.replay.kv.tape import PIECE_BYTES, AttentionTape
from tokentape.replay.rounds import NEEDED, RoundTape, accepted_lengths
from tokentape.replay.scores import Scores, scores_from_choices, scores_from_table
from tokentape.replay.trace import Trace, trace_from_tables
from tokentape.warehouse.results import write_together
from tokentape.warehouse.tape import ROW_GROUP_ROWS, BadTape, Store, Tape


def scored_trace(store: Store, prefix: str) -> tuple[Trace, Scores]:
    """The tape with its scores; of one without, what the chosen experts tell.

    Where a policy rerouted while the tape was recorded, the trace is of the model's own choices, so that the same policy decides
    again what it decided then.
    """
    tape = store.open(prefix)
    routing = tape.read("routing")
    if "natural_ids" in routing.columns:
        routing = routing.with_columns(expert_ids=pl.col("natural_ids"))
    trace = trace_from_tables(tape.trace_id, tape.geometry, tape.manifest.origin, routing, tape.passes)
    if tape.has("scores"):
        return trace, scores_from_table(trace, tape.read("scores"), tape.manifest.score_rule, tape.manifest.score_params)
    weights = routing["gate_weights"].explode()
    if weights.null_count():
        raise ValueError(f"tape {tape.trace_id} holds neither scores nor gate weights; capture it with --tables routing,scores")
    return trace, scores_from_choices(trace, weights.to_numpy())


@lru_cache(maxsize=2)
def told(uri: str, trace_id: str, name: str) -> NDArray[np.float32]:
    """Of every entry of the tape's routing its gate weight or the router's score, as policies/protocol.py names them. Raises
    ValueError for a tape without."""
    tape = Store(uri).open(trace_id)
    if name == "score" and tape.has("scores"):
        trace, scores = scored_trace(Store(uri), trace_id)
        return scores.values[np.repeat(np.arange(trace.row_pass.size), np.diff(trace.offsets)), trace.ids]
    weights = gate_weights(tape) if name == "gate" else None
    if weights is None:
        raise ValueError(f"tape {trace_id} holds no {name}s, which the policy reads; record it with --tables routing,scores")
    return weights


def gate_weights(tape: Tape) -> NDArray[np.float32] | None:
    """Of every entry of the tape's routing; None where it lacks some, or holds what is no number."""
    parts = []
    for part in tape.batches("routing", ROW_GROUP_ROWS):
        parts.append(part["gate_weights"].explode().to_numpy().astype(np.float32))  # null is no number
        if not np.isfinite(parts[-1]).all():
            return None
    return np.concatenate(parts)


def similarity(store: Store, prefix: str) -> NDArray[np.float32]:
    """(L, E, E) cosine of two experts' gates over the tape's tokens (policies/sliced/buddy.py)."""
    trace, scores = scored_trace(store, prefix)
    if not scores.is_full:
        raise ValueError(f"tape {trace.trace_id} holds the chosen experts only; similarity needs all scores: --tables scores")
    return gate_similarity(trace.row_layer, scores.gates, len(trace.geometry.moe_layers))


def with_similarity(params: Mapping[str, Any], store: Store | None, slot: str = "") -> dict[str, Any]:
    """What was typed of slicemoe, as a policy or in a slot of a system; Buddy's similarity as the tape of `store` has it that is
    named."""
    key = f"{slot}router.similarity"
    if params.get(f"{slot}router") == "buddy" and key not in params:
        option = "--set" if slot else "--param"
        raise ValueError(f"router buddy needs a tape that says which experts are alike; give {option} {key}=TRACE")
    of = params.get(key)
    return {**params, key: similarity(store or Store(), of)} if isinstance(of, str) else dict(params)


def composed(params: Mapping[str, Value], store: Store | None = None) -> SliceMoE:
    """slicemoe from what was typed."""
    system: SliceMoE = resolve("system", "slicemoe", with_similarity(params, store))
    return system


def attention_tape(store: Store, trace: str) -> AttentionTape:
    """The tape by id. Raises BadTape where it holds no attention or no requests."""
    tape = store.open(trace)
    tape.files("attention")
    told = tape.read("requests").select("request_id", "n_prompt_tokens", "n_output_tokens").iter_rows()
    requests = {request_id: (n_prompt, n_prompt + max(0, n_output - 1)) for request_id, n_prompt, n_output in told}
    longest = max((n for _, n in requests.values()), default=1)
    n_rows = max(tape.manifest.attention.get("n_kv_heads", 1), PIECE_BYTES // (4 * longest))
    of, pieces = tape.manifest, lambda: tape.batches("attention", n_rows)
    return AttentionTape(tape.trace_id, of.origin, tape.geometry, of.attention, requests, pieces)


def replay_attention(store: Store, trace: str, policy: KVPolicy, renorm: bool, exact: bool) -> KVReplay:
    """Replays the tape and writes tables kv_replays, kv_heads and kv_timeline."""
    found = replay_kv(attention_tape(store, trace), policy, renorm, exact)
    write_together(store, found.tables, "kv_replays", json.dumps(found.replay, sort_keys=True))
    return found


def acceptance_of(tape: Tape) -> dict[str, float]:
    """Metrics of a tape's rounds. Where it holds the drafts, lengths are recomputed from them and must be those recorded.

    Raises BadTape where they are not.
    """
    rounds = tape.read("rounds").unique(["request_id", "round"]).sort("request_id", "round")
    draft = tape.manifest.settings.get("speculation") or {}
    if tape.has("acceptance") and tape.has("tokens"):
        tables = {name: tape.read(name) for name in ("requests", "tokens", "acceptance", "rounds")}
        ours = accepted_lengths(tables)["n_accepted"].to_numpy()
        wrong = np.flatnonzero(ours != rounds["n_accepted"].to_numpy())
        if wrong.size:
            row = rounds.row(int(wrong[0]), named=True)
            raise BadTape(
                f"tape {tape.trace_id}: request {row['request_id']}, round {row['round']} says {row['n_accepted']} accepted, its "
                f"drafts and text say {ours[wrong[0]]}; record it again"
            )
    depth = int(draft["depth"] if "depth" in draft else rounds["n_drafted"].to_numpy().max())
    is_tree = int(draft.get("width", 1)) > 1
    return acceptance_metrics(rounds["n_accepted"].to_numpy(), rounds["is_clipped"].to_numpy(), depth, is_tree)


def rounds_of(tape: Tape) -> RoundTape:
    """The tape's pools, to be replayed. Raises ValueError where it has none."""
    m = tape.manifest
    tables = {name: tape.read(name) for name in NEEDED if tape.has(name)}
    return RoundTape(tape.trace_id, tape.geometry, m.settings, m.score_rule, m.score_params, tables)
