"""How often a tape chose every expert, and which are the hottest: what residency and load balance are decided by."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.placement import hot_set
from tokentape.replay.trace import DECODE, PREFILL, Trace

PHASES: dict[str, tuple[int, ...]] = {"all": (PREFILL, DECODE), "prefill": (PREFILL,), "decode": (DECODE,)}


def entries(trace: Trace, phase: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Part by part of the tape, (n,) index of the MoE layer, expert and pass (of the part) of every choice of a phase, of PHASES.
    Raises ValueError for none of it."""
    if phase not in PHASES:
        raise ValueError(f"--phase {phase!r} is unknown; choose {', '.join(PHASES)}")
    kinds = np.unique(trace.pass_kind[trace.row_pass])
    if not np.isin(kinds, PHASES[phase]).any():
        there = [name for name, of in PHASES.items() if np.isin(of, kinds).all()]
        remedy = f"choose {' or '.join(there)} for --phase" if there else "record one with routing"
        raise ValueError(f"tape {trace.trace_id} has no {phase}; {remedy}")
    for _, part in trace.parts:
        rows = np.flatnonzero(np.isin(part.pass_kind[part.row_pass], PHASES[phase]))
        ids, widths = part.ids_of(rows)
        row = np.repeat(rows, widths)
        yield part.row_layer[row].astype(np.int64), ids.astype(np.int64), part.row_pass[row].astype(np.int64)


def loads(trace: Trace, phase: str) -> NDArray[np.int64]:
    """(MoE layers, E) tokens that chose each expert."""
    counts = np.zeros((len(trace.geometry.moe_layers), trace.geometry.n_experts), np.int64)
    for layer, expert, _ in entries(trace, phase):
        counts += np.bincount(layer * counts.shape[1] + expert, minlength=counts.size).reshape(counts.shape)
    return counts


def hottest(counts: NDArray[np.int64], places: int, scope: str) -> NDArray[np.bool_]:
    """(MoE layers, E) the experts most chosen: `places` of all, of one size, shared equally by the layers or wherever they count
    most (scope per-layer, global). Ties to the lower layer, then the lower index. Raises ValueError for less than one a layer."""
    if scope == "global":
        return hot_set(counts.reshape(-1), places).reshape(counts.shape)
    if places < len(counts):
        raise ValueError(f"room for {places} experts in {len(counts)} layers; give at least one a layer, or --scope global")
    return hot_set(counts, places // len(counts))
