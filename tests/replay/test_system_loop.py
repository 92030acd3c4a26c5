"""The loop with the experts' slots against the loop without, `step`, GPU-NDP and brute force."""

from dataclasses import replace

import cxl_ndp_tapes
import numpy as np
import polars as pl
import pytest
from refusing import refuses
from tapes import GEOMETRY, long_prompt, make_tables, make_trace, peak_of

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.hw.profile import ENDS
from tokentape.hw.spec import load, with_values
from tokentape.hw.work import Rows
from tokentape.policies.bits import BIT_RULES
from tokentape.policies.lru import LRU
from tokentape.policies.placement import PLACEMENTS, Capacity, FixedPlacement, ReactivePlacement, importance
from tokentape.policies.serving import Chunked, Continuous, Layered
from tokentape.policies.serving import Static as StaticBatches
from tokentape.policies.slots import System
from tokentape.replay.cxl_ndp.hits import hits_of
from tokentape.replay.passes import fits_of
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import host_of, iteration_costs
from tokentape.replay.serving.run import Limits, run_rule
from tokentape.replay.system import events as ev
from tokentape.replay.system.breakdown import breakdown
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.run import Setting, run, simulate
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.trace import trace_from_tables
from tokentape.replay.transformer import experts_of, steps_of
from tokentape.warehouse.geometry import Geometry

INT8 = Setting(expert_format="int8-g32")
SCHEDULES = (StaticBatches(3), Continuous(40), Chunked(16), Layered(20, 2, "fixed"))


@pytest.mark.parametrize("machine", ["h100", "workstation-rtx4090-pcie4", "h100x2", "kelle-edram", "h100-cxl-ndp"])
def test_where_a_token_takes_all_experts_the_loop_is_the_engine_by_coverage_restarts_included(machine) -> None:
    spec, restarts = load(machine), 0
    rng = np.random.default_rng(0)
    geometry = GEOMETRY.model_copy(update={"top_k": GEOMETRY.n_experts})
    tape = recorded(make_trace(0, geometry, n_requests=12, n_prompt=30, n_decode=40))
    cost = iteration_costs(geometry, spec, FixedCoverage(1.0), fits=fits_of(spec, "bf16"))
    for trial in range(12):
        arrival = np.sort(rng.uniform(0, [0.0, 1e-3, 1e-2][trial % 3], 12))
        requests = tape.requests(arrival, rng.integers(0, 12, 12))
        limits = Limits(max_seqs=6, kv_blocks=[None, 12, 20][trial % 3], block_tokens=8)
        schedule = SCHEDULES[trial % 4]
        system = System("held", {"schedule": schedule}, {"schedule": {"max_seqs": "6"}})
        wanted = run_rule(requests, schedule.rule(GEOMETRY.n_layers), cost, limits, record=True)
        made = simulate(tape, requests, system, spec, Setting(limits=limits), record=True).serving
        restarts += int(made.n_restarts.sum())
        for name, column in wanted.iterations.items():
            if column.dtype.kind == "i":
                assert np.array_equal(made.iterations[name], column), name
            else:
                np.testing.assert_allclose(made.iterations[name], column, rtol=1e-12, err_msg=name)
        for name in ("first_token_s", "finish_s", "largest_gap_s", "started_s"):
            np.testing.assert_allclose(getattr(made, name), getattr(wanted, name), rtol=1e-12, err_msg=name)
        assert np.array_equal(made.n_restarts, wanted.n_restarts)
        assert sum(made.joules_of.values()) == pytest.approx(sum(wanted.joules_of.values()), rel=1e-12)
    assert restarts > 10


MODEL = Geometry(
    architecture="test", n_layers=3, hidden=256, n_heads=8, n_kv_heads=8, head_dim=32, vocab=500, moe_layers=(0, 2), n_experts=16,
    top_k=4, expert_intermediate=96, dense_intermediate=300,
)  # fmt: skip


class OwnFixed(FixedPlacement):
    def scores(self, seen):
        return seen.decode_counts


def test_a_placement_of_ones_own_that_stands_is_refused_in_a_system() -> None:
    tape = recorded(make_trace(1))
    with pytest.raises(ValueError, match="OwnFixed: of placements that stand a system knows those shipped"):
        simulate(tape, tape.requests(), System("own", {"schedule": Chunked(64), "place": OwnFixed()}), load("h100-cxl-ndp"), INT8)


@pytest.mark.parametrize(("n_moved", "n_left"), [(-7, 0), (999, 0), (0, 8)])
def test_a_placement_of_ones_own_that_moves_what_is_not_there_or_keeps_too_much_is_refused(n_moved: int, n_left: int) -> None:
    def migrate(counts, average, resident, capacity, params):
        resident[:n_left] = 1
        return n_moved

    place = type("Own", (ReactivePlacement,), {"migrate": staticmethod(migrate)})()
    options = {"place": {"budget": "50%"}, "schedule": {"max_seqs": "5"}}
    tape, system = recorded(make_trace(1)), System("own", {"schedule": StaticBatches(5), "place": place}, options)
    said = "migrate returned no number of experts, or left more resident than its capacity"
    refuses(said, simulate, tape, tape.requests(), system, load("h100-cxl-ndp"), INT8)


def test_near_compute_is_what_a_dictionary_says() -> None:
    """LRU of all layers and near_if_rare, by plain Python over the tape."""
    trace = make_trace(3, n_requests=5, n_prompt=9, n_decode=25)
    tape = recorded(trace)
    place = PLACEMENTS["near_if_rare"](2)
    options = {"residency": {"budget": "50%"}, "schedule": {"max_seqs": "5"}}
    system = System("near", {"schedule": StaticBatches(5), "residency": LRU(), "place": place}, options)
    made = simulate(tape, tape.requests(), system, load("h100-cxl-ndp"), INT8)
    size, used, hits, away = 12, [], 0, 0
    steps = [[(r, range(9)) for r in range(5)]] + [[(r, [9 + i]) for r in range(5)] for i in range(25)]
    for step in steps:
        for layer in range(3):
            chosen = [int(e) for r, at in step for i in at for e in tape.ids[tape.first[r] + i, layer]]
            keys = [(layer, e) for e in dict.fromkeys(reversed(chosen))][::-1]
            near = [key for key in keys if key not in used and chosen.count(key[1]) <= 2]
            away += len(near)
            looked_up = [key for key in keys if key not in near]
            hits += sum(key in used for key in looked_up)
            used = [key for key in used if key not in looked_up] + looked_up
            used = used[-size:]
    assert (made.total(ev.HITS), made.total(ev.AWAYS)) == (hits, away)
    assert away > 50
    shares = breakdown(tape, tape.requests(), system, load("elmoe3d-xpu-pim"))
    assert all(of.low <= of.value <= of.high for share in shares for of in (share.busy, share.seconds, share.joules))


WIDE = GEOMETRY.model_copy(update={"hidden": 2048, "expert_intermediate": 2048})  # experts that take longer than a launch
FP16 = Setting(expert_format="fp16")


def placed(place: str) -> System:
    """That placement beside an LRU cache of three quarters, or in its room where it says what is kept."""
    policies = {"schedule": Continuous(64), **({"place": PLACEMENTS[place]()} if place else {})}
    policies |= {} if place == "balance" else {"residency": LRU()}
    options = {"residency": {"budget": "75%"}, "place": {"budget": "75%"}, "schedule": {"max_seqs": "4"}}
    return System("placed", policies, {slot: given for slot, given in options.items() if slot in policies})


def test_placements_go_by_the_machines_times() -> None:
    """What the clock says of one expert of full width: on a link, near its memory, and where it was moved to."""
    spec, tape = with_values(load("h100-cxl-ndp"), {"links.pcie.peak_bytes_per_s": 200e9}), recorded(make_trace(3, WIDE))
    host = host_of(iteration_costs(WIDE, spec, FixedCoverage(), expert_format="fp16", events=True), 1)
    hbm, size = spec.tiers["hbm"], WIDE.expert_params * 2
    read_s = size / (512e9 * spec.tiers["cxl"].efficiency_frac.value)
    assert host.fetch_reads == pytest.approx(size / (200e9 * 0.85) / read_s)
    assert host.token_reads == pytest.approx(2 * WIDE.expert_params / 2.048e12 / read_s)
    assert host.main_reads == pytest.approx(size / (hbm.peak_bytes_per_s.value * hbm.efficiency_frac.value) / read_s)
    assert host_of(iteration_costs(WIDE, load("h100"), FixedCoverage(), events=True), 0).fetch_reads == 0.0
    for place in ("near_if_faster", "balance"):
        made = simulate(tape, tape.requests(), placed(place), spec, FP16)
        assert made.slots.place.fetch_reads == pytest.approx(host.fetch_reads)


def test_near_compute_loses_where_the_same_experts_come_again() -> None:
    """What computes where it lies is never kept, so that a link nearly as fast is better used once; and asked of every expert
    alone, which way is faster leaves the link idle, where sharing out what is missing uses both."""
    tape = recorded(make_trace(3, WIDE, n_requests=4, n_prompt=2, n_decode=60))
    slow, fast = (with_values(load("h100-cxl-ndp"), {"links.pcie.peak_bytes_per_s": rate}) for rate in (32e9, 300e9))
    seconds = {
        (place, machine): simulate(tape, tape.requests(), placed(place), spec, FP16).serving.finish_s.max()
        for place in ("", "near_if_faster", "near_beside_link")
        for machine, spec in (("slow", slow), ("fast", fast))
    }
    assert seconds["near_if_faster", "slow"] < 0.5 * seconds["", "slow"]
    assert seconds["near_if_faster", "fast"] > 1.1 * seconds["", "fast"]
    assert seconds["near_beside_link", "fast"] < min(seconds["", "fast"], seconds["near_if_faster", "fast"])


ONE_BY_ONE = ("h100-cxl-ndp", "workstation-rtx4090-pcie4", "phone-lpddr5x-ufs4", "elmoe3d-xpu-nmp", "elmoe3d-8gb", "h100")


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        pytest.param(name, bits, marks=[pytest.mark.slow] * ((n + bits) % 2 == 0))
        for n, name in enumerate(ONE_BY_ONE)
        for bits in (16, 3)
    ],
)
def test_every_iteration_costs_what_the_clock_says_of_its_experts_one_by_one(name, bits) -> None:
    """From what is placed and looked up in a log: fetches, exchange, main experts, and experts near their memory as rows of their
    own; at every end of the machine's ranges."""
    machine, batch = load(name), 6
    trace = make_trace(5, MODEL, n_requests=batch, n_prompt=3, n_decode=8)
    tape = recorded(trace)
    policies = {"schedule": StaticBatches(batch), "place": PLACEMENTS["prefill_guided"](), "precision": BIT_RULES["uniform"]}
    options = {"place": {"budget": "8 experts"}, "schedule": {"max_seqs": str(batch)}, "precision": {"mean_bits": str(bits)}}
    system = System("guided", policies, options)
    counts, weights = tape.used_by_prompts()
    scores = importance(counts.sum(axis=0), weights.sum(axis=0))
    hot = np.zeros(scores.shape, bool)
    np.put_along_axis(hot, np.argsort(-scores, axis=1, kind="stable")[:, :4], True, axis=1)
    blocks, expert_bytes = blocks_of(MODEL, by_layer=True), 2.0 * MODEL.expert_params
    fits = fits_of(machine, "bf16")
    for end in ENDS:
        made = simulate(tape, tape.requests(), system, machine, end=end, record=True).serving
        for step in range(8):
            rows = tape.first[:-1] + 3 + step
            used = np.array([np.bincount(tape.ids[rows, m].ravel(), minlength=16) for m in range(2)])
            moved = (hot.sum(axis=1) if step == 0 else np.zeros(2)) * 1.0
            main, away = used * hot, used * ~hot
            widths = np.where(hot, 1.0, bits / 16)
            roles = machine.roles
            if not roles.near_compute and (not roles.expert_cache or roles.expert_home not in roles.reads):
                moved = moved + ((away > 0) * widths).sum(axis=1)
                main, away = used, 0 * used
            made_rows = []
            of = {"tier": "expert_home", "target": "expert_cache", "blocks": blocks.moe}
            if machine.roles.expert_cache and moved.any():
                made_rows.append(Rows(kind="fetch", bytes=moved[None] * expert_bytes, count=1.0 * (moved > 0)[None], **of))
            for part, is_cached in ((main, True), (away, False)):
                if (not is_cached and machine.roles.near_compute) or not part.any():
                    continue
                assert part.any(axis=1).all()
                active, chosen = (part > 0).sum(axis=1)[None], part.sum(axis=1)[None]
                n_bytes = ((part > 0) * widths).sum(axis=1)[None] * expert_bytes
                made_rows += experts_of(MODEL, machine, blocks, chosen / MODEL.top_k, active, chosen, n_bytes, is_cached)
            if machine.roles.near_compute:
                if machine.roles.expert_cache:
                    crossing = away.sum(axis=1)[None] * 4.0 * MODEL.hidden
                    made_rows.append(Rows(kind="exchange", bytes=crossing, count=1.0 * (crossing > 0), **of))
                layer, expert = np.nonzero(away)
                made_rows.append(
                    Rows(
                        kind="expert", tier="expert_home", engine="near_compute", cells=blocks.moe[layer],
                        bytes=widths[layer, expert] * expert_bytes, ops=away[layer, expert] * 2.0 * MODEL.expert_params,
                        count=1.0, bits=16 * widths[layer, expert],
                    )
                )  # fmt: skip
            work = steps_of(MODEL, machine, Tokens(decodes=batch, context=4 + step), tuple(made_rows), blocks)
            cost = clock(work, machine, profiles.load("physical"), fits)
            assert made.iterations["seconds"][1 + step] == pytest.approx(float(getattr(cost.seconds, end)[0]), rel=1e-9), (
                end,
                step,
            )


def test_a_tape_of_decodes_alone_and_one_of_batches_run_and_say_so() -> None:
    routing, passes = make_tables(2, n_requests=4)
    decodes = routing.filter(pl.col("position") >= 10)
    kept = passes.filter(pl.col("pass_id").is_in(decodes["pass_id"].unique().to_list()))
    tape = recorded(trace_from_tables("test", GEOMETRY, "imported", decodes, kept))
    assert tape.n_prompt.tolist() == [10] * 4
    held = System("held", {"schedule": Chunked(16)})
    result = run(tape, tape.requests(), held, load("h100"), INT8)
    assert result.metrics["n_lookups"].value == 2 * decodes.height, "one request at a time: top-2 of every token"
    assert (
        "33.3% of the tape's (token, layer)s have no routing, no prompt of 4 requests has" in result.settings["outside_envelope"]
    )
    together = passes.with_columns(request_ids=pl.lit([0, 1], pl.List(pl.Int64)))
    tape = recorded(trace_from_tables("test", GEOMETRY, "captured", routing, together))
    result = run(tape, tape.requests(), held, load("h100"), INT8)
    assert "recorded in batches of up to 2" in result.settings["outside_envelope"]
    result = run(tape, tape.requests(), placed("near_if_rare"), load("h100"), INT8)
    assert "h100 computes nothing near its memory: experts placed there are read in place" in result.settings["outside_envelope"]


@pytest.mark.parametrize("name", [name for name, kind in PLACEMENTS.items() if kind.kind != "event"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_a_placement_hits_leaves_and_moves_what_the_ndp_engine_says(name, batch) -> None:
    """Gate weights count too, and members of a batch end at different steps."""
    rng = np.random.default_rng(batch)
    sizes = {"prompts": tuple(rng.integers(3, 9, 12)), "decodes": tuple(rng.integers(1, 9, 12)), "batch": batch}
    passes, routing, _ = cxl_ndp_tapes.make_tables(batch, **sizes)
    trace = trace_from_tables("test", cxl_ndp_tapes.GEOMETRY, "synthetic", routing, passes)
    tape = recorded(trace, routing["gate_weights"].explode().to_numpy())
    place = PLACEMENTS[name](1.5, 0.25) if name == "balance" else PLACEMENTS[name]()
    of, machine = cxl_ndp_tapes.make_routing(batch, **sizes), load("h100-cxl-ndp")
    if name == "random" and batch > 1:
        return  # every request draws its own
    for hot in (1, 3):
        wanted = hits_of(of, np.arange(12).reshape(-1, batch), place, Capacity(hot))
        options = {"place": {"budget": f"{2 * hot} experts"}, "schedule": {"max_seqs": str(batch)}}
        system = System(name, {"schedule": StaticBatches(batch), "place": place}, options)
        made = simulate(tape, tape.requests(), system, machine, INT8)
        token_experts, moved = made.total(ev.TOKEN_EXPERTS, 0), made.total(ev.MOVED)
        found = token_experts, token_experts - made.total(ev.AWAY_TOKENS, 0), moved
        assert found == (wanted.selected.sum(), wanted.hits.sum(), wanted.moved.sum())
        if place.kind == "reactive":  # what crosses the link: migrations, what prompts lack, and the first residents
            lacked = made.total(ev.LOOKUPS, 1) - made.total(ev.HITS, 1)
            placed = made.slots.fetched - moved - lacked
            assert 0 <= placed <= 2 * hot * 12 / batch if place.starts_placed else placed == 0
            assert moved > 0 or name not in ("ema", "always")


def test_a_long_tape_takes_the_memory_of_its_choices_and_gates_not_of_their_places() -> None:
    """And what its prompts use is what is counted by hand."""
    n, n_layers, k = 150_000, len(GEOMETRY.moe_layers), GEOMETRY.n_experts
    (trace, ids), gates = long_prompt(n), np.random.default_rng(0).random((n, k), np.float32)
    weights = np.zeros((n_layers, k))
    np.add.at(weights, (np.repeat(trace.row_layer, k), trace.ids), gates.ravel())
    tape, peak = peak_of(lambda: recorded(trace, gates.ravel()))
    found, more = peak_of(tape.used_by_prompts)
    assert peak + more < 24 * ids.size
    assert np.array_equal(found, [[np.full_like(weights, n // n_layers)], [weights]])
    assert np.array_equal((tape.ids.reshape(ids.shape), tape.gates.reshape(gates.shape)), (ids, gates))


def test_static_sets_and_placements_that_cannot_go_by_a_tape() -> None:
    """As Fiddler places experts: by all that the tape uses."""
    tape = recorded(make_trace(4, n_requests=1, n_prompt=9, n_decode=30))
    options = {"place": {"budget": "50%"}, "schedule": {"max_seqs": "1"}}
    system = System("static", {"schedule": StaticBatches(1), "place": PLACEMENTS["static_global"]()}, options)
    made = simulate(tape, tape.requests(), system, load("h100-cxl-ndp"), INT8)
    assert 0 < made.total(ev.AWAY_TOKENS, 0) < made.total(ev.TOKEN_EXPERTS, 0)
    tape = recorded(make_trace(4, n_requests=3, n_prompt=5, n_decode=5))
    for name, options, said in (
        ("shuffled_prompts", {"schedule": {"max_seqs": "3"}}, "shuffled_prompts goes by the prompts of the batch before"),
        ("ema", {"place": {"across_layers": "true"}}, "EMA decides layer by layer"),
        ("near_if_rare", {"place": {"across_layers": "true"}}, "NearIfRare decides layer by layer"),
        ("near_if_rare", {"place": {"budget": "9 experts"}}, "NearIfRare decides where missing experts .* add residency"),
        ("near_beside_link", {}, "NearBesideLink decides where missing experts .* add residency"),
        ("first_layers_near", {"place": {"budget": "15 experts"}}, r"place.layers 1 leaves \d+ B .* place.budget has room for"),
    ):
        given = {"layers": 1} if name == "first_layers_near" else {}  # of three, which leaves 16 experts
        system = System(name, {"schedule": Continuous(40), "place": PLACEMENTS[name](**given)}, options)
        refuses(said, simulate, tape, tape.requests(), system, load("h100-cxl-ndp"), INT8)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("n", [2, 5, 14])
def test_a_hot_set_takes_as_many_experts_as_its_room_holds(n, across) -> None:
    """Those used most, of a layer or of all three; where layers share the room no part of it is left for want of two more."""
    trace = make_trace(4, n_requests=1, n_prompt=9, n_decode=30)
    tape = recorded(trace)
    options = {"place": {"budget": f"{n} experts", "across_layers": str(across)}, "schedule": {"max_seqs": "1"}}
    system = System("hot", {"schedule": StaticBatches(1), "place": PLACEMENTS["static_global"]()}, options)
    made = simulate(tape, tape.requests(), system, load("h100-cxl-ndp"), INT8)
    used = np.stack([np.bincount(tape.ids[9:, m].ravel(), minlength=8) for m in range(3)])
    of_tape = np.stack([np.bincount(tape.ids[:, m].ravel(), minlength=8) for m in range(3)])
    hot = Capacity(n).hot(of_tape.reshape(1, 24)) if across else Capacity(n // 3).hot(of_tape)
    assert made.total(ev.TOKEN_EXPERTS, 0) - made.total(ev.AWAY_TOKENS, 0) == used[hot.reshape(3, 8)].sum()


@pytest.mark.parametrize("n_output", [4, 31])
def test_the_best_set_is_of_the_tokens_decoded_and_all_that_is_fetched_is_counted_prompts_whole(n_output) -> None:
    """The same request twice, one after the other, whose first decode has no routing in a layer; experts in memory at 2 bits."""
    tape = recorded(make_trace(4, n_requests=1, n_prompt=9, n_decode=30))
    tape.ids[9, 1] = -1
    policies = {"schedule": Continuous(64), "place": PLACEMENTS["oracle"](), "precision": BIT_RULES["uniform"]}
    system = System("best", policies, {"place": {"budget": "9 experts"}, "precision": {"mean_bits": "2"}})
    requests = replace(tape.requests(order=[0, 0]), n_output_tokens=np.array([n_output, n_output]))
    made = simulate(tape, requests, system, load("h100-cxl-ndp"), INT8)
    chosen = [tape.ids[9 : 8 + n_output, m].ravel() for m in range(3)]
    best = [np.sort(np.bincount(ids[ids >= 0], minlength=8))[-3:] for ids in chosen]
    assert made.total(ev.HITS, 0) == 2 * np.sum(best)
    assert made.slots.fetched == 9 + made.total(ev.LOOKUPS, 1) - made.total(ev.HITS, 1)
    by_losses = replace(system, policies=policies | {"precision": BIT_RULES["prefix_split"]}, options={})  # at 16 bits
    refuses(r"mean_bits 16 must lie in 1\.\.4", simulate, tape, requests, by_losses, load("h100-cxl-ndp"), INT8)


@pytest.mark.parametrize(("n_layers", "n_held"), [(26, 15), (46, 13), (3, 0)])
def test_layers_that_the_room_holds_are_held(n_layers, n_held) -> None:
    """As a share of all, 15 of 26 layers are a little less than 15; larger ones at the end are fewer."""
    geometry = GEOMETRY.model_copy(update={"n_layers": n_layers + 1, "moe_layers": tuple(range(1, n_layers + 1))})
    if n_layers == 3:
        geometry = geometry.model_copy(update={"recorded_expert_bytes": (2000, 3000, 5400)})
    tape = recorded(make_trace(3, geometry, n_requests=1))
    sizes = geometry.expert_bytes(how := "recorded" if n_layers == 3 else "int8-g32")
    options = {"place": {"budget": f"{8 * sum(sizes[n_layers - n_held :]) + (40_000 if n_layers == 3 else 0)}B"}}
    system = System("llamacpp", {"schedule": StaticBatches(1), "place": PLACEMENTS["first_layers_near"]()}, options)
    made = simulate(tape, tape.requests(), system, load("h100-cxl-ndp"), Setting(expert_format=how))
    assert made.slots.place.layers == n_layers - n_held
