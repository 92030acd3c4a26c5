"""Refresh intervals, the retention curve, bit flips and 4-bit storage: golden values, counts and inverses."""

import numpy as np
import pytest
import torch
from refusing import refuses

from tokentape.policies.kv.refresh import CURVE, BitRates, Intervals, RetentionCurve
from tokentape.policies.kv.storage import QuaRot, flip_masks, from_fixed, from_half, hadamard, rates_by_bit, to_fixed, to_half
from tokentape.policies.quantise import dequantise, quantise

# The sets of Kelle Table 4: the stated averages are harmonic means.
SETS = {1053.66: Intervals(), 540.00: Intervals(180, 3600, 720, 5400), 2062.05: Intervals(720, 9000, 2880, 10800)}


def test_the_average_interval_is_the_harmonic_mean_and_equal_rates_are_another():
    for mean, intervals in SETS.items():
        assert intervals.harmonic_mean_us == pytest.approx(mean, abs=5e-3)
    assert sum(Intervals().all_us) / 4 == 3600  # the arithmetic mean is another number
    assert Intervals.uniform(1050).harmonic_mean_us == pytest.approx(1050)
    curve, ours = CURVE, Intervals()
    by_rate_us = curve.interval_at(curve.mean_failure(ours.all_us))
    assert curve.failure_frac(ours.harmonic_mean_us) == pytest.approx(4.0e-4, rel=0.02)
    assert by_rate_us > 3 * ours.harmonic_mean_us


@pytest.mark.parametrize(
    ("interval_us", "failure"),
    [(45, 3.0e-6), (131, 1.8e-5), (360, 8.8e-5), (540, 1.6e-4), (1050, 4.0e-4), (1440, 6.1e-4), (2062, 9.7e-4), (5400, 3.1e-3),
     (7200, 4.2e-3)],
)  # fmt: skip
def test_the_retention_table(interval_us, failure):
    assert float(f"{CURVE.failure_frac(interval_us):.1e}") == pytest.approx(failure, rel=1e-9)


def test_sigma_follows_from_the_two_anchors():
    assert RetentionCurve.anchored().sigma == pytest.approx(2.681, abs=2e-3)
    sigmas = [RetentionCurve.anchored(failure).sigma for failure in (1e-7, 1e-6, 3e-6, 1e-5)]
    assert sigmas == pytest.approx([1.952, 2.379, 2.681, 3.144], abs=2e-3)
    assert CURVE.mean_failure(Intervals().all_us) == pytest.approx(2.0e-3)
    refuses("no curve", RetentionCurve.anchored, 1e-3, 1e-4)


def test_the_curve_is_monotone_clipped_and_inverted():
    curve = CURVE
    failures = [curve.failure_frac(10.0**e) for e in range(-1, 12)]
    assert failures == sorted(failures)
    assert failures[-1] == 0.5
    assert curve.interval_at(curve.failure_frac(777.0)) == pytest.approx(777.0)
    for wrong in (0.0, -1.0, float("nan")):
        refuses("above 0", curve.failure_frac, wrong)
    refuses("sigma", RetentionCurve, -1.0)
    refuses("between 0", curve.interval_at, 0.6)
    refuses("lst_msb_us", Intervals, lst_msb_us=0)
    refuses("hst_lsb", BitRates, hst_lsb=0.6)


def test_flip_counts_lie_within_four_sigma_of_every_bit():
    rates = BitRates(hst_msb=1e-3, hst_lsb=5e-3, lst_msb=2e-2, lst_lsb=0.1)
    by_bit, n = rates_by_bit(rates), 200_000
    masks = flip_masks((n,), by_bit, np.random.default_rng(0))
    for mask, of_bit in zip(masks, by_bit, strict=True):
        for bit, rate in enumerate(of_bit):
            count = ((mask.view(np.uint16) >> bit) & 1).sum()
            assert abs(count - n * rate) <= 4 * np.sqrt(n * rate * (1 - rate))
    assert not (masks[0] & ~masks[1]).any()  # a higher rate flips what the lower one did, and more
    spared, lost = flip_masks((n,), rates_by_bit(BitRates(lst_msb=2e-2)), np.random.default_rng(0)).view(np.uint16)
    assert not spared.any()
    assert np.bitwise_or.reduce(lost) == 0xFF00


def test_rare_losses_are_as_rare_as_told():
    """Single precision draws nothing between 0 and 2^-24: sixty times as many bits would be lost."""
    masks = flip_masks((2**22,), rates_by_bit(BitRates.uniform(1e-9))[:1], np.random.default_rng(0))
    assert np.count_nonzero(masks) <= 1


def test_masks_twice_are_nothing_and_rate_zero_is_exact():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 50)).astype(np.float32)
    scale = np.float32(np.abs(x).max() / 32767)
    words = to_fixed(x, scale)
    mask = flip_masks(words.shape, rates_by_bit(BitRates.uniform(0.3)), rng)[0]
    assert (words ^ mask ^ mask == words).all()
    assert (words ^ mask != words).any()
    none = flip_masks(words.shape, rates_by_bit(BitRates()), rng)
    assert not none.any()
    assert (from_fixed(words ^ none[0], scale) == from_fixed(words, scale)).all()
    assert np.abs(from_fixed(words, scale) - x).max() <= scale / 2 * 1.01


def test_fixed_point_saturates_and_halves_are_never_nan_or_infinite():
    scale = np.float32(1.0)
    for twos in (False, True):
        words = to_fixed(np.array([1e9, -1e9, 5.0, -7.0, 0.0]), scale, twos)
        assert from_fixed(words, scale, twos).tolist() == [32767.0, -32767.0, 5.0, -7.0, 0.0]
        assert (words.view(np.uint16) >> 15).tolist() == [0, 1, 0, 1, 0]
    five = np.array([5], np.int16)
    assert from_fixed(five ^ np.int16(-32768), scale).tolist() == [-5.0]
    assert from_fixed(five ^ np.int16(-32768), scale, twos=True).tolist() == [-32763.0]
    assert from_half(to_half(np.array([1.5, -2.0, 1e9]))).tolist() == [1.5, -2.0, 65504.0]
    words = np.array([0x7C00, 0xFC00, 0x7E00], np.uint16).view(np.int16)
    assert from_half(words).tolist() == [65504.0, -65504.0, 0.0]


@pytest.mark.parametrize("n", [1, 2, 8, 32, 24, 96, 128])
def test_hadamard_is_orthonormal_and_its_own_inverse(n):
    x = np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)
    rotated = hadamard(x)
    assert np.allclose(hadamard(rotated), x, atol=1e-5)
    assert np.allclose((rotated**2).sum(1), (x**2).sum(1), rtol=1e-4)
    assert torch.equal(hadamard(torch.from_numpy(x)), torch.from_numpy(rotated))


def test_rotation_saves_four_bits_from_outliers():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 64)).astype(np.float32)
    x[:, 3] *= 30  # one channel of a head stands out, as keys' do
    plain, rotated = dequantise(quantise(x, 4, 64)), QuaRot().stored(x)
    assert ((rotated - x) ** 2).mean() < 0.7 * ((plain - x) ** 2).mean()
    assert np.abs(QuaRot(8).stored(x) - x).mean() < np.abs(rotated - x).mean() / 10
    assert QuaRot().bits_per_value(64) == pytest.approx(4 + 20 / 64)
    refuses(r"1\.\.8", QuaRot, 9)
