"""Speculative tapes: their metrics by name, their pools replayed, rows of `acceptance_points` of what replay approximates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokentape.policies.speculation.metrics import acceptance_metrics
from tokentape.policies.speculation.pool import pool_size
from tokentape.replay.rounds import NEEDED, PoolRounds, RoundTape, accepted_lengths
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


def replayed(tape: Tape, pool: str | None = None, pool_frac: float | None = None) -> PoolRounds:
    """The tape's pools under a policy and size; None: the recorded ones. Raises ValueError where the tape has none."""
    return _opened(tape).replay(pool, pool_frac)


def replay_points(tape: Tape, pools: Sequence[str], pool_fracs: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of `acceptance_points` without `study`, series replay: the proxies of every pool, from one tape."""
    opened, m = _opened(tape), tape.manifest
    draft = m.settings["speculation"]
    common = {
        "model_id": m.model_id,
        "dataset": m.dataset,
        "series": "replay",
        "drafter": draft["draft"],
        "scheme": draft["scheme"],
        "bits_high": 8 if draft["bits"] else 0,
        "bits_low": draft["bits"],
        "batch": m.settings["batch_size"],
        "depth": draft["depth"],
        "width": draft["width"],
        "temperature": m.settings["temperature"],
        "n_seeds": 1,
        "n_rounds": len(tape.read("rounds").unique(["request_id", "round"])),
        "unit": "1",
    }
    rows = []
    for pool in pools:
        for frac in pool_fracs:
            found = opened.replay(pool, frac)
            size = pool_size(m.geometry.n_experts, frac)
            where = {"pool_policy": pool, "pool_frac": frac, "pool_experts": size, "fidelity": found.fidelity}
            for metric, value in (("pool_overlap_frac", found.overlap_frac), ("captured_mass_frac", found.captured_mass_frac)):
                rows.append({**common, **where, "metric": metric, "value": value, "low": value, "high": value})
    return rows


def _opened(tape: Tape) -> RoundTape:
    m = tape.manifest
    tables = {name: tape.read(name) for name in NEEDED if tape.has(name)}
    return RoundTape(tape.trace_id, tape.geometry, m.settings, m.score_rule, m.score_params, tables)
