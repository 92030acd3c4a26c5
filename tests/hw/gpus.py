"""GPUs that tests of operators ask for times: the two that ship, and one whose SMs do 1e12 operations a second."""

from tokentape.hw.calibrate import gpu_of
from tokentape.hw.operators import Gpu
from tokentape.hw.spec import load

A100, H100 = (gpu_of(load(name)) for name in ("a100", "h100"))
TOY = Gpu(
    n_sms=2, clock_hz=1e9, peak_ops_per_s=2e12, peak_bytes_per_s=1e12, l2_bytes=1e9, smem_bytes_per_sm=164 * 2**10, capability=8.0
)
