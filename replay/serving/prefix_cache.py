"""Which leading prompt tokens an earlier request left in the KV cache, from ids of prefix blocks (Mooncake, FAST 2025)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 512


def cached_tokens(
    prefix_blocks: Sequence[Sequence[int]],
    n_prompt_tokens: NDArray[np.int64],
    capacity_blocks: int | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> NDArray[np.int64]:
    """(n,) leading tokens of each prompt that need no prefill, at most all but one; requests in order of arrival.

    prefix_blocks: an id per block of each prompt; equal ids mean equal prefixes. capacity_blocks: blocks kept, the least recently
    used leave; None: all are kept. A block counts as there as soon as its request has arrived, and takes none of the engine's
    own KV memory. Raises ValueError naming a request whose blocks do not fit its prompt.
    """
    if capacity_blocks is not None and capacity_blocks < 1:
        raise ValueError(f"capacity_blocks must be at least 1, found {capacity_blocks}")
    kept: OrderedDict[int, None] = OrderedDict()
    found = np.zeros(len(n_prompt_tokens), np.int64)
    for r, (blocks, n_tokens) in enumerate(zip(prefix_blocks, n_prompt_tokens.tolist(), strict=True)):
        if len(blocks) != -(-n_tokens // block_tokens):
            given = f"{len(blocks)} prefix blocks of {block_tokens} tokens"
            raise ValueError(f"request {r}: {given} do not fit {n_tokens} prompt tokens")
        n_hits = next((i for i, block in enumerate(blocks) if block not in kept), len(blocks))
        found[r] = min(n_hits * block_tokens, n_tokens - 1)
        for block in reversed(blocks):  # the end of a prefix is of no use without its start: it leaves first
            kept[block] = None
            kept.move_to_end(block)
        while capacity_blocks is not None and len(kept) > capacity_blocks:
            kept.popitem(last=False)
    return found
