"""Machines as people read them: values keep their size through units and prefixes, differences are complete."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentape.hw import catalogue
from tokentape.hw.spec import load, shipped

PREFIXES = {"p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parsed(text: str, unit: str) -> float:
    """A shown quantity back in the key's own unit."""
    number, _, shown = text.partition(" ")
    if shown in BINARY:
        return float(number) * BINARY[shown]
    prefix = re.fullmatch(rf"([pnumkMGTP]?){re.escape(unit)}", shown)
    assert prefix, (text, unit)
    return float(number) * PREFIXES[prefix[1]]


@given(
    st.sampled_from(["capacity_bytes", "peak_bytes_per_s", "latency_s", "ops_per_s.bf16", "static_w", "refresh_j", "clock_hz"]),
    st.floats(1e-9, 1e15),
)
def test_units_survive_a_round_trip(key, value):
    assert parsed(catalogue.readable(key, value), catalogue.unit(key)) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("name", shipped())
def test_every_number_of_every_machine_survives_it(name):
    for key, number in load(name).numbers():
        unit = catalogue.unit(key)
        shown = catalogue.readable(key, number.value)
        back = float(shown) if unit == "1" else parsed(shown, unit) if number.value else 0.0
        assert back == pytest.approx(number.value, rel=1e-3), (key, shown)


def differing(a, b):
    return {key: (x, y) for key, x, y in catalogue.differences(a, b)}


def test_differences_are_all_that_differs():
    a, b = load("a100"), load("h100")
    found = differing(a, b)
    assert found["engines.sm.n_units"] == ("108", "132")
    assert found["engines.sm.ops_per_s.fp8"] == ("", "1.979 Pop/s")
    assert found["engines.sm.efficiency_frac"] == ("0.6 (0.278 to 0.85)", "0.6 (0.396 to 0.8)")
    assert "links.nvlink.efficiency_frac" not in found  # value, band and source are equal
    assert not {"name", "title", "sha256"} & set(found)
    assert catalogue.differences(a, a) == []
    assert all(x != y for x, y in found.values())
    of_a, of_b = (dict(machine.numbers()) for machine in (a, b))
    assert {key for key in of_a | of_b if of_a.get(key) != of_b.get(key)} <= set(found)


def test_differences_of_counts_texts_bands_and_sources(tmp_path: Path):
    h100 = load("h100")
    assert differing(h100, load("h100x2"))["n_devices"] == ("1", "2")
    mine = tmp_path / "mine.toml"
    mine.write_text("""
base = "h100"
name = "mine"
dtype = "fp8"
max_w = { value = 700, low = 600, high = 800, source = "cap" }
idle_w = { value = 70.0001, source = "cap" }
[tiers.l2]
capacity_bytes = { value = 52428800, source = "label" }
[tiers.spare]
kind = "dram"
capacity_bytes = { value = 1e9, source = "label" }
peak_bytes_per_s = { value = 1e9, source = "label" }
efficiency_frac = { value = 0.5, source = "label" }
latency_s = { value = 1e-6, source = "label" }
read_pj_per_bit = { value = 1, source = "label" }
write_pj_per_bit = { value = 1, source = "label" }
""")
    other = tmp_path / "other.toml"
    other.write_text('base = "mine.toml"\nname = "other"\nidle_w = { value = 70.0002, source = "cap" }\n')
    found = differing(h100, load(str(mine)))
    assert found["dtype"] == ("bf16", "fp8")
    assert found["max_w"] == ("700 W (no band)", "700 W (600 W to 800 W)")
    assert found["tiers.l2.capacity_bytes"][1] == "50 MiB (no band): label"
    assert found["tiers.spare.kind"] == ("", "dram")
    assert "tiers.spare.timing" not in found  # empty there, absent here
    exact = ("70.0001 (70.0001 to 70.0001)", "70.0002 (70.0002 to 70.0002)")
    assert differing(load(str(mine)), load(str(other))) == {"idle_w": exact}
