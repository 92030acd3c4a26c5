"""Speculative tapes: their metrics by name, their pools replayed."""

from __future__ import annotations

import numpy as np

from tokentape.policies.speculation.accept import acceptance_metrics
from tokentape.replay.rounds import NEEDED, RoundTape, accepted_lengths
from tokentape.warehouse.tape import BadTape, Tape


def metrics_of(tape: Tape) -> dict[str, float]:
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


def opened(tape: Tape) -> RoundTape:
    """The tape's pools, to be replayed. Raises ValueError where it has none."""
    m = tape.manifest
    tables = {name: tape.read(name) for name in NEEDED if tape.has(name)}
    return RoundTape(tape.trace_id, tape.geometry, m.settings, m.score_rule, m.score_params, tables)
