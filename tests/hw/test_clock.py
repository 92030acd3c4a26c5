"""Work rows on a machine under a profile: the grammar by hand, bands, energy, arbitration, and profiles that cannot be read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import refuses

from tokentape.hw import profile
from tokentape.hw.clock import background_w, clock, not_counted, power_findings
from tokentape.hw.profile import ENDS
from tokentape.hw.sourced import BadSpec, exact
from tokentape.hw.spec import Link, load, shipped
from tokentape.hw.work import Rows, Work

PHONE, NDP = load("phone-lpddr5x-ufs4"), load("h100-cxl-ndp")
READ_S = 1 / (68.264e9 * 0.787)  # of the phone's DRAM, per byte
FETCH_S = 1 / (4.2e9 * 0.8)  # of its flash


def read(n_bytes, ops=0.0, kind="expert", **of):
    return Rows(kind=kind, tier="weights_home", engine="main", bytes=n_bytes, ops=ops, **of)


def fetch(n_bytes, count=0.0, kind="fetch"):
    return Rows(kind=kind, tier="expert_home", target="expert_cache", bytes=n_bytes, count=count)


def made(step, lanes, **others):
    return profile.of_data({"name": "made up", "step": step, "lane": lanes, **others}, "made up")


TWO = {"a": {"kind": "expert"}, "b": {"kind": "fetch"}}


def seconds(step, rows, lanes=None, n_blocks=1, machine=PHONE, block_times=1.0, **others):
    work = Work(n_steps=1, n_blocks=n_blocks, rows=tuple(rows), block_times=block_times)
    return float(clock(work, machine, made(step, lanes or TWO, **others)).seconds.value[0])


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("a + b", 1e6 * READ_S + 1e5 * FETCH_S),
        ("a | b", max(1e6 * READ_S, 1e5 * FETCH_S)),
        ("2.0 * a", 2e6 * READ_S),
        ("partial(0.25, a, b)", 1e5 * FETCH_S + 0.25 * 1e6 * READ_S),
        ("a.bytes + b.fixed", 1e6 * READ_S + 2 * 8e-5),
    ],
)
def test_compositions_by_hand(step, expected):
    count = 2.0 if "fixed" in step else 0.0
    assert seconds(step, [read(1e6), fetch(1e5, count)]) == pytest.approx(expected)


def test_activations_and_what_no_lane_takes_are_told_of_and_cost_nothing():
    rows = read(1e6, activation_bytes=5e5)
    assert seconds("a", [rows]) == pytest.approx(1.5e6 * READ_S)
    assert seconds("a", [rows], activations=False) == pytest.approx(1e6 * READ_S)
    work, alone = Work(n_steps=1, n_blocks=1, rows=(rows,)), made("b", {"b": {"kind": "fetch"}})
    assert clock(work, PHONE, alone).uncounted == {"expert": (1.5e6, 0.0)}
    rows = [read(1e6), read(7e6, 5.0, kind="kv_read")]
    found = clock(Work(n_steps=1, n_blocks=1, rows=tuple(rows)), PHONE, made("a", {"a": {"kind": "expert"}}))
    assert found.seconds.value[0] == pytest.approx(1e6 * READ_S)
    assert found.uncounted == {"kv_read": (7e6, 5.0)}


def test_blocks_overlap_one_by_one_or_as_a_whole():
    """Three blocks of 1, 2, 3 MB read and 3, 2, 1 x 0.1 MB fetched."""
    reads, fetches = np.array([[1e6, 2e6, 3e6]]), np.array([[3e5, 2e5, 1e5]])
    rows = [read(reads), fetch(fetches)]
    a, b = reads[0] * READ_S, fetches[0] * FETCH_S
    assert seconds("layers(a | b)", rows, n_blocks=3) == pytest.approx(np.maximum(a, b).sum())
    assert seconds("a | b", rows, n_blocks=3) == pytest.approx(max(a.sum(), b.sum()))
    ahead = b[0] + max(a[0], b[1]) + max(a[1], b[2]) + a[2]
    assert seconds("lookahead(b, a)", rows, n_blocks=3) == pytest.approx(ahead)


def test_a_block_or_a_row_may_stand_for_several_or_for_a_part():
    rows = [read(np.array([[1e6, 5e6]]))]
    assert seconds("layers(a)", rows, n_blocks=2, block_times=np.array([[3.0, 1.0]])) == pytest.approx(8e6 * READ_S)
    assert seconds("a", [read(1e6)], block_times=3.0) == pytest.approx(3e6 * READ_S)
    assert seconds("layers(a)", [read(1e6)], block_times=np.array([[3.0]])) == pytest.approx(3e6 * READ_S)
    assert seconds("a", [read(1e6, times=0.5)]) == pytest.approx(5e5 * READ_S)


def test_a_pool_is_one_roofline_and_items_are_one_each():
    ops_s = 1 / (PHONE.compute.ops_per_s[PHONE.dtype].value * PHONE.compute.efficiency_frac.value)
    rows = [read(1e8, 1.0), read(1.0, 1e12)]
    assert seconds("a", rows) == pytest.approx(max(1e8 * READ_S, 1e12 * ops_s))
    assert seconds("a", rows, {"a": {"kind": "expert", "per": "item"}}) == pytest.approx(1e8 * READ_S + 1e12 * ops_s)


@given(
    cells=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    n_bytes=st.floats(1, 1e9),
    times=st.integers(1, 4),
    per=st.sampled_from(["pool", "item"]),
)
def test_rows_by_cell_are_the_sums_that_dense_rows_are(cells, n_bytes, times, per):
    sparse = Rows(kind="expert", tier="weights_home", engine="main", cells=np.array(cells), bytes=n_bytes, times=float(times))
    dense = read(n_bytes * times * np.bincount(cells, minlength=6).reshape(2, 3))
    found = [
        clock(Work(n_steps=2, n_blocks=3, rows=(rows,)), PHONE, made("layers(a)", {"a": {"kind": "expert", "per": per}}))
        for rows in (sparse, dense)
    ]
    for what in ("seconds", "joules"):
        assert getattr(found[0], what).value == pytest.approx(getattr(found[1], what).value)


def test_arbitration_is_never_faster_than_a_resource_and_changes_nothing_without_sharing():
    """Two lanes read one tier at once: each has half of it."""
    lanes = {"a": {"kind": "expert"}, "b": {"kind": "shared"}}
    rows = [read(1e6), read(1e6, kind="shared")]
    assert seconds("a | b", rows, lanes) == pytest.approx(1e6 * READ_S)
    assert seconds("a | b", rows, lanes, arbitrate=True) == pytest.approx(2e6 * READ_S)
    apart = [
        Rows(kind="expert", tier="weights_home", engine="main", bytes=1e9),
        Rows(kind="shared", engine="near_compute", ops=1e9),
    ]
    assert seconds("a | b", apart, lanes, machine=NDP) == seconds("a | b", apart, lanes, machine=NDP, arbitrate=True)


BESIDE = {"a.bytes | a.ops": 3.0, "(a.bytes | b.bytes) + a.ops": 7.0, "0.25 * a | c": 3.0, "layers(c + 7.0 | a) | c": 14.0}


@pytest.mark.parametrize(("step", "expected"), BESIDE.items())
def test_parts_of_lanes_and_lanes_alone_ask_for_what_is_theirs_and_numbers_beside_lanes_without_rows_count(step, expected):
    """Two blocks; lane a reads for 2 s and computes for 3, b as long; c has no rows."""
    ops_per_s = PHONE.compute.ops_per_s[PHONE.dtype].value * PHONE.compute.efficiency_frac.value
    rows = [read(np.array([[1.0, 1.0]]) / READ_S, 1.5 * ops_per_s, kind) for kind in ("expert", "head")]
    lanes = {name: {"kind": kind} for name, kind in (("a", "expert"), ("b", "head"), ("c", "fetch"))}
    assert seconds(step, rows, lanes, n_blocks=2, arbitrate=True) == pytest.approx(expected)


@pytest.mark.parametrize(("join", "expected"), [("sum", 3.0), ("max", 2.0), ("bytes", 2.0), ("ops", 1.0), (["power", 2], 5**0.5)])
def test_joins_by_hand(join, expected):
    ops_s = 1 / (PHONE.compute.ops_per_s[PHONE.dtype].value * PHONE.compute.efficiency_frac.value)
    rows = [read(2.0 / READ_S, 1.0 / ops_s)]
    for per in ("pool", "item"):
        assert seconds("a", rows, {"a": {"kind": "expert", "per": per, "join": join}}) == pytest.approx(expected)


def test_every_resource_is_busy_for_what_is_asked_of_it_and_nothing_else():
    """A fetch occupies the flash and what it is written to; a row without a tier moves nothing."""
    work = Work(n_steps=1, n_blocks=1, rows=(read(1e6, 1e9), fetch(1e5), Rows(kind="feed", engine="main", ops=1e9)))
    found = clock(work, PHONE, made("a + b + c", {**TWO, "c": {"kind": "feed"}}))
    ops_s = 1e9 / (PHONE.compute.ops_per_s[PHONE.dtype].value * PHONE.compute.efficiency_frac.value)
    busy = {name: band.value[0] for name, band in found.busy_s.items()}
    assert busy == pytest.approx({"tiers.dram": 1.1e6 * READ_S, "tiers.flash": 1e5 * FETCH_S, "engines.npu": 2 * ops_s})
    assert found.joules_of["engines.npu"].value[0] == pytest.approx(2e9 * 1e-12 * PHONE.compute.energy_pj_per_op.value)
    assert found.joules_of["tiers.flash"].value[0] == pytest.approx(1e5 * 8e-12 * 38.0)
    assert found.joules_of["tiers.dram"].value[0] == pytest.approx(1.1e6 * 8e-12 * 8.0)  # what is fetched is written there
    assert found.joules_of["background"].value[0] == pytest.approx(0.5 * found.seconds.value[0])


def with_dram(**numbers):
    """The phone with other numbers of its DRAM."""
    return replace(PHONE, tiers={**PHONE.tiers, "dram": replace(PHONE.tiers["dram"], **numbers)})


def test_a_fetch_pays_its_read_the_link_and_the_write():
    """38 pJ to read a bit of flash, 5 on a link, 11 to write it to DRAM, where reading takes 8: made up to differ."""
    numbers = {"peak_bytes_per_s": 2e9, "efficiency_frac": 0.5, "latency_s": 1e-3, "energy_pj_per_bit": 5.0}
    link = Link(source_tier=PHONE.backing, target_tier=PHONE.fast, **{k: exact(v, "made up") for k, v in numbers.items()})
    spec = replace(with_dram(write_pj_per_bit=exact(11.0, "made up")), links={"made up": link})
    got = clock(Work(n_steps=1, n_blocks=1, rows=(fetch(1e6, 2.0),)), spec, made("a", {"a": {"kind": "fetch"}}))
    seconds = 1e6 / 1e9 + 2 * (8e-5 + 1e-3)  # the link at half of 2 GB/s is the slower one
    assert got.seconds.value[0] == pytest.approx(seconds)
    expected = {"tiers.dram": 8e-6 * 11.0, "tiers.flash": 8e-6 * 38.0, "links.made up": 8e-6 * 5.0, "background": 0.5 * seconds}
    assert {part: band.value[0] for part, band in got.joules_of.items() if band.value.any()} == pytest.approx(expected)


def test_opened_rows_are_paid_for_and_impossible_power_is_named():
    def read_j(spec):
        return clock(Work(n_steps=1, n_blocks=1, rows=(read(1e9),)), spec, made("a", TWO)).joules_of["tiers.dram"].value[0]

    opened = {"activate_nj": exact(2.0, "made up"), "row_bytes": exact(2048.0, "made up")}
    assert read_j(with_dram(**opened)) - read_j(PHONE) == pytest.approx(1e9 * 2e-9 / 2048)
    for name, number in opened.items():  # apart from the read only where both are
        assert read_j(with_dram(**{name: number})) == read_j(PHONE)
    spec = replace(PHONE, idle_w=exact(0.4, "made up"))
    assert power_findings(spec, 3.0) == power_findings(spec, spec.idle_w.low) == power_findings(spec, spec.max_w.high) == []
    assert "above" in power_findings(spec, 11.0)[0]
    assert "below" in power_findings(spec, 0.3)[0]


def test_a_lane_of_the_link_alone_pays_for_the_link_alone():
    rows = [Rows(kind="fetch", tier="expert_home", target="expert_cache", bytes=1e6, count=3.0)]
    link = NDP.links["pcie"]
    lanes = {"a": {"kind": "fetch", "link_only": True}}
    found = clock(Work(n_steps=1, n_blocks=1, rows=tuple(rows)), NDP, made("a", lanes))
    expected = 1e6 / (link.peak_bytes_per_s.value * link.efficiency_frac.value) + 3 * link.latency_s.value
    assert found.seconds.value[0] == pytest.approx(expected)
    assert set(found.joules_of) == {"links.pcie", "background"}
    assert found.joules_of["links.pcie"].value[0] == pytest.approx(1e6 * 8e-12 * link.energy_pj_per_bit.value)
    both = clock(Work(n_steps=1, n_blocks=1, rows=tuple(rows)), NDP, made("a", {"a": {"kind": "fetch"}}))
    assert both.seconds.value[0] == pytest.approx(expected + 3 * NDP.tiers["cxl"].latency_s.value)


def test_an_engine_takes_the_machines_number_format_where_it_has_it():
    near = NDP.engines["ndp"]
    rows = [Rows(kind="expert", engine="near_compute", ops=1e9)]
    one = 1e9 / (near.ops_per_s["fp16"].value * near.efficiency_frac.value)
    assert seconds("a", rows, machine=NDP) == pytest.approx(one)
    assert seconds("a", rows, {"a": {"kind": "expert", "dtype": "int3"}}, machine=NDP) == pytest.approx(one)  # its only one
    wide, narrow = ({"a": {"kind": "expert", "dtype": dtype}} for dtype in ("bf16", "fp8"))
    several = replace(near, ops_per_s={"int8": NDP.engines["sm"].ops_per_s["int8"], **near.ops_per_s})
    of_several = replace(NDP, engines={**NDP.engines, "ndp": several})
    assert seconds("a", rows, {"a": {"kind": "expert", "dtype": "fp8"}}, machine=of_several) == pytest.approx(one)
    main = [Rows(kind="expert", engine="main", ops=1e12)]
    assert seconds("a", main, wide, machine=NDP) == pytest.approx(2 * seconds("a", main, narrow, machine=NDP), rel=1e-3)


def test_kernels_and_the_host_cost_what_the_machine_says():
    gpu, lanes = load("h100"), {"a": {"kind": ["expert", "proj", "kv_read"]}, "b": {"kind": ["layer", "step"]}}
    none, launch = {"tier": "weights_home", "engine": "main", "count": 2.0}, gpu.engines["sm"].launch_s
    for kind, of in (("proj", "gemm"), ("expert", "experts"), ("kv_read", "attention")):
        assert seconds("a", [Rows(kind=kind, **none)], lanes, machine=gpu) == pytest.approx(2 * launch[of].value)
        free = {"a": {"kind": kind, "each_s": 0.0}}
        assert seconds("a", [Rows(kind=kind, **none)], free, machine=gpu) == 0.0
    marks = tuple(Rows(kind=kind, count=n) for kind, n in (("layer", 10.0), ("step", 1.0)))
    found = clock(Work(n_steps=1, n_blocks=1, rows=marks), gpu, made("b", lanes)).seconds
    assert (found.value[0], found.low[0]) == (0.0, 0.0)
    assert found.high[0] == pytest.approx(10 * gpu.host["layer_s"].high + gpu.host["step_s"].high)
    assert clock(Work(n_steps=1, n_blocks=1, rows=marks), PHONE, made("b", lanes)).seconds.high[0] == 0.0
    assert seconds("b", marks, {"b": {"kind": ["layer", "step"], "each_s": 1e-3}}, machine=gpu) == pytest.approx(11e-3)


def test_a_share_of_the_peak_replaces_the_files_own():
    peak = PHONE.tiers["dram"].peak_bytes_per_s.value
    assert seconds("a", [read(1e6)], {"a": {"kind": "expert", "bytes_frac": 0.5}}) == pytest.approx(2e6 / peak)


def test_what_is_fetched_ahead_shares_its_tiers_too():
    """Weights read from the flash that also feeds the cache: together they take what they ask of it."""
    both = {"tier": "expert_home", "bytes": np.array([[1e6, 1e6]])}
    rows = [Rows(kind="expert", engine="main", **both), Rows(kind="prefetch", target="expert_cache", **both)]
    lanes = {"a": {"kind": "expert"}, "b": {"kind": "prefetch"}}
    apart = seconds("lookahead(b, a)", rows, lanes, n_blocks=2)
    assert apart == pytest.approx(3e6 * FETCH_S)  # the first fetch, two blocks side by side, the last read
    assert seconds("lookahead(b, a)", rows, lanes, n_blocks=2, arbitrate=True) == pytest.approx(4e6 * FETCH_S)


def test_what_is_prepared_once_costs_as_if_it_came_with_the_rest():
    lanes = {"a": {"kind": ["expert", "shared"], "per": "item"}, "b": {"kind": "fetch"}, "c": {"kind": "head"}}
    profile_ = made("layers(a | b) + c", lanes, arbitrate=True)
    sizes = {"n_steps": 1, "n_blocks": 2, "block_times": 1.0}
    first = (read(np.array([[1e6, 3e6]]), kind="shared"), read(np.array([[0.0, 5e5]]), kind="head"))
    then = (read(np.array([[2e6, 1e6]])), fetch(np.array([[4e5, 1e5]]), 1.0))
    prepared = clock(Work(rows=first, **sizes), PHONE, profile_)
    apart = clock(Work(rows=then, **sizes), PHONE, profile_, on=prepared)
    whole = clock(Work(rows=(*first, *then), **sizes), PHONE, profile_)
    for what in ("seconds", "joules"):
        assert getattr(apart, what).value == pytest.approx(getattr(whole, what).value)
    assert {k: v.value[0] for k, v in apart.busy_s.items()} == pytest.approx({k: v.value[0] for k, v in whole.busy_s.items()})


@pytest.mark.parametrize("machine", map(load, shipped()), ids=shipped())
def test_every_machine_has_a_band_and_is_busy_no_longer_than_a_step_in_turn(machine):
    rows = [read(1e8, 1e11), Rows(kind="kv_read", tier="kv_home", engine="main", bytes=1e7, ops=1e8)]
    rows += [fetch(1e7, 1.0)] if machine.roles.expert_cache else []
    lanes = {"a": {"kind": ["expert", "kv_read"]}, "b": {"kind": "fetch"}}
    found = clock(Work(n_steps=1, n_blocks=1, rows=tuple(rows)), machine, made("a + b", lanes, arbitrate=True))
    for band in (found.seconds, found.joules, *found.joules_of.values()):
        assert 0 <= band.low[0] <= band.value[0] <= band.high[0] < np.inf
    assert all(busy.value[0] <= found.seconds.value[0] * (1 + 1e-12) for busy in found.busy_s.values())
    for end in ENDS:
        assert getattr(found.joules, end)[0] == pytest.approx(sum(getattr(band, end)[0] for band in found.joules_of.values()))


def test_streams_limit_the_bandwidth_and_narrow_weights_the_operations():
    lanes = {"a": {"kind": "expert", "bytes_frac": 0.8, "bytes_frac_per_stream": 0.1}}
    assert seconds("a", [read(1e6, streams=0.0)], lanes) == seconds("a", [read(1e6, streams=1.0)], lanes)
    few, many = (seconds("a", [read(1e6, streams=n)], lanes) for n in (2.0, 100.0))
    assert few == pytest.approx(4 * many)
    by_bits = {"a": {"kind": "expert", "ops_by_bits": True}}
    wide, narrow = (seconds("a", [read(1.0, 1e12, bits=bits)], by_bits) for bits in (16.0, 4.0))
    assert wide == pytest.approx(4 * narrow)


def test_refresh_follows_what_is_held_and_power_is_the_profiles():
    tier = replace(PHONE.tiers["dram"], refresh_j=PHONE.static_w, refresh_interval_s=PHONE.static_w)
    machine = replace(PHONE, tiers={**PHONE.tiers, "dram": tier})
    half = tier.capacity_bytes.value / 2
    energy = {"static_w": 2.0, "refresh": {"kv_home": {}}}
    of = made("a", {"a": {"kind": "expert"}}, energy=energy)
    for held, watts in (({"kv_home": half}, 2.0 + 0.5 * 1.0), ({}, 2.0)):
        found = clock(Work(n_steps=1, n_blocks=1, rows=(read(1e9),), held_bytes=held), machine, of)
        assert found.joules_of["background"].value[0] / found.seconds.value[0] == pytest.approx(watts)
    told = [not_counted({}, machine, of, held) for held in ((), ("kv_home",))]
    assert told == [["not counted: refresh of kv_home, which goes by what is held there"], []]


def test_background_is_told_by_what_draws_it_and_leakage_by_role():
    machine = load("kelle-edram")
    work = Work(n_steps=1, n_blocks=1, rows=(read(1e9),), held_bytes={"kv_cache": 2**21})
    some = {"leakage": ["stage", "kv_cache"], "refresh": {"kv_cache": {}}}
    for energy, leakage_w, refresh_w in (
        ({}, 0.2075 + 0.154 + 0.009625, 1.14e-3 / 1053.66e-6 + 7.125e-5 / 45e-6),
        (some, 0.2075 + 0.154, 0.57e-3 / 1053.66e-6),
    ):
        found = clock(work, machine, made("a", {"a": {"kind": "expert"}}, energy=energy))
        watts = {part: band.value[0] / found.seconds.value[0] for part, band in found.background_of.items()}
        assert watts == pytest.approx({"static": 1.956, "leakage": leakage_w, "refresh": refresh_w})
        assert found.joules_of["background"].value == pytest.approx(sum(band.value for band in found.background_of.values()))


def test_two_devices_halve_the_work_and_double_the_leakage():
    one = with_dram(leakage_w=exact(0.1, "made up"))
    two, watts = replace(one, n_devices=2), []
    for step, rows in (("a", [read(1e9)]), ("a", [read(1.0, 1e13)]), ("b", [fetch(1e9)])):
        assert seconds(step, rows, machine=two) == pytest.approx(seconds(step, rows, machine=one) / 2)
    for machine in (one, two):
        cost = clock(Work(n_steps=1, n_blocks=1, rows=(read(1e9),)), machine, made("a", TWO))
        watts.append(cost.joules_of["background"].value[0] / cost.seconds.value[0])
    assert watts[1] - watts[0] == pytest.approx(0.1)


def test_every_device_refreshes_what_it_holds():
    machine = replace(load("kelle-edram"), n_devices=2)
    capacity, full_w = machine.tiers["kv"].capacity_bytes.value, machine.tiers["kv"].refresh_w()
    energy = made("a", {"a": {"kind": "expert"}}, energy={"refresh": {"kv_cache": {}}})
    held = (0.5, 1.5, 3.0)  # of one device's tier
    watts = [background_w(machine, energy, held_bytes={"kv_cache": share * capacity})["refresh"] for share in held]
    assert watts == pytest.approx([0.5 * full_w, 1.5 * full_w, 2.0 * full_w])


def test_a_nominal_cost_is_that_of_the_band():
    work, of = Work(n_steps=1, n_blocks=1, rows=(read(1e6), fetch(1e5))), made("a + b", TWO)
    whole, nominal = clock(work, PHONE, of), clock(work, PHONE, of, ends=("value",))
    assert nominal.seconds.value == whole.seconds.value == nominal.seconds.low == nominal.seconds.high
    assert nominal.joules.value == whole.joules.value


def test_numbers_have_names_and_a_fit_finds_others(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\nstep = "partial(serial, a, b)"\n[numbers]\nserial = 0.25\n[lane]\na.kind = "expert"\nb.kind = "fetch"\n'
    )
    rows = (read(1e6), fetch(1e5))
    for serial, of in ((0.25, profile.load(str(own))), (0.5, profile.with_values(str(own), {"numbers.serial": 0.5}))):
        found = clock(Work(n_steps=1, n_blocks=1, rows=rows), PHONE, of).seconds.value[0]
        assert found == pytest.approx(1e5 * FETCH_S + serial * 1e6 * READ_S)
    assert profile.with_values(str(own), {"numbers.serial": 0.5}).sha256 != profile.load(str(own)).sha256
    with pytest.raises(BadSpec, match=r"own.toml: there is no lane.a.bytes_frac to be 0.5; known there: kind"):
        profile.with_values(str(own), {"lane.a.bytes_frac": 0.5})


def test_reads_next_to_a_memory_cost_what_the_engine_there_says():
    """In-memory compute spares the pins, at the favourable end; the xPU's reads of the same memory do not."""
    pim = load("elmoe3d-xpu-pim")
    own = replace(pim.engines["pim"], read_pj_per_bit=replace(pim.tiers["ext"].read_pj_per_bit, low=1.0))
    pim = replace(pim, engines={**pim.engines, "pim": own})
    for engine, number in (("near_compute", pim.engines["pim"].read_pj_per_bit), ("main", pim.tiers["ext"].read_pj_per_bit)):
        rows = (Rows(kind="expert", tier="expert_home", engine=engine, bytes=1e9),)
        spent = clock(Work(n_steps=1, n_blocks=1, rows=rows), pim, made("a", {"a": {"kind": "expert"}})).joules_of["tiers.ext"]
        assert (spent.value[0], spent.low[0], spent.high[0]) == pytest.approx(
            [8e-3 * end for end in (number.value, number.low, number.high)]
        )


@pytest.mark.parametrize(
    "step", ["a + (b | c)", "c + a | b", "2.0 * c + partial(0.5, a, b)", "layers(c | a) + b.bytes", "c.ops | a"]
)
def test_lanes_without_rows_take_no_time(step):
    """c has none: the step is as long as with rows of nothing in it."""
    lanes = {**TWO, "c": {"kind": "head"}}
    rows = [read(1e6, 1e3), fetch(1e5)]
    assert seconds(step, rows, lanes) == seconds(step, [*rows, read(0.0, kind="head")], lanes)


@pytest.mark.parametrize(
    ("data", "message"),
    json.loads((Path(__file__).parent / "bad_profiles.json").read_text()),
)
def test_what_cannot_be_read_is_refused_in_one_line(data, message):
    given = {"name": "x", "step": "a", "lane": TWO, **data}
    assert message in refuses("made up: ", profile.of_data, given, "made up", error=BadSpec)


def test_profiles_by_name_and_by_path(tmp_path):
    assert all(profile.load(name).name == name for name in profile.shipped())
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\nstep = "a"\n[lane.a]\nkind = "expert"\n')
    assert profile.load(str(own)).name == "own"
    refuses("did you mean slicemoe", profile.load, "slicemo", error=BadSpec)
    refuses("no such file", profile.load, str(tmp_path / "none.toml"), error=BadSpec)
    own.write_text("name = ")
    refuses("not TOML", profile.load, str(own), error=BadSpec)


def test_multiply_adds_and_fed_values_have_rates_of_their_own():
    array = load("kelle-edram")
    product = Rows(kind="proj", engine="main", ops=4.096e12)
    fed = Rows(kind="feed", engine="main", count=128e9)
    lanes = {"a": {"kind": "proj", "macs_only": True}, "b": {"kind": "feed"}}
    assert seconds("a + b", [product, fed], lanes, machine=array) == pytest.approx(1.0 + 1.0)
    assert seconds("a + b", [product], {**lanes, "a": {"kind": "proj"}}, machine=array) == pytest.approx(4.096 / 4.13)
    # a machine that tells neither: its own rate, and nothing
    ops_s = 4.096e12 / (PHONE.compute.ops_per_s[PHONE.dtype].value * PHONE.compute.efficiency_frac.value)
    assert seconds("a + b", [product, fed], lanes) == pytest.approx(ops_s)
