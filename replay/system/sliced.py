"""SliceMoE inside the loop: route, precision and residency of an iteration's events as one decision (policies/sliced/event.py).

Slices of experts are shared by all requests; steps and the credit of the miss budget are each request's own.
"""

from tokentape.policies import kernels as kn
from tokentape.policies.kernels import function, int64, kernel, tuple_of, void
from tokentape.policies.sliced import state as st
from tokentape.policies.sliced.event import serve_events
from tokentape.policies.sliced.ranking import CHOOSE
from tokentape.policies.sliced.warmup import begin_decode, begin_prompt, clear, warm_up
from tokentape.replay.serving.state import CACHED, NEWER, OLDEST, POSITION, TARGET, input_of
from tokentape.replay.system import events as ev

# Entries of `marks` (3,): layers of the model; 1 to start cold where nothing is under way; 1 + entry of a row with too few
# experts to choose from.
N_LAYERS, IS_COLD, BAD = range(3)

# marks; first_row (n,); of_layer (2, MoE layers); recorded ids (rows, MoE layers, k), -1: not run; values, gates (rows x MoE
# layers, E); ids, flags and moved of those rows (Flash and DRAM bytes, lookups); sizes (1 + MoE layers,): bytes of an expert's
# slices together, and of an expert of each layer as the cost reads it; totals, fetched, of_iteration as events.SLOTS; scratch:
# base rows and owners of an iteration's tokens, rows and owners of its events, layers, bounds, n_decodes and sums of events.
SLICED = st.SLICED
SERVED = tuple_of(
    kn.I64, kn.I64, kn.I64_2D, kn.I16_3D, kn.F32_2D, kn.F32_2D, kn.I32_2D, kn.U8_3D, kn.I64_2D, kn.F64, kn.I64_2D, kn.F64_2D,
    kn.F64_2D, *(kn.I64,) * 7, kn.I64_2D,
)  # fmt: skip

_SERVE = void(int64, int64, int64, kn.I64_2D, kn.I64, kn.I64, kn.I64, int64, kn.F64_2D, int64, CHOOSE, SLICED, SERVED)
SERVE_SLICES = function(_SERVE)  # handed to the engine's loop, which is not compiled with it then


@kernel(_SERVE, allocates=False)
def serve_none(  # type: ignore[no-untyped-def]
    at, first_layer, last_layer, requests, state, members, takes, n_members, table, first_entry, choose, sliced, served
):
    """Of a run without slices: never called."""


@kernel(_SERVE, allocates=False)
def serve_sliced(  # type: ignore[no-untyped-def]
    at, first_layer, last_layer, requests, state, members, takes, n_members, table, first_entry, choose, sliced, served
):
    """All events of iteration `at`, as events.serve_experts."""
    (marks, first_row, of_layer, recorded, values, gates, ids, flags, moved, sizes, totals, fetched, of_iteration, bases, of,
     rows, owners, layers, bounds, n_decodes, sums) = served  # fmt: skip
    n_layers, n_decode = of_layer.shape[1], 0
    r = state[OLDEST]
    while r >= 0:
        bases[n_decode] = first_row[r] + input_of(r, at, requests)
        of[n_decode] = r
        n_decode += 1
        r = requests[r, NEWER]
    n_all, is_new = n_decode, n_members > 0 and first_layer == 0
    for i in range(n_members):
        is_new &= requests[members[i], POSITION] == requests[members[i], CACHED]
        for j in range(takes[i]):
            bases[n_all] = first_row[members[i]] + requests[members[i], POSITION] + j
            of[n_all] = members[i]
            n_all += 1
    if is_new:
        if marks[IS_COLD] and n_decode == 0:
            clear(sliced)
        begin_prompt(sliced)
    n_events = n = 0
    for m in range(n_layers):
        table[of_layer[1, m], first_entry : first_entry + ev.N_EVENT] = 0.0
        n_rows = n_all if n_members > 0 and first_layer <= of_layer[0, m] < last_layer else n_decode
        before, n_decodes[n_events] = n, 0
        for i in range(n_rows):
            if recorded[bases[i], m, 0] >= 0:
                rows[n], owners[n] = bases[i] * n_layers + m, of[i]
                n += 1
                n_decodes[n_events] += i < n_decode
        if n > before:
            layers[n_events] = m
            n_events += 1
            bounds[n_events] = n
    sums[:n_events] = 0
    bad = serve_events(
        choose, n_layers, layers[:n_events], bounds, n_decodes, rows, rows, owners, values, gates, sliced, ids, flags, moved, sums
    )
    if bad >= 0 and not marks[BAD]:
        marks[BAD] = 1 + rows[bad]
    for i in range(n_events):
        m = layers[i]
        found, entries = sums[i], table[of_layer[1, m], first_entry : first_entry + ev.N_EVENT]
        entries[ev.ACTIVE], entries[ev.CHOSEN] = found[st.ACTIVE], found[st.CHOSEN]
        entries[ev.WEIGHTS], entries[ev.MISSED] = found[st.DRAM] / sizes[1 + m], found[st.FLASH] / sizes[1 + m]
        entries[ev.FETCHES] = found[st.FLASH] > 0
        phase = ev.N_OF_PHASE if n_decodes[i] < bounds[i + 1] - bounds[i] else 0
        totals[m, phase + ev.LOOKUPS] += found[st.ACTIVE]
        totals[m, phase + ev.HITS] += found[st.HITS]
        totals[m, phase + ev.TOKEN_EXPERTS] += found[st.CHOSEN]
        fetched[1 if phase else 0, m] += found[st.FLASH] / sizes[0]
        if at < of_iteration.shape[0]:
            of_iteration[at, 0] += found[st.ACTIVE]
            of_iteration[at, 1] += found[st.HITS]
            of_iteration[at, 3] += found[st.FLASH]
    is_done = False
    for i in range(n_members):
        if last_layer == marks[N_LAYERS] and requests[members[i], POSITION] + takes[i] == requests[members[i], TARGET]:
            begin_decode(members[i], sliced)
            is_done = True
    if is_done:
        warm_up(sliced)
