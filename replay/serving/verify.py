"""A draft-and-verify round of a serving engine: what every decoding request accepts, and the KV blocks that its nodes need.

Unlike plain decodes, requests then advance by different numbers of tokens, so each is visited in every iteration.
"""

from tokentape.policies.kernels import F64, I64, I64_2D, float64, int64, kernel, tuple_of
from tokentape.policies.serving.speculation import accepted
from tokentape.replay.serving import state as st
from tokentape.replay.serving.gaps import add_gap
from tokentape.replay.serving.pool import give_first
from tokentape.replay.system.drafts import DRAFTS, nodes_of, round_of


@kernel(tuple_of(int64, int64)(int64, int64, int64, I64_2D, I64, DRAFTS), allocates=False)
def node_blocks(at, n_nodes, block_tokens, requests, state, drafts):  # type: ignore[no-untyped-def]
    """KV blocks that the decodes need more in iteration `at`, of the last token and of its drafts, n_nodes where drawn; and the
    most at once, as each first frees what its window has passed, the oldest first."""
    needed = most = 0
    r = state[st.OLDEST]
    while r >= 0:
        held = st.input_of(r, at, requests)
        needed += st.blocks_with(held + 1, nodes_of(r, held, n_nodes, drafts), block_tokens, state)
        needed -= st.has(r, held, block_tokens, requests, state)
        most = max(most, needed)
        r = requests[r, st.NEWER]
    return needed, most


@kernel(int64(int64, int64, I64_2D, I64, DRAFTS), allocates=False)
def count_nodes(at, n_nodes, requests, state, drafts):  # type: ignore[no-untyped-def]
    """Drafts that the decodes have verified in iteration `at`, n_nodes of each where drawn."""
    if drafts[1].shape[0] == 0:
        return n_nodes * state[st.N_DECODE]
    n = 0
    r = state[st.OLDEST]
    while r >= 0:
        n += nodes_of(r, st.input_of(r, at, requests), n_nodes, drafts)
        r = requests[r, st.NEWER]
    return n


@kernel(int64(int64, float64, int64, int64, F64, I64_2D, I64, I64_2D, st.QUEUES, DRAFTS, F64, I64, F64, F64), allocates=False)
def verify(  # type: ignore[no-untyped-def]
    at, seconds, n_nodes, seed, survival, requests, state, pool, queues, drafts, largest, histogram, sums, scratch
):  # fmt: skip
    """Ends the round of iteration `at`, in which every decode already got one token; returns the drafts accepted.

    Rejected nodes give their KV blocks back, to be taken before all others: vLLM's request keeps them for its next round. Gaps: a
    round's tokens share its seconds evenly; the longest wait, largest (n,), is for the whole round.
    """
    n_accepted, block_tokens = 0, queues[2].shape[0]
    r = state[st.OLDEST]
    while r >= 0:
        before = st.input_of(r, at, requests)
        held, generated, k = before + 1, before + 2 - requests[r, st.PROMPT], round_of(r, before, drafts)
        n = 0 if k == -1 else drafts[2][k] if k >= 0 else accepted(seed, r, generated - 1, survival)
        n = min(n, requests[r, st.OUTPUT] - generated)
        n_blocks = st.blocks_with(held, nodes_of(r, before, n_nodes, drafts), block_tokens, state)
        n_blocks -= st.blocks_with(held + n, 0, block_tokens, state)
        state[st.FREE] += n_blocks
        if state[st.KEEPS]:
            give_first(n_blocks, pool)
        add_gap(seconds / (1 + n), 1 + n, histogram, sums, scratch)
        largest[r] = max(largest[r], seconds)
        if n > 0:
            st.jump(r, n, at, requests, state, queues)
            n_accepted += n
        r = requests[r, st.NEWER]
    return n_accepted
