"""Dense products on GPUs, by hand."""

import numpy as np
import pytest
from gpus import CONSTANTS_OF, TOY, shapes

from tokentape.hw.calibrate import gpu_of
from tokentape.hw.operators import OPERATORS
from tokentape.hw.spec import load

CYCLE = 1.755  # of the toy's clock, in that of the constants
gemm = OPERATORS["gemm"]
TOY_CONSTANTS = np.array([1e-6, 1.0, 1.0, 64.0, 1.0, 1.0])
CONSTANTS = CONSTANTS_OF["gemm"]
# In the measure of the 128x256 tile: (rows columns + 15 (rows + columns)) / (1 + 15 (128 + 256) / (128 256)).
MACS_128_128 = (128 * 128 + 15 * 256) / (1 + 15 * 384 / 32768)
MACS_64_64 = (64 * 64 + 15 * 128) / (1 + 15 * 384 / 32768)


def time(gpu, constants, m, n, k, **more):
    return gemm.seconds(gpu, constants, shapes(m=m, n=n, k=k, **more))


def test_one_wave_of_two_tiles_by_hand():
    """128 x 64 x 256 on two SMs: two 128x128 tiles, one step of k and one of overhead; 114,688 bytes at 1e12 B/s."""
    tiles_s = 2 * 64 * MACS_128_128 * 2 / 1e12
    memory_s = 2 * (128 * 64 + 64 * 256 + 128 * 256) / 1e12
    expected = CYCLE * 1e-6 + (tiles_s**2.5 + memory_s**2.5) ** 0.4
    assert np.isclose(time(TOY, TOY_CONSTANTS, 128, 256, 64), expected)
    assert gemm.regime(TOY, TOY_CONSTANTS, shapes(m=128, n=256, k=64)) == "compute"


def test_split_along_k_by_hand():
    """One 64x64 tile on two SMs: k of 256 in two parts of two steps, then a launch and 2 x 32 KiB of traffic to add them."""
    tiles_s, sums_s = 3 * 64 * MACS_64_64 * 2 / 1e12, 1e-6 + 2 * (2 * 64 * 64 * 4) / 3e12
    memory_s = 2 * (2 * 64 * 256 + 64 * 64) / 1e12
    constants = TOY_CONSTANTS / [CYCLE, 1, 1, 1, 1, 1]
    assert np.isclose(time(TOY, constants, 64, 64, 256), 1e-6 + (tiles_s**2.5 + memory_s**2.5) ** 0.4 + sums_s)


def test_all_sms_together_multiply_no_faster_than_power_allows():
    """Of two SMs half the peak: two tiles of 128x256 take as long as their operations do, one alone as before; 8 bits too."""
    half = TOY_CONSTANTS * [1, 1, 1, 1, 1, 0.5]
    memory_s = 2 * (256 * 4096 + 4096 * 256 + 256 * 256) / 1e12
    assert np.isclose(
        time(TOY, half, 256, 256, 4096), CYCLE * 1e-6 + ((2 * 256 * 256 * 4096 / 1e12) ** 2.5 + memory_s**2.5) ** 0.4
    )
    assert time(TOY, half, 128, 256, 64) == time(TOY, TOY_CONSTANTS, 128, 256, 64)
    eight = {
        name: np.array([value]) for name, value in {"m": 256, "n": 256, "k": 4096, "weight_bits": 8, "value_bits": 8}.items()
    }
    assert gemm.seconds(TOY, half, eight) == gemm.seconds(TOY, TOY_CONSTANTS, eight)


@pytest.mark.parametrize(("capability", "m", "tile"), [
    (8.9, 16, (16, 64)), (8.9, 17, (32, 64)), (8.9, 256, (64, 128)), (8.9, 257, (128, 128)),
    (9.0, 16, (16, 64)), (9.0, 17, (64, 64)), (9.0, 128, (64, 128)), (9.0, 129, (128, 128)),
    (10.0, 16, (32, 128)), (10.0, 257, (256, 128)), (12.0, 32, (32, 64)), (12.0, 256, (64, 64)), (12.0, 257, (128, 128)),
])  # fmt: skip
def test_eight_bit_operands_by_hand(capability, m, tile):
    """m x 256 x 512 on two SMs: the tile of vLLM's ladder alone, no split though tiles may be fewer than SMs, and the activations
    read in 16 bits and written in 8 by a kernel of its own."""
    rows, columns = tile
    n_tiles = -(-m // rows) * -(-256 // columns)
    macs = (rows * columns + 15 * (rows + columns)) / (1 + 15 * 384 / 32768)
    tiles_s = -(-n_tiles // 2) * 9 * 64 * macs * 2 / 1e12
    memory_s = (512 * 256 + m * 512 + 2 * m * 256) / 1e12
    expected = CYCLE * 1e-6 + (tiles_s**2.5 + memory_s**2.5) ** 0.4 + 3 * m * 512 / 1e12
    found = time(TOY._replace(capability=capability), TOY_CONSTANTS, m, 256, 512, weight_bits=8, value_bits=8)
    assert np.isclose(found, expected)


def test_weights_that_a_benchmark_meets_again_come_from_the_cache():
    """An L40S reads its L2 five times as fast as its memory: six copies of 8 MiB fit its 96 MiB, six of 32 MiB do not."""
    gpu = gpu_of(load("l40s"))
    for n, gain in ((1024, 2.0), (4096, 1.0)):
        cold, warm = (time(gpu, CONSTANTS, 1, n, 4096, weight_copies=copies)[0] for copies in (None, 6))
        assert (cold - CONSTANTS[0] * gpu.slower) / (warm - CONSTANTS[0] * gpu.slower) == pytest.approx(gain, rel=0.3)
        assert warm <= cold
