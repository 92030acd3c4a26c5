"""What a serving engine knows of its requests while it runs, and how a request starts and stops decoding, in O(1) each.

All decodes advance in every iteration, so a request's last iteration is known when it starts to decode: it waits in the bucket of
that iteration, a linked list. A second list runs over the decodes in the order in which they joined. Accepted drafts make a
request `jump` to an earlier bucket.
"""

from tokentape.policies.kernels import I64, I64_2D, int64, kernel, tuple_of, void
from tokentape.replay.serving import iteration as entries
from tokentape.replay.serving.pool import fill, found, give_back, hold, take

# Columns of `requests` (n, N_REQUEST).
(
    PROMPT,
    OUTPUT,
    CACHED,  # leading prompt tokens whose KV was there at its start
    TARGET,  # tokens to process before the next one is generated
    POSITION,  # of them processed
    BEGAN,  # of them at the last slice's start
    GENERATED,  # output tokens when it last joined the decodes, or now if it does not decode
    JOINED,  # iteration at whose end it joined them, less the drafts accepted since
    BUCKET_NEXT,
    BUCKET_PREV,
    OLDER,
    NEWER,
    REQUEUED_NEXT,
    N_RESTARTS,
) = range(14)
N_REQUEST = 14

# A prompt is admitted where blocks for its first slice are free, or for all of it, and takes them slice by slice or at once.
FIRST_SLICE, FITS, WHOLE = range(3)

# Entries of `state` (N_STATE,); -1: none.
(
    OLDEST,
    NEWEST,
    N_DECODE,
    CONTEXT,  # tokens that the decodes attend to in the next iteration
    CONTEXT_W,  # the same within the window
    IN_WINDOW,  # decodes whose context is shorter than the window
    FREE,  # KV blocks
    ARRIVED,  # requests that have arrived, and
    HEAD,  # that were taken, in order of arrival
    PARTIAL,  # first of the requests whose prompts were cut, by REQUEUED_NEXT
    REQUEUED,  # first of those that lost their KV
    N_REQUEUED,
    N_NODES,  # drafts that the decodes have verified in this iteration
    ENDED,  # requests that ended when the batch at hand was fixed already
    ENDED_FIRST,  # of them, by REQUEUED_NEXT
    ENDED_BELOW,  # those from this one on have given their blocks back
    LAG,  # newest tokens of a decode that are not known yet when it loses its KV
    FILLS,  # 1: free blocks that are not full are taken before others
    KEEPS,  # 1: blocks that are nobody's yet are found again (prefix caching)
    LOST,  # tokens to process again
    WINDOWED,  # blocks of layers with a window for each of the others, in one memory
    WINDOW_TOKENS,  # of them
    STATE_BLOCKS,  # of their states, where they keep one, in place of a window
) = range(23)
N_STATE = 23
# Of the decodes: bucket (more than the longest output,), the first request whose last iteration has this remainder; leaves_window
# (window + 1,), how many contexts grow to the window in such an iteration; needs_block (tokens of a block,), how many start a new
# KV block in such iterations.
QUEUES = tuple_of(I64, I64, I64)


@kernel(inline="always")
def input_of(r, at, requests):  # type: ignore[no-untyped-def]
    """Position of the token that decode r takes in iteration `at`, its last: as many tokens are in the cache."""
    return requests[r, PROMPT] + requests[r, GENERATED] + at - requests[r, JOINED] - 2


@kernel(int64(int64, int64, I64))
def blocks_of(n_tokens, block_tokens, state):  # type: ignore[no-untyped-def]
    """KV blocks that hold n_tokens, those of layers with a window among them."""
    n_blocks = (n_tokens + block_tokens - 1) // block_tokens
    if state[WINDOWED] == 0 or n_tokens == 0:
        return n_blocks
    in_window = state[STATE_BLOCKS] or n_blocks - max(0, n_tokens - state[WINDOW_TOKENS]) // block_tokens
    return n_blocks + state[WINDOWED] * in_window


@kernel(int64(int64, int64, int64, I64))
def blocks_with(n_tokens, n_nodes, block_tokens, state):  # type: ignore[no-untyped-def]
    """KV blocks of n_tokens with n_nodes drafts behind them, which no window passes by before they are accepted."""
    more = ((n_tokens - 1) % block_tokens + n_nodes) // block_tokens
    return blocks_of(n_tokens, block_tokens, state) + more * (1 + state[WINDOWED] * (state[STATE_BLOCKS] == 0))


@kernel(int64(int64, int64, int64, I64))
def passing_blocks(before, take, block_tokens, state):  # type: ignore[no-untyped-def]
    """KV blocks of layers with a window that a slice of a prompt takes beyond it, until it has passed them."""
    if state[WINDOWED] == 0 or state[STATE_BLOCKS] > 0:
        return 0
    passed, window = max(0, before + 1 - state[WINDOW_TOKENS]) // block_tokens, state[WINDOW_TOKENS]
    return state[WINDOWED] * (max(0, before + take - window) // block_tokens - passed)


@kernel(int64(int64, int64, int64, I64_2D, I64))
def has(r, n_tokens, block_tokens, requests, state):  # type: ignore[no-untyped-def]
    """KV blocks that request r has with n_tokens, with those that the last slice of its prompt took, until it has more."""
    n_blocks, first = blocks_of(n_tokens, block_tokens, state), requests[r, BEGAN]
    return n_blocks + (passing_blocks(first, n_tokens - first, block_tokens, state) if n_tokens == requests[r, POSITION] else 0)


@kernel(int64(int64, int64, int64, I64))
def most_passing(target, budget, block_tokens, state):  # type: ignore[no-untyped-def]
    """The most blocks beyond the window that slices of so many tokens at most may take, wherever they end."""
    n_blocks = (target + block_tokens - 1) // block_tokens
    most = (state[WINDOW_TOKENS] - 1 + min(budget, target) + block_tokens - 1) // block_tokens + 1
    more = n_blocks + state[WINDOWED] * min(n_blocks, most) - blocks_of(target, block_tokens, state)
    return more if state[STATE_BLOCKS] == 0 else 0


@kernel(int64(int64, I64_2D, I64_2D), allocates=False)
def own_row(r, requests, pool):  # type: ignore[no-untyped-def]
    """Request r's row of `pool`."""
    return pool.shape[0] - requests.shape[0] + r


@kernel(void(int64, I64, I64_2D), allocates=False)
def take_blocks(n_blocks, state, pool):  # type: ignore[no-untyped-def]
    """Free blocks are somebody's, or below 0, nobody's, who looks for nothing in them."""
    state[FREE] -= n_blocks
    if state[KEEPS]:
        take(n_blocks, pool)


@kernel(void(int64, I64_2D, I64), allocates=False)
def _put_in(r, requests, bucket):  # type: ignore[no-untyped-def]
    """Puts request r into the bucket of its last iteration."""
    q = requests[r]
    last = (q[JOINED] + q[OUTPUT] - q[GENERATED]) % bucket.shape[0]
    q[BUCKET_NEXT], q[BUCKET_PREV] = bucket[last], -1
    if bucket[last] >= 0:
        requests[bucket[last], BUCKET_PREV] = r
    bucket[last] = r


@kernel(void(int64, int64, int64, I64_2D, I64, QUEUES), allocates=False)
def _count(times, r, n_steps, requests, state, queues):  # type: ignore[no-untyped-def]
    """Request r, which has decoded for n_steps iterations, is among the decodes once more; -1 times: once less."""
    _, leaves_window, needs_block = queues
    start, joined, window = requests[r, PROMPT] + requests[r, GENERATED], requests[r, JOINED], leaves_window.shape[0] - 1
    state[N_DECODE] += times
    state[CONTEXT] += times * (start + n_steps)
    state[CONTEXT_W] += times * min(start + n_steps, window)
    if start + n_steps < window:
        state[IN_WINDOW] += times
        leaves_window[(joined + window - start) % (window + 1)] += times
    needs_block[(joined + 2 - start) % needs_block.shape[0]] += times


@kernel(void(int64, int64, I64_2D, I64, QUEUES), allocates=False)
def join(r, at, requests, state, queues):  # type: ignore[no-untyped-def]
    """Request r decodes from iteration at + 1 on."""
    q = requests[r]
    q[JOINED] = at
    _put_in(r, requests, queues[0])
    q[OLDER], q[NEWER] = state[NEWEST], -1
    if state[NEWEST] >= 0:
        requests[state[NEWEST], NEWER] = r
    else:
        state[OLDEST] = r
    state[NEWEST] = r
    _count(1, r, 0, requests, state, queues)


@kernel(void(int64, int64, I64_2D, I64, QUEUES), allocates=False)
def leave(r, n_steps, requests, state, queues):  # type: ignore[no-untyped-def]
    """Request r stops decoding after n_steps iterations. Its bucket and its KV blocks are the caller's concern."""
    q = requests[r]
    if q[OLDER] >= 0:
        requests[q[OLDER], NEWER] = q[NEWER]
    else:
        state[OLDEST] = q[NEWER]
    if q[NEWER] >= 0:
        requests[q[NEWER], OLDER] = q[OLDER]
    else:
        state[NEWEST] = q[OLDER]
    _count(-1, r, n_steps, requests, state, queues)
    q[GENERATED] += n_steps


@kernel(void(int64, I64_2D, I64), allocates=False)
def _take_out(r, requests, bucket):  # type: ignore[no-untyped-def]
    """Takes request r out of the bucket of its last iteration."""
    q = requests[r]
    last = (q[JOINED] + q[OUTPUT] - q[GENERATED]) % bucket.shape[0]
    if q[BUCKET_PREV] >= 0:
        requests[q[BUCKET_PREV], BUCKET_NEXT] = q[BUCKET_NEXT]
    else:
        bucket[last] = q[BUCKET_NEXT]
    if q[BUCKET_NEXT] >= 0:
        requests[q[BUCKET_NEXT], BUCKET_PREV] = q[BUCKET_PREV]


@kernel(void(int64, int64, int64, I64_2D, I64, QUEUES), allocates=False)
def jump(r, n_tokens, at, requests, state, queues):  # type: ignore[no-untyped-def]
    """Request r, which has its token of iteration `at`, makes n_tokens more: it is as if it had joined so much earlier."""
    q = requests[r]
    n_steps = at - q[JOINED]
    _count(-1, r, n_steps, requests, state, queues)
    _take_out(r, requests, queues[0])
    q[JOINED] -= n_tokens
    _put_in(r, requests, queues[0])
    _count(1, r, n_steps + n_tokens, requests, state, queues)


@kernel(void(int64, int64, I64_2D, I64, QUEUES, I64_2D), allocates=False)
def restart(r, at, requests, state, queues, pool):  # type: ignore[no-untyped-def]
    """Request r, the first of the cut prompts or a decode, loses its KV at the start of iteration `at` and heads the queue: what
    it has processed is processed again, but for what it finds."""
    q = requests[r]
    if r == state[PARTIAL]:
        state[PARTIAL] = q[REQUEUED_NEXT]
        held = n_known = q[POSITION]
    else:
        _take_out(r, requests, queues[0])
        leave(r, at - q[JOINED] - 1, requests, state, queues)
        held = q[PROMPT] + q[GENERATED] - 1
        n_known, q[TARGET] = max(q[TARGET], held - state[LAG]), held + 1
        state[LOST] += held + 1 - n_known
    _give_back(r, held, n_known, 1, queues[2].shape[0], requests, state, pool)
    q[POSITION] = n_known
    q[N_RESTARTS] += 1
    q[REQUEUED_NEXT] = state[REQUEUED]
    state[REQUEUED] = r
    state[N_REQUEUED] += 1


@kernel(void(int64, int64, int64, int64, int64, I64_2D, I64, I64_2D), allocates=False)
def _give_back(r, n_tokens, n_known, keeps, block_tokens, requests, state, pool):  # type: ignore[no-untyped-def]
    """Blocks of request r with so many tokens, n_known of them known, are free; keeps: it comes back for them."""
    held = (n_tokens + block_tokens - 1) // block_tokens
    windowed = has(r, n_tokens, block_tokens, requests, state) - held
    if state[KEEPS]:
        held = give_back(own_row(r, requests, pool), held, n_known // block_tokens, keeps, state[FILLS], pool)
    state[FREE] += held
    take_blocks(-windowed, state, pool)


@kernel(void(int64, I64_2D, I64), allocates=False)
def end(r, requests, state):  # type: ignore[no-untyped-def]
    """Request r has its last token; those that have are listed by number."""
    last, of = -1, state[ENDED_FIRST]
    while 0 <= of < r:
        last, of = of, requests[of, REQUEUED_NEXT]
    requests[r, REQUEUED_NEXT] = of
    if last < 0:
        state[ENDED_FIRST] = r
    else:
        requests[last, REQUEUED_NEXT] = r
    state[ENDED] += 1


@kernel(void(int64, I64_2D, I64, I64_2D), allocates=False)
def release(block_tokens, requests, state, pool):  # type: ignore[no-untyped-def]
    """What the requests held that ended is free."""
    r = state[ENDED_FIRST]
    while 0 <= r < state[ENDED_BELOW]:
        n_tokens = requests[r, PROMPT] + requests[r, OUTPUT] - 1
        _give_back(r, n_tokens, n_tokens, 0, block_tokens, requests, state, pool)
        r = requests[r, REQUEUED_NEXT]
    state[ENDED], state[ENDED_FIRST], state[ENDED_BELOW] = 0, -1, requests.shape[0]


@kernel("b1(int64, int64, int64[:, ::1], int64[::1], int64[:, ::1])", allocates=False)
def release_last(r, block_tokens, requests, state, pool):  # type: ignore[no-untyped-def]
    """Frees what the last of the requests held that ended, if it was taken after request r; whether it was."""
    last, q = r, state[ENDED_FIRST]
    while 0 <= q < state[ENDED_BELOW]:
        last, q = max(last, q), requests[q, REQUEUED_NEXT]
    if last == r:
        return False
    n_tokens = requests[last, PROMPT] + requests[last, OUTPUT] - 1
    _give_back(last, n_tokens, max(requests[last, TARGET], n_tokens - state[LAG]), 0, block_tokens, requests, state, pool)
    state[ENDED] -= 1
    state[ENDED_BELOW] = last
    return True


@kernel(int64(I64, I64), allocates=False)
def room_of(rule, state):  # type: ignore[no-untyped-def]
    """Prompt tokens for which the decodes leave room, on each replica; 0 or less: none."""
    decodes = state[N_DECODE] + state[N_NODES] if rule[1] else 0
    return rule[0] - (decodes + rule[9] - 1) // rule[9]


@kernel(
    "UniTuple(int64, 3)(int64[::1], int64, int64, int64, int64, int64[:, ::1], int64[::1], int64[:, ::1], int64[::1], "
    "int64[::1], float64[::1])",
    allocates=False,
)
def form_batch(  # type: ignore[no-untyped-def]
    rule, max_seqs, n_blocks, block_tokens, admits, requests, state, pool, members, takes, carried
):  # fmt: skip
    """Takes prompts by a BatchRule, each on the replica that has the fewest tokens yet. Fills `members`, `takes` (tokens of each)
    and `carried` (iteration.py); returns how many, their tokens, and those of the fullest replica. rule: BatchRule.numbers(), the
    window, drafts drawn per decode, whether pairs are those of a slice's middle, and replicas, which share the decodes evenly.
    admits: FIRST_SLICE, FITS or WHOLE."""
    _, _, may_split, _, max_prompts, starts_decoding, window, _, by_middle, n_replicas = rule
    carried[entries.PROMPTS] = 0.0
    if state[PARTIAL] < 0 and state[REQUEUED] < 0 and state[HEAD] == state[ARRIVED]:
        return 0, 0, 0
    n_members, tokens, room = 0, 0, room_of(rule, state)
    first = entries.N_CARRIED if n_replicas > 1 else 0  # of one replica alone the sums are its own
    last = first + entries.N_OF_SLICES * (n_replicas - 1)
    carried[first : last + entries.N_OF_SLICES] = 0.0
    while n_members < max_prompts:
        of = first
        for other in range(first + entries.N_OF_SLICES, last + 1, entries.N_OF_SLICES):
            if carried[other] < carried[of]:
                of = other
        filled = int64(carried[of]) if n_replicas > 1 else tokens
        if may_split and filled >= room:
            break
        is_new = state[PARTIAL] < 0
        if not is_new:
            r = state[PARTIAL]
        elif state[REQUEUED] >= 0:
            r = state[REQUEUED]
        elif state[HEAD] < state[ARRIVED] and not starts_decoding:
            r = state[HEAD]
        else:
            break
        before, n_found, n_free = requests[r, POSITION], 0, 0
        if is_new and state[KEEPS]:
            n_found, n_free = found(own_row(r, requests, pool), before // block_tokens, pool)
            n_found = min(n_found, (requests[r, TARGET] - 1) // block_tokens)  # a token at least makes the next one
        if is_new:
            before = n_found * block_tokens
        if is_new and state[N_DECODE] + state[ENDED] + n_members >= max_seqs:
            break
        rest = requests[r, TARGET] - before
        take = min(rest, room - filled) if may_split else rest
        if not may_split and filled > 0 and filled + rest > room:
            break
        held = n_found if is_new else has(r, before, block_tokens, requests, state)
        blocks = blocks_of(requests[r, TARGET], block_tokens, state) - held
        passing = passing_blocks(before, take, block_tokens, state)
        of_slice = blocks_of(before + take, block_tokens, state) - held
        asked = blocks + most_passing(requests[r, TARGET], rule[0] if may_split else requests[r, TARGET], block_tokens, state)
        if is_new and n_blocks > 0 and (of_slice + passing if admits == FIRST_SLICE else asked) + n_free > state[FREE]:
            break
        if admits != WHOLE:
            blocks = of_slice
        if is_new:
            if state[KEEPS]:
                hold(own_row(r, requests, pool), n_found, pool)
                state[FREE] -= n_free
            if state[REQUEUED] >= 0:
                state[LOST] += requests[r, POSITION] - before
                state[REQUEUED] = requests[r, REQUEUED_NEXT]
                state[N_REQUEUED] -= 1
            else:
                state[HEAD] += 1
                requests[r, CACHED] = before
            requests[r, POSITION] = before
        else:
            state[PARTIAL] = requests[r, REQUEUED_NEXT]
        take_blocks(blocks * (is_new or admits != WHOLE) + passing, state, pool)
        if state[KEEPS]:
            fill(own_row(r, requests, pool), (before + take) // block_tokens, pool)
        members[n_members], takes[n_members] = r, take
        n_members += 1
        tokens += take
        carried[of] += take
        carried[of + entries.PROMPTS] += 1.0
        carried[of + entries.SEEN] += before + take
        carried[of + entries.HELD] = carried[of + entries.SEEN]
        carried[of + entries.SEEN_W] += take + min(before, window)
        carried[of + entries.HELD_W] += min(before + take, window)
        if by_middle:
            middle = before + 0.5 * take
            pairs, pairs_w = take * middle, take * min(middle, float(window))
        else:
            full = min(max(window - before, 0), take)  # of its tokens see all before them
            pairs = take * (before + 0.5 * (take + 1))
            pairs_w = full * (before + 0.5 * (full + 1)) + (take - full) * window
        carried[of + entries.PAIRS] += pairs
        carried[of + entries.PAIRS_W] += pairs_w
    if n_replicas == 1:
        return n_members, tokens, tokens
    fullest = first
    for of in range(first, last + 1, entries.N_OF_SLICES):
        if carried[of] > carried[fullest]:
            fullest = of
    for i in range(entries.N_OF_SLICES):
        carried[entries.FULLEST + i], carried[i] = carried[fullest + i], 0.0
        for of in range(first, last + 1, entries.N_OF_SLICES):
            carried[i] += carried[of + i]
    return n_members, tokens, int64(carried[fullest])
