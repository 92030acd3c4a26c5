"""Intervals of refresh: goldens of the notes on Kelle, and what fails loudly."""

from __future__ import annotations

from statistics import mean

import pytest

from tokentape.hw.refresh import harmonic_mean_s


@pytest.mark.parametrize(
    ("of_us", "mean_us"),
    [((360, 5400, 1440, 7200), 1053.66), ((180, 3600, 720, 5400), 540.00), ((720, 9000, 2880, 10800), 2062.05)],
)
def test_the_papers_averages_are_harmonic_means(of_us, mean_us):
    assert 1e6 * harmonic_mean_s([1e-6 * us for us in of_us]) == pytest.approx(mean_us, abs=0.005)
    assert mean(of_us) > 2 * mean_us, "an arithmetic mean is another number: 3600 us for the default"


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="above 0"):
        harmonic_mean_s([1e-3, 0.0])
