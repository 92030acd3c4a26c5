"""The serving engine's loop: iterations back to back, requests in and out of them (Layered Prefill section 4, common rules).

What it calls makes no arrays: numba else counts references to every array that a call is handed, atomically, which took most of
an iteration's time.
"""

from tokentape.policies.kernels import F64, F64_2D, I64, I64_2D, OF_TABLE, float64, function, int64, kernel, none, tuple_of, void
from tokentape.policies.protocol import CACHE
from tokentape.policies.serving.groups import group_start, n_groups
from tokentape.policies.sliced.ranking import CHOOSE
from tokentape.replay.serving import iteration as it
from tokentape.replay.serving import state as st
from tokentape.replay.serving.gaps import add_gap, drop_before, longest_since
from tokentape.replay.serving.verify import count_nodes, node_blocks, verify
from tokentape.replay.system import events as ev
from tokentape.replay.system.ahead import AHEAD, PREDICT
from tokentape.replay.system.drafts import DRAFTS, draft_passes
from tokentape.replay.system.kv import BYTE_S, HELD, KV, REFRESHED, ROOM, reserve, serve_kv
from tokentape.replay.system.sliced import SERVE_SLICES, SERVED, SLICED

# Rows of `times` (4, n), seconds.
STARTED, FIRST, FINISHED, LARGEST_GAP = range(4)
# Entries of `counts` (N_COUNTS,).
N_ITERATIONS, N_DECODED, N_PREFILLED, N_LOST, N_ACCEPTED, N_EMITTED, N_COUNTS = range(7)
N_PARTS = len(it.PARTS)
# Entries of `totals` (N_TOTALS,): the iterations' costs, the time they took, and the end of the run.
BUSY_S, NOW = it.N_COST, it.N_COST + 1
N_TOTALS = it.N_COST + 2
# Columns of the recorded iterations.
RECORD_TIMES = ("start_s", "seconds", "expert_bytes")
RECORD_COUNTS = ("n_decode", "n_prefill", "first_layer", "last_layer", "layer_group", "n_groups", "n_waiting")

_REQUESTS, _RULE = (F64, I64_2D), (I64, I64_2D, I64, F64, int64)
# state (state.py); of a batch: requests, tokens of each; places of `stand_together`; one number; the longest gaps: iterations and
# seconds, since the oldest decode joined; the three of state.QUEUES.
SCRATCH = tuple_of(I64, I64, I64, I64, F64, I64, F64, I64, I64, I64)
_COST = (function(OF_TABLE), F64_2D, F64_2D, F64_2D, F64_2D, float64, DRAFTS)
_RESULTS = (F64_2D, I64, F64, F64, I64, F64_2D, I64_2D, SCRATCH, I64_2D)
_LOOKED_UP = (ev.LOOKS_UP, ev.SHRINKS, ev.RANK_OF, ev.WHERE, ev.SPLIT, CACHE, ev.TOLD, ev.SLOTS)
_EXPERTS = (*_LOOKED_UP, ev.PLACED, ev.MIGRATE, ev.MOVES, PREDICT, AHEAD)
_SLOTS = (*_EXPERTS, function(OF_TABLE), KV, CHOOSE, ev.ROUTED, SERVE_SLICES, SLICED, SERVED)
_ARGUMENTS = (*_REQUESTS, *_RULE, *_COST, *_RESULTS)


@kernel(inline="always")
def _start_decoding(at, now, n_members, more, n_nodes, limits, requests, state, pool, times, queues):  # type: ignore[no-untyped-def]
    """Requests whose prompts were processed elsewhere decode from iteration `at` on, in order of arrival, behind those that lost
    their KV and as far as there is room for it, beside what the iteration stores: of prompts' next slices more blocks."""
    n_prompts, of = n_members, state[st.PARTIAL]
    while of >= 0:
        n_prompts, of = n_prompts + 1, requests[of, st.REQUEUED_NEXT]
    while state[st.REQUEUED] < 0 and state[st.HEAD] < state[st.ARRIVED]:
        if state[st.N_DECODE] + state[st.ENDED] + n_prompts >= limits[0]:
            break
        r = state[st.HEAD]
        needed = st.blocks_with(requests[r, st.PROMPT] + 1, n_nodes, limits[2], state)
        if limits[1] > 0 and needed + more > state[st.FREE]:
            break
        state[st.HEAD] += 1
        st.take_blocks(needed, state, pool)
        times[STARTED, r] = now
        requests[r, st.GENERATED] = 1
        st.join(r, at - 1, requests, state, queues)


@kernel(inline="always")
def _reserve(  # type: ignore[no-untyped-def]
    at, now, hidden, rule, slices, requests, state, pool, members, n_members, drafts, kv, times, gaps, stacked, queues
):  # fmt: skip
    """Reserves the KV of iteration `at`; while there is not enough, what was taken last loses its own: a prompt that is cut, then
    the newest decode. slices: a batch follows, in which such a prompt's next slice takes blocks. Returns how many lost theirs,
    and what the slices take."""
    n_restarted, n_nodes, needs_block = 0, rule[7], queues[2]
    block_tokens = needs_block.shape[0]
    has_drafts = n_nodes > 0 or drafts[1].shape[0] > 0
    while True:
        needed = most = needs_block[at % block_tokens]
        if has_drafts or state[st.WINDOWED] > 0:
            needed, most = node_blocks(at, n_nodes, block_tokens, requests, state, drafts)
        if kv is not None:
            needed = most = reserve(needed, at, hidden, requests, state, members, n_members, kv)
        r, more, room = state[st.PARTIAL], 0, max(0, st.room_of(rule, state))
        while r >= 0 and slices and room > 0:
            there = requests[r, st.POSITION]
            n_tokens = min(there + room, requests[r, st.TARGET])
            more += st.blocks_of(n_tokens, block_tokens, state) - st.has(r, there, block_tokens, requests, state)
            more += st.passing_blocks(there, n_tokens - there, block_tokens, state)
            r = requests[r, st.REQUEUED_NEXT]
        if state[st.FREE] >= max(most, needed + more) or (state[st.N_DECODE] == 0 and more == 0):
            st.take_blocks(needed, state, pool)
            return n_restarted, max(0, more)
        n_restarted += 1
        r = state[st.PARTIAL]
        if r < 0:
            r = state[st.NEWEST]
            if st.release_last(r, block_tokens, requests, state, pool):
                continue
            times[FINISHED, r] = now  # until it finishes: when it had its last token
            if at - requests[r, st.JOINED] > 1:
                longest = longest_since(gaps[0], gaps[1], stacked, requests[r, st.JOINED] + 1)
                times[LARGEST_GAP, r] = max(times[LARGEST_GAP, r], longest)
        st.restart(r, at, requests, state, queues, pool)
        if has_drafts:
            state[st.N_NODES] = count_nodes(at, n_nodes, requests, state, drafts)


@kernel(inline="always")
def _finish(at, now, requests, state, times, gaps, stacked, queues):  # type: ignore[no-untyped-def]
    """Requests whose last token iteration `at` made leave; returns how many."""
    bucket = queues[0]
    n_done, r = 0, bucket[at % bucket.shape[0]]
    bucket[at % bucket.shape[0]] = -1
    while r >= 0:
        longest = longest_since(gaps[0], gaps[1], stacked, requests[r, st.JOINED] + 1)
        times[LARGEST_GAP, r] = max(times[LARGEST_GAP, r], longest)
        times[FINISHED, r] = now
        n_done += 1
        st.leave(r, at - requests[r, st.JOINED], requests, state, queues)
        st.end(r, requests, state)
        r = requests[r, st.BUCKET_NEXT]
    return n_done


@kernel(inline="always")
def _end_prompts(  # type: ignore[no-untyped-def]
    at, now, members, takes, n_members, requests, state, pool, times, counts, histogram, sums, one, queues
):  # fmt: skip
    """A batch has passed all layers: whole prompts emit a token. Returns how many requests are done, and how many decode now."""
    n_done, n_joined = 0, 0
    rest, last = state[st.PARTIAL], -1
    for j in range(n_members):
        r = members[j]
        requests[r, st.BEGAN] = requests[r, st.POSITION]
        requests[r, st.POSITION] += takes[j]
        if requests[r, st.POSITION] < requests[r, st.TARGET]:
            requests[r, st.REQUEUED_NEXT] = rest
            if last < 0:
                state[st.PARTIAL] = r
            else:
                requests[last, st.REQUEUED_NEXT] = r
            last = r
            continue
        counts[N_EMITTED] += 1
        requests[r, st.GENERATED] += 1
        if requests[r, st.GENERATED] == 1:
            times[FIRST, r] = now
        else:  # a restarted request's next token: all before it were processed again
            gap = now - times[FINISHED, r]
            times[LARGEST_GAP, r] = max(times[LARGEST_GAP, r], gap)
            add_gap(gap, 1, histogram, sums, one)
        if requests[r, st.GENERATED] == requests[r, st.OUTPUT]:
            times[FINISHED, r] = now
            n_done += 1
            st.end(r, requests, state)
        else:
            st.join(r, at, requests, state, queues)
            n_joined += 1
    return n_done, n_joined


@kernel(void(*_ARGUMENTS, *_SLOTS), allocates=False, error_model="numpy")
def run_engine(  # type: ignore[no-untyped-def]
    arrival, requests,
    rule, steps, limits, survival, seed,
    iteration, table, layers_before, cov_prefill, cov_decode, draft_s, drafts,
    times, histogram, sums, totals, counts, recorded, recorded_n, scratch, pool,
    look_up, shrink, rank_of, where, split, cache, told, slots, placed, migrate, moves, predict, ahead, draft_iteration, kv,
    choose, routed, serve_slices, sliced, served,
):  # fmt: skip
    """Runs until all requests are done, and fills `times`, `histogram`, `sums` (gaps.py), `totals`, `counts`.

    arrival (n,) s, rising; requests (n, N_REQUEST) as state.py starts them. rule: as state.form_batch takes it; steps:
    BatchRule.step_numbers(); limits: Limits.numbers(). survival, seed: of accepted drafts (policies/serving).
    iteration .. cov_decode: IterationCosts; table is written to. draft_s: making the drafts of an iteration with decodes.
    drafts: of recorded rounds (replay/system/drafts.py).
    recorded (i, 3) of RECORD_TIMES, recorded_n (i, 7) of RECORD_COUNTS: as many iterations as fit. scratch: of SCRATCH, zeros,
    -1 in the bucket; pool: of KV blocks (pool.py). look_up .. ahead: the experts' slots (replay/system/events.py), kv: keys and
    values (kv.py), choose, routed: of a router; serve_slices .. served: of SliceMoE in place of the others (sliced.py), empty
    where there is none.
    """
    n, window, n_nodes = arrival.shape[0], rule[6], rule[7]
    waits_for_idle, starts_decoding = rule[3], rule[5]
    max_seqs, n_blocks, block_tokens, is_ahead = limits[0], limits[1], limits[2], limits[3] != 0
    has_drafts, admits = n_nodes > 0 or drafts[1].shape[0] > 0, limits[6]
    if kv is not None and kv[0][ROOM] > 0.0:  # room that experts share
        admits = st.WHOLE
    n_kinds, n_layers = layers_before.shape[1], layers_before.shape[0] - 1
    carried, cost = table[table.shape[0] + it.CARRIED], table[table.shape[0] + it.COST]
    state, members, takes, places, one, stack_at, stack_s, bucket, leaves_window, needs_block = scratch
    queues, gaps, stacked = (bucket, leaves_window, needs_block), (stack_at, stack_s), 0
    state[st.LAG], state[st.KEEPS], state[st.FILLS], state[st.WINDOWED] = limits[3], limits[4], limits[4] * limits[5], limits[7]
    state[st.FREE], state[st.WINDOW_TOKENS] = n_blocks * (1 + limits[7]), limits[8]
    state[st.STATE_BLOCKS] = limits[9] * ((limits[8] + block_tokens - 1) // block_tokens)
    state[st.OLDEST] = state[st.NEWEST] = state[st.PARTIAL] = state[st.REQUEUED] = state[st.ENDED_FIRST] = -1
    state[st.ENDED_BELOW] = n
    n_members, batch_tokens, group, n_of_groups = 0, 0, 0, 1
    now, n_done, at = arrival[0], 0, 0
    seen_s = now  # what arrived until then can be in the next iteration
    while n_done < n:
        arrived = state[st.ARRIVED]
        while arrived < n and arrival[arrived] <= seen_s:
            arrived += 1
        state[st.ARRIVED] = arrived
        is_idle = state[st.N_DECODE] == 0 and n_members == 0 and state[st.PARTIAL] < 0 and state[st.REQUEUED] < 0
        is_idle = is_idle and state[st.HEAD] == arrived
        if state[st.ENDED_FIRST] >= 0 and (is_idle or not is_ahead):  # else what they held is the batch's after the next
            st.release(block_tokens, requests, state, pool)
        if is_idle:
            now = seen_s = max(now, arrival[arrived])
            continue
        if has_drafts:
            state[st.N_NODES] = count_nodes(at, n_nodes, requests, state, drafts)
        hidden = batch_tokens if n_of_groups > 1 else 0
        n_restarted, more, forms = 0, 0, n_members == 0 and not (waits_for_idle and state[st.N_DECODE] > 0)
        if n_blocks > 0:
            slices = forms and admits != st.WHOLE
            n_restarted, more = _reserve(
                at, now, hidden, rule, slices, requests, state, pool, members, n_members, drafts, kv, times, gaps, stacked, queues
            )
        n_open = 0 if n_restarted > 0 and state[st.N_DECODE] > 0 else max_seqs  # none is admitted where one lost its KV
        if starts_decoding and n_open > 0:
            _start_decoding(at, now, n_members, more, n_nodes, limits, requests, state, pool, times, queues)
        if has_drafts:
            state[st.N_NODES] = count_nodes(at, n_nodes, requests, state, drafts)
            carried[it.NODES] = state[st.N_NODES] / max(1, state[st.N_DECODE])
        if n_members == 0 and not (waits_for_idle and state[st.N_DECODE] > 0):
            n_members, batch_tokens, most = st.form_batch(
                rule, n_open, n_blocks, block_tokens, admits, requests, state, pool, members, takes, carried
            )
            if n_members > 0:
                n_of_groups = n_groups(steps, most)
            for j in range(n_members):
                r = members[j]
                if requests[r, st.POSITION] == requests[r, st.CACHED] and requests[r, st.N_RESTARTS] == 0:
                    times[STARTED, r] = now
        n_decode, n_ended = state[st.N_DECODE], state[st.ENDED]
        if state[st.ENDED_FIRST] >= 0:
            st.release(block_tokens, requests, state, pool)
        if n_ended > 0 and n_decode == 0 and n_members == 0:  # nothing could be fixed ahead
            seen_s = now
            continue
        first_layer = last_layer = 0
        if n_members > 0:
            first_layer = group_start(group, n_of_groups, n_layers)
            last_layer = group_start(group + 1, n_of_groups, n_layers)
        for c in range(n_kinds):
            in_group = layers_before[last_layer, c] - layers_before[first_layer, c]
            table[c, it.IN_GROUP], table[c, it.OTHERS] = in_group, layers_before[n_layers, c] - in_group
            if slots is None:  # else events say what is touched
                only = it.covered(cov_decode, n_decode, c)
                table[c, it.SHARE] = only
                table[c, it.SHARE_MIXED] = 1.0 - (1.0 - it.covered(cov_prefill, batch_tokens, c)) * (1.0 - only)
        if kv is not None:
            hidden = batch_tokens if n_of_groups > 1 else 0
            serve_kv(at, hidden, requests, state, members, n_members, table, it.N_OF_KIND + ev.N_EVENT, shrink, cache, kv)
            if served[0].shape[0] > 0:
                serve_slices(
                    at, first_layer, last_layer, requests, state, members, takes, n_members, table, it.N_OF_KIND, choose, sliced,
                    served,
                )  # fmt: skip
            else:
                ev.serve_experts(
                    at, first_layer, last_layer, requests, state, members, takes, n_members, table, it.N_OF_KIND, look_up,
                    rank_of, where, cache, told, slots, drafts, choose, routed, migrate, moves, predict, ahead,
                )  # fmt: skip
            it.stand_together(table, n_kinds, places)
        carried[it.PROMPT], carried[it.DECODES] = batch_tokens, n_decode
        carried[it.KEYS], carried[it.KEYS_W] = state[st.CONTEXT], state[st.CONTEXT_W]
        if carried[it.LONGEST] >= 0.0:
            longest, r = 0, state[st.OLDEST]
            while r >= 0:
                longest = max(longest, st.input_of(r, at, requests) + 1)
                r = requests[r, st.NEWER]
            carried[it.LONGEST] = longest
        iteration(table)
        if n_decode > 0:
            cost[N_PARTS - 1] += draft_s
            if slots is not None:  # noqa: SIM102 - what the compiler leaves out where there are none
                if drafts[1].shape[0] > 0:
                    draft_passes(at, requests, state, draft_iteration, slots[1], drafts, slots[15], cost)
        seconds = 0.0
        for i in range(N_PARTS):
            seconds += cost[i]
        for i in range(it.N_COST):
            totals[i] += cost[i]
        if at < recorded.shape[0]:
            recorded[at, 0], recorded[at, 1], recorded[at, 2] = now, seconds, cost[it.EXPERT_BYTES]
            recorded_n[at, 0], recorded_n[at, 1] = n_decode, batch_tokens
            recorded_n[at, 2], recorded_n[at, 3] = first_layer, last_layer
            recorded_n[at, 4], recorded_n[at, 5] = group, n_of_groups
            recorded_n[at, 6] = arrived - state[st.HEAD] + state[st.N_REQUEUED]
        seen_s = now if is_ahead else now + seconds
        now += seconds
        totals[BUSY_S] += seconds
        if kv is not None:
            kv[0][BYTE_S] += seconds * min(kv[0][HELD], kv[0][REFRESHED])
        counts[N_DECODED] += n_decode
        if n_decode > 0:
            if has_drafts:
                stacked = 0  # `verify` keeps the longest gaps, request by request
            else:
                add_gap(seconds, n_decode, histogram, sums, one)
            while stacked > 0 and stack_s[stacked - 1] <= seconds:
                stacked -= 1
            if stacked == stack_s.shape[0]:
                stacked = drop_before(stack_at, stack_s, stacked, requests[state[st.OLDEST], st.JOINED] + 1)
            stack_at[stacked], stack_s[stacked] = at, seconds
            stacked += 1
        else:
            stacked = 0
        state[st.CONTEXT] += n_decode
        state[st.CONTEXT_W] += state[st.IN_WINDOW]
        state[st.IN_WINDOW] -= leaves_window[at % (window + 1)]
        leaves_window[at % (window + 1)] = 0
        if has_drafts:
            counts[N_ACCEPTED] += verify(
                at, seconds, n_nodes, seed, survival, requests, state, pool, queues, drafts, times[LARGEST_GAP], histogram, sums,
                one,
            )  # fmt: skip
        n_done += _finish(at, now, requests, state, times, gaps, stacked, queues)
        if n_members > 0:
            group += 1
        if n_members > 0 and group == n_of_groups:
            counts[N_PREFILLED] += batch_tokens
            n_over, n_joined = _end_prompts(
                at, now, members, takes, n_members, requests, state, pool, times, counts, histogram, sums, one, queues
            )  # fmt: skip
            n_done += n_over
            n_members, batch_tokens, group, n_of_groups = 0, 0, 0, 1
            if placed is not None:  # noqa: SIM102 - what the compiler leaves out where there are none
                if n_joined > 0 and placed[2].shape[0] > 0:
                    ev.place_anew(requests, state, n_joined, split, slots, placed, moves)
        at += 1
    counts[N_ITERATIONS], counts[N_LOST] = at, state[st.LOST]
    counts[N_EMITTED] += counts[N_DECODED] + counts[N_ACCEPTED]
    totals[NOW] = now


# Without experts' slots: their branches are not compiled, and a run starts without their arrays.
run_alone = kernel(void(*_ARGUMENTS, *(none,) * len(_SLOTS)), allocates=False, error_model="numpy")(run_engine.__wrapped__)
