"""Machines as people read them: values keep their size through units and prefixes, differences are complete."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw import catalogue
from hw.spec import load, shipped

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


def test_differences_are_those_of_the_numbers():
    a, b = load("a100"), load("h100")
    found = dict((key, (x, y)) for key, x, y in catalogue.differences(a, b))  # noqa: C402
    assert found["engines.sm.n_units"] == ("108", "132")
    assert "tiers.hbm.capacity_bytes" not in found  # both 80 GB
    assert catalogue.differences(a, a) == []
    assert found["engines.sm.ops_per_s.fp8"] == ("", "1.979 Pop/s")
    of_a, of_b = ({key: number.value for key, number in machine.numbers()} for machine in (a, b))
    assert set(found) == {key for key in of_a | of_b if of_a.get(key) != of_b.get(key)}
