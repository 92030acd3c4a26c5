"""The experts' event: in an iteration and MoE layer, the experts that its tokens chose are placed, looked up and counted.

The rows of an event are the decodes in order of joining, then the prompts' slices if the layer processes them; a layer with both
is one event. Distinct experts stand in order of last mention (replay/stream.py). Experts that compute near their memory are
neither looked up nor admitted. A placement that moves experts (policies/placement/reactive.py) sees an event without prompts as a
step of its own; what migrates is fetched in it. What the iteration's cost is linear in goes to the cost's table
(replay/serving/iteration.py).
"""

import math

import numpy as np

from tokentape.policies import kernels as kn
from tokentape.policies.bits.by_gate import ask_by_gate
from tokentape.policies.bits.rule import RULE_SIGNATURE
from tokentape.policies.kernels import function, int64, kernel, total, tuple_of, uint8, uint64, void
from tokentape.policies.order import ascending
from tokentape.policies.placement import MIGRATE_SIGNATURE, migrated
from tokentape.policies.placement.missed import WHERE_SIGNATURE
from tokentape.policies.protocol import CACHE, LOOK_UP, RANK_SIGNATURE, SHRINK
from tokentape.policies.ranked import see_profile
from tokentape.policies.sliced.ranking import CHOOSE, DECODE, by_gate
from tokentape.policies.sliced.ranking import PROMPT as OF_PROMPT
from tokentape.replay.serving.state import N_DECODE, NEWER, OLDEST, POSITION
from tokentape.replay.system.ahead import AHEAD, DISTANCE, N_FETCHED, N_USED, PREDICT, look_up_ahead
from tokentape.replay.system.drafts import DRAFTS, decode_rows

# Entries of `how` (6,). RESIDENCY: of RESIDENCIES; PLACE: of PLACES; AWAY: of AWAYS, where experts compute that a placement
# keeps out of the cache; PROFILED: event before which a policy's profile is there, -1: never; counters.
RESIDENCY, PLACE, AWAY, PROFILED, N_EVENTS, N_LOOKUPS = range(6)
HELD, CACHED, GIVEN = range(3)  # residencies: all held; by policies/cache.py; hits as they are told
NOWHERE, BY_FUNCTION, FIXED, MOVING = range(4)  # placements: none; `where`; a hot set; one that follows the decodes
IS_NEAR, IS_READ, IS_STREAMED = range(3)  # aways: near compute; read in place by the main engine; fetched and not kept

# Of an event, as the cost reads them from a row of its table: experts and token-experts of the main engine, their widths;
# widths of those fetched, and 1 if any; the same of experts read in place; per expert near its memory, of those that wait for
# their bytes and of those that wait for operations: how many, widths, tokens, tokens x widths; 1 if any is near; of what
# is fetched ahead beside it: experts, and 1 if any is begun.
(
    ACTIVE, CHOSEN, WEIGHTS, MISSED, FETCHES, IN_PLACE, CHOSEN_IN_PLACE, WEIGHTS_IN_PLACE,
    NEAR, NEAR_WEIGHTS, NEAR_TOKENS, NEAR_WORK, BUSY, BUSY_WEIGHTS, BUSY_TOKENS, BUSY_WORK, EXCHANGES, BESIDE, READS,
) = range(N_EVENT := 19)  # fmt: skip
# Columns of `totals` (MoE layers, N_TOTAL), by phase: 0 events of decodes alone, N_OF_PHASE further those with prompts.
# FORETOLD: experts fetched ahead in them, in the row of the layer that they are for; USED: those of its hits that were.
LOOKUPS, HITS, AWAYS, AWAY_TOKENS, TOKEN_EXPERTS, MOVED, FORETOLD, USED, N_OF_PHASE = range(9)
# Columns of the recorded iterations: lookups, hits, experts away, bytes that were fetched.
N_OF_ITERATION = 4

# how; ids (rows, MoE layers, k), -1: not run; first_row (n,) of a request; of_layer (2, MoE layers): layer, row of the cost's
# table; near_bound (2,): replay/serving/iteration.py; hot (MoE layers, E); widths (MoE layers, E): shares of full width;
# pending (MoE layers,): widths on their way; totals; log_keys, log_hits (m,), log_starts of events: as many as fit; fetched (3,
# MoE layers): widths by phase, and bytes of an expert; counted (K,): the profile; of_iteration (i, N_OF_ITERATION); rows (R,):
# scratch; parameters of `where`; SCRATCH: of an iteration's events experts, tokens on each, near or not (0 where nothing is
# placed), those looked up, hits; place (E,); of events (MoE layers + 1,) layers, where they begin, bounds of what they look up.
SCRATCH = tuple_of(kn.I64, kn.I64, kn.U8, kn.I32, kn.U8, kn.U64, kn.I64, kn.I64, kn.I64)
SLOTS = tuple_of(
    kn.I64, kn.I16_3D, kn.I64, kn.I64_2D, kn.F64, kn.U8_2D, kn.F64_2D, kn.F64, kn.I64_2D, kn.I64, kn.U8, kn.I64,
    kn.F64_2D, kn.F64, kn.F64_2D, kn.I64, kn.F64, SCRATCH,
)  # fmt: skip
# Of a placement that stands while requests decode: two weights of every recorded request's experts (recorded requests, MoE
# layers, E), which of them each request is, numbers (5,; N_PLACED: hot experts of a layer, or of all where they share the room),
# and losses by width (MoE layers, E, 4), or empty.
ALPHA, N_PLACED, ACROSS, MEAN_BITS, FULL_BITS = range(5)
PLACED = tuple_of(kn.F64_3D, kn.F64_3D, kn.I64, kn.F64, kn.F64_3D)
# Of one that moves experts: average (MoE layers, E) tokens per step, its memory; tokens (E,): scratch; parameters; residents of a
# layer at most (1,). Residents and averages start anew when decodes begin with nothing else decoding.
MOVES = tuple_of(kn.F64_2D, kn.I64, kn.F64, kn.I64)
# Of a router: recorded ids, whose place its own take in `ids`, empty where there is none; values, gates (rows x MoE layers, E);
# its parameters; scratch for the rows of an event: values, gates (n, E), natural and chosen (n, k), phase (n,), row (n,), work.
ROUTED = tuple_of(kn.I16_3D, kn.F32_2D, kn.F32_2D, kn.F64, kn.F32_2D, kn.F32_2D, kn.I64_2D, kn.I64_2D, kn.U8, kn.I64, kn.I64_2D)
# Of a cache whose policy needs them, else empty: recorded gate weights (rows, MoE layers, k) and scores (rows x MoE layers, E);
# scratch: largest of both of an event's experts, and of those looked up; of widths by gate, else empty: parameters of
# `ask_by_gate`, and the width at which an expert was fetched last (MoE layers, E).
TOLD = tuple_of(kn.F32_3D, kn.F32_2D, *(kn.F32,) * 4, kn.F64, kn.F64_2D)
SPLIT = function(RULE_SIGNATURE)
LOOKS_UP, SHRINKS, RANK_OF = function(LOOK_UP), function(SHRINK), function(RANK_SIGNATURE)
WHERE, MIGRATE = function(WHERE_SIGNATURE), function(MIGRATE_SIGNATURE)


@kernel(inline="always")
def _rows_of(at, requests, state, members, takes, n_members, first_row, drafts, rows):  # type: ignore[no-untyped-def]
    """Tape rows of an iteration: of decodes in order of joining, then of the prompts' slices. Returns decodes, and all."""
    n_decode = decode_rows(at, requests, state, first_row, drafts, rows)
    n_all = n_decode
    for i in range(n_members):
        first = first_row[members[i]] + requests[members[i], POSITION]
        for j in range(takes[i]):
            rows[n_all] = first + j
            n_all += 1
    return n_decode, n_all


@kernel(inline="always")
def _gather(m, rows, n_rows, ids, place, end, keys, counts):  # type: ignore[no-untyped-def]
    """Distinct experts of an event in order of last mention, and the tokens on each, in front of keys[end]; returns where they
    begin. place (E,): scratch."""
    first, k = end, ids.shape[2]
    for i in range(n_rows):
        row = uint64(rows[n_rows - 1 - i])
        for j in range(k):
            found = ids[row, m, uint64(k - 1 - j)]
            if found < 0:
                continue
            e = uint64(found)
            at_key = place[e]
            if first <= at_key < end and keys[at_key] == found:
                counts[at_key] += 1
            else:
                first -= uint64(1)
                place[e], keys[first], counts[first] = first, found, 1
    return first


@kernel(void(int64, kn.I64, int64, kn.I16_3D, kn.U64, uint64, uint64, TOLD), allocates=False)
def _tell(m, rows, n_rows, ids, place, begin, end, told):  # type: ignore[no-untyped-def]
    """Largest gate weight and score of every expert of an event, in front of `end`, as `_gather` has them."""
    gates_of, scores_of, gates, scores, _, _, _, _ = told
    if gates_of.shape[0] > 0:
        gates[begin:end] = 0.0
    if scores_of.shape[0] > 0:
        scores[begin:end] = -np.inf
    for i in range(n_rows):
        for j in range(ids.shape[2]):
            e = ids[rows[i], m, j]
            if e >= 0 and gates_of.shape[0] > 0:
                gates[place[e]] = max(gates[place[e]], gates_of[rows[i], m, j])
            if e >= 0 and scores_of.shape[0] > 0:
                scores[place[e]] = max(scores[place[e]], scores_of[rows[i] * ids.shape[1] + m, e])


@kernel(uint64(int64, kn.I64, int64, kn.I16_3D, kn.U8, kn.I64, kn.I64, uint64, uint64, kn.F64_2D, TOLD), allocates=False)
def _widen(m, rows, n_rows, ids, there, keys, counts, begin, end, widths, told):  # type: ignore[no-untyped-def]
    """Widths that an event's tokens ask of its experts; those that none asks for drop out. Returns where the others begin."""
    gates_of, gates, scores, kept = told[0], told[2], told[3], end
    widths[m] = 0.0
    for i in range(n_rows):
        ask_by_gate(ids[rows[i], m], gates_of[rows[i], m], there, told[6], widths[m])
    for j in range(end - begin):
        i = end - uint64(1) - uint64(j)
        if widths[m, keys[i]] > 0.0:
            kept -= uint64(1)
            keys[kept], counts[kept] = keys[i], counts[i]
            gates[kept] = gates[i]
            if scores.shape[0] > 0:
                scores[kept] = scores[i]
    return kept


@kernel(inline="always")
def _look_up(n_events, bounds, looked_up, hits, look_up, rank_of, cache, told, slots):  # type: ignore[no-untyped-def]
    """Of the experts that these events look up, which are there; the cache is advanced."""
    how, hot, log_hits, n = slots[0], slots[5], slots[10], bounds[n_events]
    if how[PLACE] >= FIXED:
        is_hot = hot.reshape(hot.size)
        for i in range(uint64(n)):
            hits[i] = is_hot[uint64(looked_up[i])]
    elif how[RESIDENCY] == CACHED:
        look_up(how[N_EVENTS], how[N_LOOKUPS], looked_up, bounds[: n_events + 1], told[4], told[5], rank_of, cache, hits)
    elif how[RESIDENCY] == GIVEN:
        for i in range(n):
            hits[i] = log_hits[how[N_LOOKUPS] + i]
    else:
        hits[:n] = 1


@kernel(inline="always")
def _count(  # type: ignore[no-untyped-def]
    at, prompt_layers, n_events, layers, width, begins, bounds, keys, counts, near, looked_up, hits, table, first, held, slots
):
    """What the costs of these events follow from, their totals and, while there is room, a log of their lookups. Of event i:
    experts from begins[i] to (i + 1) width, and those that were looked up, bounds[i] to bounds[i + 1]."""
    (how, _, _, of_layer, near_bound, _, widths, _, totals, log_keys, log_hits, log_starts, fetched, _, of_iteration,
     _, _, _) = slots  # fmt: skip
    for event in range(uint64(n_events)):
        m = uint64(layers[event])
        entries = table[uint64(of_layer[1, m]), first : first + N_EVENT]
        phase = N_OF_PHASE if prompt_layers[0] <= of_layer[0, m] < prompt_layers[1] else 0
        at_key, end = uint64(bounds[event]), (event + uint64(1)) * width
        active = chosen = weights = 0.0
        missed, n_hits, n_tokens, n_away = entries[MISSED], 0, 0, 0
        for i in range(uint64(begins[event]), end):
            tokens, w = float(counts[i]), 1.0 if phase and how[PLACE] == FIXED else widths[m, uint64(keys[i])]
            n_tokens += counts[i]
            if near[i]:
                n_away += 1
                totals[m, phase + AWAY_TOKENS] += counts[i]
                if how[AWAY] == IS_READ:
                    entries[IN_PLACE] += 1.0
                    entries[CHOSEN_IN_PLACE] += tokens
                    entries[WEIGHTS_IN_PLACE] += w
                    continue
                if how[AWAY] == IS_NEAR:
                    group = BUSY if tokens > near_bound[0] * (w if near_bound[1] == 0.0 else 1.0) else NEAR
                    entries[group] += 1.0
                    entries[group + 1] += w
                    entries[group + 2] += tokens
                    entries[group + 3] += tokens * w
                    entries[EXCHANGES] = 1.0
                    continue
            active += 1.0
            chosen += tokens
            weights += w
            is_hit = hits[at_key] if not near[i] else uint8(0)
            at_key += uint64(not near[i])
            if held.shape[0] > 0:
                is_hit = uint8(is_hit and held[m, uint64(keys[i])] >= w)  # a narrower copy is no hit
                held[m, uint64(keys[i])] = max(w, held[m, uint64(keys[i])] if is_hit else 0.0)
            n_hits += is_hit
            if not is_hit:
                missed += w
                entries[FETCHES] = 1.0
        entries[ACTIVE], entries[CHOSEN], entries[WEIGHTS], entries[MISSED] = active, chosen, weights, missed
        n = bounds[event + uint64(1)] - bounds[event]
        if how[N_EVENTS] < log_starts.shape[0] and how[N_LOOKUPS] + n <= log_keys.shape[0]:
            for i in range(n):
                log_keys[how[N_LOOKUPS] + i] = looked_up[bounds[event] + i]
                log_hits[how[N_LOOKUPS] + i] = hits[bounds[event] + i]
            log_starts[how[N_EVENTS]] = how[N_LOOKUPS]
        how[N_EVENTS] += 1
        how[N_LOOKUPS] += n
        fetched[1 if phase else 0, m] += missed
        totals[m, phase + TOKEN_EXPERTS] += n_tokens
        totals[m, phase + AWAYS] += n_away
        totals[m, phase + LOOKUPS] += n
        totals[m, phase + HITS] += n_hits
        if at < of_iteration.shape[0]:
            of_iteration[at, 0] += n
            of_iteration[at, 1] += n_hits
            of_iteration[at, 2] += n_away
            of_iteration[at, 3] += missed * fetched[2, m]


@kernel(void(int64, kn.I64, int64, int64, kn.U8, kn.I16_3D, CHOOSE, ROUTED), allocates=False)
def route_event(m, rows, n_rows, n_decode, there, ids, choose, routed):  # type: ignore[no-untyped-def]
    """Puts a router's choice for an event's rows in `ids`, each by falling gate."""
    recorded, values, gates, params, of_values, of_gates, natural, chosen, phase, of, work = routed
    n_layers, k, n = ids.shape[1], ids.shape[2], 0
    for i in range(n_rows):
        row = rows[i]
        if recorded[row, m, 0] >= 0:
            for e in range(values.shape[1]):
                of_values[n, e], of_gates[n, e] = values[row * n_layers + m, e], gates[row * n_layers + m, e]
            for j in range(k):
                natural[n, j] = recorded[row, m, j]
            phase[n], of[n] = DECODE if i < n_decode else OF_PROMPT, row
            n += 1
    if n == 0:
        return
    choose(m, of_values[:n], of_gates[:n], natural[:n], there, phase[:n], params, work, chosen[:n])
    for i in range(n):
        lowest = int64(0)
        for j in range(k):
            lowest = min(lowest, chosen[i, j])
        if lowest >= 0:
            by_gate(of_values[i], of_gates[i], chosen[i])
        for j in range(k):
            ids[of[i], m, j] = chosen[i, j]


_OF_ITERATION = (int64, int64, int64, kn.I64_2D, kn.I64, kn.I64, kn.I64, int64, kn.F64_2D, int64)
_OF_SLOTS = (LOOKS_UP, RANK_OF, WHERE, CACHE, TOLD, SLOTS, DRAFTS, CHOOSE, ROUTED, MIGRATE, MOVES, PREDICT, AHEAD)


@kernel(void(*_OF_ITERATION, *_OF_SLOTS), allocates=False)
def serve_experts(  # type: ignore[no-untyped-def]
    at, first_layer, last_layer, requests, state, members, takes, n_members, table, first_entry, look_up, rank_of, where, cache,
    told, slots, drafts, choose, routed, migrate, moves, predict, ahead,
):  # fmt: skip
    """All events of iteration `at`, whose prompts pass the layers first_layer .. last_layer - 1; fills entries of `table`, from
    first_entry on. requests, state, members, takes: see replay/serving/state.py; cache: ExpertCache.state."""
    (how, ids, first_row, of_layer, _, hot, _, pending, totals, _, _, _, fetched, counted, of_iteration, rows, where_params,
     scratch) = slots  # fmt: skip
    average, tokens, move_params, room = moves
    n_layers, n_experts = uint64(of_layer.shape[1]), hot.shape[1]
    n_decode, n_all = _rows_of(at, requests, state, members, takes, n_members, first_row, drafts, rows)
    prompt_layers = (first_layer, last_layer) if n_members > 0 else (0, 0)
    width = uint64(min(n_experts, n_all * ids.shape[2]))  # room for an event's experts; looked up: those that are not near
    keys, counts, near, looked_up, hits, place, layers, begins, bounds = scratch
    # Whose events see what the one before left is served layer by layer, others all layers at once: a call is dear.
    is_routed, is_asked, is_ahead = routed[0].shape[0] > 0, how[PLACE] == BY_FUNCTION, ahead[0].shape[0] > 0
    is_wide = told[6].shape[0] > 0
    is_alone = ((is_routed or is_asked or is_wide) and cache.capacity.shape[0] == 1) or how[PROFILED] >= how[N_EVENTS]
    stretch = uint64(1) if is_alone or is_ahead else n_layers
    for first in range(uint64(0), n_layers, stretch):
        n_events, n_looked_up = uint64(0), uint64(0)
        for m in range(first, first + stretch):
            entries = table[uint64(of_layer[1, m]), first_entry : first_entry + N_EVENT]
            for i in range(N_EVENT):
                entries[i] = 0.0
            has_prompt = prompt_layers[0] <= of_layer[0, m] < prompt_layers[1]
            n_rows = n_all if has_prompt else n_decode
            if is_routed or is_asked or is_wide:
                first_key = m * uint64(n_experts)
                held = hot[m] if how[PLACE] >= FIXED else cache.resident[first_key : first_key + uint64(n_experts)]
            if is_routed:
                route_event(int64(m), rows, n_rows, n_decode, held, ids, choose, routed)
            end = (n_events + uint64(1)) * width
            begin = _gather(m, rows, n_rows, ids, place, end, keys, counts)
            if end == begin:
                continue
            if pending[m] > 0.0:
                entries[MISSED], entries[FETCHES] = pending[m], 1.0
                pending[m] = 0.0
            if told[0].shape[0] + told[1].shape[0] > 0:
                _tell(int64(m), rows, n_rows, ids, place, begin, end, told)
            if is_wide:
                begin = _widen(int64(m), rows, n_rows, ids, held, keys, counts, begin, end, slots[6], told)
            if how[PLACE] == MOVING and not has_prompt:
                tokens[:] = 0
                for i in range(begin, end):
                    tokens[uint64(keys[i])] = counts[i]
                n_moved = migrated(migrate, tokens, average[m], hot[m], room[0], move_params)
                totals[m, MOVED] += n_moved
                if n_moved > 0:
                    entries[MISSED] += n_moved
                    entries[FETCHES] = 1.0
            if is_asked:
                near[begin:end] = 0
                where(int64(m), keys[begin:end], counts[begin:end], held, near[begin:end], where_params)
            elif how[PLACE] >= FIXED:
                for i in range(begin, end):
                    near[i] = not has_prompt and not hot[m, uint64(keys[i])]
            for i in range(begin, end):
                looked_up[n_looked_up] = m * uint64(n_experts) + uint64(keys[i])
                if told[0].shape[0] > 0:
                    told[4][n_looked_up] = told[2][i]
                if told[1].shape[0] > 0:
                    told[5][n_looked_up] = told[3][i]
                n_looked_up += uint64(not near[i])
            layers[n_events], begins[n_events] = m, begin
            n_events += uint64(1)
            bounds[n_events] = n_looked_up
        if n_events == 0:
            continue
        if how[N_EVENTS] == how[PROFILED]:
            see_profile(how[N_EVENTS], counted, rank_of, cache)
        if is_ahead:
            numbers, later = ahead[0], uint64(int64(first) + ahead[0][DISTANCE]) % n_layers
            n_then = n_all if prompt_layers[0] <= of_layer[0, later] < prompt_layers[1] else n_decode
            look_up_ahead(
                int64(first), rows, n_rows, n_then, ids, how[N_EVENTS], how[N_LOOKUPS], n_looked_up, looked_up, hits, look_up,
                told[4], told[5], rank_of, cache, predict, ahead,
            )  # fmt: skip
            entries[BESIDE], entries[READS], ahead[7][first] = ahead[7][first], numbers[N_FETCHED] > 0, 0.0
            phase = N_OF_PHASE if has_prompt else 0
            totals[first, phase + USED] += numbers[N_USED]
            totals[later, phase + FORETOLD] += numbers[N_FETCHED]
            fetched[1 if phase else 0, later] += numbers[N_FETCHED]
            if at < of_iteration.shape[0]:
                of_iteration[at, 3] += numbers[N_FETCHED] * fetched[2, later]
        else:
            _look_up(n_events, bounds, looked_up, hits, look_up, rank_of, cache, told, slots)
        _count(
            at, prompt_layers, n_events, layers, width, begins, bounds, keys, counts, near, looked_up, hits, table, first_entry,
            told[7], slots,
        )  # fmt: skip


@kernel(void(kn.I64_2D, kn.I64, int64, SPLIT, SLOTS, PLACED, MOVES))
def place_anew(requests, state, n_joined, split, slots, placed, moves):  # type: ignore[no-untyped-def]
    """The hot set by what the prompts of all that decode used (policies/placement/importance.py), once n_joined have joined them;
    experts that are new to it are on their way in the next iteration, the others get their widths."""
    is_moving, n_choices = slots[0][PLACE] == MOVING, float(state[N_DECODE] * slots[1].shape[2])
    if is_moving and state[N_DECODE] > n_joined:
        return
    hot, widths, pending = slots[5], slots[6], slots[7]
    counts_of, weights_of, tape_of, numbers, losses = placed
    n_layers, n_experts = hot.shape
    rank, n_hot = np.empty((n_layers, n_experts)), int64(numbers[N_PLACED])  # from the most important down
    used, weight = np.empty(n_experts), np.empty(n_experts)
    for m in range(n_layers):
        used[:], weight[:] = 0.0, 0.0
        r = state[OLDEST]
        while r >= 0:
            for e in range(n_experts):
                used[e] += counts_of[tape_of[r], m, e]
                weight[e] += weights_of[tape_of[r], m, e]
            r = requests[r, NEWER]
        n_used, all_weight = total(used), total(weight)
        for e in range(n_experts):
            by_count = used[e] / n_used if n_used > 0.0 else 0.0
            by_weight = weight[e] / all_weight if all_weight > 0.0 else 0.0
            rank[m, e] = -(numbers[ALPHA] * by_count + (1.0 - numbers[ALPHA]) * by_weight)
            if is_moving:
                moves[0][m, e] = by_count * n_choices
    before = hot.copy()
    hot[:] = 0
    span = n_layers if numbers[ACROSS] != 0.0 else 1
    for first in range(0, n_layers, span):
        order = ascending(rank[first : first + span].reshape(span * n_experts))  # ties stay in order
        for i in range(n_hot):
            hot[first + order[i] // n_experts, order[i] % n_experts] = 1
    ranked, bits = np.empty((n_experts, losses.shape[2])), np.empty(n_experts, np.int8)
    for m in range(n_layers):
        n_cold, order = 0, ascending(rank[m])
        for e in order:
            if not hot[m, e]:
                order[n_cold] = e
                n_cold += 1
        if losses.shape[0] > 0:
            bits[:] = 1
            for i in range(n_cold):
                for b in range(losses.shape[2]):
                    ranked[i, b] = losses[m, order[i], b]
            split(ranked[:n_cold], int64(math.floor(n_cold * (numbers[MEAN_BITS] - 1.0) + 1e-9)), bits[:n_cold])
            for i in range(n_cold):
                widths[m, order[i]] = min(1.0, bits[i] / numbers[FULL_BITS])
        for e in range(n_experts):
            if hot[m, e]:
                widths[m, e] = 1.0
                pending[m] += 1.0 - before[m, e]
            elif losses.shape[0] == 0:
                widths[m, e] = 1.0
