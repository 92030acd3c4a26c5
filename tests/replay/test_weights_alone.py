"""Costs of steps: by hand, SliceMoE's operating points, conservation, monotony, bands, and power that no machine draws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.hw import profile
from tokentape.hw.clock import clock, power_findings
from tokentape.hw.sourced import exact
from tokentape.hw.spec import Link, load, shipped
from tokentape.hw.work import Rows, Work
from tokentape.replay.passes import joules_of

PHONE = load("phone-lpddr5x-ufs4")
MACHINES = [load(name) for name in shipped()]


def cost(spec, fast, backing, fetches=0, ops=0.0, overlap=False):
    """seconds, joules and parts of one step as numbers; their bands as *_low, *_high."""
    near = "expert_cache" if spec.roles.expert_cache else "expert_home"
    rows = [Rows(kind="expert", tier=near, engine="main", bytes=float(fast), ops=float(ops))]
    if spec.roles.expert_cache:
        kind = "prefetch" if overlap else "fetch"
        rows.append(Rows(kind=kind, tier="expert_home", target="expert_cache", bytes=float(backing), count=float(fetches)))
    made = clock(Work(n_steps=1, n_blocks=1, rows=tuple(rows)), spec, profile.load("slicemoe"))
    bands = {"seconds": made.seconds, "joules": made.joules, **joules_of(made, spec)}
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {name + suffix: float(getattr(band, end)[0]) for name, band in bands.items() for suffix, end in ends.items()}


def test_one_step_by_hand():
    """10 MB from LPDDR5X at 68.264 GB/s x .787, 1 MB from UFS at 4.2 GB/s x .8 plus one latency."""
    got = cost(PHONE, 10_000_000, 1_000_000, 1)
    seconds = 1e7 / (68.264e9 * 0.787) + 1e6 / (4.2e9 * 0.8) + 8e-5
    assert np.isclose(got["seconds"], seconds)
    assert np.isclose(got["joules"], 8e-12 * (1e7 * 8.0 + 1e6 * (38.0 + 8.0)) + 0.5 * seconds)


@pytest.mark.parametrize(("fast", "backing"), [(10**7, 10**6), (10**9, 10**6)])
def test_overlapped_fetches_and_reads_take_as_long_as_the_longer(fast, backing):
    read_s, fetch_s = cost(PHONE, fast, 0)["seconds"], backing / (4.2e9 * 0.8) + 3 * 8e-5
    assert (read_s < fetch_s) == (fast == 10**7)
    assert cost(PHONE, fast, backing, 3, overlap=True)["seconds"] == pytest.approx(max(read_s, fetch_s))
    assert cost(PHONE, fast, backing, 3)["seconds"] == pytest.approx(read_s + fetch_s)


def test_a_fetch_pays_its_read_the_link_and_the_write():
    """38 pJ to read a bit of flash, 5 on a link, 11 to write it to DRAM, where reading takes 8: made up to differ."""
    dram = replace(PHONE.tiers["dram"], write_pj_per_bit=exact(11.0, "made up"))
    numbers = {"peak_bytes_per_s": 2e9, "efficiency_frac": 0.5, "latency_s": 1e-3, "energy_pj_per_bit": 5.0}
    link = Link(source_tier=PHONE.backing, target_tier=PHONE.fast, **{k: exact(v, "made up") for k, v in numbers.items()})
    spec = replace(PHONE, tiers={**PHONE.tiers, "dram": dram}, links={"made up": link})
    got = cost(spec, 0, 10**6, 2)
    assert got["seconds"] == pytest.approx(1e6 / 1e9 + 2 * (8e-5 + 1e-3))  # the link at half of 2 GB/s is the slower one
    assert got["fast"] == pytest.approx(8e-6 * 11.0)
    assert got["backing"] == pytest.approx(8e-6 * 38.0)
    assert got["link"] == pytest.approx(8e-6 * 5.0)
    assert got["joules"] == pytest.approx(8e-6 * (11.0 + 38.0 + 5.0) + 0.5 * got["seconds"])


@given(
    fast=st.integers(0, 10**11),
    backing=st.integers(0, 10**11),
    fetches=st.integers(0, 1000),
    ops=st.floats(0, 1e14),
    more=st.integers(1, 10**9),
)
@settings(max_examples=15, deadline=None)
def test_costs_never_fall_with_work_and_lie_in_their_band(fast, backing, fetches, ops, more):
    for spec in MACHINES:
        has_cache = bool(spec.roles.expert_cache)
        backing, fetches = backing * has_cache, fetches * has_cache
        less = cost(spec, fast, backing, fetches, ops)
        for larger in (
            cost(spec, fast + more, backing, fetches, ops),
            cost(spec, fast, backing + more * has_cache, fetches, ops),
            cost(spec, fast, backing, fetches, ops + more),
        ):
            assert larger["seconds"] >= less["seconds"]
            assert larger["joules"] >= less["joules"]
        for what in ("seconds", "joules"):
            assert 0 <= less[f"{what}_low"] <= less[what] <= less[f"{what}_high"]
            assert np.isfinite(less[f"{what}_high"])


def test_two_devices_halve_the_work_and_double_the_leakage():
    leaky = replace(PHONE.tiers["dram"], leakage_w=exact(0.1, "made up"))
    one = replace(PHONE, tiers={**PHONE.tiers, "dram": leaky})
    two = replace(one, n_devices=2)
    assert cost(two, 10**9, 0)["seconds"] == pytest.approx(cost(one, 10**9, 0)["seconds"] / 2)
    one_w, two_w = (got["background"] / got["seconds"] for got in (cost(one, 10**9, 0), cost(two, 10**9, 0)))
    assert two_w - one_w == pytest.approx(0.1)
    fetch_s = [cost(machine, 0, 10**9)["seconds"] for machine in (one, two)]
    assert fetch_s == pytest.approx([1e9 / (4.2e9 * 0.8), 0.5e9 / (4.2e9 * 0.8)])


def pj_per_bit(spec):
    return cost(spec, 10**9, 0)["fast"] / 8e9 * 1e12


def test_opened_rows_are_paid_for_and_impossible_power_is_named():
    tier = PHONE.tiers["dram"]
    opened = replace(tier, activate_nj=exact(2.0, "made up"), row_bytes=exact(2048.0, "made up"))
    spec = replace(PHONE, tiers={**PHONE.tiers, "dram": opened})
    assert pj_per_bit(spec) - pj_per_bit(PHONE) == pytest.approx(2.0e3 / (8 * 2048))
    for only in ({"activate_nj": opened.activate_nj}, {"row_bytes": opened.row_bytes}):  # apart from the read only where both are
        half = replace(PHONE, tiers={**PHONE.tiers, "dram": replace(tier, **only)})
        assert pj_per_bit(half) == pj_per_bit(PHONE)
    spec = replace(PHONE, idle_w=exact(0.4, "made up"))
    assert power_findings(spec, 3.0) == []
    assert "above" in power_findings(spec, 11.0)[0]
    assert "below" in power_findings(spec, 0.3)[0]
    assert power_findings(spec, spec.idle_w.low) == power_findings(spec, spec.max_w.high) == []
