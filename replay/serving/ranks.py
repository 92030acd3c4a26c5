"""Experts over ranks (expert parallelism): how much more than its even share the fullest rank computes, by tokens of a layer.

A layer ends with its fullest rank. Which rank holds which expert is a placement of PLACEMENTS, as vLLM's
--expert-placement-strategy has them (linear, its default: contiguous blocks), or a map of slots as `tokentape export eplb` writes
(replay/exports/eplb.py); replicas of an expert share its tokens evenly. Under tensor parallelism every rank has a part of every
expert: nothing of this applies.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats
from tokentape.policies.kernels import F64_2D, float64, int64, kernel
from tokentape.policies.names import unknown
from tokentape.replay.coverage import N_DRAWS, by_layer
from tokentape.replay.exports import eplb
from tokentape.replay.trace import Trace
from tokentape.warehouse.geometry import Geometry

PLACEMENTS = ("linear", "round_robin")
N_SIZES = 13  # 1, 2, 4, ... tokens; beyond the last, and beyond what a tape has, the last known stands


@dataclass(frozen=True, eq=False)
class Ranks:
    """crowding (2, 2, N_SIZES): of tokens of different requests, and of layers that process a prompt, what the fullest rank has
    over an even share, of the active experts and of the tokens. n_slots: experts of a layer on all ranks, replicas with them.
    outside: what the curves do not know."""

    n_slots: int
    crowding: Floats = field(repr=False)
    outside: str = ""


def held_by(placement: str, geometry: Geometry, n_ranks: int) -> Floats:
    """(MoE layers, E, ranks) share of an expert's tokens that a rank computes. Raises ValueError for what is no placement of this
    model over so many ranks."""
    n_layers, n_experts = len(geometry.moe_layers), geometry.n_experts
    if placement in PLACEMENTS:
        if n_experts % n_ranks:
            raise ValueError(f"{n_experts} experts do not share out among {n_ranks} ranks evenly; give a map of slots")
        own = np.arange(n_experts).reshape(n_ranks, -1) if placement == "linear" else np.arange(n_experts).reshape(-1, n_ranks).T
        slots = np.tile(own.ravel(), (n_layers, 1))
    elif Path(placement).is_file():
        slots = eplb.read_map(Path(placement), geometry)
        if slots.shape[1] % n_ranks:
            raise ValueError(f"{placement}: {slots.shape[1]} slots do not share out among {n_ranks} ranks evenly")
    else:
        raise unknown("expert placement", placement, (*PLACEMENTS, "a file of `tokentape export eplb`"))
    return eplb.held_by(slots, n_experts, n_ranks)


def of_tape(trace: Trace, placement: str, n_ranks: int) -> Ranks:
    """As the tape's tokens chose: of as many requests as there are, and of consecutive tokens of a prompt."""
    share = held_by(placement, trace.geometry, n_ranks)
    curves = [
        np.mean(by_layer(trace, phase, lambda layer, chosen: crowding(chosen, share[layer])), axis=0).T
        for phase in ("decode", "prefill")
    ]
    filled = [curve[:, np.minimum(np.arange(N_SIZES), curve.shape[1] - 1)] for curve in curves]
    return Ranks(_n_slots(share), np.stack(filled))


@lru_cache(maxsize=8)
def of_even_draws(geometry: Geometry, placement: str, n_ranks: int) -> Ranks:
    """Of tokens that choose afresh, all experts alike: the least that a placement can be out of balance."""
    share, rng, k = held_by(placement, geometry, n_ranks), np.random.default_rng(0), geometry.top_k
    curve = []
    for n in 2 ** np.arange(N_SIZES):
        n_draws = min(N_DRAWS, max(4, 2**15 // int(n)))
        ids = [np.argpartition(rng.random((n, geometry.n_experts)), k - 1, axis=1)[:, :k] for _ in range(n_draws)]
        counts = np.array([np.bincount(of.ravel(), minlength=geometry.n_experts) for of in ids])
        curve.append(np.mean([crowding(counts, of_layer) for of_layer in share], axis=0))
    outside = "ranks are as full as even draws make them, the least; a tape's tokens tell (--coverage TRACE)"
    return Ranks(_n_slots(share), np.stack([np.array(curve).T] * 2), outside)


def crowding(counts: NDArray[Any], share: Floats) -> Floats:
    """(2,) mean over draws of the fullest rank's active experts and tokens, over an even share of what is active. counts (draws,
    E): tokens on each expert of a layer; share (E, ranks)."""
    tokens = counts @ share
    active = np.minimum(1.0, counts[:, :, None] * share).sum(axis=1)  # a replica without a token of its own is not read
    n_active = (counts > 0).sum(axis=1)
    fullest = active.max(axis=1) * share.shape[1] / n_active, tokens.max(axis=1) * share.shape[1] / counts.sum(axis=1)
    return np.asarray([of.mean() for of in fullest])


def _n_slots(share: Floats) -> int:
    return int((share > 0).sum(axis=(1, 2)).max())


@kernel(float64(F64_2D, int64, int64, float64))
def fuller(t, first, which, n):  # type: ignore[no-untyped-def]
    """Of n tokens, from a curve of `crowding` in the constants of an iteration's table, linear in log2 n."""
    at = min(np.log2(max(n, 1.0)), N_SIZES - 1.0)
    i = min(np.int64(at), N_SIZES - 2)
    row = t[t.shape[0] - 3]
    low = first + which * N_SIZES + i
    return row[low] + (at - i) * (row[low + 1] - row[low])
