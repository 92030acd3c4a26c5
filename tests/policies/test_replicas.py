"""Levels of 1 to 4 bit replicas: errors on Gaussian weights, short groups, numpy against torch, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tokentape.policies.replicas import WIDTHS, levels

# Relative squared error of round to nearest on Gaussian weights, groups of 128: CXL-NDP, section 4.4 of its specification.
GOLDEN = {1: 0.361, 2: 0.248, 3: 0.0459, 4: 0.0099}
matrices = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 20)),
    elements=st.floats(-50, 50, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3),
)


def relative_error(w, bits, group=128):
    return float(((levels(w, bits, group).nearest(w) - w) ** 2).sum() / (w**2).sum())


@pytest.mark.parametrize("bits", WIDTHS)
def test_errors_on_gaussian_weights(bits):
    w = np.random.default_rng(0).standard_normal((4096, 128), dtype=np.float32)
    assert relative_error(w, bits) == pytest.approx(GOLDEN[bits], rel=0.015)


def test_one_bit_tends_to_its_theory_and_equal_weights_stay():
    w = np.random.default_rng(1).standard_normal((256, 8192), dtype=np.float32)
    assert relative_error(w, 1, group=8192) == pytest.approx(1 - 2 / np.pi, abs=2e-3)
    for w in (np.full((2, 6), 1.5, np.float32), np.zeros((2, 6), np.float32)):
        for bits in WIDTHS:
            np.testing.assert_allclose(levels(w, bits, 4).nearest(w), w, atol=1e-6)


@given(w=matrices, bits=st.sampled_from(WIDTHS), group=st.integers(1, 7))
def test_each_group_has_its_own_levels_and_every_weight_the_nearest(w, bits, group):
    """Against a loop over groups that lists the levels."""
    found = levels(w, bits, group).nearest(w)
    for row in range(len(w)):
        for start in range(0, w.shape[1], group):
            part = w[row, start : start + group]
            if bits == 1:
                scale = np.float32(np.float16(np.abs(part).mean()))
                low, step = -scale, 2 * scale
            else:
                low = np.float32(np.float16(part.min()))
                step = np.float32(np.float16((part.max() - low) / np.float32(2**bits - 1)))
            there = low + np.maximum(step, np.float32(2**-24)) * np.arange(2**bits, dtype=np.float32)
            off = np.abs(there[None] - part[:, None]).min(axis=1)
            np.testing.assert_allclose(np.abs(found[row, start : start + group] - part), off, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bits", WIDTHS)
def test_columns_one_by_one_are_the_columns_together_and_torch_says_the_same(bits):
    w = np.random.default_rng(2).standard_normal((5, 23), dtype=np.float32)
    of = levels(w, bits, 8)
    whole = of.nearest(w)
    for j in range(23):
        np.testing.assert_array_equal(of.nearest(w[:, j : j + 1], j), whole[:, j : j + 1])
    tensor = torch.from_numpy(w)
    np.testing.assert_array_equal(levels(tensor, bits, 8).nearest(tensor).numpy(), whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: levels(np.ones((2, 4), np.float32), 5), "a replica has 1 to 4 bits .* got 5 bits in groups of 128"),
        (lambda: levels(np.ones((2, 4), np.float32), 2, 0), "groups of at least 1 weight, got 2 bits in groups of 0"),
        (lambda: levels(np.full((2, 4), np.nan, np.float32), 2), "weights must be finite and below 65504"),
        (lambda: levels(np.full((2, 4), 1e6, np.float32), 1), "weights must be finite and below 65504"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
