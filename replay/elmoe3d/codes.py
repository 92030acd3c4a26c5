"""How far the low bits of a sliced INT8 code are from the code: enumerated over all codes."""

from __future__ import annotations

import numpy as np

from tokentape.policies.matryoshka import low
from tokentape.policies.quantise import Quantised

LOW_BITS = 4


def error_ends(scheme: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Least and largest error over the codes that rounding does not saturate, and over all."""
    codes = np.arange(-128, 128)
    whole = Quantised(codes.astype(np.int8), np.ones(1, np.float32), None, 8, codes.size)
    errors = codes - low(whole, LOW_BITS, scheme).astype(np.float64)
    fitting = errors[codes < 127 - (2 ** (8 - LOW_BITS) // 2 - 1)]
    return (float(fitting.min()), float(fitting.max())), (float(errors.min()), float(errors.max()))
