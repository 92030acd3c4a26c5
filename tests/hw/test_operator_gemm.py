"""Dense products on GPUs: by hand, properties, measured tables, and a plain roofline that must lose."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentape.hw.operators import gemm
from tokentape.hw.operators.fit import errors, fit
from tokentape.hw.operators.gpu import Gpu
from tokentape.hw.operators.parameter import Parameter

TABLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "gpu"
KIB, MIB = 2**10, 2**20
A100 = Gpu(
    n_sms=108, clock_hz=1.41e9, peak_ops_per_s=312e12, peak_bytes_per_s=2.039e12, l2_bytes=40 * MIB, smem_bytes_per_sm=164 * KIB
)
H100 = Gpu(
    n_sms=132, clock_hz=1.83e9, peak_ops_per_s=989.4e12, peak_bytes_per_s=3.35e12, l2_bytes=50 * MIB, smem_bytes_per_sm=227 * KIB
)
GPUS = {"a100_sxm_vllm0.14": A100, "h100_sxm_vllm0.19": H100}
OTHER = dict(zip(GPUS, reversed(GPUS), strict=True))
# One SM does 1e12 operations a second.
TOY = Gpu(n_sms=2, clock_hz=1e9, peak_ops_per_s=2e12, peak_bytes_per_s=1e12, l2_bytes=1e9, smem_bytes_per_sm=164 * KIB)
TOY_CONSTANTS = np.array([1e-6, 1.0, 1.0, 64.0, 1.0])
CONSTANTS = np.array([2.5e-6, 0.95, 0.85, 150.0, 1.2])
# In the measure of the 128x256 tile: (rows columns + 15 (rows + columns)) / (1 + 15 (128 + 256) / (128 256)).
MACS_128_128 = (128 * 128 + 15 * 256) / (1 + 15 * 384 / 32768)
MACS_64_64 = (64 * 64 + 15 * 128) / (1 + 15 * 384 / 32768)


def time(gpu, constants, m, n, k):
    m, n, k = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x)) for x in (m, n, k)))
    return gemm.seconds(gpu, constants, {"m": m, "n": n, "k": k})


@cache
def table(folder):
    path = TABLES / folder / "gemm_perf.parquet"
    if not path.exists():
        pytest.skip(f"no measured table {path.name}")
    rows = pq.read_table(path)
    rows = rows.filter(pc.equal(rows["gemm_dtype"], "bfloat16"))
    return {name: rows[name].to_numpy() for name in "mnk"}, rows["latency"].to_numpy() / 1e3


@cache
def fitted(folder):
    return fit(gemm, GPUS[folder], *table(folder))


def test_one_wave_of_two_tiles_by_hand():
    """128 x 64 x 256 on two SMs: two 128x128 tiles, one step of k and one of overhead; 114,688 bytes at 1e12 B/s."""
    tiles_s = 2 * 64 * MACS_128_128 * 2 / 1e12
    memory_s = 2 * (128 * 64 + 64 * 256 + 128 * 256) / 1e12
    expected = 1e-6 + (tiles_s**2.5 + memory_s**2.5) ** 0.4
    assert np.isclose(time(TOY, TOY_CONSTANTS, 128, 256, 64), expected)
    assert (
        gemm.regime(TOY, TOY_CONSTANTS, {name: np.array([x]) for name, x in zip("mnk", (128, 256, 64), strict=True)}) == "compute"
    )


def test_split_along_k_by_hand():
    """One 64x64 tile on two SMs: k of 256 in two parts of two steps, and a launch and 2 x 32 KiB of traffic to add them."""
    tiles_s = 3 * 64 * MACS_64_64 * 2 / 1e12 + 1e-6 + 2 * (2 * 64 * 64 * 4) / 3e12
    memory_s = 2 * (2 * 64 * 256 + 64 * 64) / 1e12
    assert np.isclose(time(TOY, TOY_CONSTANTS, 64, 64, 256), 1e-6 + (tiles_s**2.5 + memory_s**2.5) ** 0.4)


@pytest.mark.parametrize(
    ("shape", "expected"), [((1, 32, 32), "launch"), ((8192, 8192, 8192), "compute"), ((1, 16384, 16384), "memory")]
)
def test_regimes(shape, expected):
    assert gemm.regime(H100, CONSTANTS, {name: np.array([x]) for name, x in zip("mnk", shape, strict=True)}) == expected


SIZES = st.integers(1, 20_000)


@given(m=SIZES, n=SIZES, k=SIZES, gpu=st.sampled_from([A100, H100]))
@settings(max_examples=150, deadline=None)
def test_time_is_positive_and_rises_with_the_shape(m, n, k, gpu):
    """Doubling an axis never saves more than the 5 % by which a better tile or split may fit."""
    base = time(gpu, CONSTANTS, m, n, k)
    assert np.isfinite(base)
    assert base > CONSTANTS[0]
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert time(gpu, CONSTANTS, *larger) >= 0.95 * base


@given(m=SIZES, n=SIZES, k=SIZES)
@settings(max_examples=100, deadline=None)
def test_faster_gpus_take_no_longer(m, n, k):
    base = time(A100, CONSTANTS, m, n, k)
    ops, width = 2 * A100.peak_ops_per_s, 2 * A100.peak_bytes_per_s
    assert time(A100._replace(peak_ops_per_s=ops), CONSTANTS, m, n, k) <= base
    assert time(A100._replace(peak_bytes_per_s=width), CONSTANTS, m, n, k) <= base
    no_launch = CONSTANTS * np.array([0, 1, 1, 1, 1])
    doubled = A100._replace(peak_ops_per_s=ops, peak_bytes_per_s=width, clock_hz=2 * A100.clock_hz)
    assert np.allclose(2 * time(doubled, no_launch, m, n, k), time(A100, no_launch, m, n, k))


def test_a_tile_more_than_a_full_wave_costs_a_wave():
    """108 tiles of 128x256 fill the A100 once, 109 do not: rows in the tens cost more than 1.3 times, unlike in a roofline."""
    full, over = time(A100, CONSTANTS, 128 * 9, 256 * 12, 4096), time(A100, CONSTANTS, 128 * 10, 256 * 12, 4096)
    assert over > 1.3 * full


@pytest.mark.parametrize(
    ("shapes", "words"), [({"m": 1, "n": 1}, "no 'k'"), ({"m": 1, "n": 0, "k": 1}, "'n'.*row 0.*at least 1")]
)
def test_bad_shapes_are_named(shapes, words):
    with pytest.raises(ValueError, match=words):
        gemm.seconds(A100, CONSTANTS, {name: np.array([value]) for name, value in shapes.items()})


@pytest.mark.parametrize(("folder", "bar"), [("a100_sxm_vllm0.14", 0.10), ("h100_sxm_vllm0.19", 0.09)])
def test_error_on_the_rows_it_was_fitted_on(folder, bar):
    shapes, measured_s = table(folder)
    assert errors(gemm.seconds(GPUS[folder], fitted(folder), shapes), measured_s).mape_frac <= bar


@pytest.mark.parametrize(("folder", "bar"), [("a100_sxm_vllm0.14", 0.10), ("h100_sxm_vllm0.19", 0.09)])
def test_error_on_held_out_rows(folder, bar):
    shapes, measured_s = table(folder)
    held_out = np.arange(len(measured_s)) % 5 == 4
    constants = fit(gemm, GPUS[folder], {name: values[~held_out] for name, values in shapes.items()}, measured_s[~held_out])
    predicted_s = gemm.seconds(GPUS[folder], constants, {name: values[held_out] for name, values in shapes.items()})
    assert errors(predicted_s, measured_s[held_out]).mape_frac <= bar


@pytest.mark.parametrize("folder", GPUS)
def test_error_on_a_device_it_was_not_fitted_on(folder):
    shapes, measured_s = table(folder)
    predicted_s = gemm.seconds(GPUS[folder], fitted(OTHER[folder]), shapes)
    assert errors(predicted_s, measured_s).mape_frac <= 0.15


def plain_roofline(gpu, constants, shapes):
    launch_s, tensor_frac, bandwidth_frac = constants
    m, n, k = (np.asarray(shapes[name], dtype=np.float64) for name in "mnk")
    compute_s = 2 * m * n * k / (gpu.peak_ops_per_s * tensor_frac)
    return launch_s + np.maximum(compute_s, 2 * (m * k + k * n + m * n) / (gpu.peak_bytes_per_s * bandwidth_frac))


@pytest.mark.parametrize("folder", GPUS)
def test_a_roofline_without_tiles_is_worse(folder):
    operator = SimpleNamespace(
        NAME="roofline",
        PARAMETERS=(
            Parameter("launch_s", "s", 2.5e-6, 5e-7, 1e-5, ""),
            Parameter("tensor_frac", "frac", 0.7, 0.1, 1.0, ""),
            Parameter("bandwidth_frac", "frac", 0.7, 0.1, 1.0, ""),
        ),
        seconds=plain_roofline,
    )
    shapes, measured_s = table(folder)
    plain = errors(plain_roofline(GPUS[folder], fit(operator, GPUS[folder], shapes, measured_s), shapes), measured_s)
    tiled = errors(gemm.seconds(GPUS[folder], fitted(folder), shapes), measured_s)
    assert tiled.mape_frac < plain.mape_frac - 0.02
