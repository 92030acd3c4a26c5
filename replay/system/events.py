"""The experts' event: in an iteration and MoE layer, the experts that its tokens chose are placed, looked up and counted.

The rows of an event are the decodes in order of joining, then the prompts' slices if the layer processes them; a layer with both
is one event. Distinct experts stand in order of last mention (replay/stream.py). Experts that compute near their memory are
neither looked up nor admitted. What the iteration's cost is linear in goes to the cost's table (replay/serving/iteration.py).
"""

from __future__ import annotations

import numpy as np

from tokentape.policies.bits.rule import RULE_SIGNATURE
from tokentape.policies.cache import CACHE_STATE
from tokentape.policies.kernels import array, float32, float64, function, int16, int64, kernel, tuple_of, uint8, void
from tokentape.policies.placement.missed import WHERE_SIGNATURE
from tokentape.policies.protocol import RANK_SIGNATURE
from tokentape.policies.queue import run_queue_events
from tokentape.policies.ranked import ABSENT, run_ranked
from tokentape.policies.sliced.ranking import CHOOSE, DECODE, by_gate
from tokentape.policies.sliced.ranking import PROMPT as OF_PROMPT
from tokentape.policies.uniform import run_uniform
from tokentape.replay.serving.state import N_DECODE, NEWER, OLDEST, POSITION
from tokentape.replay.system.drafts import DRAFTS, decode_rows
from tokentape.replay.system.moves import MIGRATE, MOVES, move

# Entries of `how` (N_HOW,). RESIDENCY: of RESIDENCIES; FLAG: promote or bypass; PLACE: of PLACES; AWAY: of AWAYS, where experts
# compute that a placement keeps out of the cache; PROFILED: event before which a policy's profile is there, -1: never; counters.
RESIDENCY, FLAG, KEEPS, HITS_FIRST, PLACE, AWAY, PROFILED, N_EVENTS, N_LOOKUPS = range(9)
N_HOW = 9
HELD, QUEUE, RANKED, UNIFORM, GIVEN = range(5)  # residencies: all held; by policies/cache.py; hits as they are told
NOWHERE, BY_FUNCTION, FIXED, MOVING = range(4)  # placements: none; `where`; a hot set; one that follows the decodes
IS_NEAR, IS_READ, IS_STREAMED = range(3)  # aways: near compute; read in place by the main engine; fetched and not kept

# Of an event, as the cost reads them from a row of its table: experts and token-experts of the main engine, their widths;
# widths of those fetched, and 1 if any; the same of experts read in place; per expert near its memory, of those that wait for
# their bytes and of those that wait for operations: how many, widths, tokens, tokens x widths; 1 if any is near.
(
    ACTIVE, CHOSEN, WEIGHTS, MISSED, FETCHES, IN_PLACE, CHOSEN_IN_PLACE, WEIGHTS_IN_PLACE,
    NEAR, NEAR_WEIGHTS, NEAR_TOKENS, NEAR_WORK, BUSY, BUSY_WEIGHTS, BUSY_TOKENS, BUSY_WORK, EXCHANGES,
) = range(17)  # fmt: skip
N_EVENT = 17
# Columns of `totals` (MoE layers, N_TOTAL), by phase: 0 events of decodes alone, N_OF_PHASE further those with prompts.
LOOKUPS, HITS, AWAYS, AWAY_TOKENS, TOKEN_EXPERTS, MOVED = range(6)
N_OF_PHASE = 6
# Columns of the recorded iterations: lookups, hits, experts away, widths that were fetched.
N_OF_ITERATION = 4

_I1, _I2 = array(int64, 1), array(int64, 2)
_F1, _F2 = array(float64, 1), array(float64, 2)
_U1, _U2 = array(uint8, 1), array(uint8, 2)
# how; ids (rows, MoE layers, k), -1: not run; first_row (n,) of a request; of_layer (2, MoE layers): layer, row of the cost's
# table; near_bound (2,): replay/serving/iteration.py; hot (MoE layers, E); widths (MoE layers, E): shares of full width; pending
# (MoE layers,): widths on their way; totals; log_keys, log_hits (m,), log_starts of events: as many as fit; fetched (MoE
# layers,): widths; counted (K,): the profile; of_iteration (i, N_OF_ITERATION); rows (R,): scratch; parameters of the rank and
# of `where`.
SLOTS = tuple_of(_I1, array(int16, 3), _I1, _I2, _F1, _U2, _F2, _F1, _I2, _I1, _U1, _I1, _F1, _F1, _F2, _I1, _F1, _F1)
# Of a placement that stands while requests decode: two weights of every recorded request's experts (recorded requests, MoE
# layers, E), which of them each request is, numbers (N_PLACED,), and losses by width (MoE layers, E, 4), or empty.
ALPHA, PLACED_PER_LAYER, ACROSS, MEAN_BITS, FULL_BITS = range(5)
PLACED = tuple_of(array(float64, 3), array(float64, 3), _I1, _F1, array(float64, 3))
# Of a router: recorded ids, whose place its own take in `ids`, empty where there is none; values, gates (rows x MoE layers, E);
# its parameters; scratch for the rows of an event: values, gates (n, E), natural and chosen (n, k), phase (n,), row (n,), work.
_X2 = array(float32, 2)
ROUTED = tuple_of(array(int16, 3), _X2, _X2, _F1, _X2, _X2, _I2, _I2, _U1, _I1, _I2)
SPLIT = function(RULE_SIGNATURE)
RANK_OF, WHERE = function(RANK_SIGNATURE), function(WHERE_SIGNATURE)
CACHE = tuple_of(*CACHE_STATE)


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
def _find(m, how, hot, resident, slot_of, there):  # type: ignore[no-untyped-def]
    """there (E,): which of MoE layer m's experts lie in the fast tier."""
    n_experts = hot.shape[1]
    for e in range(n_experts):
        if how[PLACE] >= FIXED:
            there[e] = hot[m, e]
        elif how[RESIDENCY] == QUEUE:
            there[e] = resident[m * n_experts + e]
        else:
            there[e] = how[RESIDENCY] == HELD or slot_of[m * n_experts + e] != ABSENT


@kernel(inline="always")
def _count(  # type: ignore[no-untyped-def]
    at,
    first_layer,
    last_layer,
    has_prompts,
    n_events,
    layers,
    ends,
    bounds,
    keys,
    counts,
    near,
    looked_up,
    hits,
    table,
    first_entry,
    slots,
):
    """What the costs of these events follow from, their totals and, while there is room, a log of their lookups. ends: of an
    event's experts; bounds: of those that were looked up."""
    (how, _, _, of_layer, near_bound, _, widths, _, totals, log_keys, log_hits, log_starts, fetched, _, of_iteration, _, _, _) = (
        slots
    )
    for event in range(n_events):
        m = layers[event]
        cost, phase, n_hits, at_key = of_layer[1, m], 0, 0, bounds[event]
        if has_prompts and first_layer <= of_layer[0, m] < last_layer:
            phase = N_OF_PHASE
        for i in range(ends[event], ends[event + 1]):
            n_tokens, w = float(counts[i]), widths[m, keys[i]]
            totals[m, phase + TOKEN_EXPERTS] += counts[i]
            if not near[i]:
                table[cost, first_entry + ACTIVE] += 1.0
                table[cost, first_entry + CHOSEN] += n_tokens
                table[cost, first_entry + WEIGHTS] += w
                n_hits += hits[at_key]
                if not hits[at_key]:
                    table[cost, first_entry + MISSED] += w
                    table[cost, first_entry + FETCHES] = 1.0
                at_key += 1
                continue
            totals[m, phase + AWAYS] += 1
            totals[m, phase + AWAY_TOKENS] += counts[i]
            if how[AWAY] == IS_STREAMED:
                table[cost, first_entry + ACTIVE] += 1.0
                table[cost, first_entry + CHOSEN] += n_tokens
                table[cost, first_entry + WEIGHTS] += w
                table[cost, first_entry + MISSED] += w
                table[cost, first_entry + FETCHES] = 1.0
            elif how[AWAY] == IS_READ:
                table[cost, first_entry + IN_PLACE] += 1.0
                table[cost, first_entry + CHOSEN_IN_PLACE] += n_tokens
                table[cost, first_entry + WEIGHTS_IN_PLACE] += w
            else:
                group = first_entry + (BUSY if n_tokens > near_bound[0] * (w if near_bound[1] == 0.0 else 1.0) else NEAR)
                table[cost, group] += 1.0
                table[cost, group + 1] += w
                table[cost, group + 2] += n_tokens
                table[cost, group + 3] += n_tokens * w
                table[cost, first_entry + EXCHANGES] = 1.0
        n = bounds[event + 1] - bounds[event]
        if how[N_EVENTS] < log_starts.shape[0] and how[N_LOOKUPS] + n <= log_keys.shape[0]:
            for i in range(n):
                log_keys[how[N_LOOKUPS] + i] = looked_up[bounds[event] + i]
                log_hits[how[N_LOOKUPS] + i] = hits[bounds[event] + i]
            log_starts[how[N_EVENTS]] = how[N_LOOKUPS]
        how[N_EVENTS] += 1
        how[N_LOOKUPS] += n
        fetched[m] += table[cost, first_entry + MISSED]
        totals[m, phase + LOOKUPS] += n
        totals[m, phase + HITS] += n_hits
        if at < of_iteration.shape[0]:
            of_iteration[at, 0] += n
            of_iteration[at, 1] += n_hits
            of_iteration[at, 2] += ends[event + 1] - ends[event] - n
            of_iteration[at, 3] += table[cost, first_entry + MISSED]


@kernel(void(int64, _I1, int64, int64, _U1, array(int16, 3), CHOOSE, ROUTED))
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
        if chosen[i].min() >= 0:
            by_gate(of_values[i], of_gates[i], chosen[i])
        for j in range(k):
            ids[of[i], m, j] = chosen[i, j]


_OF_ITERATION = (int64, int64, int64, _I2, _I1, _I1, _I1, int64, _F2, int64)


@kernel(void(*_OF_ITERATION, RANK_OF, WHERE, CACHE, SLOTS, DRAFTS, CHOOSE, ROUTED, MIGRATE, MOVES))
def serve_experts(  # type: ignore[no-untyped-def]
    at, first_layer, last_layer, requests, state, members, takes, n_members, table, first_entry, rank_of, where, cache, slots,
    drafts, choose, routed, migrate, moves,
):  # fmt: skip
    """All events of iteration `at`, whose prompts pass the layers first_layer .. last_layer - 1; fills entries of `table`, from
    first_entry on. requests, state, members, takes: see replay/serving/state.py; cache: ExpertCache.arrays()."""
    (sizes, cache_of, base_of, capacity, profile, used, stamp, draws, link, resident, heap, slot_of, count, ranks, lasts, rank,
     n_cached, n_total, last) = cache  # fmt: skip
    (how, ids, first_row, of_layer, _, hot, _, pending, totals, _, log_hits, _, _, counted, _, rows, params, where_params) = slots
    average, scratch, move_params, room = moves
    n_layers, n_experts = of_layer.shape[1], hot.shape[1]
    n_decode, n_all = _rows_of(at, requests, state, members, takes, n_members, first_row, drafts, rows)
    seen, tokens, there = np.zeros(n_experts, np.int64), np.zeros(n_experts, np.int64), np.zeros(n_experts, np.uint8)
    most = n_layers * min(n_experts, n_all * ids.shape[2])  # experts of an iteration's events; looked up: those that are not near
    keys, counts, near = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint8)
    looked_up, hits = np.empty(most, np.int32), np.empty(most, np.uint8)
    layers, ends, bounds = np.empty(n_layers, np.int64), np.zeros(n_layers + 1, np.int64), np.zeros(n_layers + 1, np.int64)
    # Whose events see what the one before left is served layer by layer, others all layers at once: a call is dear.
    is_routed = routed[0].shape[0] > 0
    is_alone = is_routed or how[PLACE] == BY_FUNCTION or how[PROFILED] >= 0
    stretch = 1 if is_alone else n_layers
    for first in range(0, n_layers, stretch):
        n_events = n_looked_up = 0
        for m in range(first, first + stretch):
            cost = of_layer[1, m]
            for i in range(N_EVENT):
                table[cost, first_entry + i] = 0.0
            has_prompt = n_members > 0 and first_layer <= of_layer[0, m] < last_layer
            n_rows = n_all if has_prompt else n_decode
            if n_rows > 0 and pending[m] > 0.0:
                table[cost, first_entry + MISSED] += pending[m]
                table[cost, first_entry + FETCHES] = 1.0
                pending[m] = 0.0
            if is_routed:
                _find(m, how, hot, resident, slot_of, there)
                route_event(m, rows, n_rows, n_decode, there, ids, choose, routed)
            begin, mark = ends[n_events], m + 1
            end = begin
            for i in range(n_rows - 1, -1, -1):  # distinct experts in order of last mention, and the tokens on each
                for j in range(ids.shape[2] - 1, -1, -1):
                    e = ids[rows[i], m, j]
                    if e < 0:
                        continue
                    if seen[e] != mark:
                        seen[e] = mark
                        tokens[e] = 0
                        keys[end] = e
                        end += 1
                    tokens[e] += 1
            for i in range((end - begin) // 2):
                keys[begin + i], keys[end - 1 - i] = keys[end - 1 - i], keys[begin + i]
            for i in range(begin, end):
                counts[i], near[i] = tokens[keys[i]], 0
            if end == begin:
                continue
            if how[PLACE] == MOVING and not has_prompt:
                n_moved = move(m, keys[begin:end], counts[begin:end], hot, migrate, average, scratch, move_params, room)
                totals[m, MOVED] += n_moved
                if n_moved > 0:
                    table[cost, first_entry + MISSED] += n_moved
                    table[cost, first_entry + FETCHES] = 1.0
            if how[PLACE] == BY_FUNCTION:
                _find(m, how, hot, resident, slot_of, there)
                where(m, keys[begin:end], counts[begin:end], there, near[begin:end], where_params)
            elif how[PLACE] >= FIXED and not has_prompt:
                for i in range(begin, end):
                    near[i] = not hot[m, keys[i]]
            for i in range(begin, end):
                if not near[i]:
                    looked_up[n_looked_up] = m * n_experts + keys[i]
                    n_looked_up += 1
            layers[n_events] = m
            n_events += 1
            ends[n_events], bounds[n_events] = end, n_looked_up
        if n_events == 0:
            continue
        if how[N_EVENTS] == how[PROFILED]:
            for key in range(profile.shape[0]):
                profile[key] = counted[key]
        if how[PLACE] >= FIXED:
            for i in range(n_looked_up):
                hits[i] = hot[looked_up[i] // n_experts, looked_up[i] % n_experts]
        elif how[RESIDENCY] == QUEUE:
            run_queue_events(
                looked_up, bounds[: n_events + 1], sizes, cache_of, capacity, how[FLAG] != 0, how[KEEPS] != 0,
                how[HITS_FIRST] != 0, link, resident, used, stamp, how[N_EVENTS], hits,
            )  # fmt: skip
        elif how[RESIDENCY] == RANKED:
            run_ranked(
                rank_of, params, looked_up, bounds[: n_events + 1], sizes, cache_of, base_of, capacity, how[FLAG] != 0,
                how[KEEPS] != 0, how[HITS_FIRST] != 0, profile, heap, ranks, lasts, slot_of, rank, count, used, n_cached, n_total,
                last, how[N_EVENTS], how[N_LOOKUPS], hits,
            )  # fmt: skip
        elif how[RESIDENCY] == UNIFORM:
            run_uniform(
                looked_up, bounds[: n_events + 1], sizes, cache_of, base_of, capacity, how[KEEPS] != 0, draws, heap, slot_of,
                count, used, stamp, how[N_EVENTS], hits,
            )  # fmt: skip
        elif how[RESIDENCY] == GIVEN:
            for i in range(n_looked_up):
                hits[i] = log_hits[how[N_LOOKUPS] + i]
        else:
            hits[:n_looked_up] = 1
        _count(
            at, first_layer, last_layer, n_members > 0, n_events, layers, ends, bounds, keys, counts, near, looked_up, hits,
            table, first_entry, slots,
        )  # fmt: skip


@kernel(void(_I2, _I1, int64, SPLIT, SLOTS, PLACED, MOVES))
def place_anew(requests, state, n_joined, split, slots, placed, moves):  # type: ignore[no-untyped-def]
    """The hot set by what the prompts of all that decode used (policies/placement/importance.py), once n_joined have joined them;
    experts that are new to it are on their way in the next iteration, the others get their widths."""
    is_moving, n_choices = slots[0][PLACE] == MOVING, float(state[N_DECODE] * slots[1].shape[2])
    if is_moving and state[N_DECODE] > n_joined:
        return
    hot, widths, pending = slots[5], slots[6], slots[7]
    counts_of, weights_of, tape_of, numbers, losses = placed
    n_layers, n_experts = hot.shape
    scores, n_hot = np.zeros((n_layers, n_experts)), int64(numbers[PLACED_PER_LAYER])
    for m in range(n_layers):
        used, weight = np.zeros(n_experts), np.zeros(n_experts)
        r = state[OLDEST]
        while r >= 0:
            for e in range(n_experts):
                used[e] += counts_of[tape_of[r], m, e]
                weight[e] += weights_of[tape_of[r], m, e]
            r = requests[r, NEWER]
        n_used, all_weight = used.sum(), weight.sum()
        for e in range(n_experts):
            by_count = used[e] / n_used if n_used > 0.0 else 0.0
            by_weight = weight[e] / all_weight if all_weight > 0.0 else 0.0
            scores[m, e] = numbers[ALPHA] * by_count + (1.0 - numbers[ALPHA]) * by_weight
            if is_moving:
                moves[0][m, e] = by_count * n_choices
    before = hot.copy()
    hot[:] = 0
    flat = scores.reshape(n_layers * n_experts)
    span = n_layers * n_experts if numbers[ACROSS] != 0.0 else n_experts
    for first in range(0, n_layers * n_experts, span):
        order = np.argsort(-flat[first : first + span], kind="mergesort")  # stable: ties stay in order
        for i in range(n_hot * (span // n_experts)):
            at = first + order[i]
            hot[at // n_experts, at % n_experts] = 1
    for m in range(n_layers):
        order = np.argsort(-scores[m], kind="mergesort")
        cold = order[hot[m][order] == 0]
        if losses.shape[0] > 0:
            ranked, bits = losses[m][cold], np.ones(cold.shape[0], np.int8)
            split(ranked, int64(np.floor(cold.shape[0] * (numbers[MEAN_BITS] - 1.0) + 1e-9)), bits)
            for i in range(cold.shape[0]):
                widths[m, cold[i]] = min(1.0, bits[i] / numbers[FULL_BITS])
        for e in range(n_experts):
            if hot[m, e]:
                widths[m, e] = 1.0
                pending[m] += 1.0 - before[m, e]
            elif losses.shape[0] == 0:
                widths[m, e] = 1.0
