"""What a placement makes every layer-step of a tape's decode compute and move: the kernel's counts, without a clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Floats, Ints
from tokentape.policies.placement import ReactivePlacement, start_average
from tokentape.replay.cxl_ndp import kernel as k
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.work import Items, Share


@dataclass(frozen=True, eq=False)
class Counted:
    """Of S steps, of all batches one after the other. of_layers: (N_COUNTS, S, L). hot, away: on the GPU and elsewhere."""

    of_layers: Floats
    hot: Items
    away: Items

    def shares(self) -> tuple[Share, Share, Floats]:
        """Experts on the GPU and not, and how many migrated."""
        of = self.of_layers
        on_gpu = Share(of[k.HOT], of[k.HITS], of[k.HOT], (self.hot,))
        return on_gpu, Share(of[k.AWAY], of[k.ON_AWAY], of[k.READS], (self.away,)), of[k.MIGRATED]


def count(
    routing: CXLNDPRouting,
    groups: Ints,
    placement: ReactivePlacement,
    start: NDArray[np.bool_],
    capacity: int,
    bits: NDArray[np.number],
    blocks: Ints,
    n_blocks: int,
) -> Counted:
    """groups (G, B) sequences of a batch; start (G, L, E): on the GPU when decoding starts; capacity: experts of a layer there;
    bits (G, L, E): of experts elsewhere; blocks (L,) of n_blocks: which block of a step a layer is."""
    n_members, (n_layers, n_experts) = groups.shape[1], start.shape[1:]
    n_steps = int(routing.n_decode[groups].max(axis=1).sum())
    average = start_average(routing.prefill_counts[groups].sum(axis=1), n_members, routing.top_k)
    widths, width_of = np.unique(bits, return_inverse=True)
    n_items = n_steps * n_layers * min(n_experts, n_members * routing.top_k)
    counted, n_found = np.zeros((k.N_COUNTS, n_steps, n_layers)), np.zeros(2, np.int64)
    hot, away = ((np.empty(n_items, np.int64), np.empty(n_items, np.int64), np.empty(n_items)) for _ in range(2))
    k.decode(
        placement.migrate, placement.params(), np.ascontiguousarray(routing.decode_ids), routing.n_decode, groups, average,
        start.astype(np.uint8), width_of.reshape(start.shape).astype(np.uint8), widths.astype(np.float64), capacity, blocks,
        n_blocks, counted, *hot, *away, n_found,
    )  # fmt: skip
    n_hot, n_away = n_found
    width, tokens = np.divmod(away[1][:n_away], n_members + 1)
    return Counted(
        counted,
        Items(hot[0][:n_hot], hot[1][:n_hot], hot[2][:n_hot], hot[2][:n_hot]).at_fp16(),
        Items(away[0][:n_away], tokens, widths[width].astype(np.float64), away[2][:n_away]),
    )
