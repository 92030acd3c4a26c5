"""The fitter shared by all operators: finds known constants, gives the same twice, names bad input, resists outliers."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tokentape.hw.operators import Gpu, Parameter
from tokentape.hw.operators.fit import fit

GPU = Gpu(
    n_sms=100, clock_hz=1e9, peak_ops_per_s=1e14, peak_bytes_per_s=1e12, l2_bytes=1e7, smem_bytes_per_sm=1e5, capability=8.0
)
TRUTH = np.array([8e-6, 0.55])
TOY = SimpleNamespace(
    name="toy",
    parameters=(
        Parameter("launch_s", "s", 1e-6, 0.0, 1e-4, "launch"),
        Parameter("e_memory", "frac", 0.9, 0.1, 1.0, "share of the bandwidth"),
    ),
    seconds=lambda gpu, constants, shapes: constants[0] + shapes["moved_bytes"] / (gpu.peak_bytes_per_s * constants[1]),
)


def rows(n=400):
    shapes = {"moved_bytes": np.geomspace(1e3, 1e10, n)}
    return shapes, TOY.seconds(GPU, TRUTH, shapes)


def test_known_constants_come_back_the_same_whatever_outliers_there_are():
    assert np.allclose(fit(TOY, GPU, *rows()), TRUTH, rtol=0.01)
    shapes, measured = rows()
    noisy = measured * np.exp(np.random.default_rng(3).normal(0, 0.1, len(measured)))
    assert np.array_equal(fit(TOY, GPU, shapes, noisy), fit(TOY, GPU, shapes, noisy))
    shapes, measured = rows()
    measured[::20] *= 10
    assert np.allclose(fit(TOY, GPU, shapes, measured), TRUTH, rtol=0.02)


def test_more_rows_than_the_samples_are_all_used():
    """Half of 12,000 rows are 20 % faster: the sum of percentage errors is smallest between, never beyond either half."""
    shapes, measured = rows(12_000)
    measured[1::2] *= 0.8
    found = fit(TOY, GPU, shapes, measured)
    assert TRUTH[0] * 0.78 < found[0] < TRUTH[0] * 1.02
    assert TRUTH[1] * 0.98 < found[1] < TRUTH[1] / 0.78


def test_a_constant_may_end_at_zero():
    shapes = {"moved_bytes": np.geomspace(1e3, 1e10, 400)}
    found = fit(TOY, GPU, shapes, TOY.seconds(GPU, np.array([0.0, 0.55]), shapes))
    assert found[0] < 1e-11
    assert found[1] == pytest.approx(0.55, rel=0.01)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda shapes, measured: (shapes, measured[:-1]), "moved_bytes has 400 rows, measurements have 399"),
        (lambda shapes, measured: (shapes, np.where(np.arange(400) == 7, 0, measured)), "measurement 7 is 0.0 s"),
        (lambda shapes, measured: (shapes, np.where(np.arange(400) == 9, np.nan, measured)), "measurement 9 is nan s"),
    ],
)
def test_bad_input_is_named(spoil, message):
    with pytest.raises(ValueError, match=message):
        fit(TOY, GPU, *spoil(*rows()))


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=r"tokentape\[calibrate\]"):
        fit(TOY, GPU, *rows())
