"""Exact coverage: the union of the experts that a tape recorded for the very tokens of an iteration.

A token's experts in a layer are a mask of E bits; ORs over 64 consecutive tokens of a request are kept too, so that a prompt
slice of m tokens costs at most 128 + m / 64 of them.
"""

from __future__ import annotations

from tokentape.policies.kernels import array, float64, int64, kernel, uint64, void
from tokentape.replay.serving.state import GENERATED, JOINED, NEWER, OLDEST, POSITION, PROMPT

BLOCK_TOKENS = 64

_I2 = array(int64, 2)
_U1, _U3 = array(uint64, 1), array(uint64, 3)


@kernel(void(_U3, int64, int64, _U1))
def add_row(masks, row, layer, union):  # type: ignore[no-untyped-def]
    """ORs one row of (rows, MoE layers, words) masks into `union`."""
    for w in range(union.shape[0]):
        union[w] |= masks[row, layer, w]


@kernel(void(_U3, _U3, int64, int64, int64, int64, int64, _U1))
def add_slice(masks, blocks, first_row, first_block, position, n_tokens, layer, union):  # type: ignore[no-untyped-def]
    """ORs the experts of a request's tokens position .. position + n_tokens - 1 into `union`."""
    at, end = position, position + n_tokens
    while at < end:
        if at % BLOCK_TOKENS == 0 and at + BLOCK_TOKENS <= end:
            add_row(blocks, first_block + at // BLOCK_TOKENS, layer, union)
            at += BLOCK_TOKENS
        else:
            add_row(masks, first_row + at, layer, union)
            at += 1


@kernel(float64(_U1, int64))
def share_of(union, n_experts):  # type: ignore[no-untyped-def]
    """Share of n_experts that `union` holds."""
    n = 0
    for w in range(union.shape[0]):
        word = union[w]
        while word != uint64(0):
            word &= word - uint64(1)
            n += 1
    return n / n_experts


@kernel(void(_U1, int64, _I2))
def count_touches(union, layer, touches):  # type: ignore[no-untyped-def]
    """Adds one to every expert in `union`."""
    for e in range(touches.shape[1]):
        touches[layer, e] += int64((union[e // 64] >> uint64(e % 64)) & uint64(1))


@kernel(
    "UniTuple(float64, 2)(int64, int64, boolean, int64[:, ::1], int64[::1], int64[::1], int64[::1], int64, uint64[:, :, ::1], "
    "uint64[:, :, ::1], int64[:, ::1], uint64[::1], int64[:, ::1])",
)
def exact_shares(  # type: ignore[no-untyped-def]
    layer, at, is_group, requests, state, members, takes, n_members, masks, blocks, first_rows, union, touches
):
    """Shares of a MoE layer's experts that iteration `at` touches: by the decodes, and with the prompt batch where it has it.

    requests, state: see state.py; members, takes: of the batch; union: (words,) scratch; touches: counted.
    """
    union[:] = uint64(0)
    r = state[OLDEST]
    while r >= 0:  # the input of a decode is the last token it made
        position = requests[r, PROMPT] + requests[r, GENERATED] + at - requests[r, JOINED] - 2
        add_row(masks, first_rows[0, r] + position, layer, union)
        r = requests[r, NEWER]
    decodes = share_of(union, touches.shape[1])
    if is_group:
        for j in range(n_members):
            r = members[j]
            add_slice(masks, blocks, first_rows[0, r], first_rows[1, r], requests[r, POSITION], takes[j], layer, union)
    count_touches(union, layer, touches)
    return decodes, share_of(union, touches.shape[1])
