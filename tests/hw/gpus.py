"""What tests of operators have in common: GPUs that ship, toys whose SMs do 1e12 operations a second, constants."""

import numpy as np

from tokentape.hw.calibrate import gpu_of
from tokentape.hw.operators import Gpu
from tokentape.hw.spec import load

A100, H100 = (gpu_of(load(name)) for name in ("a100", "h100"))
TOY = Gpu(
    n_sms=2, clock_hz=1e9, peak_ops_per_s=2e12, peak_bytes_per_s=1e12, l2_bytes=1e9, smem_bytes_per_sm=164 * 2**10, capability=8.0
)
# Of both FlashAttention generations.
TOY2 = TOY._replace(l2_bytes=1)
TOY3 = TOY2._replace(smem_bytes_per_sm=227 * 2**10, capability=9.0)
BLACKWELL = H100._replace(capability=10.0)
CONSTANTS_OF = {
    "gemm": np.array([2.5e-6, 0.95, 0.85, 150.0, 1.2, 0.95]),
    "moe": np.array([2e-5, 0.9, 100.0, 0.95]),
    "prefill_attention": np.array([7e-6, 2e-6, 0.8, 0.7]),
    "decode_attention": np.array([5e-6, 1.5e-6, 2e-6, 2.5e-6, 0.9]),
}
DISTRIBUTIONS = ("balanced", "power_law_1.01", "power_law_1.2")


def shapes(**arguments):
    """Arguments of an operator as arrays of one length, without those that are None."""
    given = {name: np.asarray(values) for name, values in arguments.items() if values is not None}
    return {name: np.broadcast_to(values, max(of.size for of in given.values())) for name, values in given.items()}
