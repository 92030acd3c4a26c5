"""Quantisation and slices against the specification's numbers, a scalar loop, torch, and where a scheme must fail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusing import refuses

from tokentape.policies.matryoshka import MAT, SCHEMES, approximate, low, named, split
from tokentape.policies.quantise import Quantised, dequantise, quantise

EXAMPLE = np.array([-0.3, 0.0, 0.5, 1.0], np.float32)
PAIRS = (MAT(4, 2), MAT(6, 3), MAT(8, 4))

# Relative MSE of a unit Gaussian in groups of 32, MAT42 and MAT84: SliceMoE specification, section 4.1, measured.
GAUSSIAN = {
    "base_asym": (0.164, 0.00652),
    "amat": (0.217, 0.0122),
    "amat_mid": (0.107, 0.00633),
    "trunc_asym": (46.5, 1031),
    "trunc_asym_floor": (0.283, 0.0216),
    "base_sym": (0.435, 0.00944),
    "lsb_aug": (0.182, 0.00797),
    "round_sym": (0.200, 0.00878),
    "trunc_sym": (0.425, 0.0278),
    "trunc_sym_unscaled": (0.597, 0.880),
}
# The same of another source, 8 bits to 4, 3 and 2, Gaussian then Laplace: ELMoE-3D specification, section 8, about 2 %.
EIGHT_BITS = {
    "trunc_sym": (0.0279, 0.117, 0.478, 0.0441, 0.187, 0.784),
    "round_sym": (0.0088, 0.0362, 0.154, 0.0137, 0.0539, 0.203),
    "lsb_aug": (0.0079, 0.0318, 0.127, 0.0127, 0.0530, 0.236),
    "base_sym": (0.0094, 0.0513, 0.432, 0.0146, 0.0748, 0.429),
    "amat": (0.0121, 0.0490, 0.207, 0.0166, 0.0660, 0.255),
}
BY_ERROR = ("amat_mid", "base_asym", "amat", "trunc_asym_floor", "trunc_sym", "trunc_asym")  # least first


def relative_mse(w: np.ndarray, pair: MAT, scheme: str) -> float:
    error = approximate(w, pair, scheme).astype(np.float64) - w
    return float((error**2).sum() / (w.astype(np.float64) ** 2).sum())


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    """Rows of 96: Gaussian, heavy-tailed, two-sided exponential, and the experts of the model that ships."""
    from tokentape.capture.checkpoint import pieces, stored_tensors

    rng = np.random.default_rng(4)
    shape = (8_192, 96)
    experts = [t for t in stored_tensors("embedded") if ".experts." in t.name]
    learned = [piece.reshape(-1, 32) for t in experts for piece in pieces(t, False, 1 << 20)][::3]
    return {
        "gaussian": rng.standard_normal(shape).astype(np.float32),
        "student-t": rng.standard_t(4, shape).astype(np.float32),
        "laplace": rng.laplace(size=shape).astype(np.float32),
        "embedded": np.concatenate(learned),
    }


def test_the_example_of_the_specification() -> None:
    q = quantise(EXAMPLE, 4, group=4)
    assert q.codes.tolist() == [0, 3, 9, 15]
    assert q.zero_point is not None
    assert q.zero_point.tolist() == [3]
    assert q.scale == pytest.approx([0.0866667], abs=1e-7)
    assert dequantise(q) == pytest.approx([-0.26, 0, 0.52, 1.04], abs=1e-6)
    msb, lsb = split(q, 2)
    assert msb.tolist() == [0, 0, 2, 3]
    assert lsb.tolist() == [0, 3, 1, 3]
    assert low(q, 2, "amat") == pytest.approx([0, 0, 0.693333, 1.04], abs=1e-6)
    assert low(q, 2, "amat_mid") == pytest.approx([-0.13, -0.13, 0.563333, 0.91], abs=1e-6)
    assert low(q, 2, "trunc_asym") == pytest.approx([-1.04, -1.04, -0.346667, 0], abs=1e-6)


@pytest.mark.parametrize("high", range(1, 9))
def test_slices_make_the_codes_again_bit_for_bit(high: int) -> None:
    """Of every code."""
    n, one = 2**high, np.ones(1, np.float32)
    unsigned = Quantised(np.arange(n).astype(np.uint8), one, np.zeros(1, np.uint8), high, n)
    signed = Quantised(np.arange(-(n // 2), n // 2).astype(np.int8), one, None, high, n)
    for q in (unsigned, signed):
        for bits_low in range(1, high + 1):
            msb, lsb = split(q, bits_low)
            k = high - bits_low
            again = (msb << k) | lsb
            assert again.dtype == q.codes.dtype
            assert np.array_equal(again, q.codes)
            assert lsb.max() < 2**k
            assert msb.max() < 2 ** (bits_low - (q.symmetry == "symmetric"))


@pytest.mark.parametrize("bits", range(1, 9))
def test_equal_widths_lose_nothing(bits: int) -> None:
    w = np.random.default_rng(bits).standard_normal((40, 77)).astype(np.float32)
    for symmetry in ("asymmetric", "symmetric") if bits > 1 else ("asymmetric",):
        whole = dequantise(quantise(w, bits, scheme=symmetry))
        for name, scheme in SCHEMES.items():
            if scheme.symmetry == symmetry:
                assert np.array_equal(approximate(w, MAT(bits, bits), name), whole), name


def test_relative_errors_are_those_of_both_sources(weights: dict[str, np.ndarray]) -> None:
    one = [("gaussian", MAT(4, 2)), ("gaussian", MAT(8, 4))]
    other = [(name, MAT(8, bits)) for name in ("gaussian", "laplace") for bits in (4, 3, 2)]
    for cases, (scheme, expected) in [*((one, of) for of in GAUSSIAN.items()), *((other, of) for of in EIGHT_BITS.items())]:
        for (name, pair), value in zip(cases, expected, strict=True):
            assert relative_mse(weights[name], pair, scheme) == pytest.approx(value, rel=0.03), (scheme, name, pair)


@pytest.mark.parametrize("bits_low", range(1, 8))
def test_errors_of_every_code_once_are_the_closed_forms(bits_low: int) -> None:
    codes = np.arange(-128, 128, dtype=np.int8)
    q = Quantised(codes, np.ones(1, np.float32), None, 8, 256)
    k = 8 - bits_low
    truncated = low(q, bits_low, "trunc_sym") - codes
    assert (truncated.min(), truncated.max()) == (-(2**k - 1), 0)
    assert np.mean(truncated**2) == (2**k - 1) * (2 ** (k + 1) - 1) / 6
    unshifted = low(q, bits_low, "trunc_sym_unshifted") - codes  # every weight moves by as much as the midpoint stayed behind
    assert np.array_equal(unshifted - truncated, np.full(256, (2 ** (bits_low - 1) - 128) * 2.0**k))
    augmented = low(q, bits_low, "lsb_aug") - codes
    assert (augmented.min(), augmented.max()) == (-(2 ** (k - 1) - 1), 2 ** (k - 1))
    assert np.mean(augmented**2) == (2 ** (2 * k) + 2) / 12


@pytest.mark.parametrize("data", ["gaussian", "student-t", "laplace", "embedded"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_schemes_keep_their_order_and_the_bars_hold(weights: dict[str, np.ndarray], data: str, pair: MAT) -> None:
    """Bars of the specification on weight errors: SliceMoE, section 6."""
    errors = {scheme: relative_mse(weights[data], pair, scheme) for scheme in BY_ERROR}
    assert list(errors.values()) == sorted(set(errors.values())), errors
    assert 1.2 <= errors["amat"] / errors["base_asym"] <= 2.1
    assert errors["trunc_asym"] > 10


def obvious_amat(row: np.ndarray, pair: MAT, group: int) -> list[np.float32]:
    """Section 4.1 weight by weight, in float32."""
    f, top, k = np.float32, 2**pair.high - 1, pair.high - pair.low
    values = []
    for start in range(0, len(row), group):
        members = [f(w) for w in row[start : start + group]]
        lo, hi = min(f(0), *members), max(f(0), *members)
        s = max((hi - lo) / f(top), f(1e-12))
        zero_point = min(max(int(np.rint(-lo / s)), 0), top)
        for w in members:
            q = min(max(int(np.rint(w / s)) + zero_point, 0), top)
            values.append(f((q >> k) - (zero_point >> k)) * (s * f(2**k)))
    return values


floats = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 40)),
    elements=st.floats(-1e3, 1e3, width=32) | st.sampled_from([0.0, 0.5, -0.5, 1.0, -3.0]),
)
pairs = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda bits: MAT(max(bits), min(bits)))
groups = st.integers(1, 48)


@given(w=floats, pair=pairs, group=groups)
@settings(max_examples=100, deadline=None)
def test_amat_equals_the_scalar_loop(w: np.ndarray, pair: MAT, group: int) -> None:
    expected = np.array([obvious_amat(row, pair, group) for row in w], np.float32)
    assert np.array_equal(approximate(w, pair, "amat", group), expected)


@given(w=floats, pair=pairs, group=groups, scheme=st.sampled_from([*SCHEMES]))
@settings(max_examples=100, deadline=None)
def test_torch_gives_the_same_bits(w: np.ndarray, pair: MAT, group: int, scheme: str) -> None:
    torch = pytest.importorskip("torch")
    chosen = named(scheme)
    if chosen.symmetry == "symmetric" and chosen.stored_bits(pair) < 2:
        return
    there = torch.from_numpy(w)
    here, moved = (quantise(x, chosen.stored_bits(pair), group, chosen.symmetry) for x in (w, there))
    assert np.array_equal(here.codes, moved.codes.numpy())
    assert here.codes.dtype == moved.codes.numpy().dtype
    assert np.array_equal(here.scale.view(np.uint32), moved.scale.numpy().view(np.uint32))
    ours, theirs = approximate(w, pair, scheme, group), approximate(there, pair, scheme, group)
    assert np.array_equal(ours.view(np.uint32), theirs.numpy().view(np.uint32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_are_calculated_in_float32(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    w = torch.randn(3, 50, generator=torch.Generator().manual_seed(5)).to(getattr(torch, dtype))
    made = approximate(w, MAT(8, 4))
    assert made.dtype == torch.float32
    assert torch.equal(made, approximate(w.float(), MAT(8, 4)))


def test_a_stack_of_experts_that_is_not_contiguous_is_a_stack_of_matrices() -> None:
    torch = pytest.importorskip("torch")
    stack = torch.randn(3, 70, 20, generator=torch.Generator().manual_seed(6)).transpose(1, 2)
    together = approximate(stack, MAT(4, 2))
    assert together.shape == stack.shape
    assert torch.equal(together, torch.stack([approximate(matrix.contiguous(), MAT(4, 2)) for matrix in stack]))


@given(w=floats, bits=st.integers(2, 8), group=groups, symmetry=st.sampled_from(["asymmetric", "symmetric"]))
@settings(max_examples=100, deadline=None)
def test_codes_stay_in_range_and_weights_within_a_step(w: np.ndarray, bits: int, group: int, symmetry: str) -> None:
    q = quantise(w, bits, group, symmetry)
    lowest = 0 if symmetry == "asymmetric" else -(2 ** (bits - 1))
    assert q.codes.min() >= lowest
    assert q.codes.max() <= lowest + 2**bits - 1
    step = np.repeat(q.scale, group, axis=-1)[:, : w.shape[1]]
    # Both roundings may be half a step off where the zero point is rounded away from the end of the range.
    most = (1.0 if symmetry == "asymmetric" else 0.5) * step * (1 + 1e-5) + 1e-5 * np.abs(w)
    assert (np.abs(dequantise(q) - w) <= most).all()


@given(w=floats, pair=pairs, group=groups)
@settings(max_examples=100, deadline=None)
def test_zero_weights_stay_exactly_zero(w: np.ndarray, pair: MAT, group: int) -> None:
    for scheme in ("amat", "base_asym", "high_asym"):
        assert (approximate(w, pair, scheme, group)[w == 0] == 0).all(), scheme


@given(w=floats, pair=pairs, group=groups, scheme=st.sampled_from([n for n, s in SCHEMES.items() if s.symmetry == "asymmetric"]))
@settings(max_examples=100, deadline=None)
def test_groups_know_nothing_of_each_other(w: np.ndarray, pair: MAT, group: int, scheme: str) -> None:
    whole = approximate(w, pair, scheme, group)
    parts = [approximate(np.ascontiguousarray(w[:, i : i + group]), pair, scheme, group) for i in range(0, w.shape[1], group)]
    assert np.array_equal(whole, np.concatenate(parts, axis=1))


@pytest.mark.parametrize("bits", range(1, 9))
def test_constant_one_sided_and_empty_groups(bits: int) -> None:
    top = 2**bits - 1
    zeros = quantise(np.zeros((2, 5), np.float32), bits)
    assert not zeros.codes.any()
    assert not zeros.zero_point.any()
    assert not dequantise(zeros).any()
    for value, code, zero_point in ((0.7, top, 0), (-0.7, 0, top)):
        constant = quantise(np.full((1, 40), value, np.float32), bits)
        assert (constant.codes == code).all()
        assert (constant.zero_point == zero_point).all()
        assert dequantise(constant) == pytest.approx(np.full((1, 40), value), rel=1e-6)
    positive = quantise(np.linspace(1, 2, 32, dtype=np.float32), bits)
    assert positive.zero_point.tolist() == [0]
    assert positive.codes[-1] == top
    assert (low(positive, 1) >= 0).all()


def test_one_bit_is_zero_or_the_whole_range() -> None:
    assert approximate(np.array([-1, 3, 1.9, 2.1], np.float32), MAT(1, 1)).tolist() == [0, 4, 0, 4]
    assert approximate(np.array([-3, 1], np.float32), MAT(1, 1)).tolist() == [-4, 0]
    assert approximate(np.array([-1, 1], np.float32), MAT(1, 1)).tolist() == [0, 0]  # both ends round to even
    assert approximate(np.array([0, 3, 0, 3], np.float32), MAT(8, 1)).tolist() == pytest.approx([0, 128 * 3 / 255] * 2)


@pytest.mark.parametrize(
    ("w", "reason"),
    [
        (np.array([[0, 1], [np.nan, 2]], np.float32), r"value at \[1, 0\] is nan; weights must be finite"),
        (np.array([1, np.inf], np.float16), r"value at \[1\] is inf"),
        (np.arange(4), "floating point, got int64"),
        ([0.5, 1.0], "floating point, got list"),
        (np.zeros((3, 0), np.float32), r"nothing to quantise in an array of shape \(3, 0\)"),
        (np.float32(1).reshape(()), r"nothing to quantise in an array of shape \(\)"),
    ],
)
def test_weights_that_cannot_be_quantised_are_refused(w: np.ndarray, reason: str) -> None:
    for symmetry in ("asymmetric", "symmetric"):
        refuses(reason, quantise, w, 4, scheme=symmetry)


def test_ranges_beyond_float32_and_the_position_of_a_nan_are_named(recwarn: pytest.WarningsRecorder) -> None:
    refuses("a group spans more than float32 holds", quantise, np.array([-3e38, 3e38], np.float32), 8)
    assert not recwarn.list
    torch = pytest.importorskip("torch")
    w = torch.zeros(2, 3, 4)
    w[1, 2, 3] = float("nan")
    refuses(r"value at \[1, 2, 3\] is nan", quantise, w, 4)


def test_bad_settings_are_refused() -> None:
    w = np.ones(8, np.float32)
    for call, reason in (
        (lambda: quantise(w, 0), "asymmetric quantisation needs 1 to 8 bits, got 0"),
        (lambda: quantise(w, 9), "needs 1 to 8 bits, got 9"),
        (lambda: quantise(w, 1, scheme="symmetric"), "symmetric quantisation needs 2 to 8 bits, got 1"),
        (lambda: quantise(w, 4, group=0), "at least 1 weight, got 0"),
        (lambda: quantise(w, 4, scheme="signed"), "unknown quantisation 'signed'; known: asymmetric, symmetric"),
        (lambda: split(quantise(w, 4), 5), "1 <= low <= high <= 8, got high 4 and low 5"),
        (lambda: low(quantise(w, 4), 2, "amat2"), "unknown scheme 'amat2'; known: high_asym"),
        (lambda: low(quantise(w, 4), 2, "base_asym"), "quantised from the weights; use approximate"),
        (lambda: low(quantise(w, 4), 2, "lsb_aug"), "lsb_aug cuts symmetric codes, got asymmetric ones"),
        (lambda: low(quantise(w, 4, scheme="symmetric"), 2), "amat cuts asymmetric codes, got symmetric ones"),
    ):
        refuses(reason, call)


def test_pairs_are_read_and_written() -> None:
    assert MAT.parse("MAT84") == MAT(8, 4)
    assert MAT.parse(" mat63 ") == MAT(6, 3)
    assert str(MAT(4, 2)) == "MAT42"
    assert MAT(8, 3).dropped == 5
    for name in ("MAT48", "MAT90", "MAT80", "MAT8", "84", "MAT842"):
        refuses("widths", MAT.parse, name)
