"""Refresh power: goldens of the notes on Kelle, limits, and what fails loudly."""

from __future__ import annotations

from statistics import mean

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tokentape.hw.refresh import harmonic_mean_s, refresh_w

GROUPS = {"HST-MSB": 360e-6, "HST-LSB": 5400e-6, "LST-MSB": 1440e-6, "LST-LSB": 7200e-6}
DEFAULT = list(GROUPS.values())
J_PER_BYTE = 1.14e-3 / 2**22


@pytest.mark.parametrize(
    ("of_us", "mean_us"),
    [((360, 5400, 1440, 7200), 1053.66), ((180, 3600, 720, 5400), 540.00), ((720, 9000, 2880, 10800), 2062.05)],
)
def test_the_papers_averages_are_harmonic_means(of_us, mean_us):
    assert 1e6 * harmonic_mean_s([1e-6 * us for us in of_us]) == pytest.approx(mean_us, abs=0.005)
    assert mean(of_us) > 2 * mean_us, "an arithmetic mean is another number: 3600 us for the default"


def test_four_equal_groups_draw_what_one_interval_of_their_harmonic_mean_draws():
    bytes_of = dict.fromkeys(GROUPS, 2**20)
    watts = refresh_w(J_PER_BYTE, bytes_of, GROUPS)
    assert watts == pytest.approx(1.082, abs=5e-4)
    assert watts == pytest.approx(refresh_w(J_PER_BYTE, {"all": 2**22}, {"all": harmonic_mean_s(DEFAULT)}))
    assert refresh_w(J_PER_BYTE, {"all": 2**22}, {"all": 45e-6}) == pytest.approx(25.33, abs=5e-3)


@given(st.dictionaries(st.sampled_from(sorted(GROUPS)), st.floats(0, 2**20)), st.sampled_from(sorted(GROUPS)), st.floats(1, 10))
def test_power_is_linear_in_bytes_and_never_rises_with_an_interval(bytes_of, group, factor):
    watts = refresh_w(J_PER_BYTE, bytes_of, GROUPS)
    assert refresh_w(J_PER_BYTE, {g: 2 * n for g, n in bytes_of.items()}, GROUPS) == pytest.approx(2 * watts)
    assert refresh_w(J_PER_BYTE, bytes_of, GROUPS | {group: factor * GROUPS[group]}) <= watts


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="above 0"):
        harmonic_mean_s([1e-3, 0.0])
