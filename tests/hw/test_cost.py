"""Hardware specs: every number sourced, bad files named; costs: units, monotony, bands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.cost import step_cost
from hw.spec import SPECS, BadSpec, load, shipped

PHONE = load("phone-lpddr5x-ufs4")


def cost(spec, fast, backing, fetches=0, ops=0.0, overlap=False):
    made = step_cost(spec, *(np.array([x], np.int64) for x in (fast, backing, fetches)), np.array([ops]), overlap)
    return {name: float(getattr(made, name)[0]) for name in made.__dataclass_fields__}


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_number_has_a_source(name):
    spec = load(name)
    assert spec.name == name
    assert len(spec.numbers()) >= 15
    assert all(number.source.strip() and number.low <= number.value <= number.high for _, number in spec.numbers())


def test_one_step_by_hand():
    """10 MB from LPDDR5X at 68.264 GB/s x .787, 1 MB from UFS at 4.2 GB/s x .8 plus one latency."""
    got = cost(PHONE, 10_000_000, 1_000_000, 1)
    seconds = 1e7 / (68.264e9 * 0.787) + 1e6 / (4.2e9 * 0.8) + 8e-5
    assert np.isclose(got["seconds"], seconds)
    assert np.isclose(got["joules"], 8e-12 * (1e7 * 8.0 + 1e6 * (38.0 + 8.0)) + 0.5 * seconds)
    assert cost(PHONE, 10_000_000, 1_000_000, 1, overlap=True)["seconds"] < got["seconds"]


@given(
    fast=st.integers(0, 10**11),
    backing=st.integers(0, 10**11),
    fetches=st.integers(0, 1000),
    ops=st.floats(0, 1e14),
    more=st.integers(1, 10**9),
)
@settings(max_examples=60, deadline=None)
def test_costs_never_fall_with_work_and_lie_in_their_band(fast, backing, fetches, ops, more):
    for name in shipped():
        spec = load(name)
        less = cost(spec, fast, backing, fetches, ops)
        for larger in (
            cost(spec, fast + more, backing, fetches, ops),
            cost(spec, fast, backing + more, fetches, ops),
            cost(spec, fast, backing, fetches, ops + more),
        ):
            assert larger["seconds"] >= less["seconds"]
            assert larger["joules"] >= less["joules"]
        for what in ("seconds", "joules"):
            assert 0 <= less[f"{what}_low"] <= less[what] <= less[f"{what}_high"]
            assert np.isfinite(less[f"{what}_high"])


SPEC_TEXT = (SPECS / "phone-lpddr5x-ufs4.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (', source = "assumed: a common phone configuration"', "", "tiers.dram: capacity_bytes has no source"),
        ('source = "assumed: a common phone configuration"', 'source = " "', "has no source"),
        ("capacity_bytes = { value = 12e9,", "capacity_bytes = { value = 0,", "must be above 0"),
        ("capacity_bytes = { value = 12e9,", "capacity_bytes = { value = nan,", "finite"),
        ("value = 0.5, low = 0.3, high = 0.8", "value = 0.5, low = 0.6, high = 0.8", "low <= value <= high"),
        ("value = 0.5, low = 0.3, high = 0.8", "value = 0.5, low = 0.3, high = 1.8", "exceeds 1"),
        ('fast = "dram"', 'fast = "vram"', "not one of the tiers"),
        ('dtype = "int8"', 'dtype = "int3"', "not in engine.ops_per_s"),
        ('kind = "dram"', 'kind = "dram"\nspeed = 3', "unknown key 'speed'"),
        ("[engine]", "[motor]", "engine"),
        ("value = 0.5, low = 0.3, high = 0.8", "value = 0.0, low = 0.0, high = 0.8", "must be above 0"),
        ("ops_per_s.int8 = {", "ops_per_s = 5 #", "table of numbers by dtype"),
        ("[tiers.dram]", "[tiers]\nx = 5\n[tiers.dram]", "tiers.x must be a table"),
        ('title = "phone', 'titel = "phone', "unknown key 'titel'"),
        ("static_w = {", "static_w = [", "not TOML"),
    ],
)
def test_bad_files_are_named(old, new, message, tmp_path):
    assert old in SPEC_TEXT
    path = tmp_path / "mine.toml"
    path.write_text(SPEC_TEXT.replace(old, new, 1))
    with pytest.raises(BadSpec, match=message) as caught:
        load(str(path))
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_file_loads_and_a_typo_gets_the_nearest_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SPEC_TEXT.replace('name = "phone-lpddr5x-ufs4"', 'name = "mine"'))
    assert load(str(path)).name == "mine"
    with pytest.raises(BadSpec, match="did you mean phone-lpddr5x-ufs4"):
        load("phone-lpddr5-ufs4")
    with pytest.raises(BadSpec, match="no such hardware file"):
        load(str(tmp_path / "absent.toml"))
