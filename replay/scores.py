"""A tape's scores as the two matrices that sliced serving reads: what the router ranks by and what every expert would weigh.

Row by row the scores table of the tape, in the order of its routing. The rules are those of the manifest's score_rule, as far as
rerouting can use them: a rule must give every expert a weight of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.policies.scoring import gates, ranking
from tokentape.replay.trace import Trace

Floats = NDArray[np.float32]
RULES = ("softmax", "softmax_topk", "sigmoid_bias_groups", "sqrtsoftplus_bias_groups")


@dataclass(frozen=True, eq=False)
class Scores:
    """values (n, E) f32: the top k are the largest, -inf is ruled out. gates (n, E) f32: weights before the top k.

    is_full: False where a tape holds the chosen experts only; then all others are ruled out.
    """

    values: Floats
    gates: Floats
    is_full: bool = True

    def at(self, rows: NDArray[np.int64], n: int) -> Scores:
        """The same as these of n rows; zeros elsewhere."""
        moved = [np.zeros((n, table.shape[1]), np.float32) for table in (self.values, self.gates)]
        for table, mine in zip(moved, (self.values, self.gates), strict=True):
            table[rows] = mine
        return Scores(moved[0], moved[1], self.is_full)


def scores_from_table(trace: Trace, scores: pl.DataFrame, rule: str | None, params: Mapping[str, Any]) -> Scores:
    """Scores of a tape from its `scores` table and the manifest's score_rule and score_params.

    Memory: 8 B per row and expert. Rows fit the geometry, as those of warehouse.recorded.Tape do. Raises ValueError for a rule
    whose weights are not a function of one expert's score and a normaliser, and a table that does not follow the routing rows.
    """
    if rule not in RULES:
        raise ValueError(f"tape {trace.trace_id}: score rule {rule!r} cannot be rerouted; known: {', '.join(RULES)}")
    n_experts = trace.geometry.n_experts
    if scores.height != trace.row_pass.size:
        raise ValueError(
            f"tape {trace.trace_id}: {scores.height} score rows for {trace.row_pass.size} routing rows of {n_experts} experts; "
            "every routing row needs one score per expert: record it again with scores"
        )
    layers = np.array(trace.geometry.moe_layers)
    for column, wanted in (
        ("request_id", trace.row_request), ("position", trace.row_position), ("layer", layers[trace.row_layer]),
    ):  # fmt: skip
        if not np.array_equal(scores[column].to_numpy(), wanted):
            raise ValueError(
                f"tape {trace.trace_id}: score rows do not follow the routing rows ({column} differs); record it again"
            )
    raw = scores["scores"].explode().to_numpy().astype(np.float32).reshape(-1, n_experts)
    weights = np.empty_like(raw)
    for index, layer in enumerate(trace.geometry.moe_layers):
        rows = trace.row_layer == index
        of_layer = raw[rows]
        weights[rows], raw[rows] = gates(of_layer, rule), ranking(of_layer, rule, params, layer)  # in place: raw is a copy
    return Scores(raw, weights)


def scores_from_choices(trace: Trace, gate_weights: NDArray[np.float32]) -> Scores:
    """Scores of a tape that recorded no more than the chosen experts: enough for the stock router, and for nothing else.

    gate_weights: (sum of k,) as the tape's routing lists them, beside trace.ids.
    """
    gates = np.zeros((trace.row_pass.size, trace.geometry.n_experts), np.float32)
    row = np.repeat(np.arange(trace.row_pass.size), np.diff(trace.offsets))
    gates[row, trace.ids] = gate_weights
    values = np.full_like(gates, -np.inf)
    values[row, trace.ids] = gate_weights
    return Scores(values, gates, is_full=False)
