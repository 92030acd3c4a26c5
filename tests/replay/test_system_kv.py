"""KV policies, refresh and the room that KV shares with experts, in the loop: against dictionaries, the clock and sums."""

from collections import Counter, OrderedDict
from dataclasses import replace

import attention_tapes
import numpy as np
import pytest
from tapes import GEOMETRY, make_trace

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.hw.spec import load
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.quest import Quest
from tokentape.policies.kv.refresh import REFRESH
from tokentape.policies.kv.slots import Slots, salts_of
from tokentape.policies.placement import PLACEMENTS
from tokentape.policies.residency import CACHES
from tokentape.policies.serving import Chunked, Continuous, Layered
from tokentape.policies.slots import System, system_of
from tokentape.replay.kv.replay import kept_of
from tokentape.replay.passes import fits_of
from tokentape.replay.serving.run import Limits
from tokentape.replay.system import kv
from tokentape.replay.system.events import AWAYS, N_EVENTS
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run, simulate
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import experts_of, kv_token_bytes, steps_of

MODEL = GEOMETRY.model_copy(update={"n_kv_heads": 4})
LARGE = MODEL.model_copy(update={"expert_intermediate": 160})  # experts beside which KV finds room
N, N_PROMPT, N_DECODE = 5, 12, 30
SCHEDULES = (Continuous(30), Chunked(9), Layered(20, 2, "fixed"))
INT8 = Setting(expert_format="int8-g32")
TOKEN_BYTES = 2 * 4 * 16 * 2  # of a layer


def attended(seed=0, geometry=MODEL, **sizes):
    """A tape with routing and attention, and the attention as (prompt, rows) by request."""
    n, n_prompt, n_decode = (sizes.get(name, of) for name, of in (("n", N), ("prompt", N_PROMPT), ("decode", N_DECODE)))
    trace = make_trace(seed, geometry, n_requests=n, n_prompt=n_prompt, n_decode=n_decode)
    rng = np.random.default_rng(seed)
    each = [attention_tapes.softmax_rows(rng, 4, 4, n_prompt, n_prompt + n_decode) for _ in range(n)]
    return recorded(trace, attention=attention_tapes.tape_of(each, geometry)), each


def system(schedule=SCHEDULES[0], max_seqs=3, options=None, **policies):
    given = {"schedule": {"max_seqs": str(max_seqs)}, **(options or {})}
    return System("test", {"schedule": schedule, **policies}, given)


def read_by_hand(prompt, rows, policy):
    """(steps, layers) bytes that a request's decodes read: slots advanced row by row, layer inputs in place of what most heads
    hold."""
    stores_x, recent, found = hasattr(policy, "theta"), policy.limits[2], np.zeros((rows.shape[2], 4))
    for layer in range(4):
        slots, is_x = Slots(policy, salts_of(layer, 4)), set()
        slots.start(prompt[layer].astype(float))
        for step in range(rows.shape[2]):
            now = N_PROMPT + step
            held = Counter(slots.positions[slots.positions >= 0].tolist())
            if not stores_x:
                is_x = set()
            elif step == 0:
                is_x = {n for n in held if held[n] > 2}
            else:  # a token enters as its input, and leaves the recent window so if it is popular
                is_x = {n for n in is_x | {now - 1} if held[n] > (2 if n == now - 1 - recent else 0)}
            pairs = sum(count for n, count in held.items() if n not in is_x)
            found[step, layer] = pairs * TOKEN_BYTES / 4 + len(is_x) * 2 * MODEL.hidden + TOKEN_BYTES
            slots.place(np.full(4, now))
            mass = np.where(slots.positions >= 0, np.take_along_axis(rows[layer, :, step], np.maximum(slots.positions, 0), 1), 0)
            mass = mass.astype(float) * (rows[layer, :, step].sum(axis=1) / mass.sum(axis=1))[:, None]
            slots.settle(mass, np.full(4, now))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("policy", [KV_POLICIES["h2o"](budget=14), KV_POLICIES["aerp"](budget=16, sink=3)])
def test_what_decodes_read_is_what_slots_keep_under_any_schedule(schedule, policy) -> None:
    tape, each = attended()
    order = [3, 0, 4, 1, 1, 2]
    requests = tape.requests(np.linspace(0.0, 2e-4, 6), order)
    made = simulate(tape, requests, system(schedule, kv=policy), load("h100"), record=True)
    wanted = [read_by_hand(*each[r], policy) for r in order]
    start, serving, done = made.serving.iterations["start_s"], made.serving, np.zeros(6, int)
    for at, began in enumerate(start):
        there = [i for i in range(6) if serving.first_token_s[i] <= began < serving.finish_s[i]]
        assert len(there) == serving.iterations["n_decode"][at]
        if not serving.iterations["n_prefill"][at]:
            assert made.kv.of_iteration[at, 0] == pytest.approx(sum(wanted[i][done[i]].sum() for i in there), rel=1e-12)
        done[there] += 1
    assert (done == N_DECODE).all()
    assert made.kv.numbers[kv.READ] == pytest.approx(sum(of.sum() for of in wanted), rel=1e-12)
    kept = kept_of(tape.attention, policy)
    assert all((kept[r][N_PROMPT - 1 :] >= 0).all() for r in range(N))


@pytest.mark.parametrize("name", ["h100", "h100x2", "kelle-edram", "workstation-rtx4090-pcie4"])
@pytest.mark.parametrize("stores_x", [False, True])
def test_a_step_costs_what_the_clock_says_of_what_is_kept(name, stores_x) -> None:
    """A window of tokens, and a cache whose every token is its layer input."""
    machine, (tape, _) = load(name), attended(1, n=1, decode=20)
    policy = KV_POLICIES["aerp"](None, theta=0.0) if stores_x else KV_POLICIES["streaming"](15)
    made = simulate(tape, tape.requests(), system(kv=policy), machine, record=True).serving
    blocks, fits = blocks_of(MODEL, by_layer=True), fits_of(machine, "bf16")
    own = kv_token_bytes(MODEL, machine)
    for step in range(20):
        t = N_PROMPT + step
        given = {"recomputed": t / (t + 1)} if stores_x else {"budget": 16}
        context = t + 1 if stores_x else min(t + 1, 16)
        experts = experts_of(MODEL, machine, blocks, 1.0, 2.0, 2.0, 4.0 * MODEL.expert_params)
        work = steps_of(MODEL, machine, Tokens(decodes=1, context=context, **given), experts, blocks)
        share = given.get("recomputed", 0.0)  # what is written is keys and values in any case
        more = own / (own * (1.0 - share) + 2 * MODEL.hidden * share)
        written = [replace(row, bytes=row.bytes * more) if row.kind == "kv_write" else row for row in work.rows]
        wanted = clock(replace(work, rows=tuple(written)), machine, profiles.load("physical"), fits).seconds.value[0]
        assert made.iterations["seconds"][1 + step] == pytest.approx(wanted, rel=1e-9), step


def test_what_keeps_all_costs_what_no_policy_does_and_four_bits_a_third() -> None:
    tape, _ = attended(2)
    requests, machine = tape.requests(), load("kelle-edram")
    runs = [
        simulate(tape, requests, system(max_seqs=5, options={"kv": given}, **policies), machine, record=True)
        for given, policies in (
            ({}, {}),
            ({}, {"kv": KV_POLICIES["full"]()}),
            ({}, {"kv": KV_POLICIES["h2o"](budget=500)}),
            ({"storage": "quarot"}, {"kv": KV_POLICIES["full"]()}),
        )
    ]
    plain, full, large, four = (made.kv.numbers[kv.READ] for made in runs)
    assert plain == full == pytest.approx(large, rel=1e-12)
    assert four / plain == pytest.approx((4 + 20 / 16) / 16)
    for made in runs[1:3]:
        np.testing.assert_allclose(made.serving.iterations["seconds"], runs[0].serving.iterations["seconds"], rtol=1e-12)
    assert runs[3].serving.j_of_bytes < runs[0].serving.j_of_bytes


@pytest.mark.parametrize("profile", ["physical", "kelle", "layered_prefill"])  # the others count no refresh of whole tiers
@pytest.mark.parametrize("policy", ["2drp", "uniform"])
def test_refresh_draws_what_is_held_at_the_policys_interval(policy, profile) -> None:
    tape, _ = attended(3)
    machine, refresh, how = load("kelle-edram"), REFRESH[policy](), Setting(profile=profile)
    made = simulate(tape, tape.requests(), system(refresh=refresh), machine, how, record=True)
    without = simulate(tape, tape.requests(), system(), machine, how, record=True)
    tier = machine.tiers[machine.roles.kv_cache]
    j_per_byte = tier.refresh_j.value / tier.capacity_bytes.value
    seconds, held = made.serving.iterations["seconds"], made.kv.of_iteration[:, 0]
    passes = seconds / (refresh.harmonic_mean_us * 1e-6)
    assert made.joules_of["refresh"] == pytest.approx(float((held * passes).sum()) * j_per_byte, rel=1e-9)
    if profile == "kelle":  # without a policy, too, at the interval of the machine
        each_s = seconds / tier.refresh_interval_s.value
        assert without.joules_of["refresh"] == pytest.approx(float((held * each_s).sum()) * j_per_byte, rel=1e-9)
    else:
        assert without.joules_of["refresh"] == 0.0
    whole = without.serving.joules_of["static"] - made.serving.joules_of["static"]
    assert whole == pytest.approx((profile == "physical") * tier.refresh_w() * made.serving.wall_s, rel=1e-9)
    assert np.array_equal(seconds, without.serving.iterations["seconds"])
    lacks = run(tape, tape.requests(), system(refresh=refresh), load("h100"))
    assert "no memory to refresh" in lacks.settings["outside_envelope"]
    told = run(tape, tape.requests(), system(), machine, how).settings["outside_envelope"]
    assert ("not counted by the profile: kv_write" in told) == (profile != "physical")
    assert ("not counted: refresh of transient, which" in told) == (profile == "kelle")


@pytest.mark.parametrize("cache", ["lru", "lfu", "sieve", "s3-fifo", "random"])
@pytest.mark.parametrize("scope", ["global", "per-layer"])
def test_users_of_the_room_fit_it_and_fetched_less_evicted_is_what_came_to_lie_there(cache, scope) -> None:
    rng, restarts, squeezed = np.random.default_rng(7), 0, 0
    tape, _ = attended(4, LARGE, n=8)
    for trial in range(6):
        schedule, budget = SCHEDULES[trial % 3], ["60%", "75%", "90%"][trial // 2]
        policies = {"residency": CACHES[cache](), **({"kv": KV_POLICIES["h2o"](budget=20)} if trial % 2 else {})}
        given = {"residency": {"budget": budget, "scope": scope, "share_kv": "true"}}
        requests = tape.requests(np.sort(rng.uniform(0, 1e-3, 8)), rng.integers(0, 8, 8))
        tight = system(schedule, 8, given, **policies)
        made = simulate(tape, requests, tight, load("workstation-rtx4090-pcie4"), INT8, record=True, logs=1 << 16)
        room, size = made.slots.budget_bytes, made.slots.sizes[0]
        held, hidden, elastic, used = made.kv.of_iteration.T
        assert (held + hidden + used <= room).all()
        assert (used <= elastic).all()
        assert (held + hidden <= room - made.kv.floor_bytes).all()
        if trial % 3 == 2:
            assert hidden.max() > 0
        lies = np.append(used, made.slots.cache.resident.sum() * size)  # before an iteration's events, and at the end
        evicted = lies[:-1] + made.slots.of_iteration[:, 3] - lies[1:]
        assert (evicted >= 0).all()
        assert lies[-1] <= elastic[-1]
        assert lies[-1] == pytest.approx(made.slots.fetched * size - evicted.sum())
        restarts, squeezed = restarts + made.serving.n_restarts.sum(), squeezed + (elastic < room).sum()
    assert restarts > 0
    assert squeezed > 100


def test_hits_in_a_shared_room_are_those_of_a_dictionary_that_gives_way() -> None:
    tape, _ = attended(5, LARGE, n=8)
    given = {"residency": {"budget": "75%", "share_kv": "true"}}
    shared = system(Chunked(9), 6, given, residency=CACHES["lru"]())
    made = simulate(tape, tape.requests(), shared, load("workstation-rtx4090-pcie4"), INT8, record=True, logs=1 << 16)
    slots, size = made.slots, made.slots.sizes[0]
    n_events = int(slots.how[N_EVENTS])
    bounds, hits, lies, event = slots.log_events(n_events), [], OrderedDict(), 0
    bounds[-1] = slots.of_iteration[:, 0].sum()
    for n_lookups, room in zip(slots.of_iteration[:, 0], made.kv.of_iteration[:, 2], strict=True):
        while len(lies) * size > room:
            lies.popitem(last=False)
        end = bounds[event] + n_lookups
        while event < n_events and bounds[event] < end:
            keys = slots.log_keys[bounds[event] : bounds[event + 1]].tolist()
            hits += [key in lies for key in keys]
            for key in keys:
                lies[key] = True
                lies.move_to_end(key)
            while len(lies) * size > room:
                lies.popitem(last=False)
            event += 1
    assert hits == (slots.log_hits[: len(hits)] == 1).tolist()
    assert len(hits) == bounds[-1]


def test_the_floor_of_a_shared_room_holds_what_several_prompts_of_a_batch_look_up() -> None:
    tape = recorded(make_trace(7, LARGE.model_copy(update={"n_experts": 64}), n_requests=8, n_prompt=12, n_decode=4))
    shared = system(Continuous(1000), 8, {"residency": {"budget": "75%", "share_kv": "true"}}, residency=CACHES["lru"]())
    made = simulate(tape, tape.requests(), shared, load("workstation-rtx4090-pcie4"), INT8, logs=1 << 16)
    largest = np.diff(made.slots.log_events(int(made.slots.how[N_EVENTS]))[:-1]).max()
    assert largest * made.slots.sizes[0] <= made.kv.floor_bytes


def test_a_shared_room_fetches_less_and_answers_sooner_than_two_halves() -> None:
    """frame_loop section 4: at .75 of all experts and at all of them."""
    trace = make_trace(6, LARGE, n_requests=24, n_prompt=40, n_decode=30)
    tape, machine = recorded(trace), load("workstation-rtx4090-pcie4")
    requests = tape.requests(np.arange(24) * 2e-4)
    for frac in (75, 100):
        shared = system(Chunked(64), 16, {"residency": {"budget": f"{frac}%", "share_kv": "true"}}, residency=CACHES["lru"]())
        one = simulate(tape, requests, shared, machine, INT8)
        half = one.slots.budget_bytes // 2
        tokens = int(half // (4 * TOKEN_BYTES))
        split = system(Chunked(64), 16, {"residency": {"budget": f"{half}B"}}, residency=CACHES["lru"]())
        limits = Limits(kv_blocks=tokens, block_tokens=1)
        two = simulate(tape, requests, split, machine, Setting(expert_format="int8-g32", limits=limits))
        assert one.slots.fetched < two.slots.fetched
        assert one.serving.ttft_s.mean() < two.serving.ttft_s.mean()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layered_prefill_kelle_and_near_compute_run_together(schedule) -> None:
    """All that decides beside routing, in one room: what decodes read is that of the KV policy alone, under any of the others."""
    tape, _ = attended(10, LARGE)
    kelle = {"kv": KV_POLICIES["aerp"](budget=16, sink=3), "refresh": REFRESH["2drp"]()}
    experts = {"residency": CACHES["lru"](), "place": PLACEMENTS["near_if_rare"](2)}
    given, machine = {"residency": {"budget": "75%", "share_kv": "true"}}, load("h100-cxl-ndp")
    made = simulate(tape, tape.requests(), system(schedule, 5, given, **kelle, **experts), machine, INT8, record=True)
    alone = simulate(tape, tape.requests(), system(schedule, 5, **kelle), machine, INT8)
    assert made.serving.n_restarts.sum() == 0
    assert made.kv.numbers[kv.READ] == alone.kv.numbers[kv.READ]
    assert made.total(AWAYS) > 0
    assert (made.kv.of_iteration[:, [0, 1, 3]].sum(axis=1) <= made.slots.budget_bytes).all()


def test_what_cannot_be_had_is_one_line() -> None:
    tape, _ = attended(8)
    bare, machine = recorded(make_trace(8, MODEL)), load("workstation-rtx4090-pcie4")
    lru = {"residency": CACHES["lru"]()}
    shared = lambda budget: {"residency": {"budget": budget, "share_kv": "true"}}  # noqa: E731
    for of, made, said in (
        (bare, system(kv=KV_POLICIES["aerp"]()), "holds none; record it with --attention full"),
        (tape, system(options={"kv": {"storage": "fp3"}}, kv=KV_POLICIES["full"]()), "kv.storage 'fp3'"),
        (tape, system(options={"kv": {"storage": "quarot", "bits": "x"}}, kv=KV_POLICIES["full"]()), "kv.bits 'x'"),
        (tape, system(options={"kv": {"bits": "3"}}, kv=KV_POLICIES["full"]()), "kv.bits 3 goes with kv.storage = quarot"),
        (tape, system(options={"kv": {"rate": "0.1"}}, kv=KV_POLICIES["full"]()), "bits are lost inside a model only"),
        (tape, system(options={"kv": {"resample": "true"}}, kv=KV_POLICIES["full"]()), "bits are lost inside a model only"),
        (tape, system(options=shared("8 experts"), **lru), "leaves room for 0"),
        (tape, system(options=shared("9 experts"), **lru), "request 0: keys and values of its 42 tokens never fit"),
        (tape, system(options=shared("75%"), residency=CACHES["belady"]()), "no share_kv"),
        (tape, system_of("slicemoe", {"residency.share_kv": "true"}), "slices keep their room"),
    ):
        with pytest.raises(ValueError, match=said):
            simulate(of, of.requests(), made, machine, INT8)
    backwards = type("Backwards", (), {"harmonic_mean_us": -5.0})()
    with pytest.raises(ValueError, match=r"Backwards.harmonic_mean_us is -5.0; it must be a number of us above 0"):
        simulate(tape, tape.requests(), system(refresh=backwards), load("kelle-edram"), INT8)
    elsewhere = run(tape, tape.requests(), system(options=shared("75%"), **lru), load("h100"), INT8)
    assert "nothing is shared" in elsewhere.settings["outside_envelope"]
    streamed = simulate(bare, bare.requests(), system(kv=KV_POLICIES["streaming"](8)), machine)
    assert streamed.kv.numbers[kv.READ] == 3 * 20 * 4 * 9 * TOKEN_BYTES


@pytest.mark.parametrize("windows", [(), (0, 40, 0, 40)])
def test_quest_reads_as_many_tokens_as_its_pages_hold_and_keeps_all(windows) -> None:
    """Pages by drawn scores, decode by decode; a page's bounds weigh as much as a token. Prompts in flight are held whole."""
    geometry = MODEL.model_copy(update={"sliding_windows": windows})
    tape, _ = attended(4, geometry, n=2, prompt=30, decode=50)
    policy, rng = Quest(48, dense_layers=1), np.random.default_rng(0)
    made = simulate(tape, tape.requests(), system(kv=policy), load("h100"), record=True)
    read = held = 0
    for n in range(31, 81):
        for layer in range(4):
            first = max(0, n - windows[layer]) if windows and windows[layer] else 0
            pages = np.arange(first // 16, (n - 1) // 16 + 1)
            chosen = pages[policy.read(rng.uniform(size=pages.size), 16)] if layer else pages
            read += np.isin(np.arange(first, n) // 16, chosen).sum() + pages.size * (layer > 0)
            held += n - first + -(-(n - first) // 16)
    by_loop = made.kv.numbers[kv.READ] / TOKEN_BYTES / 2
    assert read <= by_loop <= 1.05 * read if windows else by_loop == read, "the first page of a window counts whole"
    assert windows or made.kv.of_iteration[:, 0].sum() == 2 * (held + 30 * 4) * TOKEN_BYTES
    whole = simulate(tape, tape.requests(), system(), load("h100"))
    assert made.kv.numbers[kv.READ] < whole.kv.numbers[kv.READ]
    assert made.kv.numbers[kv.PEAK] > whole.kv.numbers[kv.PEAK], "bounds take room"


def test_a_replica_reads_the_keys_of_its_own_requests_alone() -> None:
    tape, _ = attended(4, n=2)
    machines = (load("h100"), replace(load("h100x2"), data_parallel=2))
    alone, replicas = (run(tape, tape.requests(), system(), machine, INT8).metrics for machine in machines)
    for name in ("kv_read_bytes_per_token", "kv_peak_bytes"):
        assert replicas[name] == alone[name]
