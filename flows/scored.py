"""A tape as sliced serving reads it: its trace with the router's scores, and what its gates say of experts that are alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.policies.resolve import Value, resolve
from tokentape.policies.sliced import SliceMoE
from tokentape.policies.sliced.buddy import gate_similarity
from tokentape.replay.scores import Scores, scores_from_choices, scores_from_table
from tokentape.replay.trace import Trace, trace_from_tables
from tokentape.warehouse.tape import ROW_GROUP_ROWS, Store


def scored_trace(store: Store, prefix: str) -> tuple[Trace, Scores]:
    """The tape with its scores; of one without, what the chosen experts tell.

    Where a policy rerouted while the tape was recorded, the trace is of the model's own choices, so that the same policy decides
    again what it decided then.
    """
    tape = store.open(prefix)
    routing = tape.read("routing")
    if "natural_ids" in routing.columns:
        routing = routing.with_columns(expert_ids=pl.col("natural_ids"))
    trace = trace_from_tables(tape.trace_id, tape.geometry, tape.manifest.origin, routing, tape.read("passes"))
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
    parts = (pl.DataFrame(rows) for rows in tape.batches("routing", ROW_GROUP_ROWS))
    weights = pl.concat(part["gate_weights"].explode() for part in parts) if name == "gate" else pl.Series([None])
    if weights.null_count():
        raise ValueError(f"tape {trace_id} holds no {name}s, which the policy reads; record it with --tables routing,scores")
    return weights.to_numpy().astype(np.float32)


def similarity(store: Store, prefix: str) -> NDArray[np.float32]:
    """(L, E, E) cosine of two experts' gates over the tape's tokens (policies/sliced/buddy.py)."""
    trace, scores = scored_trace(store, prefix)
    if not scores.is_full:
        raise ValueError(f"tape {trace.trace_id} holds the chosen experts only; similarity needs all scores: --tables scores")
    return gate_similarity(trace.row_layer, scores.gates, len(trace.geometry.moe_layers))


def composed(params: Mapping[str, Value], store: Store | None = None) -> SliceMoE:
    """slicemoe from what was typed; Buddy's similarity may be the tape of `store` that it is taken from."""
    given = dict[str, object](params)
    if given.get("router") == "buddy":
        if "router.similarity" not in given:
            raise ValueError("router buddy needs a tape that says which experts are alike; give --param router.similarity=TRACE")
        if isinstance(of := given["router.similarity"], str):
            given["router.similarity"] = similarity(store or Store(), of)
    system: SliceMoE = resolve("system", "slicemoe", given)
    return system
