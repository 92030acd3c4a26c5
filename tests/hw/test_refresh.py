"""Refresh power and retention: goldens of the notes on Kelle, limits, and what fails loudly."""

from __future__ import annotations

from statistics import mean

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hw.refresh import Retention, fitted, harmonic_mean_s, refresh_w

GROUPS = {"HST-MSB": 360e-6, "HST-LSB": 5400e-6, "LST-MSB": 1440e-6, "LST-LSB": 7200e-6}
DEFAULT = list(GROUPS.values())
J_PER_BYTE = 1.14e-3 / 2**22
intervals = st.lists(st.floats(1e-5, 1e-1), min_size=4, max_size=4)


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


def test_the_default_curve_has_the_failures_of_the_notes():
    curve = fitted(2.0e-3, DEFAULT)
    assert curve.sigma == pytest.approx(2.681, abs=1e-3)
    golden = {45: 3.0e-6, 131: 1.8e-5, 360: 8.8e-5, 540: 1.6e-4, 1050: 4.0e-4, 1440: 6.1e-4, 2062: 9.7e-4, 5400: 3.1e-3}
    assert {us: float(f"{curve.failure_frac(1e-6 * us):.1e}") for us in golden} == golden
    assert curve.mean_failure_frac(DEFAULT) == pytest.approx(2.0e-3)


@pytest.mark.parametrize(("anchor", "sigma"), [(1e-7, 1.952), (1e-6, 2.379), (1e-5, 3.144)])
def test_other_anchors_give_other_widths(anchor, sigma):
    assert fitted(2.0e-3, DEFAULT, anchor).sigma == pytest.approx(sigma, abs=1e-3)


@given(st.floats(0.5, 5.0), intervals, st.floats(1.01, 10.0))
def test_failures_rise_with_time_and_stop_at_a_half(sigma, of, factor):
    curve = Retention(sigma)
    for interval in of:
        assert curve.failure_frac(interval) <= curve.failure_frac(factor * interval) <= 0.5
    assert curve.failure_frac(1e9) == 0.5


@given(st.floats(1.0, 4.0), st.floats(1e-5, 0.4))
def test_an_interval_gives_its_failures_back(sigma, frac):
    curve = Retention(sigma)
    assert curve.failure_frac(curve.interval_s(frac)) == pytest.approx(frac, rel=1e-6)


def test_equal_power_is_not_equal_failures():
    """The paper matches averages; under a convex curve the two readings of that are far apart."""
    curve = fitted(2.0e-3, DEFAULT)
    assert curve.failure_frac(harmonic_mean_s(DEFAULT)) < 0.25 * curve.mean_failure_frac(DEFAULT)
    assert curve.interval_s(2.0e-3) > 3 * harmonic_mean_s(DEFAULT)


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="above 0"):
        harmonic_mean_s([1e-3, 0.0])
    with pytest.raises(ValueError, match="above 0"):
        Retention(2.0).failure_frac(0.0)
    with pytest.raises(ValueError, match="sigma"):
        Retention(-1.0)
    with pytest.raises(ValueError, match="reaches"):
        Retention(2.0).interval_s(0.6)
    with pytest.raises(ValueError, match="no retention curve"):
        fitted(0.49, [1e-6])
