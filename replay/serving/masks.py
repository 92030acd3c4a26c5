"""A tape's routing as bit masks, for exact coverage: which experts each token of each request to serve chose."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.union import BLOCK_TOKENS
from tokentape.replay.serving.workload import Requests
from tokentape.replay.trace import Trace

Masks = NDArray[np.uint64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ExpertMasks:
    """masks (tokens, MoE layers, words) u64, bit e of word e // 64: expert e; blocks: their ORs over 64 tokens of a request.

    first_rows (2, n): where a request's tokens begin in `masks`, and in `blocks`. shape: (MoE layers, experts, top-k).
    """

    masks: Masks = field(repr=False)
    blocks: Masks = field(repr=False)
    first_rows: Ints = field(repr=False)
    n_tokens: Ints = field(repr=False)
    shape: tuple[int, int, int] = (0, 0, 0)

    @property
    def touches_shape(self) -> tuple[int, int]:
        """(MoE layers, experts)."""
        return self.shape[0], self.shape[1]

    def of(self, requests: Requests) -> ExpertMasks:
        """The masks of requests that are the tape's by `tape_request`, or the tape's own in order."""
        rows = requests.tape_request if len(requests.tape_request) else np.arange(len(requests))
        first = np.ascontiguousarray(self.first_rows[:, rows])
        return ExpertMasks(self.masks, self.blocks, first, self.n_tokens[rows], self.shape)

    def refuse_other(self, cost: IterationCosts, requests: Requests) -> None:
        """Raises ValueError where these masks are of another model than the cost's, or of other requests."""
        geometry = cost.geometry
        wanted = (len(geometry.moe_layers), geometry.n_experts, geometry.top_k)
        if self.shape != wanted:
            raise ValueError(
                "recorded coverage: the tape has {} MoE layers, {} experts, top {}; ".format(*self.shape)
                + "the model has {}, {}, top {}".format(*wanted)
            )
        if not set(range(wanted[0])) <= set(cost.moe_of.tolist()):
            raise ValueError("recorded coverage needs a kind of its own for every MoE layer; make the costs with by_layer=True")
        needed = requests.n_prompt_tokens + requests.n_output_tokens - 1
        if len(self.n_tokens) != len(needed):
            raise ValueError(
                f"recorded coverage: masks of {len(self.n_tokens)} requests, {len(needed)} to serve; use masks.of(requests)"
            )
        if np.any(self.n_tokens < needed):
            first = int(np.argmax(self.n_tokens < needed))
            raise ValueError(
                f"request {first}: the tape routes {self.n_tokens[first]} of its {needed[first]} tokens; it has gaps"
            )


def masks_of(trace: Trace) -> ExpertMasks:
    """The masks of every request of a tape, by request id. Raises ValueError naming a request whose routing has gaps."""
    n_layers, n_experts = len(trace.geometry.moe_layers), trace.geometry.n_experts
    requests, of_request = np.unique(trace.row_request, return_inverse=True)
    n_tokens = np.zeros(requests.size, np.int64)
    np.maximum.at(n_tokens, of_request, trace.row_position.astype(np.int64) + 1)
    n_rows = np.bincount(of_request, minlength=requests.size)
    if np.any(n_rows != n_tokens * n_layers):
        bad = int(np.argmax(n_rows != n_tokens * n_layers))
        raise ValueError(
            f"tape {trace.trace_id}: request {requests[bad]} has {n_rows[bad]} routing rows, {n_tokens[bad]} tokens in "
            f"{n_layers} MoE layers need one each; its routing has gaps: use recorded curves, or record it again"
        )
    first = np.concatenate(([0], np.cumsum(n_tokens)))
    masks = np.zeros((first[-1], n_layers, -(-n_experts // 64)), np.uint64)
    row = np.repeat(np.arange(trace.row_layer.size), np.diff(trace.offsets))
    token = (first[of_request] + trace.row_position)[row]
    bits = np.uint64(1) << (trace.ids.astype(np.uint64) % np.uint64(64))
    np.bitwise_or.at(masks, (token, trace.row_layer[row], trace.ids // 64), bits)
    n_blocks = n_tokens // BLOCK_TOKENS
    first_block = np.concatenate(([0], np.cumsum(n_blocks)))
    blocks = np.zeros((max(int(first_block[-1]), 1), *masks.shape[1:]), np.uint64)
    for r in range(requests.size):
        whole = masks[first[r] : first[r] + n_blocks[r] * BLOCK_TOKENS]
        shape = (int(n_blocks[r]), BLOCK_TOKENS, *masks.shape[1:])
        blocks[first_block[r] : first_block[r + 1]] = np.bitwise_or.reduce(whole.reshape(shape), axis=1)
    starts = np.ascontiguousarray(np.stack((first[:-1], first_block[:-1])))
    return ExpertMasks(masks, blocks, starts, n_tokens, (n_layers, n_experts, trace.geometry.top_k))


_EMPTY = np.zeros((0, 0, 1), np.uint64)
NO_MASKS = ExpertMasks(_EMPTY, _EMPTY, np.zeros((2, 0), np.int64), np.zeros(0, np.int64))
