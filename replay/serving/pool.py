"""Free KV blocks of a serving engine in the order in which they are taken, and what lies in them (vLLM's prefix caching).

The queue is a ring of runs of blocks, from the row after ROOT on: prefixes that prompts share, by row of a tree, and behind them
a row for each request, the blocks that are its own. A run's last blocks are taken first: they were freed first. Whoever comes
for what lies in a run finds what is left of it, wherever it stands.
"""

from tokentape.policies.kernels import I64_2D, int64, kernel, void

ROOT = 0
# Columns of `pool` (1 + prefixes + requests, N_POOL).
(
    NEXT,  # in the queue
    PREV,
    BEFORE,  # free blocks ahead of the run, and behind all runs those of ROOT, in which nobody looks for anything
    THERE,  # blocks of the run that hold what they are for
    USERS,  # requests that hold the prefix, which then is in no queue; of a request's row: the last prefix that it holds
    SIZE,  # blocks of the prefix; of a request's row: of its blocks those that lie in prefixes
    PARENT,  # prefix before it
    OFFSET,  # blocks of all before it
) = range(8)
N_POOL = 8


@kernel(void(int64, I64_2D), allocates=False)
def _take_out(run, pool):  # type: ignore[no-untyped-def]
    """The run is in the queue no more; what is ahead of it is ahead of the next one."""
    after, ahead = pool[run, NEXT], pool[run, PREV]
    pool[ahead, NEXT], pool[after, PREV] = after, ahead
    pool[after, BEFORE] += pool[run, BEFORE]


@kernel(void(int64, I64_2D), allocates=False)
def put_last(run, pool):  # type: ignore[no-untyped-def]
    """The run is the queue's last, where it has blocks at all."""
    if pool[run, THERE] > 0:
        pool[run, BEFORE], pool[ROOT, BEFORE] = pool[ROOT, BEFORE], 0
        last = pool[ROOT, PREV]
        pool[run, PREV], pool[run, NEXT] = last, ROOT
        pool[last, NEXT] = pool[ROOT, PREV] = run


@kernel(void(int64, I64_2D), allocates=False)
def take(n_blocks, pool):  # type: ignore[no-untyped-def]
    """The queue's first blocks are somebody's, and what lay in them is gone; below 0: so many more are its last."""
    if n_blocks < 0:
        pool[ROOT, BEFORE] -= n_blocks
    while n_blocks > 0:
        run = pool[ROOT, NEXT]
        n = n_blocks if run == ROOT else min(n_blocks, pool[run, BEFORE])
        pool[run, BEFORE] -= n
        n_blocks -= n
        if n_blocks > 0:
            n = min(n_blocks, pool[run, THERE])
            pool[run, THERE] -= n
            n_blocks -= n
            if pool[run, THERE] == 0:
                _take_out(run, pool)


@kernel(void(int64, I64_2D), allocates=False)
def give_first(n_blocks, pool):  # type: ignore[no-untyped-def]
    """Blocks in which nobody looks for anything are the queue's first."""
    pool[pool[ROOT, NEXT], BEFORE] += n_blocks


@kernel("UniTuple(int64, 2)(int64, int64, int64[:, ::1])", allocates=False)
def found(own, n_processed, pool):  # type: ignore[no-untyped-def]
    """Leading blocks that are there for the request of row `own`, which once had so many blocks processed, and how many of them
    are free."""
    n = n_free = max(0, min(pool[own, THERE], n_processed - pool[own, OFFSET]))
    of = pool[own, PARENT]
    while of != ROOT:
        if pool[of, THERE] < pool[of, SIZE]:
            n = n_free = 0
        n += pool[of, THERE]
        if pool[of, USERS] == 0:
            n_free += pool[of, THERE]
        of = pool[of, PARENT]
    return n, n_free


@kernel(void(int64, int64, I64_2D), allocates=False)
def hold(own, n_found, pool):  # type: ignore[no-untyped-def]
    """The request of row `own` starts with what it found. Prefixes behind it are for it to fill, but for those that another one
    is at: it then has blocks of its own for the rest."""
    held, n_shared, is_there, of = pool[own, PARENT], pool[own, OFFSET], True, pool[own, PARENT]
    while of != ROOT:
        if pool[of, THERE] < pool[of, SIZE]:
            is_there = False
            if pool[of, USERS] > 0:
                held, n_shared = of, n_found
        of = pool[of, PARENT]
    if pool[own, THERE] > 0:  # what it does not find stays free, in its place; prefixes, freed after it, are all there
        pool[own, BEFORE] += pool[own, THERE] - max(0, n_found - pool[own, OFFSET])
        pool[own, THERE] = 0
        _take_out(own, pool)
    pool[own, USERS], pool[own, SIZE] = held, min(n_shared, n_found) if is_there else n_shared
    while held != ROOT:
        if pool[held, USERS] == 0 and pool[held, THERE] > 0:
            _take_out(held, pool)
        pool[held, USERS] += 1
        held = pool[held, PARENT]


@kernel(void(int64, int64, I64_2D), allocates=False)
def fill(own, n_blocks, pool):  # type: ignore[no-untyped-def]
    """So many leading blocks of the request of row `own` are full: those of prefixes are there for others."""
    of, n_blocks = pool[own, USERS], min(n_blocks, pool[own, SIZE])
    while of != ROOT:
        pool[of, THERE] = max(pool[of, THERE], min(pool[of, SIZE], n_blocks - pool[of, OFFSET]))
        of = pool[of, PARENT]


@kernel(int64(int64, int64, int64, int64, int64, I64_2D), allocates=False)
def give_back(own, n_blocks, n_full, keeps, fills, pool):  # type: ignore[no-untyped-def]
    """The request of row `own` holds so many blocks no more, n_full of them full; returns how many are free now. keeps: it will
    look for them; fills: those that are not full are the queue's first."""
    n_shared = min(pool[own, SIZE], n_full)
    n_rest = n_blocks - n_shared
    if fills:
        give_first(n_blocks - n_full, pool)
        n_rest -= n_blocks - n_full
    if keeps:
        pool[own, THERE] = n_rest
        put_last(own, pool)
    else:
        pool[ROOT, BEFORE] += n_rest
    n_free, of = n_blocks - n_shared, pool[own, USERS]
    while of != ROOT:
        pool[of, USERS] -= 1
        if pool[of, USERS] == 0:
            n_free += pool[of, THERE]
            put_last(of, pool)
        of = pool[of, PARENT]
    return n_free
